"""What may follow what: one table, and a machine that walks it. No trio, no I/O; touches nothing but itself.

Theory. A log is legal if seven small machines agree: session, turn, step (one slot each), and call, ask, item,
task (one per id). An event is a *move* in one or more of them. `TABLE` lists, per event type, the states that
each machine must be in and the state that it is in afterwards; `INNER` lists what must be closed before a
machine may close (law L2). Everything else that is asked of an event is in `_extra`, a line each.

The machine knows what is open in O(1) per event and refuses an illegal event before it changes anything. It
has four uses: the live journal asks it on every append, loading asks it for every record, `repair.closers` asks
it what is still open, and the law checks walk it again. So a live abort and a repair after `kill -9` end in
the same shape.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import attrs

from .errors import GrammarError
from .events import (
    AskClosed,
    AskOpened,
    Event,
    InboxCanceled,
    InboxConsumed,
    InboxQueued,
    ModelDelta,
    ModelMessage,
    ModelRetry,
    Record,
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
)
from .ids import step_id
from .messages import ToolUse
from .text import Clip

__all__ = ["INNER", "LOG_OUTPUT_BYTES", "TABLE", "Grammar", "Move", "OpenCall", "OpenStep", "OpenTurn"]

LOG_OUTPUT_BYTES = 256 * 1024
"""How much output of one call is kept, in the log and for its closing text."""


class Move(NamedTuple):
    """One machine's part in an event."""

    machine: str
    before: frozenset[str]
    after: str | None
    """None: it stays as it is."""


def _move(machine: str, before: str, after: str | None = None) -> Move:
    return Move(machine, frozenset(before.split()), after)


TABLE: Mapping[str, tuple[Move, ...]] = {
    "session/open": (_move("session", "new open closed", "open"), _move("turn", "none running cancelled cut")),
    "session/close": (_move("session", "open", "closed"),),
    # A turn that a crash cut (`cut`) takes nothing but its closers.
    "turn/start": (_move("session", "open"), _move("turn", "none", "running")),
    "turn/cancel": (_move("turn", "running", "cancelled"),),
    "turn/stuck": (_move("turn", "running cancelled"),),
    "turn/survivor": (_move("turn", "running cancelled cut"),),
    "turn/end": (_move("turn", "running cancelled cut", "none"),),
    # After a cancel no request is made and no tool is taken up or begun (law R5).
    "step/start": (_move("turn", "running"), _move("step", "none", "streaming")),
    "step/end": (_move("turn", "running cancelled cut"), _move("step", "streaming calling", "none")),
    "model/delta": (_move("turn", "running cancelled"), _move("step", "streaming")),
    "model/retry": (_move("turn", "running"), _move("step", "streaming")),
    "model/message": (_move("turn", "running cancelled cut"), _move("step", "streaming", "calling")),
    "tool/call": (_move("turn", "running"), _move("call", "asked", "taken")),
    "tool/start": (_move("turn", "running"), _move("call", "taken", "running")),
    "tool/output": (_move("turn", "running cancelled"), _move("call", "running")),
    "tool/checkpoint": (_move("turn", "running cancelled"), _move("call", "running")),
    "tool/result": (_move("turn", "running cancelled cut"), _move("call", "asked taken running", "none")),
    "ask/opened": (_move("turn", "running"), _move("call", "taken running"), _move("ask", "none", "open")),
    "ask/closed": (
        _move("turn", "running cancelled cut"),
        _move("call", "taken running"),
        _move("ask", "open", "none"),
    ),
    "inbox/queued": (_move("session", "open"), _move("item", "none", "queued")),
    "inbox/consumed": (_move("turn", "running"), _move("step", "none"), _move("item", "queued", "none")),
    "inbox/canceled": (_move("session", "open"), _move("item", "queued", "none")),
    # Background work bears no turn's id; its end is itself a queued notice.
    "task/started": (_move("session", "open"), _move("task", "none", "running")),
    "task/ended": (_move("session", "open"), _move("task", "running", "none"), _move("item", "none", "queued")),
}
"""Per event type: the moves it is made of."""

INNER: Mapping[str, str] = {"session": "turn", "turn": "step", "step": "call", "call": "ask"}
"""What must be closed before a machine closes (law L2)."""

_NAMES: Mapping[str, str] = {
    "turn/start": "turn",
    "step/start": "step",
    "ask/opened": "ask",
    "inbox/queued": "item",
    "task/started": "task",
    "task/ended": "item",
}
"""What an event gives an id to. An id is never given twice: else it had two ends (L3) or two fates (L5)."""


@attrs.define
class OpenCall:
    """A call without a result."""

    use: ToolUse
    state: str = "asked"
    """`asked` by the model, `taken` up, `running`."""
    started: float | None = None
    """Time of `tool/start`, seconds of its epoch."""
    effect: str = "effect"
    asks: dict[str, AskOpened] = attrs.Factory(dict)  # type: ignore[type-arg]
    answered: AskClosed | None = None
    """What a person answered last, if the call has shown nothing since: to an approval while it is `taken`, to a
    question while it is `running`."""
    withdrawn: bool = False
    """Whether an ask of it was withdrawn."""
    checkpointed: bool = False
    """Whether it has left a checkpoint."""
    output: Clip | None = None
    """What it has shown, bounded."""
    log: str | None = None
    """The log of the child session that it opens."""


@attrs.define
class OpenStep:
    """The step that is going on."""

    id: str
    wire: str
    model: str
    deltas: list[ModelDelta] = attrs.Factory(list)  # type: ignore[type-arg]
    """Since the request that is streaming began; empty once the whole message is there."""
    message: ModelMessage | None = None
    calls: dict[str, OpenCall] = attrs.Factory(dict)  # type: ignore[type-arg]
    """Open calls in model order."""
    results: list[ToolResult] = attrs.Factory(list)  # type: ignore[type-arg]
    """Of its closed calls, in the order in which they came."""


@attrs.define
class OpenTurn:
    """The turn that is going on."""

    id: str
    state: str = "running"
    """`running`, `cancelled`, or `cut` by a crash."""
    steps: int = 0
    last: OpenStep | None = None
    """The step that goes on or was the last."""


class Grammar:
    """The state of one log. `check` refuses, `apply` moves; `append` of the journal does one after the other."""

    __slots__ = (
        "asks",
        "call_ids",
        "epoch",
        "ids",
        "items",
        "last_outcome",
        "opened",
        "seq",
        "session",
        "step",
        "tasks",
        "turn",
        "turns",
    )

    def __init__(self) -> None:
        self.seq = 0
        self.epoch = 0
        self.session = "new"
        self.opened: SessionOpen | None = None
        """The last opening."""
        self.turns = 0
        """How many turns were started."""
        self.last_outcome: str | None = None
        """How the last turn ended."""
        self.turn: OpenTurn | None = None
        self.step: OpenStep | None = None
        self.asks: dict[str, AskOpened] = {}
        self.items: dict[str, InboxQueued | TaskEnded] = {}
        """Queued input in order: prompts, steers, and the notices of ended tasks."""
        self.tasks: dict[str, TaskStarted] = {}
        self.call_ids: set[str] = set()
        self.ids: dict[str, set[str]] = {kind: set() for kind in _NAMES.values()}
        """The other ids that were given, by what they name."""

    def __repr__(self) -> str:
        turn = f"{self.turn.id} {self.turn.state}" if self.turn else "none"
        return f"<Grammar seq={self.seq} session={self.session} turn={turn} queued={len(self.items)}>"

    @property
    def calls(self) -> Mapping[str, OpenCall]:
        """Open calls in model order."""
        return self.step.calls if self.step is not None else {}

    def next_turn(self) -> str:
        """The id that the next turn bears."""
        return f"t{self.turns + 1}"

    def next_step(self) -> str:
        """The id that the next step of the running turn (or the first of the next turn) bears."""
        if self.turn is None:
            return step_id(self.next_turn(), 1)
        return step_id(self.turn.id, self.turn.steps + 1)

    # ---------------------------------------------------------------------------------------------- check

    def check(self, event: Event) -> None:
        """Raise `GrammarError` if the event may not come next. Changes nothing."""
        moves, kind, extra, _ = _PLANS[event.type]
        for state_of, before, inner_open, move in moves:
            state = state_of(self, event)
            if state not in before:
                allowed = " or ".join(sorted(before))
                raise GrammarError(
                    event.type, f"{move.machine} is {state}, must be {allowed} (seq {self.seq + 1})"
                )
            if inner_open is not None and inner_open(self, event):
                inner = INNER[move.machine]
                raise GrammarError(event.type, f"a {inner} of the {move.machine} is open (seq {self.seq + 1})")
        if kind is not None and getattr(event, kind) in self.ids[kind]:
            raise GrammarError(
                event.type, f"{kind} id {getattr(event, kind)!r} is not new in the session (seq {self.seq + 1})"
            )
        reason = extra(self, event) if extra is not None else None
        if reason is not None:
            raise GrammarError(event.type, f"{reason} (seq {self.seq + 1})")

    # ---------------------------------------------------------------------------------------------- apply

    def apply(self, record: Record) -> None:
        """Move. The event must have passed `check`."""
        event = record.event
        _, kind, _, apply = _PLANS[event.type]
        self.seq = record.seq
        if kind is not None:
            self.ids[kind].add(getattr(event, kind))
        if apply is not None:
            apply(self, event, record.t)


# What each event changes.


def _session_open(grammar: Grammar, event: SessionOpen, t: float) -> None:
    grammar.session, grammar.opened = "open", event
    grammar.epoch += 1
    if grammar.turn is not None:
        grammar.turn.state = "cut"


def _session_close(grammar: Grammar, event: SessionClose, t: float) -> None:
    grammar.session = "closed"


def _turn_start(grammar: Grammar, event: TurnStart, t: float) -> None:
    grammar.turns += 1
    grammar.turn = OpenTurn(event.turn)


def _turn_cancel(grammar: Grammar, event: TurnCancel, t: float) -> None:
    cast(OpenTurn, grammar.turn).state = "cancelled"


def _turn_end(grammar: Grammar, event: TurnEnd, t: float) -> None:
    grammar.turn = None
    grammar.last_outcome = event.outcome
    # A steer that its turn has not read is a prompt from now on.
    for item in grammar.items.values():
        if isinstance(item, InboxQueued) and item.kind == "steer":
            grammar.items[item.item] = attrs.evolve(item, kind="prompt")


def _step_start(grammar: Grammar, event: StepStart, t: float) -> None:
    turn = cast(OpenTurn, grammar.turn)
    turn.steps += 1
    grammar.step = turn.last = OpenStep(event.step, event.wire, event.model)


def _step_end(grammar: Grammar, event: StepEnd, t: float) -> None:
    grammar.step = None


def _model_delta(grammar: Grammar, event: ModelDelta, t: float) -> None:
    cast(OpenStep, grammar.step).deltas.append(event)


def _model_retry(grammar: Grammar, event: ModelRetry, t: float) -> None:
    cast(OpenStep, grammar.step).deltas.clear()


def _model_message(grammar: Grammar, event: ModelMessage, t: float) -> None:
    step = cast(OpenStep, grammar.step)
    step.message = event
    if event.stop != "cut":  # what a cut message leaves out is told by the turn's end
        step.deltas.clear()
    for block in event.blocks:
        if isinstance(block, ToolUse):
            step.calls[block.id] = OpenCall(block)
            grammar.call_ids.add(block.id)


def _tool_call(grammar: Grammar, event: ToolCall, t: float) -> None:
    grammar.calls[event.call].state = "taken"


def _tool_start(grammar: Grammar, event: ToolStart, t: float) -> None:
    call = grammar.calls[event.call]
    call.state, call.started, call.effect, call.answered = "running", t, event.effect, None
    call.log = event.log


def _tool_output(grammar: Grammar, event: ToolOutput, t: float) -> None:
    call = grammar.calls[event.call]
    if call.output is None:
        call.output = Clip(LOG_OUTPUT_BYTES)
    call.output.add(event.text)
    call.answered = None


def _tool_checkpoint(grammar: Grammar, event: ToolCheckpoint, t: float) -> None:
    call = grammar.calls[event.call]
    call.checkpointed, call.answered = True, None


def _tool_result(grammar: Grammar, event: ToolResult, t: float) -> None:
    step = cast(OpenStep, grammar.step)
    del step.calls[event.call]
    step.results.append(event)


def _ask_opened(grammar: Grammar, event: AskOpened, t: float) -> None:
    grammar.asks[event.ask] = event
    grammar.calls[event.call].asks[event.ask] = event


def _ask_closed(grammar: Grammar, event: AskClosed, t: float) -> None:
    call = grammar.calls[event.call]
    del grammar.asks[event.ask], call.asks[event.ask]
    if event.answer == "withdrawn":
        call.withdrawn = True
    else:
        call.answered = event


def _inbox_queued(grammar: Grammar, event: InboxQueued, t: float) -> None:
    grammar.items[event.item] = event


def _inbox_gone(grammar: Grammar, event: InboxConsumed | InboxCanceled, t: float) -> None:
    del grammar.items[event.item]


def _task_started(grammar: Grammar, event: TaskStarted, t: float) -> None:
    grammar.tasks[event.task] = event


def _task_ended(grammar: Grammar, event: TaskEnded, t: float) -> None:
    del grammar.tasks[event.task]
    grammar.items[event.item] = event


# Lookups by machine. An event that names a turn or step which is not the open one finds that machine in the
# state `other`, which no move allows.


def _turn_state(grammar: Grammar, event: Any) -> str:
    turn = grammar.turn
    if turn is None:
        return "none"
    return turn.state if getattr(event, "turn", turn.id) == turn.id else "other"


def _step_state(grammar: Grammar, event: Any) -> str:
    step = grammar.step
    if step is None:
        return "none"
    if getattr(event, "step", step.id) != step.id:
        return "other"
    return "calling" if step.message is not None else "streaming"


def _call_state(grammar: Grammar, event: Any) -> str:
    call = grammar.step.calls.get(event.call) if grammar.step is not None else None
    return call.state if call is not None else "none"


def _ask_state(grammar: Grammar, event: Any) -> str:
    opened = grammar.asks.get(event.ask)
    if opened is None:
        return "none"
    return "open" if opened.call == event.call else "other"


_STATE: Mapping[str, Callable[[Grammar, Any], str]] = {
    "session": lambda grammar, event: grammar.session,
    "turn": _turn_state,
    "step": _step_state,
    "call": _call_state,
    "ask": _ask_state,
    "item": lambda grammar, event: "queued" if event.item in grammar.items else "none",
    "task": lambda grammar, event: "running" if event.task in grammar.tasks else "none",
}

_OPEN: Mapping[str, Callable[[Grammar, Any], bool]] = {
    "turn": lambda grammar, event: grammar.turn is not None,
    "step": lambda grammar, event: grammar.step is not None,
    "call": lambda grammar, event: bool(grammar.calls),
    "ask": lambda grammar, event: bool(grammar.calls[event.call].asks),
}


def _message_extra(grammar: Grammar, event: ModelMessage) -> str | None:
    new: set[str] = set()
    for block in event.blocks:
        if isinstance(block, ToolUse):
            if block.id in grammar.call_ids or block.id in new:
                return f"call id {block.id!r} is not new in the session"
            new.add(block.id)
    return None


def _tool_start_extra(grammar: Grammar, event: ToolStart) -> str | None:
    return "an ask of the call is open" if grammar.calls[event.call].asks else None


def _turn_end_extra(grammar: Grammar, event: TurnEnd) -> str | None:
    state = cast(OpenTurn, grammar.turn).state
    if (event.outcome == "interrupted") != (state == "cut"):
        return f"outcome {event.outcome} of a turn that is {state}: interrupted is for recovery only"
    if state == "cancelled" and event.outcome != "aborted":
        return f"outcome {event.outcome} of a turn that was cancelled"
    if (event.outcome == "failed") != (event.code is not None):
        return "a code belongs to the outcome failed, and only to it"
    return None


def _session_open_extra(grammar: Grammar, event: SessionOpen) -> str | None:
    return f"format {event.format} is not known here" if event.format != 1 else None


def _inbox_canceled_extra(grammar: Grammar, event: InboxCanceled) -> str | None:
    return "a notice is never dropped" if isinstance(grammar.items[event.item], TaskEnded) else None


def _session_close_extra(grammar: Grammar, event: SessionClose) -> str | None:
    left = [task.task for task in grammar.tasks.values() if task.lifetime == "session"]
    return f"tasks of lifetime session are running: {', '.join(left)}" if left else None


_EXTRA: Mapping[str, Callable[[Grammar, Any], str | None]] = {
    "session/open": _session_open_extra,
    "inbox/canceled": _inbox_canceled_extra,
    "model/message": _message_extra,
    "tool/start": _tool_start_extra,
    "turn/end": _turn_end_extra,
    "session/close": _session_close_extra,
}

_APPLY: Mapping[str, Callable[[Grammar, Any, float], None]] = {
    "session/open": _session_open,
    "session/close": _session_close,
    "turn/start": _turn_start,
    "turn/cancel": _turn_cancel,
    "turn/end": _turn_end,
    "step/start": _step_start,
    "step/end": _step_end,
    "model/delta": _model_delta,
    "model/retry": _model_retry,
    "model/message": _model_message,
    "tool/call": _tool_call,
    "tool/start": _tool_start,
    "tool/output": _tool_output,
    "tool/checkpoint": _tool_checkpoint,
    "tool/result": _tool_result,
    "ask/opened": _ask_opened,
    "ask/closed": _ask_closed,
    "inbox/queued": _inbox_queued,
    "inbox/consumed": _inbox_gone,
    "inbox/canceled": _inbox_gone,
    "task/started": _task_started,
    "task/ended": _task_ended,
}


class _PlannedMove(NamedTuple):
    state_of: Callable[[Grammar, Any], str]
    before: frozenset[str]
    inner_open: Callable[[Grammar, Any], bool] | None
    move: Move


class _Plan(NamedTuple):
    moves: tuple[_PlannedMove, ...]
    names: str | None
    extra: Callable[[Grammar, Any], str | None] | None
    apply: Callable[[Grammar, Any, float], None] | None


def _plan(type: str) -> _Plan:
    moves = tuple(_PlannedMove(_STATE[move.machine], move.before, _inner_open(move), move) for move in TABLE[type])
    return _Plan(moves, _NAMES.get(type), _EXTRA.get(type), _APPLY.get(type))


def _inner_open(move: Move) -> Callable[[Grammar, Any], bool] | None:
    closes = move.after in ("none", "closed") and move.machine in INNER
    return _OPEN[INNER[move.machine]] if closes else None


_PLANS = {type: _plan(type) for type in TABLE}
"""The table with every name in it looked up once, because every record waits for it."""
