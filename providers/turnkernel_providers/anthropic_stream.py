"""The stream of Anthropic's Messages API, from bytes to model events. No I/O, no trio.

Facts: the vendor's streaming page and recorded streams. A message is whole when its stop reason is known and all
its blocks are closed; `message_stop` is then only politeness, and some gateways leave it out. A second
`message_start` with another id is another generation spliced into this one (it happens upstream): its blocks
can't be told from ours, so the stream has failed.
"""

from collections.abc import Mapping
from typing import Any

import attrs
import orjson

from turnkernel.events import Delta, Part

from .decoding import FAILED_STOPS, Fragments, WireDecoder, counts_of, stop_of
from .wire_json import as_text, index_of, listed, loads, scrubbed, table, text_of

__all__ = ["AnthropicDecoder"]

_PLAIN = ("text", "thinking", "redacted_thinking", "tool_use")
_FITS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "thinking"}
"""Which kind of block a delta belongs to; the others fit more than one."""


@attrs.define(eq=False)
class _Block:
    kind: str
    start: dict[str, Any]
    """As it began; of a block that we don't know, as it is by now."""
    number: int | None = None
    """Among the blocks that said something."""
    fragments: Fragments = attrs.Factory(Fragments)
    signature: str = ""
    json: str = ""
    """What has come of the input of a block that we don't know."""


class AnthropicDecoder(WireDecoder):
    """One response. See `WireDecoder`."""

    wire = "anthropic"

    def __init__(self) -> None:
        super().__init__()
        self._message: str | None = None
        self._open: dict[int | None, _Block] = {}
        self._seen: set[int | None] = set()
        self._reason = ""
        self._calls = False

    @property
    def whole(self) -> bool:
        """The stop reason is known and every block is closed."""
        return bool(self._reason) and not self._open

    def _event(self, name: str, data: Mapping[str, Any]) -> None:
        match text_of(data.get("type")) or name:
            case "message_start":
                self._begin(table(data.get("message")))
            case "content_block_start":
                self._open_block(index_of(data.get("index")), table(data.get("content_block")))
            case "content_block_delta":
                self._delta(index_of(data.get("index")), table(data.get("delta")))
            case "content_block_stop":
                self._close(index_of(data.get("index")))
            case "message_delta":
                self.usage |= counts_of(data.get("usage"))
                self._stop_reason(table(data.get("delta")).get("stop_reason"))
            case "message_stop":
                self._last_word()
            case _:  # ping, and what later versions of the wire may add
                pass

    def _begin(self, message: Mapping[str, Any]) -> None:
        ident = text_of(message.get("id"))
        if self._message is not None:
            if ident != self._message or (not ident and (self._blocks or self._open)):
                self._fail("a second message began inside the first")
            return
        self._message = ident
        self.progress += 1
        self.usage |= counts_of(message.get("usage"))
        for index, block in enumerate(listed(message.get("content"))):  # said before the stream began
            self._open_block(index, table(block))
            self._close(index)
        self._stop_reason(message.get("stop_reason"))

    def _stop_reason(self, reason: object) -> None:
        if text_of(reason):
            self._reason = text_of(reason)
            self.progress += 1

    def _open_block(self, index: int | None, start: Mapping[str, Any]) -> None:
        before = self._open.get(index)
        if before is not None:
            if before.start != start or before.number is not None:
                self._fail("a block began inside another")
            return
        self.progress += 1
        self._seen.add(index)
        kind = text_of(start.get("type"))
        block = self._open[index] = _Block(kind, dict(start))
        match kind:
            case "text":
                self._fragment(block, "text", text_of(start.get("text")))
            case "thinking":
                self._fragment(block, "thinking", text_of(start.get("thinking")))
                block.signature = text_of(start.get("signature"))
            case "tool_use":
                self._calls = True
                ident, name = text_of(start.get("id")), text_of(start.get("name"))
                self._say(Delta(self._number(block), "call", call=ident, name=name))
            case _:
                pass

    def _latest(self) -> int | None:
        """The index of the block that was opened last, of those that are open."""
        return next(reversed(self._open), None)

    def _delta(self, index: int | None, delta: Mapping[str, Any]) -> None:
        kind = text_of(delta.get("type"))
        fits = _FITS.get(kind)
        if index not in self._seen and self._open:
            index = self._latest()
        block = self._open.get(index)
        if block is None and fits is not None and index not in self._seen:
            self._open_block(index, {"type": fits})  # a gateway that announces no plain blocks
            block = self._open[index]
        if block is None or (fits not in (None, block.kind) and block.kind in _PLAIN):
            self._fail(f"a {kind} without its block")
        elif block.kind not in _PLAIN:
            self._unknown_delta(block, delta)
        elif kind == "text_delta":
            self._fragment(block, "text", text_of(delta.get("text")))
        elif kind == "thinking_delta":
            self._fragment(block, "thinking", text_of(delta.get("thinking")))
        elif kind == "signature_delta" and (signature := text_of(delta.get("signature"))):
            block.signature = signature
            self.progress += 1
        elif kind == "input_json_delta" and block.kind == "tool_use":
            self._fragment(block, "input", text_of(delta.get("partial_json")))

    def _unknown_delta(self, block: _Block, delta: Mapping[str, Any]) -> None:
        """A delta of a block that we give back as it came: texts grow, everything else is set."""
        self.progress += 1
        for name, value in delta.items():
            if name == "partial_json":
                block.json += text_of(value)
            elif name != "type":
                before = block.start.get(name)
                grows = isinstance(value, str) and isinstance(before, str)
                block.start[name] = f"{before}{value}" if grows else value

    def _number(self, block: _Block) -> int:
        if block.number is None:
            block.number = self._new_block()
        return block.number

    def _fragment(self, block: _Block, part: Part, text: str) -> None:
        if text:
            self.progress += 1
            if shown := block.fragments.add(text):
                self._say(Delta(self._number(block), part, shown))

    def _close(self, index: int | None) -> None:
        block = self._open.pop(self._latest() if index is None else index, None)
        if block is None:  # a repeat; it must not close the block that is open now
            return
        self.progress += 1
        rest = block.fragments.end()
        match block.kind:
            case "text":
                if rest:
                    self._say(Delta(self._number(block), "text", rest))
                self._end(block)
            case "thinking":
                self._close_thinking(block, rest)
            case "redacted_thinking":
                if data := text_of(block.start.get("data")):
                    self._say(Delta(self._number(block), "redacted", data))
                self._end(block)
            case "tool_use":
                self._close_call(block, rest)
            case _:
                self._close_unknown(block)

    def _end(self, block: _Block) -> None:
        if block.number is not None:
            self._say(Delta(block.number, "end"))

    def _close_thinking(self, block: _Block, rest: str) -> None:
        if not block.signature:  # without its proof it never goes back, so it is never whole
            return
        if rest or block.number is None:  # a server may keep the text to itself: thinking "" is legal (rule A20)
            self._say(Delta(self._number(block), "thinking", rest))
        self._say(Delta(self._number(block), "signature", block.signature))
        self._end(block)

    def _close_call(self, block: _Block, rest: str) -> None:
        given = table(block.start.get("input"))
        if block.fragments.empty and given:  # the whole input stood in the block's beginning
            rest = as_text(given)
        if rest:
            self._say(Delta(self._number(block), "input", rest))
        self._end(block)

    def _close_unknown(self, block: _Block) -> None:
        """A block that the kernel does not know, whole. One that is no JSON is left out, with its other half."""
        try:
            if block.json:
                block.start["input"] = loads(block.json)
            text = orjson.dumps(scrubbed(block.start)).decode()
        except (ValueError, TypeError):
            return
        self._say(Delta(self._number(block), "opaque", text))
        self._end(block)

    def _last_word(self) -> None:
        if not self._reason:
            self._fail("the stream ended without a stop reason")
            return
        for index, block in list(self._open.items()):
            if block.kind not in ("text", "thinking"):
                self._fail(f"the message ended inside a {block.kind}")
                return
            self._close(index)
        self._eof()

    def _eof(self) -> None:
        if self._reason in FAILED_STOPS:
            self._fail(f"the model stopped with {self._reason!r}")
        elif self.whole:
            self._finish(stop_of(self._reason, calls=self._calls))
