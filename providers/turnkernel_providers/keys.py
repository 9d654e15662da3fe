"""Where API keys come from. Reads the environment; touches nothing else.

A key is never shown: not in a repr, not in an error, not in a log. Tools don't see them either: see
`turnkernel.keys`.
"""

import os

from turnkernel.keys import ANTHROPIC_KEY, KEY_VARIABLES, OPENAI_KEY

__all__ = ["ANTHROPIC_KEY", "KEY_VARIABLES", "OPENAI_KEY", "key_from"]


def key_from(given: str | None, variable: str, *, needed: bool) -> str:
    """The key given, else the one in the environment; `""` where there is none and none is needed.

    Raises:
        ValueError: a key is needed and there is none, or it can't stand in a header. Does not quote it.
    """
    key = (given if given is not None else os.environ.get(variable, "")).strip()
    if needed and not key:
        raise ValueError(f"no API key: give one or set {variable}")
    if not (key.isascii() and (key.isprintable() or not key)) or " " in key:
        raise ValueError(f"the API key (argument or {variable}) has characters that no key has")
    return key
