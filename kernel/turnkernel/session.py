"""The owner of the only long-lived nursery: one conversation, its log and its driver.

`open_session` is the block that everything of a session lives in. Nothing outlives it.
"""

import math
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from os import PathLike
from typing import cast

import attrs
import trio

from . import gate as gates
from .background import find_detached, leave_tasks, stop_all_tasks, stop_task
from .cancel import Pressure, shield
from .causes import Answer, Cause, Urgency
from .context import Work
from .dispatch import Folds, stop_call
from .driver import Driver
from .errors import LogFailedError, SessionClosedError
from .events import (
    AskAnswer,
    Event,
    InboxCanceled,
    InboxQueued,
    Parent,
    SessionClose,
)
from .gate import Gate
from .journal import Journal, RecordCursor
from .kernel import Kernel, Receipt, Settings
from .messages import Message
from .observe import Status, StatusFold
from .opening import check_opening
from .provider import Provider
from .recovery import close_children, load, open_store, recover
from .replay import Context
from .store import Store
from .text import is_blank, scrub
from .tool import Resource, Tool, WorkContext

__all__ = ["EventCursor", "Session", "open_session"]


class EventCursor:
    """An iterator over events; see `RecordCursor`, which it wraps."""

    def __init__(self, records: RecordCursor) -> None:
        self._records = records

    def __repr__(self) -> str:
        return f"<EventCursor at {self._records.seq}>"

    def __aiter__(self) -> "EventCursor":
        return self

    async def __anext__(self) -> Event:
        """The next event; ends when the session does."""
        return (await self._records.__anext__()).event


class Session:
    """One conversation. Made by `open_session`; every method is to be called from its trio run.

    Methods that wait may be cancelled at any time. Methods that don't wait are synchronous and may be called
    from anywhere in the run, also while everything is being cancelled.
    """

    def __init__(self, kernel: Kernel, folds: Folds, status: StatusFold) -> None:
        self._kernel = kernel
        self._driver = Driver(kernel, folds)
        self._status = status
        self._accepting = True
        self._pressure = Pressure()
        """On the resources."""

    def __repr__(self) -> str:
        turn = self._kernel.grammar.turn
        state = "rest" if turn is None else f"{turn.id} {turn.state}"
        return f"<Session {self._kernel.journal.where} {state} seq={self._kernel.journal.seq}>"

    # ---------------------------------------------------------------------------------------------- input

    async def send(self, text: str) -> str:
        """Queue a prompt for the next turn; its item's id. Durable when it returns (law L8).

        Cancelled while it waits for the disk, it takes the item back, unless a turn has consumed it by then.
        Raises ValueError for blank text, `SessionClosedError`, `LogFailedError`.
        """
        return await self._accept(text, prompt=True)

    async def steer(self, text: str) -> str:
        """Queue words for the running turn, to stand after the results of its current step; the item's id.

        With no turn running it is a prompt. Durable when it returns; cancelled, as `send`.
        """
        return await self._accept(text, prompt=False)

    async def replace(self, text: str) -> Receipt:
        """Cancel the running turn and queue a prompt instead, in one; the model is not reminded of the turn.

        The receipt is that of the cancel. Durable when it returns; cancelled, as `send`.
        """
        self._check_input(text)
        receipt = self.cancel(Cause.REPLACED)
        await self._accept(text, prompt=True)
        return receipt

    def _check_input(self, text: str) -> None:
        if not self._accepting or self._driver.fault is not None:
            raise SessionClosedError("the session's block is being left; it takes no more input")
        if is_blank(text):
            raise ValueError("the text is blank; no model API accepts that")

    def post(self, text: str, *, prompt: bool = False) -> str:
        """What `steer` (or, with `prompt`, `send`) does before it waits: queue, and don't wait for the disk.

        Synchronous, for callers that can't wait; a power cut may take the item back. Raises as `send`.
        """
        self._check_input(text)
        authority = self._kernel.authority
        steer = not prompt and authority is not None and authority.cause is None
        item = f"i{self._kernel.journal.seq + 1}"
        self._kernel.append(InboxQueued(item, "steer" if steer else "prompt", scrub(text)))
        self._driver.go()
        return item

    async def _accept(self, text: str, *, prompt: bool) -> str:
        item = self.post(text, prompt=prompt)
        try:
            await self._kernel.journal.flush()
        except trio.Cancelled:
            self.withdraw(item)
            raise
        return item

    def withdraw(self, item: str) -> bool:
        """Take a queued item back. Synchronous, never raises. False if it was consumed or dropped before, or the
        log does not take it any more.
        """
        kernel = self._kernel
        if not isinstance(kernel.grammar.items.get(item), InboxQueued) or kernel.journal.closed:
            return False
        try:
            kernel.append(InboxCanceled(item, "withdrawn"))
        except LogFailedError:
            return False
        kernel.changed.unpark_all()
        return True

    def go_on(self) -> None:
        """Let what an earlier opening left queued start its turns. Synchronous."""
        self._driver.go()

    # --------------------------------------------------------------------------------------------- cancel

    def cancel(self, cause: Cause = Cause.USER, *, keep_inbox: bool = False, turn: str | None = None) -> Receipt:
        """Cancel the running turn. Synchronous, never blocks, never raises; see `Kernel.cancel`.

        A second one makes it urgent: graces end. `turn` names the turn that is meant; any other answers `stale`.
        """
        return self._kernel.cancel(cause, keep_inbox=keep_inbox, turn=turn)

    def cancel_call(self, call_id: str) -> Receipt:
        """Stop one call; the turn goes on and the model is told. Synchronous, never raises.

        `applied`, `repeated` if it is being stopped already, `stale` if it has its result or never was. The
        receipt settles when the turn does, which was not cancelled.
        """
        kernel = self._kernel
        authority = kernel.authority
        answer = stop_call(kernel, call_id)
        tasks = tuple(kernel.grammar.tasks.values())
        if authority is None or answer is Answer.STALE:
            return Receipt(answer, Cause.USER, self.turn, going_on=tasks)
        return Receipt(answer, Cause.USER, self.turn, (), tasks, authority, kernel.journal)

    def stop_task(self, task: str) -> Receipt:
        """Stop a task. Synchronous, never raises. A second one makes it urgent; `stale` where no such task runs.

        The receipt settles when the task has ended, which its `task/ended` tells.
        """
        return stop_task(self._kernel, task)

    def stop_all(self) -> Receipt:
        """Cancel the turn and stop every task, with all that they run. Synchronous, never raises.

        The receipt is that of the cancel, and settles when the tasks have ended too.
        """
        receipt = self.cancel()
        tasks = stop_all_tasks(self._kernel)
        stopped = tuple(task.started for task in tasks)
        going_on = tuple(task for task in receipt.going_on if task not in stopped)
        return attrs.evolve(receipt, going_on=going_on, stopped=stopped, tasks=tasks)

    def answer(self, ask: str, word: AskAnswer, text: str = "") -> bool:
        """A person's answer to an ask. Synchronous; False, and nothing happens, where no such ask is open.

        Raises ValueError for a word that does not fit the kind of ask, and `LogFailedError`.
        """
        return gates.answer(self._kernel, ask, word, text)

    # ---------------------------------------------------------------------------------------------- watch

    @property
    def turn(self) -> str | None:
        """The running turn's id, a handle for `cancel(turn=...)`; None at rest."""
        return self._kernel.authority.turn if self._kernel.authority is not None else None

    @property
    def children(self) -> Mapping[str, "Session"]:
        """The child sessions that run, by the id of the call or task that each is. A snapshot."""
        return {work: child for work, child in self._kernel.children.items() if isinstance(child, Session)}

    @property
    def context(self) -> tuple[Message, ...]:
        """What the model would be sent, as the log stands."""
        return tuple(self._kernel.context.messages)

    def status(self) -> Status:
        """What a screen shows now."""
        return self._status.status(self._kernel.grammar, self._kernel.journal.now())

    def events(self, after: int = 0) -> EventCursor:
        """A cursor over the events after record number `after`, as they come, until the session ends."""
        return EventCursor(self.records(after))

    def records(self, after: int = 0) -> RecordCursor:
        """The same with each event's place in the log."""
        return RecordCursor(self._kernel.journal, after)

    async def rest(self, *, tasks: bool = False) -> None:
        """Wait until no turn runs and nothing waits for one. Raises `LogFailedError` where that can't come.

        With `tasks` until no task of lifetime *session* runs either whose end would begin a turn. No checkpoint
        after the last look.
        """
        await trio.lowlevel.checkpoint()
        while not self._driver.at_rest or (tasks and self._driver.expects_notices):
            await self._kernel.changed.park()
        if self._kernel.journal.failure is not None:
            raise self._kernel.journal.failure

    # ---------------------------------------------------------------------------------------------- close

    async def wind_down(self) -> None:
        """End what runs, politely, before the block is left, which ends it at once: for a host that is told to go.

        No more input is taken and no turn starts; what is queued stays so. The running turn is cancelled, cause
        `shutdown`, and the tasks of lifetime *session* are stopped, both with their graces. Returns when they have
        ended. Cancelled, it leaves them to end; leaving the block ends them then without graces.
        """
        kernel = self._kernel
        self._accepting = False
        self._driver.stop()
        receipt = kernel.cancel(Cause.SHUTDOWN, keep_inbox=True, urgency=Urgency.POLITE)
        for task in [live.started for live in kernel.tasks.values()]:
            if task.lifetime == "session":
                stop_task(kernel, task.task, Cause.SHUTDOWN)
        try:
            await receipt.settled()
        except LogFailedError:
            pass  # raised where the block ends
        while any(live.started.lifetime == "session" for live in kernel.tasks.values()):
            await kernel.changed.park()

    @asynccontextmanager
    async def block(self, resources: Sequence[Resource] = ()) -> AsyncGenerator["Session", None]:
        """The block that the session lives in; `open_session` enters it.

        What is inside ends first: the turn, then the tasks, then the resources in reverse order, then the log.
        """
        kernel = self._kernel
        within = kernel.within
        try:
            # Of what the opening wrote. In here, because one that is cut in it closes the log too.
            await kernel.journal.flush()
            async with AsyncExitStack() as held:
                if within is not None:
                    held.enter_context(within.hosting(self))
                for number, resource in enumerate(resources, 1):
                    work = Work(kernel, self._pressure, f"resource{number}", "")
                    held.callback(work.close)
                    kernel.add_tools(await held.enter_async_context(resource(work)))
                async with trio.open_nursery() as kernel.tasks_nursery:
                    find_detached(kernel)
                    try:
                        async with trio.open_nursery() as nursery:
                            self._driver.start(nursery)
                            try:
                                yield self
                            finally:
                                self._leave()
                                nursery.cancel_scope.cancel(reason="the session's block was left")
                    finally:
                        leave_tasks(kernel, self._urgency())
        except BaseExceptionGroup as group:
            only = _only(group)
            if only is group:
                raise
            # The block's own exception goes on as it was raised.
            raise only from only.__cause__
        finally:
            await self._close()
            if self._driver.fault is not None:
                raise self._driver.fault

    def press(self, urgency: Urgency) -> None:
        """The parent's work is to end: the turn is cancelled, cause `parent`, and all that runs is as urgent.

        Synchronous, never raises. What ends the session is the scope around it.
        """
        kernel = self._kernel
        if urgency is Urgency.NOW:
            kernel.hurry()
        for pressure in (self._pressure, *kernel.tasks.values()):
            pressure.press(urgency)
        if kernel.authority is not None:
            kernel.cancel(kernel.host_cause, keep_inbox=True, urgency=urgency)

    def _urgency(self) -> Urgency:
        """How urgently what the session runs is to end, now that it is being left."""
        return self._kernel.host_urgency if _cancelled_from_outside() else Urgency.NOW

    def _leave(self) -> None:
        """No more input; the turn is told to end."""
        kernel = self._kernel
        self._accepting = False
        urgency = self._urgency()
        if urgency is Urgency.NOW:
            kernel.hurry()
        self._pressure.press(urgency)
        if kernel.authority is not None and kernel.journal.failure is None:
            cause = kernel.host_cause if _cancelled_from_outside() else Cause.SHUTDOWN
            kernel.cancel(cause, keep_inbox=True, urgency=urgency)

    async def _close(self) -> None:
        """Nothing runs any more: say so in the log, flush it, let it go."""
        kernel = self._kernel
        try:
            if kernel.journal.failure is None and kernel.grammar.turn is None:
                kernel.append(SessionClose())
                with shield("closing flush", kernel.settings.closing_seconds, outer_deadline=kernel.deadline):
                    await kernel.journal.flush()
        finally:
            kernel.journal.close()
            kernel.changed.unpark_all()


def _only(error: BaseException) -> BaseException:
    """The one exception in a group, however deep; the group itself where it holds several."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    group = cast("BaseExceptionGroup[BaseException]", error)
    return _only(group.exceptions[0]) if len(group.exceptions) == 1 else group


def _cancelled_from_outside() -> bool:
    return trio.current_effective_deadline() == -math.inf


@asynccontextmanager
async def open_session(
    path: str | PathLike[str] | Store | None,
    *,
    provider: Provider,
    tools: Iterable[Tool] = (),
    settings: Settings | None = None,
    gate: Gate | None = None,
    durability: str | None = None,
    containment: str | None = None,
    resources: Sequence[Resource] = (),
    within: WorkContext | None = None,
    journal_type: type[Journal] = Journal,
    salvage: bool = False,
) -> AsyncGenerator[Session, None]:
    """Open a log for writing, repair what a crash left, and run its turns inside the block.

    `path` is the log's file, None for a log in memory, or a `Store`. Leaving the block, or a cancel around it,
    takes no more input, ends the turn (cause `shutdown` or `host`), writes `session/close`, flushes, unlocks.
    An opening never calls the model: what was queued waits for the next input or for `go_on()`.
    `resources` live as long as the block; their tools are the session's too. `durability` is `power` unless
    given: a flush then survives a power cut; `process`: a crash; `memory`: nothing.

    `within` makes it a child session: of the call or task whose context that is. The logs name each other. A
    cancel of the parent's work is its own, cause `parent`, as urgent as that is; its cleanup is bounded by the
    parent's. Its log is where `within.log_at(...)` says, in a folder that is made if need be. Without a word on
    it, it is as durable and as contained as its parent.

    Logs of child sessions that a crash left open are closed first, deepest first; the results of the calls that
    had opened them say how they ended.

    With `salvage` a damaged log goes on from before the damage: the rest stays where it is, is copied to a file
    beside the log, and is passed over, which `session/open` says.

    Raises TypeError or ValueError, naming the argument, before there is a log; `SessionLiveError` where another
    kernel has the log open, `LogDamagedError` where it can't be read, OSError where the file system refuses; from
    the block `LogFailedError` and `InternalError`. What the block itself raises leaves as it is.
    """
    parents = None if within is None else within.opened
    if durability is None:
        durability = "power" if parents is None else parents.durability
    if containment is None:
        containment = "none" if parents is None else parents.containment
    tools = check_opening(
        path, provider=provider, tools=tools, settings=settings, gate=gate, durability=durability
    )
    settings = settings or Settings()
    context, status, folds = Context(), StatusFold(), Folds(gate or Gate())
    store, durability = await open_store(path, durability, child=within is not None)
    journal = journal_type(
        store,
        durability=durability,
        folds=(context, folds.checkpoints, folds.gate, folds.tasks, status),
        clock=trio.current_time,
    )
    try:
        passed_over, salvaged = await load(journal, store, salvage)
        kernel = Kernel(journal, context, provider, tools, settings, within)
        children = await close_children(journal, settings.wording)
        parent = None if within is None else Parent(within.session_id, within.call_id)
        recover(
            journal,
            settings.wording,
            passed_over,
            salvaged,
            containment=containment,
            parent=parent,
            children=children,
        )
    except BaseException:
        journal.close()
        raise
    async with Session(kernel, folds, status).block(resources) as session:
        yield session
