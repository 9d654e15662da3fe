"""The log of one session, open for writing: append, flush, read on. Uses trio to wait, and a store for bytes.

`append` has no checkpoint in it and calls nobody, so no cancel can fall between a decision and its record,
nothing can append in the middle of an append, and a `finally` can close the log without a shield. Only `flush`
waits. Whoever acts on a flush that was waited for asks the cancel again: it may have outlived one.
"""

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import trio

from .codec import cleaned, decode, encode
from .errors import LogFailedError
from .events import EVENT_TYPES, Event, ModelMessage, PassedOver, Record, Salvaged, SessionOpen
from .grammar import Grammar
from .loading import MARK_EVERY, Loader
from .records import lines_outside, read_records, rest_of
from .store import Store

__all__ = ["Fold", "Journal", "RecordCursor", "microseconds", "read_records"]

_WINDOW = 4096
"""How many records are kept in memory for cursors; older ones are read from the store."""
_BATCH = 256
"""How many a cursor is given at once."""


def microseconds(seconds: float) -> float:
    """Seconds (not negative) as the log keeps them, to the microsecond; in a third of the time of `round`."""
    return int(seconds * 1e6 + 0.5) / 1e6


_CLOSERS = frozenset(
    ("model/message", "ask/closed", "tool/result", "step/end", "turn/end", "inbox/canceled", "session/close")
)
"""What closes something that is open. Of `model/message` only the one that a cut stream leaves."""


def _closes(event: Event) -> bool:
    return event.type in _CLOSERS and (not isinstance(event, ModelMessage) or event.synthetic)


class Fold(Protocol):
    """State that follows from the log."""

    @property
    def types(self) -> frozenset[str]:
        """The event types that it looks at; it is given no others."""
        ...

    def apply(self, record: Record) -> None:
        """Take in the next record. Must not fail and must not append."""
        ...


class Journal:
    """The only writer of a log.

    `clock` gives monotonic seconds. `durability` is `power` (flush syncs), `process` or `memory` (what was
    appended survives as far as it ever will). Folds see every record, those that were loaded too.
    """

    def __init__(
        self, store: Store, *, durability: str, folds: tuple[Fold, ...] = (), clock: Callable[[], float]
    ) -> None:
        self.grammar = Grammar()
        self.failure: LogFailedError | None = None
        """Set once the log is closed for writing because a write or sync failed."""
        self.full: LogFailedError | None = None
        """Set once the disk is full: only what closes the running turn is taken, and then nothing."""
        self.on_failure: Callable[[], None] | None = None
        self.durability = durability
        self._store = store
        self._folds = {name: tuple(fold.apply for fold in folds if name in fold.types) for name in EVENT_TYPES}
        self._clock = clock
        self._opened_at = clock()
        self._window: deque[Record] = deque(maxlen=_WINDOW)
        self._loader = Loader(store, self.grammar, self._folds)
        self._marks = self._loader.marks
        self._readers = trio.lowlevel.ParkingLot()
        self._synced = 0
        self._sync_error: OSError | None = None
        self._syncing = False
        self._flushers = trio.lowlevel.ParkingLot()
        # Its own: the shared one can be full of stuck tools.
        self._limiter = trio.CapacityLimiter(1)
        self.closed = False

    def __repr__(self) -> str:
        state = "failed" if self.failure else "closed" if self.closed else "open"
        return f"<Journal {self._store.where} seq={self.seq} synced={self._synced} {state}>"

    @property
    def seq(self) -> int:
        """Number of the last record."""
        return self.grammar.seq

    @property
    def folder(self) -> Path | None:
        """The folder beside the log for what belongs to it; None in memory."""
        return self._store.folder

    def child_name(self) -> str:
        """The name of a log for a child session that begins now."""
        return f"{Path(self.where).name}.d/c{self.seq + 1}.log"

    def beside(self, name: str) -> Path | Store:
        """Where a log with such a name is, for `open_session`. Raises ValueError for a name of another kind."""
        return self._store.beside(name)

    @property
    def where(self) -> str:
        """For people: the path, or `memory`."""
        return self._store.where

    def now(self) -> float:
        """Seconds of this epoch, as records count them."""
        return microseconds(self._clock() - self._opened_at)

    # ----------------------------------------------------------------------------------------------- load

    def load(self) -> PassedOver | None:
        """Read what is there, verify it, fold it; end it with a newline. Blocking.

        Returns the name of a torn tail, for the `session/open` that must follow. Raises `LogDamagedError`, at
        whose place `salvage` may go on, and OSError.
        """
        try:
            tail = self._loader.load()
        finally:
            self._synced = 0
        self._end_with_newline()
        return tail

    def salvage(self) -> tuple[PassedOver, Salvaged]:
        """After `LogDamagedError`: go on from before the damage. Blocking; the log itself is not touched.

        The rest is copied to a file beside the log, and named for the `session/open` that must follow: until that
        is written the log is as damaged as it was. Raises OSError.
        """
        damage = self._loader.damage
        assert damage is not None
        rest = rest_of(self._store, damage.offset)
        name = self._store.keep_aside(damage.offset)
        self._loader.pass_over(rest)
        self._end_with_newline()
        return rest.name, Salvaged(f"line {damage.line}: {damage.reason}", name, rest.records)

    def _end_with_newline(self) -> None:
        size = self._store.size
        if size and self._store.read(size - 1, 1) != b"\n":
            self._store.write(b"\n")

    # --------------------------------------------------------------------------------------------- append

    @trio.lowlevel.enable_ki_protection
    def append(self, *events: Event) -> None:
        """Add events, all in one write. Synchronous; calls nobody.

        Raises `GrammarError` for an event that may not stand there (those before it are in the log), and
        `LogFailedError` when the write fails, the disk is full, or the log is closed for writing already: then
        nothing was added (of several events all but the last are known to the grammar then, which nothing acts on
        any more). On a full disk what closes the running turn is still taken, into the reserve.
        """
        if self._sync_error is not None and self.failure is None:
            self._fail("flush", self._sync_error)
        if self.failure is not None:
            raise self.failure
        entries: list[tuple[Record, bytes]] = []
        try:
            self._prepare(events, entries)
        finally:
            if entries:
                self._write(entries)
            if self.full is not None and self.grammar.turn is None:
                self._close_for_writing(self.full)

    def _prepare(self, events: tuple[Event, ...], entries: list[tuple[Record, bytes]]) -> None:
        """Check and encode, event by event, as far as they may stand there and fit.

        The grammar is moved for the next one only: the last goes into it once it is in the log.
        """
        grammar, now, size = self.grammar, self.now(), 0
        for event in events:
            if entries:
                grammar.apply(entries[-1][0])
            grammar.check(event)
            epoch = grammar.epoch + isinstance(event, SessionOpen)
            record = Record(grammar.seq + 1, epoch, now, event)
            try:
                line = encode(record)
            except TypeError:
                record = Record(record.seq, epoch, now, cleaned(event))
                line = encode(record)
            size += len(line)
            self._make_room(event, size)
            entries.append((record, line))

    def _make_room(self, event: Event, size: int) -> None:
        """Raise `LogFailedError` if the disk is full and the event is no closer."""
        if self.full is None:
            try:
                self._store.make_room(size)
            except OSError as error:
                # The log is not closed for writing yet: what closes the turn is to come, and has its room.
                self.full = self._failure("append", error)
                self._wake()
        if self.full is not None and not _closes(event):
            raise self.full

    def _write(self, entries: list[tuple[Record, bytes]]) -> None:
        offset = self._store.size
        try:
            self._store.write(b"".join([line for _, line in entries]) if len(entries) > 1 else entries[0][1])
        except OSError as error:
            raise self._fail("append", error, lost=self.seq + 1 - entries[0][0].seq) from error
        if self.seq < entries[-1][0].seq:
            self.grammar.apply(entries[-1][0])
        for record, line in entries:
            self._keep(offset, record)
            offset += len(line)
        if self._readers:
            self._readers.unpark_all()

    def _keep(self, offset: int, record: Record) -> None:
        if record.seq % MARK_EVERY == 1:
            self._marks.append((record.seq, offset))
        self._window.append(record)
        for apply in self._folds[record.event.type]:
            apply(record)

    def _failure(self, what: str, error: OSError, lost: int = 0) -> LogFailedError:
        """`lost` records are known to the grammar and not in the log."""
        return LogFailedError(what, self.where, error.strerror or str(error), self.seq - lost - self._synced)

    def _fail(self, what: str, error: OSError, lost: int = 0) -> LogFailedError:
        return self._close_for_writing(self._failure(what, error, lost))

    def _close_for_writing(self, failure: LogFailedError) -> LogFailedError:
        self.failure = failure
        self._wake()
        return failure

    def _wake(self) -> None:
        self._readers.unpark_all()
        self._flushers.unpark_all()
        if self.on_failure is not None:
            self.on_failure()

    # ---------------------------------------------------------------------------------------------- flush

    async def flush(self) -> None:
        """Return when everything appended before the call is as durable as the mode promises.

        The first who waits syncs for all who wait. May be cancelled: the sync itself goes on in its thread, and
        its failure is kept. A sync that failed is never tried again: a disk tells of an error once, and says yes
        the next time with the bytes gone. Raises `LogFailedError`; on a full disk after what closes the turn was
        synced.
        """
        target = self.seq
        if self.failure is not None and self.failure is not self.full:
            raise self.failure
        if self.durability != "power" or self._synced >= target:
            await trio.lowlevel.checkpoint()
        while self.durability == "power" and self._synced < target:
            if self._sync_error is None:
                await (self._flushers.park() if self._syncing else self._sync())
            if self._sync_error is not None and self.failure is None:
                self._fail("flush", self._sync_error)
            if self.failure is not None and self.failure is not self.full:
                raise self.failure
            if self._sync_error is not None:
                break
        if self.full is not None:
            raise self.full

    @trio.lowlevel.enable_ki_protection
    async def _sync(self) -> None:
        # Protected, but for its wait: a leader that is gone without a word leaves the others waiting for ever.
        self._syncing = True
        try:
            # Abandoned on cancel: a cancelled waiter must not hang on a stuck disk. The one-token limiter makes
            # the next sync wait for it, and the thread itself keeps its outcome.
            await trio.to_thread.run_sync(
                self._sync_in_thread, self.seq, abandon_on_cancel=True, limiter=self._limiter
            )
        finally:
            self._syncing = False
            self._flushers.unpark_all()

    def _sync_in_thread(self, upto: int) -> None:
        if self._sync_error is not None:
            return  # of a sync that was abandoned; this one had been waiting for it
        try:
            self._store.sync()
        except OSError as error:
            self._sync_error = error
        else:
            self._synced = max(self._synced, upto)

    # ------------------------------------------------------------------------------------------- read on

    def records_from(self, seq: int) -> list[Record]:
        """Some records from number `seq` on, in order; empty where the log ends. Reads the store if it must."""
        if seq > self.seq:
            return []
        window = self._window
        first = window[0].seq if window else self.seq + 1
        found = self._read_from(seq, first) if seq < first else []
        if len(found) < _BATCH and window:
            begin = max(seq - first, 0)
            found += [window[index] for index in range(begin, min(begin + _BATCH - len(found), len(window)))]
        return found

    def _read_from(self, seq: int, until: int) -> list[Record]:
        """A batch of records from the store, up to number `until`, which is in memory."""
        # No mark: not even the first record could be written.
        offset = next((at for number, at in reversed(self._marks) if number <= seq), self._store.size)
        found: list[Record] = []
        for _, line, _ in lines_outside(self._store, self._loader.gaps, offset):
            record = decode(line)
            if record.seq >= seq:
                found.append(record)
            if len(found) == _BATCH or record.seq + 1 >= until:
                break
        return found

    async def changed(self, seq: int) -> None:
        """Wait until the log is longer than `seq` records, or is closed. A checkpoint in any case."""
        if self.seq > seq or self.closed or self.failure is not None:
            await trio.lowlevel.checkpoint()
            return
        await self._readers.park()

    def close(self) -> None:
        """Let the store go; cursors end. Raises `LogFailedError` if only this fails; it is gone all the same."""
        self.closed = True
        self._readers.unpark_all()
        try:
            self._store.close()
        except OSError as error:
            if self.failure is None:
                raise self._fail("close", error) from error


class RecordCursor:
    """An iterator over the records from a place on, as they come, until the log is closed.

    Any number of them; a slow one harms nobody. What it gives was appended before (law D1). Iterating is a
    checkpoint each time and may be cancelled; the cursor can then be used on.
    """

    def __init__(self, journal: Journal, after: int) -> None:
        self._journal = journal
        self._batch: deque[Record] = deque()
        self.seq = after
        """Number of the last record given."""

    def __repr__(self) -> str:
        return f"<RecordCursor at {self.seq} of {self._journal.seq}>"

    def __aiter__(self) -> "RecordCursor":
        return self

    async def __anext__(self) -> Record:
        """The next record. Raises `LogFailedError` where the log failed after what was given."""
        await trio.lowlevel.checkpoint()
        while not self._batch:
            self._batch.extend(self._journal.records_from(self.seq + 1))
            if self._batch:
                break
            if self._journal.failure is not None:
                raise self._journal.failure
            if self._journal.closed:
                raise StopAsyncIteration
            await self._journal.changed(self.seq)
        record = self._batch.popleft()
        self.seq = record.seq
        return record
