"""Deltas of one message to its blocks. No trio, no I/O; pure.

The same function serves a message that came whole, one that a cancel or a broken stream cut, and one that is
put together again from the log after a crash.
"""

from collections.abc import Collection, Iterable

import attrs

from .codec import parse_object
from .events import Delta, ModelDelta
from .ids import call_id
from .messages import AssistantBlock, Opaque, Text, Thinking, ToolUse
from .text import clip, is_blank, scrub

__all__ = ["INTERRUPTED", "assemble"]

INTERRUPTED = " [interrupted]"
"""Ends the last text of a message that was cut."""


@attrs.define
class _Building:
    kind: str
    texts: list[str] = attrs.Factory(list)  # type: ignore[type-arg]
    signature: str | None = None
    call: str = ""
    name: str = ""
    ended: bool = False


def assemble(
    deltas: Iterable[Delta | ModelDelta], *, cut: bool, taken: Collection[str]
) -> tuple[AssistantBlock, ...]:
    """The blocks of a message, fit for any context (laws C3 and C4); empty if nothing of it can stand.

    `taken` holds the call ids that the session knows already. Of a message that was cut: whole calls and whole
    thinking stay, a call whose input was cut goes, the last text ends with ` [interrupted]`. In every message:
    blank text goes, calls come last, thinking does not come last.

    Raises ValueError for an opaque block of a whole message that is no JSON object: a provider's fault that can't
    be mended, because the block must be given back as it came. A cut message raises nothing, whatever is in it.
    """
    said: list[AssistantBlock] = []
    calls: list[ToolUse] = []
    ids: set[str] = set()
    for building in _gather(deltas):
        if building.kind == "call":
            if building.ended or not cut:
                use = _tool_use(building, taken, ids)
                ids.add(use.id)
                calls.append(use)
        elif (block := _block(building, cut)) is not None:
            said.append(block)
    if cut:
        _mark(said)
    blocks: list[AssistantBlock] = [*said, *calls]
    while blocks and isinstance(blocks[-1], Thinking):
        blocks.pop()
    return tuple(blocks)


def _gather(deltas: Iterable[Delta | ModelDelta]) -> list[_Building]:
    blocks: dict[int, _Building] = {}
    for delta in deltas:
        building = blocks.get(delta.block)
        if building is None:
            kind = {"signature": "thinking", "input": "call", "end": "nothing"}.get(delta.part, delta.part)
            building = blocks[delta.block] = _Building(kind)
        match delta.part:
            case "text" | "thinking" | "input" | "redacted" | "opaque":
                building.texts.append(delta.text)
            case "signature":
                building.signature = (building.signature or "") + delta.text
            case "call":
                building.call, building.name = delta.call or "", delta.name or ""
            case "end":
                building.ended = True
    return list(blocks.values())


def _block(building: _Building, cut: bool) -> AssistantBlock | None:
    text = scrub("".join(building.texts))
    match building.kind:
        case "text":
            return None if is_blank(text) else Text(text)
        case "thinking" if building.ended and (text or building.signature):
            return Thinking(text, building.signature or None)
        case "redacted" if building.ended and text:
            return Thinking("", redacted=text)
        case "opaque" if building.ended and not cut:
            # A cut message keeps none: a server-side pair may have lost its other half.
            return _opaque(text)
        case _:
            return None


def _opaque(text: str) -> Opaque:
    data = parse_object(text)
    if not data:
        raise ValueError(f"an opaque block is no JSON object: {clip(text, 200)}")
    return Opaque(data)


def _tool_use(building: _Building, taken: Collection[str], ids: set[str]) -> ToolUse:
    raw = scrub("".join(building.texts))
    value = parse_object(raw)
    use = ToolUse(call_id(scrub(building.call), taken, ids), scrub(building.name), value or {})
    return use if value is not None else attrs.evolve(use, raw=raw)


def _mark(said: list[AssistantBlock]) -> None:
    for index in range(len(said) - 1, -1, -1):
        block = said[index]
        if isinstance(block, Text):
            said[index] = Text(block.text + INTERRUPTED)
            return
