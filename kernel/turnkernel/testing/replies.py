"""Scripted model replies: what a `[[reply]]` of a scenario says, independent of how it is delivered. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import attrs
import orjson

from ..checks import number, one_of, whole
from ..events import Delta, Stop
from ..provider import Finish, ModelEvent

__all__ = ["Fault", "Reply", "ReplyCall", "model_events"]

Fault = Literal["reset", "cut", "eof", "stall", "overloaded"]


@attrs.frozen
class ReplyCall:
    """A call that the scripted model asks for."""

    id: str
    name: str
    input: Mapping[str, Any] = attrs.Factory(dict)  # type: ignore[type-arg]
    raw_input: str | None = None
    """Sent as the input, as it stands, instead of `input`."""

    @property
    def arguments(self) -> str:
        """The input as the text that streams."""
        return self.raw_input if self.raw_input is not None else orjson.dumps(dict(self.input)).decode()


@attrs.frozen
class Reply:
    """One answer of a scripted model to one HTTP request. Fields as in docs/scenarios.md.

    Raises TypeError or ValueError for what no reply can say.
    """

    thinking: str | None = None
    text: str | None = None
    calls: Sequence[ReplyCall] = ()
    stop: Stop | None = None
    """Default: `tool_use` with calls, else `end_turn`."""
    pace: float = 0.0
    """Seconds between pieces."""
    piece_bytes: int | None = None
    """Cut the body every so many bytes; default: one event a piece."""
    after_bytes: int | None = None
    """Do `fault` after so many bytes; default: just before the terminal event."""
    fault: Fault | None = None
    raw: bytes | None = None
    """These bytes as the body instead of what is said."""
    status: int = 200
    body: str | Mapping[str, Any] | None = None
    """With an HTTP error: the body; a table is sent as JSON."""
    headers: Mapping[str, str] = attrs.Factory(dict)  # type: ignore[type-arg]

    def __attrs_post_init__(self) -> None:
        for name in ("thinking", "text"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise TypeError(f"{name} must be a str, not {value!r}")
        for place, call in enumerate(self.calls):
            if not isinstance(call, ReplyCall):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped programs
                raise TypeError(f"calls[{place}] must be a ReplyCall, not {call!r}")
        one_of("stop", self.stop, (*get_args(Stop), None))
        one_of("fault", self.fault, (*get_args(Fault), None))
        number("pace", self.pace)
        whole("piece_bytes", self.piece_bytes, least=1, optional=True)
        whole("after_bytes", self.after_bytes, optional=True)
        whole("status", self.status, least=200)

    @property
    def stops(self) -> Stop:
        """The stop reason in force."""
        return self.stop or ("tool_use" if self.calls else "end_turn")


def words(text: str) -> list[str]:
    """A text cut into words, white space kept with the word before it."""
    pieces: list[str] = []
    for char in text:
        if pieces and (char.isspace() or not pieces[-1][-1].isspace()):
            pieces[-1] += char
        else:
            pieces.append(char)
    return pieces


def fragments(text: str, most: int = 8) -> list[str]:
    """A text cut into pieces of at most `most` bytes of UTF-8, characters kept whole."""
    pieces: list[str] = []
    size = most
    for char in text:
        width = len(char.encode("utf-8", "replace"))
        if size + width > most:
            pieces.append("")
            size = 0
        pieces[-1] += char
        size += width
    return pieces


def model_events(reply: Reply) -> list[ModelEvent]:
    """The model events of a reply that says something: a delta per word, a fragment per 8 bytes of input."""
    events: list[ModelEvent] = []
    block = 0
    if reply.thinking is not None:
        events += [Delta(block, "thinking", piece) for piece in words(reply.thinking)]
        events += [Delta(block, "signature", "c2NyaXB0ZWQ="), Delta(block, "end")]
        block += 1
    if reply.text is not None:
        events += [Delta(block, "text", piece) for piece in words(reply.text)]
        events.append(Delta(block, "end"))
        block += 1
    for call in reply.calls:
        events.append(Delta(block, "call", call=call.id, name=call.name))
        events += [Delta(block, "input", piece) for piece in fragments(call.arguments)]
        events.append(Delta(block, "end"))
        block += 1
    events.append(Finish(reply.stops))
    return events
