"""The laws that a log can show, each a named check over its records. Pure.

The checks do not ask the grammar whether a log is legal: they count for themselves, so that a fault in the
grammar's table is found too. The context is checked as it would be sent at every prefix of the log once closed.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from ..errors import GrammarError
from ..events import (
    AskClosed,
    AskOpened,
    InboxCanceled,
    InboxConsumed,
    InboxQueued,
    ModelMessage,
    Record,
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
)
from ..grammar import Grammar
from ..messages import Message, Text, Thinking, ToolResultBlock, ToolUse
from ..repair import INTERRUPTION, closers
from ..replay import Context
from ..text import is_blank, scrub
from ..wording import DEFAULT

__all__ = ["LAWS", "Violation", "check_append_only", "check_log", "check_messages"]

LAWS: dict[str, str] = {
    "L1": "sequence numbers are contiguous, the epoch never goes down",
    "L2": "turn, step, call and ask nest",
    "L3": "every tool use has one result, every turn and task one end, nothing bears a turn's id after it",
    "L4": "intent before effect",
    "L5": "every inbox item has exactly one fate",
    "L6": "aborted is written by a live turn, interrupted by recovery",
    "L7": "no whole record is changed or removed",
    "L8": "acknowledged means durable",
    "C1": "user first, roles alternate, user last when a request is made",
    "C2": "every tool use is answered once, right after it, before anything else",
    "C3": "inputs are objects; nothing blank, empty or unencodable",
    "C4": "thinking goes back whole and is never last",
    "C5": "cache marks: last block of a complete message, at most four",
    "C6": "the same log gives the same bytes; what was sent is never changed",
    "R1": "at turn/end nothing of the turn is alive",
    "R2": "a cancel acts on one turn; a handle of an earlier one is stale",
    "R3": "a cancel with no turn running plants nothing in the next",
    "R4": "the first cause wins",
    "R5": "after a cancel nothing begins",
    "R6": "a result returned before the cancel is kept",
    "R7": "cancel is synchronous, never blocks, never raises",
    "R8": "the host's cancel closes the log and goes on",
    "R9": "every shield is bounded, reasoned and listed",
    "R10": "swallowing the cancel does not save the turn",
    "R11": "applied means aborted, anything else changes no turn",
    "R12": "a cancel hides no failure, a failure hides no cancel",
    "D1": "log before show",
    "D2": "status is a fold, a subscriber a cursor",
}
"""Every law of the design, in a line."""


@attrs.frozen
class Violation:
    """A law that a log breaks."""

    law: str
    seq: int
    """The record at which it shows; 0 for the log as a whole."""
    detail: str


def check_log(records: Sequence[Record], *, closed: bool = False, every_prefix: bool = True) -> list[Violation]:
    """Every violation that the records show, in the order of the log.

    `closed` makes what is still open at the end a violation. `every_prefix` checks the context at each record
    and not only at each request and at the end; it costs time in the square of the log.
    """
    walk = _Walk()
    for record in records:
        walk.take(record)
    if closed:
        walk.end()
    found = walk.found + _check_contexts(records, every_prefix=every_prefix)
    return sorted(set(found), key=lambda one: one.seq)


def check_append_only(before: bytes, after: bytes) -> list[Violation]:
    """L7 between two states of one log: the later begins with every byte of the earlier."""
    if after.startswith(before):
        return []
    return [Violation("L7", 0, f"of {len(before)} bytes that were there, not all are there unchanged")]


@attrs.define
class _Turn:
    epoch: int
    cancelled: bool = False
    ended: bool = False
    step: str | None = None


@attrs.define
class _Call:
    turn: str
    step: str | None
    taken: bool = False
    started: ToolStart | None = None
    asks: set[str] = attrs.field(factory=set[str])
    withdrawn: bool = False
    results: int = 0
    cancelled_first: bool = False


class _Walk:
    """One pass over the records; every law that is about their order."""

    def __init__(self) -> None:
        self.found: list[Violation] = []
        self.seq = 0
        self.epoch = 0
        self.turns: dict[str, _Turn] = {}
        self.open_turn: str | None = None
        self.calls: dict[str, _Call] = {}
        self.open_calls: set[str] = set()
        self.items: dict[str, str] = {}
        self.tasks: dict[str, bool] = {}
        self.detached: set[str] = set()

    def say(self, law: str, detail: str) -> None:
        self.found.append(Violation(law, self.seq, detail))

    def take(self, record: Record) -> None:
        if record.seq != self.seq + 1:
            self.found.append(Violation("L1", record.seq, f"seq {record.seq} after {self.seq}"))
        self.seq = record.seq
        opening = isinstance(record.event, SessionOpen)
        if record.epoch != self.epoch + opening:
            self.say("L1", f"epoch {record.epoch} after {self.epoch}")
        self.epoch = record.epoch
        turn = getattr(record.event, "turn", None)
        if turn is not None and not isinstance(record.event, TurnStart):
            state = self.turns.get(turn)
            if state is None or state.ended:
                self.say("L3", f"{record.event.type} bears the id of {turn}, which has ended or never began")
        check = _CHECKS.get(record.event.type)
        if check is not None:
            check(self, record.event)

    def end(self) -> None:
        """The log is said to be closed: nothing may be open."""
        for turn, state in self.turns.items():
            if not state.ended:
                self.say("L3", f"turn {turn} has no end")
        for call in sorted(self.open_calls):
            self.say("L3", f"call {call} has no result")
        for task, ended in self.tasks.items():
            if not ended and task not in self.detached:
                self.say("L3", f"task {task} has no end")

    def turn_of(self, event: Any) -> _Turn:
        return self.turns.get(event.turn) or _Turn(self.epoch)

    # Turns and steps

    def turn_start(self, event: TurnStart) -> None:
        if self.open_turn is not None:
            self.say("L2", f"turn {event.turn} starts inside {self.open_turn}")
        if event.turn in self.turns:
            self.say("L3", f"turn {event.turn} starts twice")
        self.turns[event.turn] = _Turn(self.epoch)
        self.open_turn = event.turn

    def turn_cancel(self, event: TurnCancel) -> None:
        turn = self.turn_of(event)
        if event.turn != self.open_turn:
            self.say("R2", f"a cancel of {event.turn}, which is not the running turn")
        if turn.cancelled:
            self.say("R4", f"turn {event.turn} is cancelled twice")
        turn.cancelled = True
        for call in self.open_calls:
            self.calls[call].cancelled_first = self.calls[call].started is None

    def turn_end(self, event: TurnEnd) -> None:
        turn = self.turn_of(event)
        if turn.step is not None:
            self.say("L2", f"turn {event.turn} ends with step {turn.step} open")
        live = turn.epoch == self.epoch
        if event.outcome == "interrupted" and live:
            self.say("L6", f"a live turn ends {event.outcome}")
        if event.outcome != "interrupted" and not live:
            self.say("L6", f"recovery ends a turn {event.outcome}")
        if live and turn.cancelled and event.outcome != "aborted":
            self.say("R11", f"turn {event.turn} was cancelled and ends {event.outcome}")
        turn.ended = True
        self.open_turn = None

    def step_start(self, event: StepStart) -> None:
        turn = self.turn_of(event)
        if turn.cancelled:
            self.say("R5", f"step {event.step} begins after the cancel")
        if turn.step is not None or event.turn != self.open_turn:
            self.say("L2", f"step {event.step} does not stand in an open turn alone")
        turn.step = event.step

    def step_end(self, event: StepEnd) -> None:
        turn = self.turn_of(event)
        if turn.step != event.step:
            self.say("L2", f"step {event.step} ends and is not open")
        for call in sorted(self.open_calls):
            self.say("L2", f"step {event.step} ends with call {call} open")
        turn.step = None

    # Calls

    def model_message(self, event: ModelMessage) -> None:
        turn = self.turn_of(event)
        if turn.step != event.step:
            self.say("L2", f"a message of step {event.step}, which is not open")
        for block in event.blocks:
            if isinstance(block, ToolUse):
                if block.id in self.calls:
                    self.say("C2", f"tool use {block.id} is there twice")
                self.calls[block.id] = _Call(event.turn, event.step, cancelled_first=turn.cancelled)
                self.open_calls.add(block.id)

    def tool_call(self, event: ToolCall) -> None:
        call = self._open_call(event)
        if self.turn_of(event).cancelled:
            self.say("R5", f"call {event.call} is taken up after the cancel")
        call.taken = True

    def tool_start(self, event: ToolStart) -> None:
        call = self._open_call(event)
        if self.turn_of(event).cancelled:
            self.say("R5", f"call {event.call} starts after the cancel")
        if not call.taken:
            self.say("L4", f"call {event.call} starts without tool/call")
        call.started = event

    def tool_shows(self, event: ToolOutput | ToolCheckpoint) -> None:
        if self._open_call(event).started is None:
            self.say("L4", f"{event.type} of call {event.call} before its tool/start")

    def tool_result(self, event: ToolResult) -> None:
        call = self._open_call(event)
        call.results += 1
        if call.results > 1:
            self.say("L3", f"call {event.call} has two results")
        if call.asks:
            self.say("L2", f"call {event.call} ends with an ask open")
        if call.started is None and event.status in ("stopped", "timed_out", "unknown"):
            self.say("L4", f"call {event.call} is {event.status} without tool/start")
        if call.started is None and event.status == "ok":
            self.say("L4", f"call {event.call} is ok without tool/start")
        if call.withdrawn and event.status == "denied":
            self.say("R5", f"the ask of call {event.call} was withdrawn, and its result reads as a denial")
        begun = call.started is not None or event.status not in ("ok", "stopped", "unknown", "timed_out")
        if call.cancelled_first and not begun:
            self.say("R5", f"call {event.call} had not begun at the cancel and is {event.status}")
        self.open_calls.discard(event.call)

    def _open_call(self, event: Any) -> _Call:
        call = self.calls.get(event.call)
        if call is None:
            self.say("L3", f"{event.type} of call {event.call}, which no message asked for")
            call = self.calls[event.call] = _Call(event.turn, None)
        elif call.results and not isinstance(event, ToolResult):
            self.say("L2", f"{event.type} of call {event.call} after its result")
        return call

    def ask_opened(self, event: AskOpened) -> None:
        if self.turn_of(event).cancelled:
            self.say("R5", f"ask {event.ask} opens after the cancel")
        self._open_call(event).asks.add(event.ask)

    def ask_closed(self, event: AskClosed) -> None:
        asks = self._open_call(event).asks
        if event.ask not in asks:
            self.say("L2", f"ask {event.ask} closes and is not open")
        asks.discard(event.ask)
        self._open_call(event).withdrawn = event.answer == "withdrawn"

    # Inbox and tasks

    def queued(self, event: InboxQueued | TaskEnded) -> None:
        if event.item in self.items:
            self.say("L5", f"item {event.item} is queued twice")
        self.items[event.item] = "queued"
        if isinstance(event, TaskEnded):
            if self.tasks.get(event.task) is not False:
                self.say("L3", f"task {event.task} ends twice or never began")
            self.tasks[event.task] = True

    def consumed(self, event: InboxConsumed) -> None:
        self._fate(event.item, "consumed")
        if self.turn_of(event).cancelled:
            self.say("R5", f"item {event.item} is consumed after the cancel")

    def canceled(self, event: InboxCanceled) -> None:
        self._fate(event.item, "canceled")

    def _fate(self, item: str, fate: str) -> None:
        if self.items.get(item) != "queued":
            self.say("L5", f"item {item} is {fate}, but was {self.items.get(item, 'never queued')}")
        self.items[item] = fate

    def task_started(self, event: TaskStarted) -> None:
        self.tasks[event.task] = False
        if event.lifetime == "detached":
            self.detached.add(event.task)


_CHECKS: dict[str, Callable[[_Walk, Any], None]] = {
    "turn/start": _Walk.turn_start,
    "turn/cancel": _Walk.turn_cancel,
    "turn/end": _Walk.turn_end,
    "step/start": _Walk.step_start,
    "step/end": _Walk.step_end,
    "model/message": _Walk.model_message,
    "tool/call": _Walk.tool_call,
    "tool/start": _Walk.tool_start,
    "tool/output": _Walk.tool_shows,
    "tool/checkpoint": _Walk.tool_shows,
    "tool/result": _Walk.tool_result,
    "ask/opened": _Walk.ask_opened,
    "ask/closed": _Walk.ask_closed,
    "inbox/queued": _Walk.queued,
    "inbox/consumed": _Walk.consumed,
    "inbox/canceled": _Walk.canceled,
    "task/started": _Walk.task_started,
    "task/ended": _Walk.queued,
}


# ------------------------------------------------------------------------------------------------- context


def _check_contexts(records: Sequence[Record], *, every_prefix: bool) -> list[Violation]:
    """C1 to C4 at every prefix once closed, C1's end and C6 at every request."""
    found: list[Violation] = []
    grammar, context = Grammar(), Context()
    sent: tuple[Message, ...] = ()
    for place, record in enumerate(records):
        try:
            grammar.check(record.event)
            grammar.apply(record)
            context.apply(record)
        except (GrammarError, KeyError) as error:
            # The walk above names the law; a context of such a log is not defined.
            return [*found, Violation("L2", record.seq, f"the grammar refuses: {error}")]
        if isinstance(record.event, StepStart):
            now = tuple(context.messages)  # a copy: what is looked for would show in both
            if not now or now[-1].role != "user":
                found.append(Violation("C1", record.seq, "a request whose context does not end with user"))
            found += [Violation("C6", record.seq, detail) for detail in _changed(sent, now)]
            sent = now
        elif not every_prefix and place != len(records) - 1:
            continue
        messages = _closed(grammar, context, record)
        found += [Violation(law, record.seq, detail) for law, detail in check_messages(messages)]
        if found:
            return found
    return found


def _closed(grammar: Grammar, context: Context, last: Record) -> tuple[Message, ...]:
    closing = context.copy()
    for event in closers(grammar, DEFAULT, INTERRUPTION):
        closing.apply(Record(last.seq + 1, last.epoch, last.t, event))
    return tuple(closing.messages)


def _changed(before: Sequence[Message], now: Sequence[Message]) -> Iterable[str]:
    """What was sent before and does not stand in its place any more (law C6)."""
    for index, message in enumerate(before):
        later = now[index] if index < len(now) else None
        if later is None or later.role != message.role or later.blocks[: len(message.blocks)] != message.blocks:
            yield f"message {index} of the request before was changed"
        elif index < len(before) - 1 and len(later.blocks) != len(message.blocks):
            yield f"message {index} of the request before was added to, and it was not the last"


def check_messages(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """C1 to C4 of one context, wire-neutral: pairs of law and detail."""
    found: list[tuple[str, str]] = []
    owed: list[str] = []
    ids: set[str] = set()
    for index, message in enumerate(messages):
        place = f"message {index}"
        if message.role != ("user", "assistant")[index % 2]:
            found.append(("C1", f"{place} is {message.role}"))
        if not message.blocks:
            found.append(("C3", f"{place} is empty"))
        found += [(law, f"{place}: {detail}") for law, detail in _check_blocks(message)]
        results = [block.call for block in message.blocks if isinstance(block, ToolResultBlock)]
        lead = [block.call for block in message.blocks[: len(results)] if isinstance(block, ToolResultBlock)]
        if results != lead:
            found.append(("C2", f"{place}: results do not come first"))
        if sorted(results) != sorted(owed):
            found.append(("C2", f"{place} answers {results}, owed {owed}"))
        owed = [block.id for block in message.blocks if isinstance(block, ToolUse)]
        found += [("C2", f"{place}: tool use {call} is there twice") for call in owed if call in ids]
        ids.update(owed)
        if message.role == "assistant" and message.blocks and isinstance(message.blocks[-1], Thinking):
            found.append(("C4", f"{place} ends in thinking"))
    if owed:
        found.append(("C2", f"calls {owed} have no answer"))
    return found


def _check_blocks(message: Message) -> Iterable[tuple[str, str]]:
    for block in message.blocks:
        match block:
            case Text(text) | ToolResultBlock(text=text):
                if is_blank(text):
                    yield "C3", "a blank text"
                if scrub(text) != text:
                    yield "C3", "a lone surrogate"
            case ToolUse(input=input):
                if not isinstance(input, dict):
                    yield "C3", f"input of {block.id} is no object"
            case Thinking(text, signature, redacted):
                if not text and not signature and not redacted:
                    yield "C4", "thinking with nothing in it"
            case _:
                pass
