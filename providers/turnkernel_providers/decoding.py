"""What the decoders of all wires share: from bytes of an event stream to model events. No I/O, no trio.

A decoder never raises and never gives up an event it has decoded: bytes go in at any split, model events come
out, and a failure of the stream is a value, `failure`, that the caller raises once it has passed on what came
before it. So the outcome depends on the bytes alone, not on how they were cut into reads.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from turnkernel.errors import ProviderError
from turnkernel.events import Delta, Stop
from turnkernel.provider import Finish, ModelEvent
from turnkernel.text import printable, scrub

from .failures import error_of_event, hide
from .sse import MOST_EVENT_BYTES, EventStreamDecoder, ServerSentEvent
from .wire_json import index_of, loads, table

__all__ = ["FAILED_STOPS", "Fragments", "WireDecoder", "counts_of", "stop_of"]

_STOPS: Mapping[str, Stop] = {
    "max_tokens": "max_tokens",
    "length": "max_tokens",
    "model_length": "max_tokens",
    "model_context_window_exceeded": "max_tokens",
    "refusal": "refusal",
    "content_filter": "refusal",
    "sensitive": "refusal",
    "safety": "refusal",
    "pause_turn": "pause_turn",
}

FAILED_STOPS = frozenset({"error", "network_error", "insufficient_system_resource"})
"""Stop reasons that say that the message is not whole."""


def stop_of(reason: str, *, calls: bool) -> Stop:
    """A wire's word for why the model stopped, in ours; what is none of the special ones ended well.

    Whether it then waits for results follows from what it said, not from the word: servers say `stop` with
    calls and `tool_calls` without.
    """
    return _STOPS.get(reason.lower()) or ("tool_use" if calls else "end_turn")


def counts_of(usage: object) -> dict[str, int]:
    """The token counts of a usage object, under our names; what is null or no number is left out."""
    found = table(usage)
    counts = {_COUNTS.get(name, name): number for name in found if (number := index_of(found[name])) is not None}
    for details, name, ours in _DETAILS:
        if (number := index_of(table(found.get(details)).get(name))) is not None:
            counts[ours] = number
    return counts


_COUNTS = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}
_DETAILS = (
    ("prompt_tokens_details", "cached_tokens", "cached_tokens"),
    ("completion_tokens_details", "reasoning_tokens", "reasoning_tokens"),
)


class Fragments:
    """The text of one block as it streams: free of lone surrogates, a pair that was cut in two joined again."""

    __slots__ = ("_half", "empty")

    def __init__(self) -> None:
        self._half: str = ""
        self.empty = True
        """Whether there was no text yet."""

    def add(self, text: str) -> str:
        """What may be shown now that this came."""
        text = self._half + text
        self._half = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        self.empty = self.empty and not text and not self._half
        return scrub(text)

    def end(self) -> str:
        """What is left to show at the end of the block."""
        half, self._half = self._half, ""
        return scrub(half)


class WireDecoder(ABC):
    """One response of one wire. Subclasses say what an event means, when the message is whole and how it ends."""

    wire: ClassVar[str]

    def __init__(self) -> None:
        self.failure: ProviderError | None = None
        """Why the stream failed; raise it when the events before it have been passed on."""
        self.finished = False
        """The `Finish` has been given; what still comes means nothing."""
        self.progress = 0
        """Grows whenever the model does something. Pings, comments and empty deltas are nothing."""
        self.usage: dict[str, int] = {}
        self._lines = EventStreamDecoder()
        self._out: list[ModelEvent] = []
        self._blocks = 0

    def __repr__(self) -> str:
        state = "finished" if self.finished else f"failed: {self.failure}" if self.failure else "open"
        return f"<{type(self).__name__} {state}, {self._blocks} blocks>"

    @property
    def over(self) -> bool:
        """Whether nothing more will come out."""
        return self.finished or self.failure is not None

    @property
    @abstractmethod
    def whole(self) -> bool:
        """Whether the message is whole and only the wire's last word is missing, which may never come."""

    @abstractmethod
    def _event(self, name: str, data: Mapping[str, Any]) -> None:
        """Take one event with JSON in it, which is no error."""

    @abstractmethod
    def _last_word(self) -> None:
        """The server says that it is done."""

    @abstractmethod
    def _eof(self) -> None:
        """The stream has ended in order. Finish if the message is whole."""

    def feed(self, data: bytes) -> list[ModelEvent]:
        """Take bytes; give what they say. After the end of the message nothing."""
        if self.over:
            return []
        for event in self._lines.feed(data):
            self._take(event)
            if self.over:
                break
        if self._lines.overlong and not self.over:
            self._fail(f"an event of more than {MOST_EVENT_BYTES} bytes", retryable=False)
        return self._given()

    def eof(self) -> list[ModelEvent]:
        """The stream has ended, or is not waited for any longer. Gives the `Finish` or leaves a `failure`."""
        if not self.over:
            self._lines.eof()
            self._eof()
        if not self.over:
            self._fail("the stream ended before the message did")
        return self._given()

    def _given(self) -> list[ModelEvent]:
        given, self._out = self._out, []
        return given

    def _take(self, event: ServerSentEvent) -> None:
        data = event.data.strip()
        if data == "[DONE]":
            self._last_word()
            return
        try:
            value = loads(data)
        except ValueError:
            self._lines.remember(data)
            if data.startswith(("{", "[")):  # to go on would be to lose a piece of the message without a word
                self._fail("an event that is no JSON")
            return
        fields = table(value)
        if not fields:
            self._lines.remember(data)
        elif event.event == "error" or fields.get("type") == "error" or fields.get("error"):
            self.failure = error_of_event(fields)
        else:
            self._event(event.event, fields)

    def _fail(self, why: str, *, retryable: bool = True) -> None:
        strange = self._lines.strange
        text = f"{why}; not understood: {hide(printable(strange))}" if strange else why
        self.failure = ProviderError(text, retryable=retryable)

    def _finish(self, stop: Stop) -> None:
        self._out.append(Finish(stop, self.usage or None))
        self.finished = True

    def _new_block(self) -> int:
        self._blocks += 1
        return self._blocks - 1

    def _say(self, delta: Delta) -> None:
        self._out.append(delta)
