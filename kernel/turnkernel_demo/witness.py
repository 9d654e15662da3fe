"""What a run sees besides the log: tool bodies, responses, shields, cancels. Watches; changes nothing.

It is the truth that the log is held against. Reads a few private fields of trio and of the session, because
what nobody may hold on to can't be seen through what is public.
"""

import re
import threading
from collections.abc import AsyncIterator, Callable, Container, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, cast

import attrs
import trio

from turnkernel.cancel import Authority, is_listed
from turnkernel.causes import Answer
from turnkernel.dispatch import errors_of
from turnkernel.events import Record, TaskEnded, ToolStart, TurnCancel, TurnEnd, TurnSurvivor
from turnkernel.kernel import Kernel, Receipt
from turnkernel.provider import ModelEvent, Provider, Request
from turnkernel.session import Session
from turnkernel.testing.laws import Violation
from turnkernel.tool import Concurrency, Effect, Tool, ToolContext, ToolOutput, resume_key

from .ledger import Body, Broken, CancelSeen, Survivor, Tell
from .processes import Process
from .scenario import ROOT

__all__ = ["Cancels", "ShieldWatch", "TurnWatch", "WitnessedProvider", "WitnessedTool", "in_no_call", "kernel_of"]

_IN_CALL: ContextVar[str | None] = ContextVar("in_call", default=None)
"""The call whose body a trio task is part of; its child tasks inherit it."""


@contextmanager
def in_no_call() -> Generator[None]:
    """What begins inside is of no call until it makes some: a child session is not its caller's body."""
    token = _IN_CALL.set(None)
    try:
        yield
    finally:
        _IN_CALL.reset(token)


def kernel_of(session: Session) -> Kernel:
    """What the session's rooms share."""
    return cast("Kernel", cast(Any, session)._kernel)


_MORE = ("opens_session", "find", "shown")
"""What a tool may have besides what all have (`OpensSession`, `FindsTasks`, `ShowsTasks`)."""


class WitnessedTool:
    """A tool as it is in one session, and what comes of its body is told.

    Only of the body of a call: what it leaves to a task is told by the log alone.
    """

    def __init__(self, tool: Tool, tell: Tell, session: str = ROOT) -> None:
        self._tool = tool
        self._tell = tell
        self._session = session
        for name in _MORE:
            if hasattr(tool, name):
                setattr(self, name, getattr(tool, name))

    def within(self, session: str) -> "WitnessedTool":
        """The same tool in a child session."""
        return WitnessedTool(self._tool, self._tell, session)

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
        call, effect, session = ctx.call_id, self._tool.effect, self._session
        self._tell(Body(call, effect, "began", session=session))
        token = _IN_CALL.set(call)
        try:
            output = await self._tool.run(ctx, input)
        except BaseException as error:
            for one in errors_of(error, call):
                self._tell(Body(call, effect, "raised", one.type, session))
            raise
        finally:
            _IN_CALL.reset(token)
        status = output.status or ("error" if output.is_error else "ok")
        self._tell(Body(call, effect, "returned", status, session))
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
        detail = f"a shield that is not listed or has no deadline, in call {call} or in a task that it began"
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
    """Every cancel of a turn in one life of a session and its children, in order."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._seen: list[tuple[CancelSeen, Authority | None]] = []
        self._looked: dict[tuple[str, str], float] = {}

    def __repr__(self) -> str:
        return f"<Cancels {[seen.answer for seen, _ in self._seen]}>"

    def recorded(
        self, record: Record, event: TurnCancel, authority: Authority | None, session: str = ROOT
    ) -> None:
        """A turn was cancelled, by whomever."""
        cause = authority.cause.value if authority is not None and authority.cause is not None else "user"
        self._add(CancelSeen(0, event.turn, record.seq, cause, "applied", {}, session=session), authority)

    def answered(self, receipt: Receipt, seq: int, authority: Authority | None, session: str = ROOT) -> None:
        """Somebody who cancelled got this receipt. One that was applied has its record already, if it could be."""
        if receipt.answer is Answer.APPLIED and any(
            (seen.session, seen.turn) == (session, receipt.turn) and seen.answer == "applied" and kept is not None
            for seen, kept in self._seen
        ):
            return
        self._add(_seen(receipt, seq, session), authority)

    def one_call(self, receipt: Receipt, seq: int, session: str = ROOT) -> None:
        """The same for a cancel of one call, which has no milestones: the turn goes on."""
        self._add(attrs.evolve(_seen(receipt, seq, session), one_call=True), None)

    def _add(self, seen: CancelSeen, authority: Authority | None) -> None:
        seen = attrs.evolve(seen, number=len(self._seen))
        self._seen.append((seen, authority))
        self._tell(seen)

    def discount(self, turn: str, seconds: float, session: str = ROOT) -> None:
        """So long did we hold up a turn's end to look around."""
        self._looked[session, turn] = seconds

    def tell_milestones(self) -> None:
        """Tell what has been reached by now."""
        for seen, authority in self._seen:
            if authority is not None and authority.milestones:
                held_up = self._looked.get((seen.session, authority.turn), 0.0)
                milestones = {
                    name: seconds - held_up if name in ("ended", "durable") else seconds
                    for name, seconds in authority.milestones.items()
                }
                self._tell(attrs.evolve(seen, milestones=milestones))


def _seen(receipt: Receipt, seq: int, session: str) -> CancelSeen:
    return CancelSeen(0, receipt.turn, seq, receipt.cause.value, receipt.answer.value, {}, session=session)


class TurnWatch:
    """R1 as it runs: what is alive when the end of a session's turn or task is appended.

    `starters` are tools that may start processes, `processes` those that are of nothing that still runs.
    """

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
        if self._started or event.synthetic:
            self._look_at_processes(record, event.turn)
        self._calls.clear()
        self._started = False

    def task_ended(self, record: Record, event: TaskEnded) -> None:
        """The same for the end of a task, which itself names what is left of it."""
        if event.name in self._starters:
            self._named |= {found[0] for found in re.finditer(r"pid \d+ ", event.text)}
            self._look_at_processes(record, event.task)

    def _look_at_processes(self, record: Record, after: str) -> None:
        for one in self._processes():
            if one.pid in self._found:
                continue
            self._found.add(one.pid)
            self._tell(Survivor(one.pid, one.command, after))
            if not any(name.startswith(f"pid {one.pid} ") for name in self._named):
                self._break(record, f"process {one.pid} ({one.command}) is alive at {record.event.type}")

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
