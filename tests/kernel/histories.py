"""Random legal histories: a walk over the grammar's table, as a kernel that keeps its contracts would write it.

What is drawn at each step is one of the events that may come next. Crashes are part of the walk: an opening, and
then the closers or only the first of them, because the next crash may come in the middle of a recovery.
"""

from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

from turnkernel.assemble import assemble
from turnkernel.events import (
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
    TurnStuck,
    TurnSurvivor,
)
from turnkernel.grammar import Grammar, OpenCall, OpenStep
from turnkernel.messages import ToolUse
from turnkernel.repair import INTERRUPTION, closers
from turnkernel.replay import Context
from turnkernel.wording import DEFAULT

__all__ = ["Walk", "everything", "folded", "histories", "numbered", "opening"]

WORDS = ("go", "é\x00", "\u202eabc", "</system-reminder>", "[interrupted]", "{}", " x ", "😀" * 3)
MAYBE_BLANK = (*WORDS, "", " ", "\n")
WIRES = (("anthropic", "m1"), ("openai-chat", "m2"))
BEFORE_START = ("not_started", "error", "denied", "blocked", "withdrawn", "no_approver", "output_limit")
AFTER_START = ("ok", "error", "stopped", "timed_out", "unknown", "dismissed", "withdrawn")


def opening(**more: Any) -> SessionOpen:
    return SessionOpen("s", "2026-01-01T00:00:00.000+00:00", "process", **more)


def folded(records: list[Record]) -> tuple[Grammar, Context]:
    """The grammar and the context after these records, each of them checked."""
    grammar, context = Grammar(), Context()
    for record in records:
        grammar.check(record.event)
        grammar.apply(record)
        context.apply(record)
    return grammar, context


def numbered(events: list[Event], grammar: Grammar | None = None) -> list[Record]:
    """Records of these events after what the grammar has seen; nothing is checked or applied."""
    seq, epoch = (grammar.seq, grammar.epoch) if grammar is not None else (0, 0)
    records: list[Record] = []
    for event in events:
        seq, epoch = seq + 1, epoch + isinstance(event, SessionOpen)
        records.append(Record(seq, epoch, 0.0, event))
    return records


def everything(grammar: Grammar) -> str:
    """All that a grammar knows, to compare."""
    parts = {name: getattr(grammar, name) for name in Grammar.__slots__}
    for call in grammar.calls.values():
        parts[f"output of {call.use.id}"] = call.output and (call.output.text(), call.output.cut)
    parts["call_ids"] = sorted(grammar.call_ids)
    parts["ids"] = {kind: sorted(ids) for kind, ids in grammar.ids.items()}
    return repr(parts)


class Walk:
    """One history as it grows."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self.draw = draw
        self.grammar, self.context = Grammar(), Context()
        self.records: list[Record] = []
        self.add(opening())

    def add(self, *events: Event) -> None:
        for event in events:
            self.grammar.check(event)
            (record,) = numbered([event], self.grammar)
            self.grammar.apply(record)
            self.context.apply(record)
            self.records.append(record)

    def pick(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def fresh(self, letter: str) -> str:
        return f"{letter}{self.grammar.seq + 1}"

    def step(self) -> None:
        """One more event, or one crash with what its recovery wrote."""
        options = list(self._options())
        self.pick(*options)()

    def _options(self) -> Iterator[Callable[[], None]]:
        """What may come next. What leads on is there more than once, so that a walk gets somewhere."""
        grammar = self.grammar
        if grammar.session == "closed":
            yield lambda: self.add(opening())
            return
        yield lambda: self.pick(*self._aside())()
        if grammar.turn is None:
            yield from [self._start_turn if grammar.items else self._queue] * 6
        else:
            yield from self._in_turn(grammar.turn.id, running=grammar.turn.state == "running")

    def _queue(self) -> None:
        self.add(InboxQueued(self.fresh("i"), self.pick("prompt", "steer"), self.pick(*WORDS)))

    def _aside(self) -> Iterator[Callable[[], None]]:
        """What may come at almost any time, and has nothing to do with what the turn is at."""
        yield self.crash
        yield self._queue
        if self.grammar.turn is not None:
            turn = self.grammar.turn
            if turn.state == "running":
                yield lambda: self.add(TurnCancel(turn.id))
            yield lambda: self.add(TurnStuck(turn.id, ("a trio task: somewhere",)))
            yield lambda: self.add(TurnSurvivor(turn.id, "c", self.pick("thread", "process"), "sleep 300"))
        elif not any(task.lifetime == "session" for task in self.grammar.tasks.values()):
            yield lambda: self.add(SessionClose())
        lifetime, detail = self.pick("session", "detached"), self.pick(None, {"pid": 1})
        yield lambda: self.add(TaskStarted(self.fresh("k"), "c", "bash", lifetime, detail))
        for task in self.grammar.tasks.values():
            status = self.pick("ok", "error", "stopped")
            yield lambda task=task, status=status: self.add(
                TaskEnded(task.task, f"{task.task}.end", task.name, status, "It ended.")
            )
        for item in self.grammar.items.values():
            if isinstance(item, InboxQueued):
                yield lambda item=item: self.add(InboxCanceled(item.item, self.pick("cancel", "withdrawn")))

    def _start_turn(self) -> None:
        turn = self.grammar.next_turn()
        self.add(TurnStart(turn))
        self._consume(turn)

    def _consume(self, turn: str) -> None:
        count = self.pick(1, 1, 2)
        for item in list(self.grammar.items)[:count]:
            self.add(InboxConsumed(item, turn, self.grammar.next_step()))

    def _in_turn(self, turn: str, *, running: bool) -> Iterator[Callable[[], None]]:
        step = self.grammar.step
        if step is None:
            yield lambda: self._end_turn(turn, running=running)
            if running and self.grammar.items:
                yield lambda: self._consume(turn)
            if running and self.context.messages and self.context.messages[-1].role == "user":
                wire, model = self.pick(*WIRES)
                start = StepStart(turn, self.grammar.next_step(), wire, model)
                yield from [lambda: self.add(start)] * 6
        elif step.message is None:
            yield from self._streaming(turn, step, running=running)
        else:
            for call in step.calls.values():
                yield from [lambda call=call: self._call(turn, call, running=running)] * 3
            if not step.calls:
                yield from [lambda: self.add(StepEnd(turn, step.id, self.pick(None, None, "Continue.")))] * 6

    def _end_turn(self, turn: str, *, running: bool) -> None:
        outcome = self.pick("completed", "failed", "aborted", "max_steps", "refused") if running else "aborted"
        code = self.pick("provider", "output_limit", "internal") if outcome == "failed" else None
        self.add(
            TurnEnd(turn, outcome, code, reminder=self.pick(None, "<system-reminder>\nx\n</system-reminder>"))
        )

    def _streaming(self, turn: str, step: OpenStep, *, running: bool) -> Iterator[Callable[[], None]]:
        yield from [lambda: self._delta(turn, step)] * 6
        if running and not step.deltas:
            yield lambda: self.add(ModelRetry(turn, step.id, 1, 0.5, "overloaded"))
        if running:
            yield from [lambda: self._message(turn, step)] * 2
        if not running:
            yield lambda: self.add(StepEnd(turn, step.id, synthetic=True))

    def _delta(self, turn: str, step: OpenStep) -> None:
        """A delta that a provider may give: a block keeps its kind, and is told no more of once it is whole."""
        kinds: dict[int, str] = {}
        for delta in step.deltas:
            kinds.setdefault(delta.block, delta.part)
            if delta.part == "end":
                kinds[delta.block] = "end"
        block = max(kinds, default=-1)
        if kinds.get(block, "end") == "end" or self.pick(False, False, True):
            block += 1
        kind = kinds.get(block) or self.pick("text", "call", "call", "call", "thinking", "redacted", "opaque")
        call = name = None
        text = ""
        match kind:
            case "text":
                part, text = self.pick(("text", self.pick(*MAYBE_BLANK)), ("end", ""))
            case "thinking":
                choices = [
                    ("thinking", self.pick(*MAYBE_BLANK)),
                    ("signature", self.pick("", "c2ln")),
                    ("end", ""),
                ]
                part, text = self.pick(*choices)
            case "call" if block not in kinds:
                part, call, name = "call", self.pick("call_1", "call_2", ""), self.pick("bash", "read_file", "")
            case "call":
                part, text = self.pick(("input", self.pick('{"a":', "1}", "{}", "[]")), ("end", ""))
            case _ if block in kinds:
                part = "end"
            case _:
                part, text = kind, '{"type":"x"}'
        if block not in kinds and part in ("end", "signature"):
            part, text = "thinking" if kind == "thinking" else "text", "x"
        self.add(ModelDelta(turn, step.id, block, part, text, call, name))

    def _message(self, turn: str, step: OpenStep) -> None:
        blocks = assemble(step.deltas, cut=False, taken=self.grammar.call_ids)
        calls = any(isinstance(block, ToolUse) for block in blocks)
        stop = self.pick("tool_use", "max_tokens") if calls else self.pick("end_turn", "pause_turn", "refusal")
        self.add(ModelMessage(turn, step.id, step.wire, step.model, blocks, stop, self.pick(None, {"tokens": 3})))

    def _call(self, turn: str, call: OpenCall, *, running: bool) -> None:
        use, options = call.use, list[Callable[[], None]]()
        for ask in call.asks.values():
            words = ("allow", "deny", "dismissed") if ask.kind == "approval" else ("answer", "dismissed")
            word = self.pick(*words, "withdrawn")
            options += [lambda ask=ask, word=word: self.add(AskClosed(turn, use.id, ask.ask, word, "because"))] * 4
        if not call.asks:
            statuses = AFTER_START if call.state == "running" else BEFORE_START
            status = self.pick(*statuses) if not call.withdrawn else "withdrawn"
            options.append(lambda: self.add(ToolResult(turn, use.id, use.name, status, status != "ok", "said")))
        if running and call.state == "asked":
            options += [lambda: self.add(ToolCall(turn, use.id, use.name))] * 4
        if running and call.state == "taken" and not call.asks:
            start = ToolStart(turn, use.id, use.name, use.input, self.pick("read_only", "idempotent", "effect"))
            options += [lambda: self.add(start)] * 2
        if running and call.state == "taken":
            options.append(lambda: self._ask(turn, use, "approval"))
        if running and call.state == "running":
            options.append(lambda: self._ask(turn, use, "question"))
        if call.state == "running":
            options.append(lambda: self.add(ToolOutput(turn, use.id, "stdout", self.pick(*WORDS))))
            options.append(lambda: self.add(ToolCheckpoint(turn, use.id, use.name, "key", {"done": 1})))
        self.pick(*options)()

    def _ask(self, turn: str, use: ToolUse, kind: Any) -> None:
        self.add(AskOpened(turn, use.id, self.fresh("a"), kind, "sure?", self.pick((), ("yes", "no"))))

    def crash(self) -> None:
        """The next opening, and what its recovery wrote before the crash after it, if there was one."""
        self.add(opening())
        closing = closers(self.grammar, DEFAULT, INTERRUPTION)
        self.add(*closing[: self.pick(len(closing), self.draw(st.integers(0, len(closing))))])
        if closers(self.grammar, DEFAULT, INTERRUPTION):
            self.crash()


@st.composite
def histories(draw: Callable[[st.SearchStrategy[Any]], Any], most: int = 60) -> list[Record]:
    """Legal logs of up to about so many records, open or closed, with and without crashes."""
    walk = Walk(draw)
    for _ in range(draw(st.sampled_from((0, 3, most // 4, most, most, most)))):
        walk.step()
    return walk.records
