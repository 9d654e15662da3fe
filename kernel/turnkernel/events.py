"""The facts that a log holds. attrs only; touches nothing.

One frozen class per fact, no behaviour. `type` is its name in the log; a field that has its default is left
out there. Ids are described in `ids`; times are in seconds.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import attrs

from .messages import AssistantBlock

__all__ = [
    "EVENT_TYPES",
    "AskAnswer",
    "AskClosed",
    "AskOpened",
    "Delta",
    "Error",
    "Event",
    "FailureCode",
    "InboxCanceled",
    "InboxConsumed",
    "InboxQueued",
    "ModelDelta",
    "ModelMessage",
    "ModelRetry",
    "Outcome",
    "Parent",
    "Part",
    "PassedOver",
    "Record",
    "ResultStatus",
    "Salvaged",
    "SessionClose",
    "SessionOpen",
    "StepEnd",
    "StepStart",
    "Stop",
    "TaskEnded",
    "TaskStarted",
    "ToolCall",
    "ToolCheckpoint",
    "ToolOutput",
    "ToolResult",
    "ToolStart",
    "TurnCancel",
    "TurnEnd",
    "TurnStart",
    "TurnStuck",
    "TurnSurvivor",
]

Outcome = Literal["completed", "aborted", "failed", "max_steps", "refused", "interrupted"]
FailureCode = Literal["provider", "context_limit", "output_limit", "log", "internal"]
Stop = Literal["end_turn", "tool_use", "max_tokens", "refusal", "pause_turn", "cut"]
ResultStatus = Literal[
    "ok",
    "error",
    "not_started",
    "stopped",
    "unknown",
    "withdrawn",
    "denied",
    "dismissed",
    "timed_out",
    "blocked",
    "no_approver",
    "output_limit",
]
AskAnswer = Literal["allow", "allow_always", "deny", "deny_stop", "dismissed", "withdrawn", "answer"]
Part = Literal["text", "thinking", "signature", "redacted", "call", "input", "opaque", "end"]


@attrs.frozen
class PassedOver:
    """Bytes of the log that are no record and are skipped, by name, when it is read."""

    offset: int
    """Where they begin in the file."""
    length: int
    """How many, the newline after them not counted."""
    crc: str
    """crc32 of them, 8 hex digits."""


@attrs.frozen
class Salvaged:
    """The log was damaged, and goes on from before the damage; the rest is passed over."""

    reason: str
    """What was wrong, and in which line."""
    file: str
    """Where a copy of the rest is: the name of a file beside the log, or its suffix where there is no file."""
    records: int
    """Whole records in the rest, which are no part of the session any more."""


@attrs.frozen
class Parent:
    """The session and call that a child session belongs to."""

    session: str
    call: str


@attrs.frozen
class Error:
    """One failure, as the log keeps it."""

    type: str
    """Class name, with its module unless built in."""
    text: str
    place: str
    """What was going on: `provider`, `call call_1`, `kernel` ..."""


# ------------------------------------------------------------------------------------------------- session


@attrs.frozen
class SessionOpen:
    """The log was opened for writing; one per epoch."""

    type: ClassVar[str] = "session/open"
    session: str
    wall: str
    """Wall clock of this opening, ISO 8601 in UTC."""
    durability: str
    """`power`, `process` or `memory`: what an acknowledged record survives."""
    containment: str = "none"
    """The containment of processes in force."""
    format: int = 1
    parent: Parent | None = None
    passed_over: tuple[PassedOver, ...] = ()
    salvaged: Salvaged | None = None
    """Set by an opening that was told to salvage, and had to."""


@attrs.frozen
class SessionClose:
    """The log was closed in order; nothing of the session is alive."""

    type: ClassVar[str] = "session/close"


# --------------------------------------------------------------------------------------------------- inbox


@attrs.frozen
class InboxQueued:
    """Input was accepted."""

    type: ClassVar[str] = "inbox/queued"
    item: str
    kind: Literal["prompt", "steer"]
    text: str


@attrs.frozen
class InboxConsumed:
    """An item became part of the context."""

    type: ClassVar[str] = "inbox/consumed"
    item: str
    turn: str
    step: str
    """The step whose request is the first to hold it."""


@attrs.frozen
class InboxCanceled:
    """An item was dropped; no model will see it."""

    type: ClassVar[str] = "inbox/canceled"
    item: str
    reason: Literal["cancel", "withdrawn"]


# ---------------------------------------------------------------------------------------------------- turn


@attrs.frozen
class TurnStart:
    """A turn has claimed its input; its nursery is open."""

    type: ClassVar[str] = "turn/start"
    turn: str


@attrs.frozen
class TurnCancel:
    """The turn was cancelled. That and when, not who."""

    type: ClassVar[str] = "turn/cancel"
    turn: str


@attrs.frozen
class TurnStuck:
    """A cancelled turn has not ended in time; who holds it."""

    type: ClassVar[str] = "turn/stuck"
    turn: str
    holders: tuple[str, ...]
    """A line each: a trio task with its await stack, a thread with its stack, a process with its state."""


@attrs.frozen
class TurnSurvivor:
    """Something of the turn that could not be stopped and was left alive."""

    type: ClassVar[str] = "turn/survivor"
    turn: str
    call: str
    kind: Literal["thread", "process"]
    name: str


@attrs.frozen
class TurnEnd:
    """Nothing of the turn is left."""

    type: ClassVar[str] = "turn/end"
    turn: str
    outcome: Outcome
    code: FailureCode | None = None
    """Why it failed, when the outcome is `failed`."""
    errors: tuple[Error, ...] = ()
    """Every error of the turn, also when it was cancelled."""
    reminder: str | None = None
    """What the model is told of it in the next user message."""
    synthetic: bool = False


# ---------------------------------------------------------------------------------------------------- step


@attrs.frozen
class StepStart:
    """A model request is about to be made."""

    type: ClassVar[str] = "step/start"
    turn: str
    step: str
    wire: str
    model: str


@attrs.frozen
class StepEnd:
    """The message is there and every call of it has its result."""

    type: ClassVar[str] = "step/end"
    turn: str
    step: str
    note: str | None = None
    """User text that the kernel adds after the results, where the wire needs one (after a provider's pause)."""
    synthetic: bool = False


@attrs.frozen
class Delta:
    """A piece of a message as it streams; what a provider yields."""

    block: int
    """Which block of the message it belongs to; blocks are in the order in which they first appear."""
    part: Part
    """`text` `thinking` `input`: a fragment. `signature` `redacted` `opaque`: given whole (`opaque` as JSON).
    `call`: a call begins (`call`, `name`). `end`: the block is whole."""
    text: str = ""
    call: str | None = None
    """The id that the wire gave the call, as it came; may be empty."""
    name: str | None = None


@attrs.frozen
class ModelDelta:
    """A `Delta`, logged before it is shown."""

    type: ClassVar[str] = "model/delta"
    turn: str
    step: str
    block: int
    part: Part
    text: str = ""
    call: str | None = None
    name: str | None = None


@attrs.frozen
class ModelRetry:
    """A request failed before it showed anything and will be made again, after a wait."""

    type: ClassVar[str] = "model/retry"
    turn: str
    step: str
    attempt: int
    """The number of the attempt that failed, from 1."""
    wait: float
    """Seconds until the next."""
    reason: str


@attrs.frozen
class ModelMessage:
    """What the model said in a step; opens its calls."""

    type: ClassVar[str] = "model/message"
    turn: str
    step: str
    wire: str
    model: str
    blocks: tuple[AssistantBlock, ...]
    stop: Stop
    """`cut` when the stream ended before the message did."""
    usage: Mapping[str, int] | None = None
    synthetic: bool = False


# --------------------------------------------------------------------------------------------------- calls


@attrs.frozen
class ToolCall:
    """A call was taken up: hooks and approval come now."""

    type: ClassVar[str] = "tool/call"
    turn: str
    call: str
    name: str


@attrs.frozen
class ToolStart:
    """A call is cleared to run. Durable before the body runs, unless the tool is read-only."""

    type: ClassVar[str] = "tool/start"
    turn: str
    call: str
    name: str
    input: Mapping[str, Any]
    """The input in fact used, which a hook may have changed."""
    effect: str
    """`read_only`, `idempotent` or `effect`, as the tool declares."""
    log: str | None = None
    """The log of the child session that the call opens, from this log's folder."""


@attrs.frozen
class ToolOutput:
    """A running call has something to show."""

    type: ClassVar[str] = "tool/output"
    turn: str
    call: str
    stream: str
    text: str


@attrs.frozen
class ToolCheckpoint:
    """A running call has got so far; the next call with the same key may go on from there."""

    type: ClassVar[str] = "tool/checkpoint"
    turn: str
    call: str
    name: str
    key: str
    state: Any


@attrs.frozen
class ToolResult:
    """The one result of a call."""

    type: ClassVar[str] = "tool/result"
    turn: str
    call: str
    name: str
    status: ResultStatus
    is_error: bool
    text: str
    """What the model is told, rendered once."""
    seconds: float | None = None
    """How long the body ran; None if it did not."""
    synthetic: bool = False


# ---------------------------------------------------------------------------------------------------- asks


@attrs.frozen
class AskOpened:
    """A person is asked; the call waits."""

    type: ClassVar[str] = "ask/opened"
    turn: str
    call: str
    ask: str
    kind: Literal["approval", "question"]
    text: str
    options: tuple[str, ...] = ()


@attrs.frozen
class AskClosed:
    """The ask is over."""

    type: ClassVar[str] = "ask/closed"
    turn: str
    call: str
    ask: str
    answer: AskAnswer
    text: str = ""
    """The person's words: the answer, or the reason of a denial."""
    rule: str | None = None
    """For `allow_always`: the tool that needs no approval any more."""
    synthetic: bool = False


# --------------------------------------------------------------------------------------------------- tasks


@attrs.frozen
class TaskStarted:
    """Background work has begun."""

    type: ClassVar[str] = "task/started"
    task: str
    call: str
    name: str
    lifetime: Literal["session", "detached"]
    detail: Mapping[str, Any] | None = None
    """What is needed to find it again."""
    log: str | None = None
    """The log of the child session that it is, from this log's folder."""


@attrs.frozen
class TaskEnded:
    """Background work is over. It is itself the queued notice of that, so there is exactly one."""

    type: ClassVar[str] = "task/ended"
    task: str
    item: str
    name: str
    status: Literal["ok", "error", "stopped", "lost"]
    text: str
    """What the model is told, rendered once."""
    synthetic: bool = False


Event = (
    SessionOpen
    | SessionClose
    | InboxQueued
    | InboxConsumed
    | InboxCanceled
    | TurnStart
    | TurnCancel
    | TurnStuck
    | TurnSurvivor
    | TurnEnd
    | StepStart
    | StepEnd
    | ModelDelta
    | ModelRetry
    | ModelMessage
    | ToolCall
    | ToolStart
    | ToolOutput
    | ToolCheckpoint
    | ToolResult
    | AskOpened
    | AskClosed
    | TaskStarted
    | TaskEnded
)

EVENT_TYPES: dict[str, type[Event]] = {cls.type: cls for cls in Event.__args__}  # type: ignore[attr-defined]
"""Every event class by its name in the log."""


@attrs.frozen
class Record:
    """An event at its place in the log."""

    seq: int
    """From 1, contiguous over the whole log."""
    epoch: int
    """From 1, one per opening for writing."""
    t: float
    """Seconds since this epoch's `session/open`, monotonic."""
    event: Event
