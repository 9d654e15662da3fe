"""The log of one session, open for writing: append, flush, read on. Uses trio to wait, and a store for bytes.

`append` has no checkpoint in it and calls nobody, so no cancel can fall between a decision and its record,
nothing can append in the middle of an append, and a `finally` can close the log without a shield. Only `flush`
waits. Whoever acts on a flush that was waited for asks the cancel again: it may have outlived one.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

import trio

from .codec import BadLineError, cleaned, decode, encode, passed_over
from .errors import GrammarError, LogDamagedError, LogFailedError
from .events import EVENT_TYPES, Event, PassedOver, Record, SessionOpen
from .grammar import Grammar
from .store import Store, lines

__all__ = ["Fold", "Journal", "RecordCursor", "microseconds", "read_records", "refusal"]

_WINDOW = 4096
"""How many records are kept in memory for cursors; older ones are read from the store."""
_MARK_EVERY = 1024


def microseconds(seconds: float) -> float:
    """Seconds (not negative) as the log keeps them, to the microsecond; in a third of the time of `round`."""
    return int(seconds * 1e6 + 0.5) / 1e6


class Fold(Protocol):
    """State that follows from the log."""

    @property
    def types(self) -> frozenset[str]:
        """The event types that it looks at; it is given no others."""
        ...

    def apply(self, record: Record) -> None:
        """Take in the next record. Must not fail and must not append."""
        ...


def read_records(store: Store) -> Iterator[tuple[int, Record | PassedOver]]:
    """The records of a log with their offsets; what an opening has named as passed over is left out.

    A tail that is no record (torn by a crash, not named yet) comes last, as a `PassedOver`. Raises
    `LogDamagedError` for any other line that is no record. Does not check the grammar.
    """
    bad: list[tuple[int, PassedOver, LogDamagedError]] = []
    for number, (offset, line, whole) in enumerate(lines(store), 1):
        try:
            record = decode(line)
        except BadLineError as error:
            damage = LogDamagedError(store.where, offset, number, str(error))
            bad.append((offset, passed_over(offset, line), damage))
            if len(bad) > 1:
                raise bad[0][2] from None
            continue
        if bad:
            named = record.event.passed_over if isinstance(record.event, SessionOpen) else ()
            if bad[0][1] not in named:
                raise bad[0][2]
            bad.clear()
        yield offset, record
        if not whole:
            return
    if bad:
        yield bad[0][0], bad[0][1]


def refusal(grammar: Grammar, record: Record) -> str | None:
    """Why a record that was read may not stand next in its log, or None."""
    if record.seq != grammar.seq + 1:
        return f"seq {record.seq} after {grammar.seq}"
    expected = grammar.epoch + isinstance(record.event, SessionOpen)
    if record.epoch != expected:
        return f"epoch {record.epoch}, must be {expected}"
    try:
        grammar.check(record.event)
    except GrammarError as error:
        return str(error)
    return None


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
        self.on_failure: Callable[[], None] | None = None
        self.durability = durability
        self._store = store
        self._folds = {name: tuple(fold.apply for fold in folds if name in fold.types) for name in EVENT_TYPES}
        self._clock = clock
        self._opened_at = clock()
        self._window: deque[Record] = deque(maxlen=_WINDOW)
        self._marks: list[tuple[int, int]] = []
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
    def where(self) -> str:
        """For people: the path, or `memory`."""
        return self._store.where

    def now(self) -> float:
        """Seconds of this epoch, as records count them."""
        return microseconds(self._clock() - self._opened_at)

    # ----------------------------------------------------------------------------------------------- load

    def load(self) -> PassedOver | None:
        """Read what is there, verify it, fold it; end it with a newline. Blocking.

        Returns the name of a torn tail, for the `session/open` that must follow. Raises `LogDamagedError`.
        """
        tail: PassedOver | None = None
        for offset, item in read_records(self._store):
            if isinstance(item, PassedOver):
                tail = item
                break
            self._take(offset, item)
        self._end_with_newline()
        self._synced = 0
        return tail

    def _take(self, offset: int, record: Record) -> None:
        reason = refusal(self.grammar, record)
        if reason is not None:
            raise LogDamagedError(self.where, offset, record.seq, reason)
        self.grammar.apply(record)
        self._keep(offset, record)

    def _end_with_newline(self) -> None:
        size = self._store.size
        if size and self._store.read(size - 1, 1) != b"\n":
            self._store.write(b"\n")

    # --------------------------------------------------------------------------------------------- append

    @trio.lowlevel.enable_ki_protection
    def append(self, *events: Event) -> None:
        """Add events, all in one write. Synchronous; calls nobody.

        Raises `GrammarError` for an event that may not stand there (those before it are in the log), and
        `LogFailedError` when the write fails or the log is closed for writing already: then nothing was added.
        """
        if self._sync_error is not None and self.failure is None:
            self._fail("flush", self._sync_error)
        if self.failure is not None:
            raise self.failure
        grammar, now = self.grammar, self.now()
        entries: list[tuple[Record, bytes]] = []
        try:
            for event in events:
                grammar.check(event)
                epoch = grammar.epoch + isinstance(event, SessionOpen)
                record = Record(grammar.seq + 1, epoch, now, event)
                try:
                    line = encode(record)
                except TypeError:
                    record = Record(record.seq, epoch, now, cleaned(event))
                    line = encode(record)
                grammar.apply(record)
                entries.append((record, line))
        finally:
            if entries:
                self._write(entries)

    def _write(self, entries: list[tuple[Record, bytes]]) -> None:
        offset = self._store.size
        try:
            self._store.write(b"".join([line for _, line in entries]) if len(entries) > 1 else entries[0][1])
        except OSError as error:
            raise self._fail("append", error) from error
        for record, line in entries:
            self._keep(offset, record)
            offset += len(line)
        if self._readers:
            self._readers.unpark_all()

    def _keep(self, offset: int, record: Record) -> None:
        if not (record.seq - 1) % _MARK_EVERY:
            self._marks.append((record.seq, offset))
        self._window.append(record)
        for apply in self._folds[record.event.type]:
            apply(record)

    def _fail(self, what: str, error: OSError) -> LogFailedError:
        reason = error.strerror or str(error)
        self.failure = LogFailedError(what, self.where, reason, self.seq - self._synced)
        self._readers.unpark_all()
        self._flushers.unpark_all()
        if self.on_failure is not None:
            self.on_failure()
        return self.failure

    # ---------------------------------------------------------------------------------------------- flush

    async def flush(self) -> None:
        """Return when everything appended before the call is as durable as the mode promises.

        The first who waits syncs for all who wait. May be cancelled: the sync itself goes on in its thread, and
        its failure is kept. Raises `LogFailedError`.
        """
        target = self.seq
        if self.failure is not None:
            raise self.failure
        if self.durability != "power" or self._synced >= target:
            await trio.lowlevel.checkpoint()
            return
        while self._synced < target:
            if self._syncing:
                await self._flushers.park()
            else:
                await self._sync()
            if self._sync_error is not None and self.failure is None:
                self._fail("flush", self._sync_error)
            if self.failure is not None:
                raise self.failure

    async def _sync(self) -> None:
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
        try:
            self._store.sync()
        except OSError as error:
            self._sync_error = error
        else:
            self._synced = max(self._synced, upto)

    # ------------------------------------------------------------------------------------------- read on

    def records_from(self, seq: int) -> list[Record]:
        """Some records from number `seq` on, in order; empty where the log ends. Reads the store if it must."""
        window = self._window
        if seq > self.seq or self.seq == 0:
            return []
        first = window[0].seq
        if seq >= first:
            return [window[index] for index in range(seq - first, min(seq - first + 256, len(window)))]
        offset = next(at for number, at in reversed(self._marks) if number <= seq)
        found: list[Record] = []
        for _, line, _ in lines(self._store, offset):
            try:
                record = decode(line)
            except BadLineError:
                continue  # named by an opening; `load` has verified that
            if record.seq >= seq:
                found.append(record)
            if len(found) == 256 or record.seq + 1 >= first:
                break
        return found

    async def changed(self, seq: int) -> None:
        """Wait until the log is longer than `seq` records, or is closed. A checkpoint in any case."""
        if self.seq > seq or self.closed or self.failure is not None:
            await trio.lowlevel.checkpoint()
            return
        await self._readers.park()

    def close(self) -> None:
        """Let the store go; cursors end."""
        self.closed = True
        self._readers.unpark_all()
        self._store.close()


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
