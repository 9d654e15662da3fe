"""What is still open in a log to the events that close it. No trio, no I/O; pure.

One function, two callers: the closing block of a live turn, where most is closed already, and recovery after a
crash, where nothing is. Deterministic, and idempotent because a closed log has nothing open.
"""

from collections.abc import Mapping, Sequence

import attrs

from .assemble import assemble
from .causes import Cause
from .events import (
    AskClosed,
    Error,
    Event,
    FailureCode,
    ModelMessage,
    Outcome,
    ResultStatus,
    StepEnd,
    TaskEnded,
    TaskStarted,
    ToolResult,
    TurnEnd,
)
from .grammar import Grammar, OpenCall, OpenStep, OpenTurn
from .messages import Text, ToolUse
from .text import is_blank
from .wording import CallFacts, TaskFacts, TurnFacts, Wording

__all__ = ["INTERRUPTION", "Ending", "closers", "partial_message", "task_end", "task_lost", "task_words"]

_NO_CHILDREN: Mapping[str, str] = {}


@attrs.frozen
class Ending:
    """How a turn ended."""

    outcome: Outcome
    code: FailureCode | None = None
    errors: tuple[Error, ...] = ()
    cause: Cause | None = None
    """Run-time only: words the reminder, is not logged."""


INTERRUPTION = Ending("interrupted")
"""The ending that recovery gives."""


def closers(
    grammar: Grammar, wording: Wording, ending: Ending, children: Mapping[str, str] = _NO_CHILDREN
) -> list[Event]:
    """The events that close the open turn, and on recovery the tasks that died with the kernel.

    In this order: the partial message from the deltas; per open call in model order its ask and its result;
    the step's end; the turn's end with its reminder; the ends of lost tasks. `children` says, per name of its log,
    how a child session ended.
    """
    turn = grammar.turn
    events: list[Event] = []
    if turn is not None:
        closing = _Closing(grammar, wording, ending, turn, children)
        closing.close_step()
        closing.close_turn()
        events += closing.events
    if ending.outcome == "interrupted":
        events += [
            task_lost(task, wording, children) for task in grammar.tasks.values() if task.lifetime == "session"
        ]
    return events


def partial_message(grammar: Grammar, turn: str, step: OpenStep) -> ModelMessage | None:
    """What a cut stream leaves, or None if nothing of it can stand (laws C2 to C4)."""
    blocks = assemble(step.deltas, cut=True, taken=grammar.call_ids)
    if not blocks:
        return None
    return ModelMessage(turn, step.id, step.wire, step.model, blocks, "cut", synthetic=True)


class _Closing:
    def __init__(
        self, grammar: Grammar, wording: Wording, ending: Ending, turn: OpenTurn, children: Mapping[str, str]
    ) -> None:
        self.grammar, self.wording, self.ending, self.turn = grammar, wording, ending, turn
        self.children = children
        self.events: list[Event] = []
        self.results: list[ToolResult] = list(turn.last.results) if turn.last is not None else []
        self.message = turn.last.message if turn.last is not None else None

    def close_step(self) -> None:
        step = self.grammar.step
        if step is None:
            return
        calls: Sequence[OpenCall] = tuple(step.calls.values())
        if step.message is None:
            self.message = partial_message(self.grammar, self.turn.id, step)
            if self.message is not None:
                self.events.append(self.message)
                calls = [OpenCall(block) for block in self.message.blocks if isinstance(block, ToolUse)]
        for call in calls:
            self.close_call(call)
        self.events.append(StepEnd(self.turn.id, step.id, synthetic=True))

    def close_call(self, call: OpenCall) -> None:
        for ask in call.asks.values():
            self.events.append(
                AskClosed(self.turn.id, ask.call, ask.ask, "withdrawn", synthetic=True),
            )
        status, text = self.result_of(call)
        is_error = status not in ("ok", "dismissed")
        result = ToolResult(
            self.turn.id, call.use.id, call.use.name, status, is_error, text, seconds=None, synthetic=True
        )
        self.events.append(result)
        self.results.append(result)

    def result_of(self, call: OpenCall) -> tuple[ResultStatus, str]:
        facts = CallFacts(
            call.use.name,
            cause=self.ending.cause,
            output=call.output.text() if call.output is not None else "",
            effect=call.effect,
            resumable=call.checkpointed,
            child=self.children.get(call.log, "") if call.log is not None else "",
        )
        said = call.answered
        status: ResultStatus = "unknown" if call.state == "running" else "not_started"
        if call.asks or call.withdrawn:
            status = "withdrawn"
        elif said is not None and call.state == "running":
            # The person did answer. Only the result is missing, unless the tool went on to do something with it.
            if call.effect == "effect":
                facts = attrs.evolve(facts, answer=said.text or said.answer)
            elif said.answer == "dismissed":
                status = "dismissed"
            else:
                return "ok", said.text if not is_blank(said.text) else self.wording.empty()
        elif said is not None and said.answer not in ("allow", "allow_always"):
            status, facts = "denied", attrs.evolve(facts, error=said.text)
        return status, self.wording.result(status, facts)

    def close_turn(self) -> None:
        ending = self.ending
        reminder = self.wording.reminder(
            TurnFacts(
                ending.outcome,
                ending.cause,
                ending.code,
                ending.errors,
                calls=self.results,
                text_cut=self.cut_text(),
                calls_cut=self.cut_calls(),
                answered=self.answered(),
            )
        )
        recovered = ending.outcome == "interrupted"
        self.events.append(
            TurnEnd(self.turn.id, ending.outcome, ending.code, ending.errors, reminder, synthetic=recovered)
        )

    def cut_text(self) -> bool:
        message = self.message
        return (
            message is not None
            and message.stop == "cut"
            and any(isinstance(block, Text) for block in message.blocks)
        )

    def cut_calls(self) -> list[str]:
        # Of the last step, closed or not: a crash may have come in the middle of an earlier recovery.
        deltas = self.turn.last.deltas if self.turn.last is not None else []
        ended = {delta.block for delta in deltas if delta.part == "end"}
        names = {delta.block: delta.name for delta in deltas if delta.part == "call" and delta.name}
        return [name for block, name in names.items() if block not in ended]

    def answered(self) -> bool:
        message = self.message
        if message is None or message.stop in ("cut", "pause_turn") or self.grammar.step is not None:
            return False
        return not any(isinstance(block, ToolUse) for block in message.blocks)


def task_end(started: TaskStarted, wording: Wording, facts: TaskFacts, *, synthetic: bool = False) -> TaskEnded:
    """The end of a task, which is also its notice."""
    text = wording.task_ended(facts)
    return TaskEnded(started.task, f"{started.task}.end", started.name, facts.status, text, synthetic)


def task_lost(started: TaskStarted, wording: Wording, children: Mapping[str, str] = _NO_CHILDREN) -> TaskEnded:
    """The end of a task that died with the kernel, or is not found any more."""
    child = children.get(started.log, "") if started.log is not None else ""
    facts = TaskFacts(started.task, started.name, task_words(started), "lost", child=child)
    return task_end(started, wording, facts, synthetic=True)


def task_words(started: TaskStarted) -> str:
    """What a task does, for a person: what its tool says as `what`, in one line."""
    what = str((started.detail or {}).get("what", ""))
    return " ".join(what.split())[:200]
