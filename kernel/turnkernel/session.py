"""The owner of the only long-lived nursery: one conversation, its log and its driver.

`open_session` is the block that everything of a session lives in. Nothing outlives it.
"""

import datetime
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from os import PathLike
from pathlib import Path

import trio

from . import gate as gates
from .cancel import shield
from .causes import Answer, Cause
from .context import Checkpoints
from .dispatch import stop_call
from .driver import Driver
from .errors import LogDamagedError, LogFailedError, SessionClosedError
from .events import (
    AskAnswer,
    Event,
    InboxCanceled,
    InboxQueued,
    Parent,
    PassedOver,
    Salvaged,
    SessionClose,
    SessionOpen,
)
from .gate import Gate
from .ids import new_session_id
from .journal import Journal, RecordCursor
from .kernel import Kernel, Receipt, Settings
from .messages import Message
from .observe import Status, StatusFold
from .provider import Provider
from .reading import is_log
from .repair import INTERRUPTION, closers
from .replay import Context
from .store import FileStore, MemoryStore, Store
from .text import is_blank, scrub
from .tool import Tool
from .wording import Wording

__all__ = ["EventCursor", "Session", "open_session", "recover"]


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

    def __init__(self, kernel: Kernel, gate: Gate, checkpoints: Checkpoints, status: StatusFold) -> None:
        self._kernel = kernel
        self._driver = Driver(kernel, gate, checkpoints)
        self._status = status
        self._accepting = True

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

    def stop_all(self) -> Receipt:
        """Cancel the turn, and with it everything that the session runs. Synchronous, never raises."""
        return self.cancel()

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
    def context(self) -> tuple[Message, ...]:
        """What the model would be sent, as the log stands."""
        return self._kernel.context.messages

    def status(self) -> Status:
        """What a screen shows now."""
        return self._status.status(self._kernel.grammar, self._kernel.journal.now())

    def events(self, after: int = 0) -> EventCursor:
        """A cursor over the events after record number `after`, as they come, until the session ends."""
        return EventCursor(self.records(after))

    def records(self, after: int = 0) -> RecordCursor:
        """The same with each event's place in the log."""
        return RecordCursor(self._kernel.journal, after)

    async def rest(self) -> None:
        """Wait until no turn runs and nothing waits for one. Raises `LogFailedError` where that can't come."""
        await trio.lowlevel.checkpoint()
        while not self._driver.at_rest:
            await self._kernel.changed.park()
        if self._kernel.journal.failure is not None:
            raise self._kernel.journal.failure

    # ---------------------------------------------------------------------------------------------- close

    @asynccontextmanager
    async def block(self) -> AsyncGenerator["Session", None]:
        """The block that the session lives in; `open_session` enters it."""
        try:
            async with trio.open_nursery() as nursery:
                self._driver.start(nursery)
                try:
                    yield self
                finally:
                    self._leave()
                    nursery.cancel_scope.cancel(reason="the session's block was left")
        except BaseExceptionGroup as group:
            only = _only(group)
            if only is None:
                raise
            # The block's own exception goes on as it was raised.
            raise only from only.__cause__
        finally:
            await self._close()
            if self._driver.fault is not None:
                raise self._driver.fault

    def _leave(self) -> None:
        """No more input; the turn is told to end."""
        self._accepting = False
        self._kernel.hurry()
        if self._kernel.authority is not None and self._kernel.journal.failure is None:
            self._kernel.cancel(Cause.SHUTDOWN, keep_inbox=True)

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


def _only(group: BaseExceptionGroup[BaseException]) -> BaseException | None:
    return group.exceptions[0] if len(group.exceptions) == 1 else None


async def _open_store(path: str | PathLike[str] | Store | None, durability: str) -> tuple[Store, str]:
    if durability not in ("power", "process", "memory"):
        raise ValueError(f"durability is power, process or memory, not {durability!r}")
    if path is None:
        return MemoryStore(), "memory"
    if isinstance(path, str | PathLike):
        return await trio.to_thread.run_sync(FileStore.open, Path(path)), durability
    return path, durability


_SHORT_BYTES = 64 * 1024
"""A log that is read in less time than a thread's start and end would add to."""


def _loaded(journal: Journal, salvage: bool) -> tuple[PassedOver | None, Salvaged | None]:
    try:
        return journal.load(), None
    except LogDamagedError:
        if not salvage:
            raise
    return journal.salvage()


async def _load(journal: Journal, store: Store, salvage: bool) -> tuple[PassedOver | None, Salvaged | None]:
    if store.size and not is_log(store):
        # Somebody's letter of one line would be taken for the torn beginning of a log, and written to.
        raise LogDamagedError(store.where, 0, 1, "no log: there is no record at its beginning")
    if store.size <= _SHORT_BYTES:
        return _loaded(journal, salvage)
    # A long log must not hold up other sessions of this trio run.
    return await trio.to_thread.run_sync(_loaded, journal, salvage)


def recover(
    journal: Journal,
    wording: Wording,
    passed_over: PassedOver | None,
    salvaged: Salvaged | None = None,
    *,
    containment: str = "none",
    parent: Parent | None = None,
) -> None:
    """Open the next epoch of a journal that was loaded, and close what a crash left open. Synchronous.

    Deterministic but for the wall clock and, in a new log, the session's id. Raises `LogFailedError`.
    """
    known = journal.grammar.opened
    journal.append(
        SessionOpen(
            known.session if known is not None else new_session_id(),
            datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            journal.durability,
            containment,
            parent=parent or (known.parent if known is not None else None),
            passed_over=(passed_over,) if passed_over is not None else (),
            salvaged=salvaged,
        )
    )
    journal.append(*closers(journal.grammar, wording, INTERRUPTION))


@asynccontextmanager
async def open_session(
    path: str | PathLike[str] | Store | None,
    *,
    provider: Provider,
    tools: Iterable[Tool] = (),
    settings: Settings | None = None,
    gate: Gate | None = None,
    durability: str = "power",
    containment: str = "none",
    parent: Parent | None = None,
    journal_type: type[Journal] = Journal,
    salvage: bool = False,
) -> AsyncGenerator[Session, None]:
    """Open a log for writing, repair what a crash left, and run its turns inside the block.

    `path` is the log's file, None for a log in memory, or a `Store`. Leaving the block, or a cancel around it,
    takes no more input, ends the turn (cause `shutdown` or `host`), writes `session/close`, flushes, unlocks.
    An opening never calls the model: what was queued waits for the next input or for `go_on()`.
    With `salvage` a damaged log goes on from before the damage: the rest stays where it is, is copied to a file
    beside the log, and is passed over, which `session/open` says.

    Raises `SessionLiveError` where another kernel has the log open, `LogDamagedError` where it can't be read,
    OSError where the file system refuses; from the block `LogFailedError` and `InternalError`. What the block
    itself raises leaves as it is.
    """
    settings = settings or Settings()
    gate = gate or Gate()
    context, checkpoints, status = Context(), Checkpoints(), StatusFold()
    store, durability = await _open_store(path, durability)
    journal = journal_type(
        store, durability=durability, folds=(context, checkpoints, gate, status), clock=trio.current_time
    )
    try:
        passed_over, salvaged = await _load(journal, store, salvage)
        kernel = Kernel(journal, context, provider, tools, settings)
        recover(journal, settings.wording, passed_over, salvaged, containment=containment, parent=parent)
        await journal.flush()
    except BaseException:
        journal.close()
        raise
    async with Session(kernel, gate, checkpoints, status).block() as session:
        yield session
