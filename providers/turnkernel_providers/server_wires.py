"""What the model server answers with: a scripted reply as the pieces of an HTTP body. Pure; touches nothing.

A `Script` is one whole answer: status, headers, the pieces that go out one by one, and what breaks after them.
What a wire says is in its own module; here is how it is cut up, which is the same for all of them.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from itertools import accumulate, pairwise
from typing import Any, Literal, Protocol

import attrs

from turnkernel.testing.replies import Reply

from .strict import Refusal

__all__ = ["Asked", "Break", "Script", "Wire", "data_of", "default_text", "error_script", "script", "sse"]

Break = Literal["reset", "cut", "stall"]
Json = Mapping[str, Any]


@attrs.frozen
class Asked:
    """What of a request shows in its answer."""

    number: int
    """Which request of the server it is, from 1; ids follow from it."""
    model: str
    input_tokens: int
    wants_usage: bool = False
    """Chat Completions tells usage only when asked to."""


@attrs.frozen
class Script:
    """One HTTP answer, ready to be played."""

    status: int
    headers: Sequence[tuple[str, str]]
    pieces: Sequence[bytes]
    """Each is a socket write and, when it streams, an HTTP chunk of its own."""
    pace: float = 0.0
    """Seconds between pieces."""
    breaks: Break | None = None
    """What happens after the last piece instead of the end. With no piece it happens before the head is sent."""


class Wire(Protocol):
    """What a wire's module says of the wire."""

    @property
    def path(self) -> str:
        """Where requests are posted to."""
        ...

    @property
    def needs(self) -> Sequence[str]:
        """Fields without which a request is refused."""
        ...

    def check(self, body: Json) -> Refusal | None:
        """Whether the vendor would refuse a request body."""
        ...

    def asked(self, number: int, body: Json, size: int) -> Asked:
        """What of a request of `size` bytes shows in its answer."""
        ...

    def events(self, reply: Reply, asked: Asked) -> list[bytes]:
        """A whole stream, one SSE event an item."""
        ...

    def is_terminal(self, data: str) -> bool:
        """Whether an event's data says how the message ended."""
        ...

    def overloaded(self, asked: Asked) -> bytes:
        """The event that says, in the middle of a stream, that the server can't go on."""
        ...

    def given(self, asked: Asked, events: Sequence[bytes]) -> None:
        """Told of the stream that a request is about to be given."""
        ...

    def error(self, status: int, text: str, number: int) -> Json:
        """An error in the vendor's envelope."""
        ...

    def headers(self, number: int) -> list[tuple[str, str]]:
        """Headers that every answer bears."""
        ...


def sse(data: Json | str, event: str | None = None) -> bytes:
    """One server-sent event. JSON is compact and in raw UTF-8; a lone surrogate makes it escaped ASCII."""
    if not isinstance(data, str):
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        try:
            text.encode()
        except UnicodeEncodeError:
            text = json.dumps(data, separators=(",", ":"))
        data = text
    return (f"event: {event}\n" if event else "").encode() + f"data: {data}\n\n".encode()


def data_of(event: bytes) -> str:
    """The data of one server-sent event, "" if it has none."""
    lines = event.decode("utf-8", "replace").splitlines()
    return "\n".join(line.removeprefix("data:").removeprefix(" ") for line in lines if line.startswith("data:"))


def _split_events(raw: bytes) -> list[bytes]:
    ends = [found.end() for found in re.finditer(rb"\r\n\r\n|\n\n|\r\r", raw)]
    bounds = [0, *ends, len(raw)]
    return [raw[start:end] for start, end in pairwise(bounds) if start < end]


def _cut(events: Sequence[bytes], at: int) -> list[bytes]:
    """The events up to a byte; the last one may be a part."""
    starts = accumulate((len(event) for event in events), initial=0)
    return [event[: at - start] for start, event in zip(starts, events, strict=False) if start < at]


def _broken(events: list[bytes], reply: Reply, terminal: Callable[[str], bool], error: bytes) -> list[bytes]:
    """What is sent of a stream that has a fault."""
    if reply.after_bytes is not None:
        at = reply.after_bytes
    else:
        first = next((i for i, event in enumerate(events) if terminal(data_of(event))), len(events))
        at = sum(len(event) for event in events[:first])
    if reply.fault != "overloaded":
        return _cut(events, at)
    # An error event can only begin where another has ended: the event that the cut falls into is sent whole.
    ends = list(accumulate((len(event) for event in events), initial=0))
    return [*_cut(events, next((end for end in ends if end >= at), ends[-1])), error]


def _recut(events: Sequence[bytes], size: int) -> list[bytes]:
    body = b"".join(events)
    return [body[start : start + size] for start in range(0, len(body), size)]


def _with(headers: Sequence[tuple[str, str]], other: Mapping[str, str]) -> list[tuple[str, str]]:
    named = {name.lower() for name in other}
    return [(name, value) for name, value in headers if name not in named] + [
        (name.lower(), value) for name, value in other.items()
    ]


def script(wire: Wire, reply: Reply, asked: Asked) -> Script:
    """The answer to one request that takes a reply.

    A fault stands just before the event that says how the message ended, or after `after_bytes` of the body.
    `eof` and `overloaded` are an ordinary end of the HTTP body. After 0 bytes, `stall`, `reset` and `cut` come
    before the head too: the client gets nothing at all.
    """
    if reply.status != HTTPStatus.OK:
        return _http_error(wire, reply, asked)
    events = _split_events(reply.raw) if reply.raw is not None else wire.events(reply, asked)
    if reply.fault is not None:
        events = _broken(events, reply, wire.is_terminal, wire.overloaded(asked))
    wire.given(asked, events)
    headers = [("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-cache")]
    return Script(
        status=reply.status,
        headers=_with([*headers, *wire.headers(asked.number)], reply.headers),
        pieces=_recut(events, reply.piece_bytes) if reply.piece_bytes else events,
        pace=reply.pace,
        breaks=None if reply.fault in ("eof", "overloaded") else reply.fault,
    )


def default_text(status: int) -> str:
    """What an HTTP error says when its reply has no body."""
    known = {400: "Invalid request", 429: "Rate limit exceeded", 500: "Internal server error", 529: "Overloaded"}
    return known.get(status) or (HTTPStatus(status).phrase if status in list(HTTPStatus) else "Error")


def _http_error(wire: Wire, reply: Reply, asked: Asked) -> Script:
    if isinstance(reply.body, str):
        plain = [("content-type", "text/plain; charset=utf-8"), *wire.headers(asked.number)]
        body = reply.body.encode("utf-8", "replace")
        return Script(reply.status, _with([*plain, ("content-length", str(len(body)))], reply.headers), [body])
    table = (
        reply.body
        if reply.body is not None
        else wire.error(reply.status, default_text(reply.status), asked.number)
    )
    return _json_script(wire, reply.status, table, asked.number, reply.headers)


def error_script(wire: Wire, status: int, text: str, number: int) -> Script:
    """An HTTP error in the vendor's envelope."""
    return _json_script(wire, status, wire.error(status, text, number), number, {})


def _json_script(wire: Wire, status: int, table: Json, number: int, headers: Mapping[str, str]) -> Script:
    body = json.dumps(table).encode()
    own = [("content-type", "application/json"), *wire.headers(number), ("content-length", str(len(body)))]
    return Script(status, _with(own, headers), [body])
