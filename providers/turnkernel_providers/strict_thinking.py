"""The thinking that a model server has given, so that it knows its own again. Pure; touches nothing.

A real API proves thinking by a signature that only it can make. Here the signature follows from the model and
the text, so scripted thinking is known again by any server; what a recording brought is remembered.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from .strict import text_of

__all__ = ["Thoughts", "is_thinking", "sign"]

Thought = tuple[str, str, str]


def sign(model: str, thinking: str) -> str:
    """The signature of a scripted thinking of a model, base64."""
    seal = hashlib.sha256(f"turnkernel {model}\0{thinking}".encode("utf-8", "surrogatepass"))
    return base64.b64encode(seal.digest()).decode()


def is_thinking(block: Mapping[str, Any]) -> bool:
    """Whether a block of Anthropic's wire is thinking, plain or encrypted."""
    return block.get("type") in ("thinking", "redacted_thinking")


def _thought(block: Mapping[str, Any]) -> Thought:
    return text_of(block.get("thinking")), text_of(block.get("signature")), text_of(block.get("data"))


class Thoughts:
    """A memory of thinking blocks, message by message."""

    __slots__ = ("_known", "_messages")

    def __init__(self) -> None:
        self._messages: dict[str, list[list[Thought]]] = {}
        self._known: set[tuple[str, Thought]] = set()

    def __repr__(self) -> str:
        return f"<Thoughts: {len(self._known)} blocks>"

    def remember(self, model: str, blocks: Sequence[Mapping[str, Any]]) -> None:
        """Keep the thinking blocks of one message that a model is giving, in order."""
        thoughts = [_thought(block) for block in blocks]
        if thoughts:
            self._messages.setdefault(model, []).append(thoughts)
            self._known.update((model, thought) for thought in thoughts)

    def genuine(self, model: str, block: Mapping[str, Any]) -> bool:
        """Whether the model gave this very block."""
        thought = _thought(block)
        text, signature, data = thought
        return (model, thought) in self._known or (not data and signature == sign(model, text))

    def in_order(self, model: str, blocks: Sequence[Mapping[str, Any]]) -> bool:
        """Whether genuine blocks stand as one message of the model had them, from its first block on.

        The tail may be missing: a message that was cut has lost it. Of a single block that is not remembered
        (another server gave it) nothing is known against it.
        """
        thoughts = [_thought(block) for block in blocks]
        if any(message[: len(thoughts)] == thoughts for message in self._messages.get(model, ())):
            return True
        return len(thoughts) < 2 and not any((model, thought) in self._known for thought in thoughts)
