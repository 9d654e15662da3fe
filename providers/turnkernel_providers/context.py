"""A context as the messages of a wire, by the wire's name. Pure, but for `TURNKERNEL_STRICT`."""

from collections.abc import Callable, Mapping
from typing import Any

from turnkernel.provider import Request

from .anthropic_request import anthropic_context
from .openai_chat_request import openai_chat_context

__all__ = ["WIRES", "messages_of"]

_CONTEXTS: Mapping[str, Callable[[Request, str], dict[str, Any]]] = {
    "anthropic": anthropic_context,
    "openai-chat": openai_chat_context,
}

WIRES = tuple(_CONTEXTS)
"""The wires that there are."""


def messages_of(request: Request, wire: str, model: str) -> dict[str, Any]:
    """What the model would be sent, as JSON: `{"system": ..., "messages": [...]}`.

    On `openai-chat` the system message, which is the first one there, is `system`. Thinking is in it only where
    `wire` and `model` are those that gave it. The request need not end with the user: a context may be asked
    for when nothing is to be sent.

    Raises:
        ValueError: no such wire.
        PairingError: the context breaks the laws, under `TURNKERNEL_STRICT=1`.
    """
    if wire not in _CONTEXTS:
        raise ValueError(f"no such wire: {wire!r}; there are {', '.join(WIRES)}")
    return _CONTEXTS[wire](request, model)
