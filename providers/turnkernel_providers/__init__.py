"""Providers of turnkernel: where model output comes from.

A provider is opened for one model and lives in its block: `async with open_anthropic("claude-...") as provider`.
"""

from .anthropic import AnthropicProvider, open_anthropic
from .context import WIRES, messages_of
from .http import Patience
from .keys import KEY_VARIABLES
from .openai_chat import OpenAIChatProvider, open_openai_chat
from .openai_chat_request import Dialect
from .pairing import PairingError

__all__ = [
    "KEY_VARIABLES",
    "WIRES",
    "AnthropicProvider",
    "Dialect",
    "OpenAIChatProvider",
    "PairingError",
    "Patience",
    "messages_of",
    "open_anthropic",
    "open_openai_chat",
]
