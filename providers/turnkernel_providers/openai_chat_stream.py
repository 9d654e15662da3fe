"""The stream of Chat Completions, OpenAI's and the many compatible ones, from bytes to model events. No I/O.

Facts: OpenAI's reference and recorded streams of some twenty vendors. The message is whole when a finish reason
came. A few servers never send one; then `[DONE]`, or a chunk of usage alone, may stand for it, if the arguments
of every call are JSON objects. Reasoning is plain: nothing on this wire signs it. Of several choices only the
first is listened to.
"""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from turnkernel.events import Delta

from .decoding import FAILED_STOPS, Fragments, WireDecoder, counts_of, stop_of
from .openai_chat_calls import Calls
from .wire_json import index_of, listed, table, text_of

__all__ = ["OpenAIChatDecoder"]


class OpenAIChatDecoder(WireDecoder):
    """One response. See `WireDecoder`. `tools` are the names of the tools that were offered, to tell a name that
    comes in pieces from one that is repeated."""

    wire = "openai-chat"

    def __init__(self, tools: Collection[str] = ()) -> None:
        super().__init__()
        self._calls = Calls(frozenset(tools), self._new_block)
        self._choice: int | None = None
        self._part: Literal["text", "thinking"] | None = None
        self._number: int | None = None
        self._fragments = Fragments()
        self._said = False
        self._refused = False
        self._reason = ""
        self._counted = False

    @property
    def whole(self) -> bool:
        """A finish reason came; usage may follow."""
        return bool(self._reason)

    def _event(self, name: str, data: Mapping[str, Any]) -> None:
        counts = counts_of(data.get("usage")) or counts_of(table(data.get("x_groq")).get("usage"))
        self.usage = counts or self.usage  # the last one counts; vendors repeat it, with running totals
        choices = [table(choice) for choice in listed(data.get("choices"))]
        if counts and not choices and self._said:
            self._counted = True
            self.progress += 1
        for choice in choices:
            index = index_of(choice.get("index")) or 0
            if self._choice is None:
                self._choice = index
            if index == self._choice:
                self._listen(choice)

    def _listen(self, choice: Mapping[str, Any]) -> None:
        delta = table(choice.get("delta"))
        if not delta and not self._said:  # an answer that is no stream, sent as one event
            delta = table(choice.get("message"))
        self._fragment("thinking", text_of(delta.get("reasoning_content")) or text_of(delta.get("reasoning")))
        self._content(delta.get("content"))
        if refusal := text_of(delta.get("refusal")):
            self._refused = True
            self._fragment("text", refusal)
        for position, entry in enumerate(listed(delta.get("tool_calls"))):
            self._call(table(entry), first=position == 0)
        if reason := text_of(choice.get("finish_reason")):
            self._reason = reason
            self.progress += 1
            if reason in FAILED_STOPS:
                self._fail(f"the model stopped with {reason!r}")

    def _content(self, content: object) -> None:
        """Text, or Mistral's list of parts."""
        self._fragment("text", text_of(content))
        for part in map(table, listed(content)):
            if part.get("type") == "text":
                self._fragment("text", text_of(part.get("text")))
            elif part.get("type") == "thinking":
                inner = part.get("thinking")
                texts = [text_of(inner), *(text_of(table(piece).get("text")) for piece in listed(inner))]
                self._fragment("thinking", "".join(texts))

    def _fragment(self, part: Literal["text", "thinking"], text: str) -> None:
        if not text:
            return
        self.progress += 1
        self._said = True
        if part != self._part:
            self._end_part()
            self._part = part
        if shown := self._fragments.add(text):
            self._show(shown)

    def _show(self, text: str) -> None:
        assert self._part is not None
        if self._number is None:
            self._number = self._new_block()
        self._say(Delta(self._number, self._part, text))

    def _end_part(self) -> None:
        """Text or thinking is over: something else begins, or the message has ended."""
        if self._part is not None and (rest := self._fragments.end()):
            self._show(rest)
        if self._number is not None:
            self._say(Delta(self._number, "end"))
        self._part, self._number, self._fragments = None, None, Fragments()

    def _call(self, entry: Mapping[str, Any], *, first: bool) -> None:
        known = len(self._calls)
        deltas = self._calls.add(entry, first=first)
        if len(self._calls) > known:
            self._end_part()
            self._said = True
        if deltas or len(self._calls) > known or table(entry.get("function")).get("arguments"):
            self.progress += 1
        for delta in deltas:
            self._say(delta)

    def _last_word(self) -> None:
        """`[DONE]`."""
        self._counted = self._counted or self._said
        self._eof()
        if not self.over:
            why = "with a call whose arguments are no JSON object" if self._said else "without saying anything"
            self._fail(f"the stream ended without a finish reason and {why}")

    def _eof(self) -> None:
        if self._reason or (self._counted and self._calls.all_whole):
            self._end_part()
            for delta in self._calls.finish():
                self._say(delta)
            self._finish("refusal" if self._refused else stop_of(self._reason, calls=len(self._calls) > 0))
