"""The environment variables that hold API keys. Pure; touches nothing.

Named once, below both sides: providers read them, and whoever starts a process takes them out of its environment.
A new provider adds its variable here.
"""

__all__ = ["ANTHROPIC_KEY", "KEY_VARIABLES", "OPENAI_KEY"]

ANTHROPIC_KEY = "ANTHROPIC_API_KEY"
OPENAI_KEY = "OPENAI_API_KEY"
KEY_VARIABLES = (ANTHROPIC_KEY, OPENAI_KEY)
"""All of them."""
