"""What a run sees besides the log: tool bodies, responses, shields, cancels. Watches; changes nothing.

It is the truth that the log is held against. Reads a few private fields of trio and of the session, because
what nobody may hold on to can't be seen through what is public.
"""

import threading
from collections.abc import AsyncIterator, Callable, Container, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, cast

import attrs
import trio

from turnkernel.cancel import Authority, is_listed
from turnkernel.causes import Answer
from turnkernel.dispatch import errors_of
from turnkernel.events import Record, ToolStart, TurnCancel, TurnEnd, TurnSurvivor
from turnkernel.kernel import Kernel, Receipt
from turnkernel.provider import ModelEvent, Provider, Request
from turnkernel.session import Session
from turnkernel.testing.laws import Violation
from turnkernel.tool import Concurrency, Effect, Tool, ToolContext, ToolOutput, resume_key

from .ledger import Body, Broken, CancelSeen, Survivor, Tell
from .processes import Process

__all__ = ["Cancels", "ShieldWatch", "TurnWatch", "WitnessedProvider", "WitnessedTool", "kernel_of"]

_IN_CALL: ContextVar[str | None] = ContextVar("in_call", default=None)
"""The call whose body a trio task is part of; its child tasks inherit it."""


def kernel_of(session: Session) -> Kernel:
    """What the session's rooms share."""
    return cast("Kernel", cast(Any, session)._kernel)


class WitnessedTool:
    """A tool as it is, and what comes of its body is told."""

    def __init__(self, tool: Tool, tell: Tell) -> None:
        self._tool = tool
        self._tell = tell

    def __repr__(self) -> str:
        return f"<WitnessedTool {self._tool!r}>"

    @property
    def name(self) -> str:
        """The tool's."""
        return self._tool.name

    @property
    def description(self) -> str:
        """The tool's."""
        return self._tool.description

    @property
    def schema(self) -> Mapping[str, Any]:
        """The tool's."""
        return self._tool.schema

    @property
    def effect(self) -> Effect:
        """The tool's."""
        return self._tool.effect

    @property
    def concurrency(self) -> Concurrency:
        """The tool's."""
        return self._tool.concurrency

    @property
    def timeout(self) -> float | None:
        """The tool's."""
        return self._tool.timeout

    def resume_key(self, input: Mapping[str, Any]) -> str:
        """The tool's."""
        return resume_key(self._tool, input)

    async def run(self, ctx: ToolContext, input: Mapping[str, Any]) -> ToolOutput:
        """The tool's. No checkpoint is added, before it or after."""
        call, effect = ctx.call_id, self._tool.effect
        self._tell(Body(call, effect, "began"))
        token = _IN_CALL.set(call)
        try:
            output = await self._tool.run(ctx, input)
        except BaseException as error:
            for one in errors_of(error, call):
                self._tell(Body(call, effect, "raised", one.type))
            raise
        finally:
            _IN_CALL.reset(token)
        self._tell(Body(call, effect, "returned", output.status or ("error" if output.is_error else "ok")))
        return output


class WitnessedProvider:
    """A provider as it is, and its open responses are counted."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self.open_streams = 0

    def __repr__(self) -> str:
        return f"<WitnessedProvider {self._provider!r} open={self.open_streams}>"

    @property
    def wire(self) -> str:
        """The provider's."""
        return self._provider.wire

    @property
    def model(self) -> str:
        """The provider's."""
        return self._provider.model

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """The provider's."""
        return _WitnessedStream(self, self._provider.stream(request))


class _WitnessedStream:
    def __init__(
        self, owner: WitnessedProvider, stream: AbstractAsyncContextManager[AsyncIterator[ModelEvent]]
    ) -> None:
        self._owner = owner
        self._stream = stream

    async def __aenter__(self) -> AsyncIterator[ModelEvent]:
        self._owner.open_streams += 1
        try:
            return await self._stream.__aenter__()
        except BaseException:
            self._owner.open_streams -= 1
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            return await self._stream.__aexit__(kind, error, trace)
        finally:
            self._owner.open_streams -= 1


class ShieldWatch(trio.abc.Instrument):
    """R9 as it runs: no trio task of a call ends a step inside a shield that is not listed or has no deadline."""

    def __init__(self, tell: Tell, seq: Callable[[], int]) -> None:
        self._tell = tell
        self._seq = seq
        self._told: set[str] = set()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Look at the scopes around a task of a call. Told once a call."""
        call = task.context.get(_IN_CALL)
        if call is None or call in self._told or not _in_bad_shield(task):
            return
        self._told.add(call)
        detail = f"a shield that is not listed or has no deadline, in call {call}"
        self._tell(Broken(Violation("R9", self._seq(), detail)))


def _in_bad_shield(task: trio.lowlevel.Task) -> bool:
    status = cast(Any, task)._cancel_status
    while status is not None:
        scope = status._scope
        if scope.shield and (not is_listed(scope) or scope.deadline == float("inf")):
            return True
        status = status._parent
    return False


class Cancels:
    """Every cancel of one life of a session, in order."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._seen: list[tuple[CancelSeen, Authority | None]] = []
        self._looked: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<Cancels {[seen.answer for seen, _ in self._seen]}>"

    def recorded(self, record: Record, event: TurnCancel, authority: Authority | None) -> None:
        """A turn was cancelled, by whomever."""
        cause = authority.cause if authority is not None else None
        self._add(event.turn, record.seq, cause.value if cause is not None else "user", Answer.APPLIED, authority)

    def answered(self, receipt: Receipt, seq: int, authority: Authority | None) -> None:
        """Somebody who cancelled got this receipt. One that was applied has its record already, if it could be."""
        if receipt.answer is Answer.APPLIED and any(
            seen.turn == receipt.turn and seen.answer == "applied" and kept is not None
            for seen, kept in self._seen
        ):
            return
        self._add(receipt.turn, seq, receipt.cause.value, receipt.answer, authority)

    def one_call(self, receipt: Receipt, seq: int) -> None:
        """The same for a cancel of one call, which has no milestones: the turn goes on."""
        self._add(receipt.turn, seq, receipt.cause.value, receipt.answer, None, one_call=True)

    def _add(
        self,
        turn: str | None,
        seq: int,
        cause: str,
        answer: Answer,
        authority: Authority | None,
        *,
        one_call: bool = False,
    ) -> None:
        seen = CancelSeen(len(self._seen), turn, seq, cause, answer.value, {}, one_call)
        self._seen.append((seen, authority))
        self._tell(seen)

    def discount(self, turn: str, seconds: float) -> None:
        """So long did we hold up a turn's end to look around."""
        self._looked[turn] = seconds

    def tell_milestones(self) -> None:
        """Tell what has been reached by now."""
        for seen, authority in self._seen:
            if authority is not None and authority.milestones:
                held_up = self._looked.get(authority.turn, 0.0)
                milestones = {
                    name: seconds - held_up if name in ("ended", "durable") else seconds
                    for name, seconds in authority.milestones.items()
                }
                self._tell(attrs.evolve(seen, milestones=milestones))


class TurnWatch:
    """R1 as it runs: what is alive when a turn's end is appended. `starters`: tools that may start processes."""

    def __init__(
        self,
        provider: WitnessedProvider,
        starters: Container[str],
        processes: Callable[[], Sequence[Process]],
        tell: Tell,
    ) -> None:
        self._provider = provider
        self._starters = starters
        self._started = False
        self._processes = processes
        self._tell = tell
        self._nursery: trio.Nursery | None = None
        self._named: set[str] = set()
        self._calls: set[str] = set()
        self._found: set[int] = set()

    def turn_started(self, nursery: trio.Nursery | None) -> None:
        """A turn has begun, in this nursery."""
        self._nursery = nursery

    def call_started(self, event: ToolStart) -> None:
        """A call of the running turn has begun: it may leave something."""
        self._calls.add(event.call)
        self._started = self._started or event.name in self._starters

    def survivor(self, event: TurnSurvivor) -> None:
        """The log names something that is left."""
        self._named.add(event.name)

    def turn_ended(self, record: Record, event: TurnEnd, session: Session | None) -> None:
        """Look around, in the step in which the end was appended."""
        if session is not None:
            self._look(record, session)
        for one in self._processes() if self._started or event.synthetic else ():
            if one.pid in self._found:
                continue
            self._found.add(one.pid)
            self._tell(Survivor(one.pid, one.command, event.turn))
            if not any(name.startswith(f"pid {one.pid} ") for name in self._named):
                self._break(record, f"process {one.pid} ({one.command}) is alive at turn/end")
        self._calls.clear()
        self._started = False

    def _look(self, record: Record, session: Session) -> None:
        if self._provider.open_streams:
            self._break(record, "a response is open at turn/end")
        if session.turn is not None:
            self._break(record, "the authority is there at turn/end", "R2")
        nursery = self._nursery
        if nursery is not None and (nursery.child_tasks or nursery in nursery.parent_task.child_nurseries):
            self._break(record, "the turn's nursery is open at turn/end")
        for thread in threading.enumerate():
            if thread.name.rpartition(" ")[2] in self._calls and thread.name not in self._named:
                self._break(record, f"thread {thread.name} runs at turn/end")

    def _break(self, record: Record, detail: str, law: str = "R1") -> None:
        self._tell(Broken(Violation(law, record.seq, detail)))
