"""A log to the context that a model is sent. No trio, no I/O; pure.

The context is a fold: the same events give the same messages, and a block that is there is never changed, moved
or removed by a later event (law C6). Texts that the kernel made up come from the events, never from a wording.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import cast, overload

import attrs

from .events import (
    InboxCanceled,
    InboxConsumed,
    InboxQueued,
    ModelMessage,
    Record,
    StepEnd,
    TaskEnded,
    ToolResult,
    TurnEnd,
)
from .messages import Message, Text, Thinking, ToolResultBlock, ToolUse, UserBlock

__all__ = ["Context", "Messages", "for_model"]


class Messages(Sequence[Message]):
    """The messages of a session as they stood once. What is said later does not change them.

    Nothing is copied: a context only grows, and of what is there only the last message is ever replaced, by a
    longer one. So a request costs the same after ten turns and after ten thousand.
    """

    __slots__ = ("_end", "_last", "_messages")

    def __init__(self, messages: Sequence[Message]) -> None:
        """Of a list that its owner changes in no other way than that."""
        self._messages = messages
        self._end = len(messages) - 1
        self._last = messages[-1:]

    def __len__(self) -> int:
        return self._end + 1

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Message, ...]: ...

    def __getitem__(self, index: int | slice) -> Message | tuple[Message, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        index = range(self._end + 1)[index]
        return self._last[0] if index == self._end else self._messages[index]

    def __iter__(self) -> Iterator[Message]:
        yield from itertools.islice(self._messages, max(self._end, 0))
        yield from self._last

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Messages | tuple) and tuple(self) == tuple(cast("Sequence[object]", other))

    def __repr__(self) -> str:
        return repr(tuple(self))


class Context:
    """The messages of a session, kept up to date event by event."""

    __slots__ = ("_calls", "_messages", "_queued", "_reminder", "_results", "size")
    types = frozenset(
        (
            "inbox/queued",
            "inbox/canceled",
            "inbox/consumed",
            "model/message",
            "tool/result",
            "step/end",
            "turn/end",
            "task/ended",
        )
    )

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._queued: dict[str, str] = {}
        self._calls: tuple[str, ...] = ()
        self._results: dict[str, ToolResultBlock] = {}
        self._reminder: str | None = None
        self.size = 0
        """Characters in all blocks together."""

    def __repr__(self) -> str:
        return f"<Context of {len(self._messages)} messages, {self.size} characters>"

    def copy(self) -> "Context":
        """A context that goes its own way from here."""
        other = Context()
        other._messages, other._queued = list(self._messages), dict(self._queued)
        other._calls, other._results = self._calls, dict(self._results)
        other._reminder, other.size = self._reminder, self.size
        return other

    @property
    def messages(self) -> "Messages":
        """The messages as they stand, and will for whoever has asked: user first, roles alternating."""
        return Messages(self._messages)

    @property
    def tokens(self) -> int:
        """An estimate of the context's size in tokens: a quarter of its characters, rounded up.

        Coarse on purpose: it refuses what is far over a limit; a model's own refusal covers the rest.
        """
        return -(-self.size // 4)

    def apply(self, record: Record) -> None:
        """Take in the next event."""
        event = record.event
        match event:
            case ToolResult():
                self._results[event.call] = ToolResultBlock(event.call, event.name, event.text, event.is_error)
            case InboxQueued() | TaskEnded():
                self._queued[event.item] = event.text
            case InboxCanceled():
                del self._queued[event.item]
            case InboxConsumed():
                self._say(self._reminder, self._queued.pop(event.item))
                self._reminder = None
            case ModelMessage():
                self._answer(event)
            case StepEnd():
                # Results stand in model order, whatever order they came in.
                self._add_user([self._results[call] for call in self._calls])
                self._calls, self._results = (), {}
                self._say(event.note)
            case TurnEnd():
                if event.reminder is not None:
                    # Two turns may be cut before the user speaks again; both are told.
                    self._reminder = "\n".join(filter(None, (self._reminder, event.reminder)))
            case _:
                pass

    def _say(self, *texts: str | None) -> None:
        self._add_user([Text(text) for text in texts if text])

    def _answer(self, event: ModelMessage) -> None:
        self._calls = tuple([block.id for block in event.blocks if isinstance(block, ToolUse)])
        if event.blocks:
            self._messages.append(Message("assistant", event.blocks, event.wire, event.model))
            self.size += sum([_size(block) for block in event.blocks])

    def _add_user(self, blocks: Sequence[UserBlock]) -> None:
        if not blocks:
            return
        self.size += sum(_size(block) for block in blocks)
        if self._messages and self._messages[-1].role == "user":
            self._messages[-1] = Message("user", (*self._messages[-1].blocks, *blocks))
        else:
            self._messages.append(Message("user", tuple(blocks)))


def _size(block: object) -> int:
    match block:
        case Text() | ToolResultBlock():
            return len(block.text)
        case Thinking():
            return len(block.text) + len(block.signature or "") + len(block.redacted or "")
        case ToolUse():
            return len(block.name) + len(str(block.input))
        case _:
            return len(str(block))


def for_model(messages: Sequence[Message], wire: str, model: str) -> tuple[Message, ...]:
    """The messages as one wire and model may be sent them.

    Thinking and opaque blocks go back only to the wire and model that made them (law C4). A message that this
    empties is left out, and what then stands side by side is one message.
    """
    fit: list[Message] = []
    for message in messages:
        if message.role == "assistant" and (message.wire, message.model) != (wire, model):
            kept = tuple(block for block in message.blocks if isinstance(block, Text | ToolUse))
            message = attrs.evolve(message, blocks=kept)
        if not message.blocks:
            continue
        if fit and fit[-1].role == message.role:
            fit[-1] = attrs.evolve(fit[-1], blocks=(*fit[-1].blocks, *message.blocks))
        else:
            fit.append(message)
    return tuple(fit)
