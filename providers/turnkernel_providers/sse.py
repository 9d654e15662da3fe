"""Event streams (text/event-stream) from bytes to events. No I/O; touches nothing.

The rules are those of the WHATWG HTML standard, section 9.2.6, on bytes, because a read may end anywhere: in a
character, between CR and LF, in the byte order mark. Beyond them it remembers what the standard drops silently,
because real servers report their failure there: lines that are no field of the standard (`error: {...}`, bare
JSON, a whole HTML page) and the event that the end of the stream left without its empty line.
Why not httpx-sse: docs/decisions/0002-own-sse-decoder.md.
"""

import re
from collections import deque

import attrs

from turnkernel.text import clip

__all__ = ["MOST_EVENT_BYTES", "EventStreamDecoder", "ServerSentEvent"]

MOST_EVENT_BYTES = 32 * 1024 * 1024
"""One event may be so long; a server that sends more in one is broken or hostile."""

_LINE_END = re.compile(rb"[\r\n]")
_LF = 0x0A
_BOM = b"\xef\xbb\xbf"
_REMEMBERED_LINES = 8
_REMEMBERED_BYTES = 500


@attrs.frozen
class ServerSentEvent:
    """One event of a stream."""

    event: str
    """Its name; `message` when it has none."""
    data: str
    """Its data lines, joined by newlines. Never empty lines only: such an event is none."""


class EventStreamDecoder:
    """Bytes in at any split, events out as soon as their empty line is there."""

    __slots__ = ("_after_cr", "_buffer", "_data", "_name", "_scanned", "_size", "_started", "_strange", "overlong")

    def __init__(self) -> None:
        self.overlong = False
        """An event was longer than `MOST_EVENT_BYTES`; nothing is decoded any more."""
        self._buffer = bytearray()
        self._scanned = 0
        self._after_cr = False
        self._started = False
        self._name = ""
        self._data: list[str] = []
        self._size = 0
        self._strange: deque[str] = deque(maxlen=_REMEMBERED_LINES)

    def __repr__(self) -> str:
        return f"<EventStreamDecoder, {len(self._buffer)} bytes of a line waiting>"

    @property
    def strange(self) -> str:
        """For a person: the last lines not understood, and after `eof()` the event that was cut off."""
        return "\n".join(self._strange)

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Take bytes; give the events that they complete. Raises nothing, whatever the bytes."""
        events: list[ServerSentEvent] = []
        if self.overlong:
            return events
        self._buffer += data
        start = 0
        found = _LINE_END.search(self._buffer, self._scanned)
        while found is not None and not self.overlong:
            end = found.start()
            is_lf = self._buffer[end] == _LF
            if not (is_lf and self._after_cr and end == start):
                self._line(bytes(self._buffer[start:end]), events)
            self._after_cr = not is_lf
            start = end + 1
            found = _LINE_END.search(self._buffer, start)
        del self._buffer[:start]
        self._scanned = len(self._buffer)
        self.overlong = self.overlong or self._size + self._scanned > MOST_EVENT_BYTES
        return events

    def eof(self) -> None:
        """The stream has ended. What has no empty line after it is no event, and is remembered."""
        rest = [*self._data, self._buffer.decode("utf-8", "replace")]
        if text := "\n".join(line for line in rest if line):
            self.remember(text)
        self._buffer.clear()
        self._data.clear()

    def remember(self, line: str) -> None:
        """Keep a line that means nothing, for the report should the stream fail."""
        self._strange.append(clip(line, _REMEMBERED_BYTES))

    def _line(self, line: bytes, events: list[ServerSentEvent]) -> None:
        if not self._started:
            self._started = True
            line = line.removeprefix(_BOM)
        if not line:
            self._dispatch(events)
            return
        if self._size + len(line) > MOST_EVENT_BYTES:
            self.overlong = True
            return
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            text = line.decode("utf-8", "replace")
            self.remember(text)
        name, _, value = text.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "data":
                self._data.append(value)
                self._size += len(line)
            case "event":
                self._name = value
            case "" | "id" | "retry":  # a comment, and what only a browser needs
                pass
            case _:
                self.remember(text)

    def _dispatch(self, events: list[ServerSentEvent]) -> None:
        if any(self._data):
            events.append(ServerSentEvent(self._name or "message", "\n".join(self._data)))
        self._name = ""
        self._data = []
        self._size = 0
