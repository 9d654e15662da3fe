"""Records to lines that a person reads. Pure; touches nothing.

    seq   seconds  type            what
       7    1.204  tool/start      call_1 bash {"command": "sleep 300"}

One line an event, never wider than a bound where there is one, in plain text without colour. What a model, a tool
or a person said is shown in quotes with every control written as an escape: no record can drive the terminal,
break its line or look like another record.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from turnkernel.events import (
    AskClosed,
    AskOpened,
    Error,
    Event,
    InboxCanceled,
    InboxConsumed,
    InboxQueued,
    ModelDelta,
    ModelMessage,
    ModelRetry,
    Record,
    Salvaged,
    SessionClose,
    SessionOpen,
    StepEnd,
    StepStart,
    TaskEnded,
    TaskStarted,
    ToolCall,
    ToolCheckpoint,
    ToolOutput,
    ToolResult,
    ToolStart,
    TurnCancel,
    TurnEnd,
    TurnStart,
    TurnStuck,
    TurnSurvivor,
)
from turnkernel.messages import AssistantBlock, Opaque, Text, Thinking, ToolUse
from turnkernel.repair import task_words

from .plain import as_json, fit, quoted, word

__all__ = ["WIDTH", "line", "lines"]

WIDTH = 110
"""Columns of a line, where nothing else is asked for."""


def lines(records: Iterable[Record], width: int | None = WIDTH, *, fold: bool = True) -> Iterator[str]:
    """A line per record; with `fold`, one for consecutive deltas of one block.

    A folded line bears the place and time of its first delta and names its last.
    """
    folding: list[Record] = []
    for record in records:
        if folding and not _one_block(folding[-1].event, record.event):
            yield _folded(folding, width)
            folding = []
        if fold and isinstance(record.event, ModelDelta):
            folding.append(record)
        else:
            yield line(record, width)
    if folding:
        yield _folded(folding, width)


def line(record: Record, width: int | None = WIDTH) -> str:
    """The line of one record. `width` None: whole, however long."""
    return _line(record, _detail(record.event), width)


def _line(record: Record, detail: str, width: int | None) -> str:
    closer = "(closer) " if getattr(record.event, "synthetic", False) else ""
    head = f"{record.seq:4} {record.t:8.3f}  {record.event.type:<15} "
    whole = f"{head}{closer}{detail}".rstrip()
    return whole if width is None else fit(whole, width)


def _one_block(one: Event, other: Event) -> bool:
    return (
        isinstance(one, ModelDelta)
        and isinstance(other, ModelDelta)
        and (one.step, one.block) == (other.step, other.block)
    )


def _folded(records: Sequence[Record], width: int | None) -> str:
    if len(records) == 1:
        return line(records[0], width)
    deltas = [record.event for record in records if isinstance(record.event, ModelDelta)]
    texts = [delta for delta in deltas if delta.part not in ("call", "signature", "end")]
    begin = next((delta for delta in deltas if delta.part == "call"), None)
    what = _names("call", begin.call, begin.name) if begin else texts[0].part if texts else deltas[0].part
    whole = ", whole" if deltas[-1].part == "end" else ""
    span = f"({records[0].seq}-{records[-1].seq}{whole})"
    return _line(records[0], _joined(what, span, _said("".join(delta.text for delta in texts))), width)


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _names(*names: str | None) -> str:
    return _joined(*(word(name) for name in names if name))


def _said(text: str | None) -> str:
    return quoted(text) if text else ""


def _value(value: Any) -> str:
    return as_json(value)


def _detail(event: Event) -> str:
    match event:
        case ToolCall() | ToolStart() | ToolOutput() | ToolCheckpoint() | ToolResult() | AskOpened() | AskClosed():
            return _of_call(event)
        case StepStart() | StepEnd() | ModelDelta() | ModelRetry() | ModelMessage():
            return _of_step(event)
        case TurnStart() | TurnCancel() | TurnStuck() | TurnSurvivor() | TurnEnd():
            return _of_turn(event)
        case _:
            return _of_session(event)


def _salvaged(salvaged: Salvaged | None) -> str:
    if salvaged is None:
        return ""
    return f"salvaged: {salvaged.records} records passed over; {salvaged.reason}; copy in {salvaged.file}"


def _of_session(
    event: SessionOpen | SessionClose | InboxQueued | InboxConsumed | InboxCanceled | TaskStarted | TaskEnded,
) -> str:
    match event:
        case SessionOpen():
            parent = "child of " + _names(event.parent.session, event.parent.call) if event.parent else ""
            gaps = sum(gap.length for gap in event.passed_over)
            passed = f"passed over {gaps} bytes" if gaps else ""
            opened = _names(event.session, event.wall, event.durability)
            return _joined(_salvaged(event.salvaged), opened, _names(event.containment), parent, passed)
        case SessionClose():
            return ""
        case InboxQueued():
            return _joined(_names(event.item, event.kind), _said(event.text))
        case InboxConsumed():
            return _names(event.item, "by", event.step)
        case InboxCanceled():
            return _names(event.item, event.reason)
        case TaskStarted():
            names = _names(event.task, event.call, event.name, event.lifetime)
            return _joined(names, _log(event.log), _said(task_words(event)))
        case TaskEnded():
            return _joined(_names(event.task, event.name, event.status), _said(event.text))


def _log(name: str | None) -> str:
    """Where the log of a child session is."""
    return f"log {_names(name)}" if name else ""


def _of_turn(event: TurnStart | TurnCancel | TurnStuck | TurnSurvivor | TurnEnd) -> str:
    match event:
        case TurnStart() | TurnCancel():
            return _names(event.turn)
        case TurnStuck():
            return _joined(_names(event.turn), "held by", *map(_said, event.holders))
        case TurnSurvivor():
            return _joined(_names(event.turn, event.call, event.kind), _said(event.name))
        case TurnEnd():
            code = f"({event.code})" if event.code else ""
            reminder = f"reminder {_said(event.reminder)}" if event.reminder else ""
            return _joined(_names(event.turn, event.outcome) + code, *map(_error, event.errors), reminder)


def _error(error: Error) -> str:
    return f"{word(error.type)} in {quoted(error.place)}: {_said(error.text)}"


def _of_step(event: StepStart | StepEnd | ModelDelta | ModelRetry | ModelMessage) -> str:
    match event:
        case StepStart():
            return _names(event.step, event.wire, event.model)
        case StepEnd():
            return _joined(_names(event.step), _said(event.note))
        case ModelDelta():
            return _joined(_names(event.part, event.call, event.name), _said(event.text))
        case ModelRetry():
            return f"attempt {event.attempt} failed, again in {event.wait:g} s: {_said(event.reason)}"
        case ModelMessage():
            return _joined(_names(event.stop), " | ".join(map(_block, event.blocks)))


def _block(block: AssistantBlock) -> str:
    match block:
        case Text():
            return f"text {_said(block.text)}"
        case Thinking():
            return f"thinking {_said(block.text)}"
        case ToolUse():
            return f"{_names('call', block.id, block.name)} {_value(block.input)}"
        case Opaque():
            return f"opaque {_value(block.data)}"


def _of_call(
    event: ToolCall | ToolStart | ToolOutput | ToolCheckpoint | ToolResult | AskOpened | AskClosed,
) -> str:
    match event:
        case ToolCall():
            return _names(event.call, event.name)
        case ToolStart():
            return _joined(_names(event.call, event.name), _log(event.log), _value(event.input))
        case ToolOutput():
            return _joined(_names(event.call, event.stream), _said(event.text))
        case ToolCheckpoint():
            return _joined(_names(event.call, event.name), _value(event.state))
        case ToolResult():
            seconds = "" if event.seconds is None else f"{event.seconds:.3f} s"
            return _joined(_names(event.call, event.name, event.status), seconds, _said(event.text))
        case AskOpened():
            options = f"[{', '.join(map(quoted, event.options))}]" if event.options else ""
            return _joined(_names(event.ask, event.call, event.kind), _said(event.text), options)
        case AskClosed():
            return _joined(_names(event.ask, event.call, event.answer, event.rule), _said(event.text))
