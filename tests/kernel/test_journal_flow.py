"""The journal as its writers and readers meet it: groups, mending, flushes that share a sync, cursors, Ctrl-C."""

import errno
import signal
import threading

import pytest
import trio
from tests.kernel.histories import everything, opening
from trio.testing import wait_all_tasks_blocked

from turnkernel.errors import GrammarError, LogFailedError
from turnkernel.events import (
    Event,
    InboxCanceled,
    InboxConsumed,
    InboxQueued,
    ModelDelta,
    Record,
    StepStart,
    ToolOutput,
    TurnCancel,
    TurnStart,
)
from turnkernel.journal import Journal, RecordCursor, read_records
from turnkernel.store import MemoryStore


class Disk(MemoryStore):
    """A store that counts its writes and syncs, holds syncs while its gate is shut, and fails when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.synced: list[int] = []
        """The size at the beginning of each sync."""
        self.gate = threading.Event()
        self.gate.set()
        self.syncing = threading.Event()
        """Set once a sync has begun."""
        self.fail_write: OSError | None = None
        self.fail_sync: OSError | None = None

    def write(self, data: bytes) -> None:
        self.writes += 1
        if self.fail_write is not None:
            raise self.fail_write
        super().write(data)

    def sync(self) -> None:
        self.synced.append(self.size)
        self.syncing.set()
        self.gate.wait()
        if self.fail_sync is not None:
            raise self.fail_sync

    @property
    def events(self) -> list[Event]:
        return [item.event for _, item in read_records(self) if isinstance(item, Record)]


class Seen:
    """A fold that keeps what it is given."""

    types = frozenset(("inbox/queued", "turn/start"))

    def __init__(self) -> None:
        self.records: list[Record] = []

    def apply(self, record: Record) -> None:
        self.records.append(record)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def journal(disk: Disk) -> Journal:
    made = Journal(disk, durability="power", clock=lambda: 0.0)
    made.append(opening())
    return made


async def abandoned_flush(journal: Journal, disk: Disk) -> None:
    """A flush that is cancelled while its thread holds the disk."""
    disk.gate.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.flush)
        await trio.to_thread.run_sync(disk.syncing.wait)
        nursery.cancel_scope.cancel()


async def let_it_end(journal: Journal, disk: Disk) -> None:
    """Wait for the thread of an abandoned sync. Trio does not count it; who comes next waits for its token."""
    disk.gate.set()
    await trio.to_thread.run_sync(lambda: None, limiter=journal._limiter)


def item(number: int, text: str = "x") -> InboxQueued:
    return InboxQueued(f"i{number}", "prompt", text)


def add(journal: Journal, count: int) -> None:
    for number in range(journal.seq, journal.seq + count):
        journal.append(item(number))


# ---------------------------------------------------------------------------------------------------- append


def test_a_group_is_one_write_and_is_checked_event_by_event(journal, disk):
    writes = disk.writes
    journal.append(
        item(1), TurnStart("t1"), InboxConsumed("i1", "t1", "t1.s1"), StepStart("t1", "t1.s1", "w", "m")
    )
    assert disk.writes == writes + 1
    assert len(disk.events) == journal.seq == 5


def test_nothing_is_written_for_no_event(journal, disk):
    before = (disk.writes, disk.size, journal.seq)
    journal.append()
    assert (disk.writes, disk.size, journal.seq) == before


@pytest.mark.law("L2")
def test_of_a_group_with_an_illegal_event_those_before_it_are_in_the_log(journal, disk):
    with pytest.raises(GrammarError):
        journal.append(item(1), TurnCancel("t1"), item(2))
    assert disk.events == [opening(), item(1)]
    assert journal.seq == 2
    journal.append(item(2))
    assert disk.events == [opening(), item(1), item(2)]


@pytest.mark.law("L7")
def test_a_refused_event_changes_neither_the_log_nor_what_is_known_of_it(journal, disk):
    before = everything(journal.grammar), disk.size, disk.writes
    for event in (TurnCancel("t1"), InboxCanceled("i9", "cancel"), ToolOutput("t1", "c", "stdout", "x")):
        with pytest.raises(GrammarError):
            journal.append(event)
    with pytest.raises(TypeError):
        journal.append(InboxQueued("i1", "prompt", None))  # type: ignore[arg-type]
    assert (everything(journal.grammar), disk.size, disk.writes) == before


def test_of_a_group_with_an_event_that_can_not_be_written_those_before_it_are_in_the_log(journal, disk):
    with pytest.raises(TypeError, match=r"@ inbox/queued\.text"):
        journal.append(item(1), InboxQueued("i2", "prompt", None))  # type: ignore[arg-type]
    assert disk.events == [opening(), item(1)]
    journal.append(item(2))
    assert len(disk.events) == journal.seq == 3


@pytest.mark.law("C3", "C6", "D2")
def test_a_lone_surrogate_is_mended_in_the_log_in_what_is_known_and_in_what_is_shown(disk):
    seen = Seen()
    journal = Journal(disk, durability="memory", folds=(seen,), clock=lambda: 0.0)
    journal.append(opening(), item(1, "a\ud800"))
    mended = item(1, "a\ufffd")
    assert disk.events[1] == journal.grammar.items["i1"] == seen.records[0].event == mended
    assert journal.records_from(2)[0].event == mended


def test_a_fold_sees_the_types_that_it_asked_for_in_order_and_after_they_are_in_the_log(disk):
    class Reading(Seen):
        def apply(self, record: Record) -> None:
            super().apply(record)
            assert disk.events[record.seq - 1] == record.event

    seen = Reading()
    journal = Journal(disk, durability="memory", folds=(seen,), clock=lambda: 0.0)
    journal.append(opening(), item(1), item(2), InboxCanceled("i2", "cancel"), TurnStart("t1"))
    assert [record.seq for record in seen.records] == [2, 3, 5]


def test_times_are_seconds_since_the_opening_to_the_microsecond(disk):
    now = [100.0]
    journal = Journal(disk, durability="memory", clock=lambda: now[0])
    journal.append(opening())
    now[0] = 101.23456789
    journal.append(item(1))
    assert [record.t for record in journal.records_from(1)] == [0.0, 1.234568]


# ----------------------------------------------------------------------------------------------- failed writes


@pytest.mark.law("L7", "D1")
@pytest.mark.parametrize("count", [1, 3])
async def test_a_write_that_fails_adds_nothing_and_closes_the_log_for_writing(disk, count):
    seen = Seen()
    journal = Journal(disk, durability="process", folds=(seen,), clock=lambda: 0.0)
    journal.append(opening(), item(1))
    called: list[bool] = []
    journal.on_failure = lambda: called.append(journal.failure is not None)
    disk.fail_write = OSError(errno.EIO, "Input/output error")
    size = disk.size
    with pytest.raises(LogFailedError) as failed:
        journal.append(*(item(number) for number in range(2, 2 + count)))
    # Two records had been appended and not synced; those that failed never were.
    assert (failed.value.what, failed.value.reason, failed.value.not_durable) == (
        "append",
        "Input/output error",
        2,
    )
    assert called == [True], "whoever must stop the turn is told once, when the log is closed already"
    disk.fail_write = None
    for again in (lambda: journal.append(item(9)), journal.append):
        with pytest.raises(LogFailedError):
            again()
    with pytest.raises(LogFailedError):
        await journal.flush()
    assert disk.size == size
    assert [record.seq for record in seen.records] == [2], "what is not in the log is shown to nobody"
    assert [record.event for record in journal.records_from(1)] == [opening(), item(1)]
    assert journal.records_from(3) == []


async def test_a_log_whose_very_first_write_failed_tells_a_reader_so(disk):
    disk.fail_write = OSError(errno.ENOSPC, "No space left on device")
    journal = Journal(disk, durability="power", clock=lambda: 0.0)
    with pytest.raises(LogFailedError):
        journal.append(opening())
    with pytest.raises(LogFailedError):
        await RecordCursor(journal, 0).__anext__()


async def test_a_reader_is_given_what_was_appended_and_then_told_of_the_failure(journal, disk):
    add(journal, 3)
    cursor = RecordCursor(journal, 0)
    disk.fail_write = OSError(errno.EIO, "Input/output error")
    with pytest.raises(LogFailedError):
        add(journal, 1)
    assert [(await cursor.__anext__()).seq for _ in range(4)] == [1, 2, 3, 4]
    with pytest.raises(LogFailedError):
        await cursor.__anext__()


async def test_a_reader_that_waits_is_told_of_the_failure(journal, disk):
    disk.fail_write = OSError(errno.EIO, "Input/output error")
    told: list[str] = []

    async def read() -> None:
        with pytest.raises(LogFailedError):
            await RecordCursor(journal, 1).__anext__()
        told.append("told")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        with pytest.raises(LogFailedError):
            add(journal, 1)
    assert told == ["told"]


def test_a_log_that_was_closed_takes_nothing_any_more(journal, disk):
    journal.close()
    assert repr(journal) == "<Journal memory seq=1 synced=0 closed>"


# ------------------------------------------------------------------------------------------------------- flush


@pytest.mark.law("L8")
async def test_the_first_who_waits_syncs_for_all_who_wait_and_later_records_need_another(journal, disk):
    done: list[str] = []

    async def flush(name: str) -> None:
        await journal.flush()
        done.append(name)

    disk.gate.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(flush, "leader")
        await trio.to_thread.run_sync(disk.syncing.wait)
        nursery.start_soon(flush, "follower")
        await wait_all_tasks_blocked()
        first = disk.size
        add(journal, 1)
        nursery.start_soon(flush, "later")
        await wait_all_tasks_blocked()
        assert disk.synced == [first]
        assert done == []
        disk.gate.set()
    assert sorted(done) == ["follower", "later", "leader"]
    assert disk.synced == [first, disk.size], "three waited, two syncs"


@pytest.mark.law("L8")
async def test_a_flush_that_has_nothing_new_to_sync_waits_for_nothing_but_is_a_checkpoint(journal, disk):
    await journal.flush()
    with trio.testing.assert_checkpoints():
        await journal.flush()
    assert len(disk.synced) == 1
    with trio.CancelScope() as scope:
        scope.cancel()
        await journal.flush()
    assert scope.cancelled_caught


@pytest.mark.law("L8")
async def test_when_the_leader_is_cancelled_a_follower_leads(journal, disk):
    disk.gate.clear()
    done: list[int] = []

    async def flush() -> None:
        await journal.flush()
        done.append(len(disk.synced))

    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as leaders:
            leaders.start_soon(journal.flush)
            await trio.to_thread.run_sync(disk.syncing.wait)
            nursery.start_soon(flush)
            nursery.start_soon(flush)
            await wait_all_tasks_blocked()
            leaders.cancel_scope.cancel()
        await wait_all_tasks_blocked()
        assert done == [], "the thread that the leader left holds the disk"
        disk.gate.set()
    assert len(done) == 2
    assert len(disk.synced) <= 2


@pytest.mark.law("L8")
async def test_a_cancelled_follower_leaves_the_others_waiting(journal, disk):
    disk.gate.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.flush)
        await trio.to_thread.run_sync(disk.syncing.wait)
        async with trio.open_nursery() as followers:
            followers.start_soon(journal.flush)
            await wait_all_tasks_blocked()
            followers.cancel_scope.cancel()
        disk.gate.set()
    assert len(disk.synced) == 1


async def test_a_stuck_disk_does_not_hold_who_is_cancelled(journal, disk):
    await abandoned_flush(journal, disk)
    assert not disk.gate.is_set(), "the disk is stuck still"
    await let_it_end(journal, disk)
    await journal.flush()
    assert len(disk.synced) == 1, "what the abandoned sync saved need not be synced again"


@pytest.mark.law("L8")
async def test_a_failed_sync_is_told_with_the_number_of_records_that_are_not_durable(journal, disk):
    await journal.flush()
    add(journal, 5)
    disk.fail_sync = OSError(errno.EIO, "Input/output error")
    with pytest.raises(LogFailedError) as failed:
        await journal.flush()
    assert (failed.value.what, failed.value.where, failed.value.not_durable) == ("flush", "memory", 5)
    disk.fail_sync = None
    with pytest.raises(LogFailedError) as again:
        await journal.flush()
    assert again.value is failed.value
    assert len(disk.synced) == 2, "a sync that failed is never tried again"


@pytest.mark.law("L8")
async def test_the_failure_of_an_abandoned_sync_counts_what_it_did_not_save(journal, disk):
    add(journal, 2)
    await abandoned_flush(journal, disk)
    disk.fail_sync = OSError(errno.EIO, "Input/output error")
    await let_it_end(journal, disk)
    with pytest.raises(LogFailedError) as failed:
        add(journal, 1)
    assert (failed.value.what, failed.value.not_durable) == ("flush", 3)


# ----------------------------------------------------------------------------------------------------- cursors


@pytest.mark.law("D1", "D2")
async def test_a_cursor_gives_what_is_there_and_what_comes_until_the_log_is_closed(journal):
    add(journal, 2)
    got: list[int] = []

    async def read() -> None:
        async for record in RecordCursor(journal, 1):
            got.append(record.seq)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        assert got == [2, 3]
        journal.append(item(7), item(8))
        await wait_all_tasks_blocked()
        assert got == [2, 3, 4, 5]
        journal.close()
    assert got == [2, 3, 4, 5]


async def test_a_cursor_that_was_cancelled_goes_on_where_it_was(journal):
    cursor = RecordCursor(journal, 0)
    assert (await cursor.__anext__()).seq == 1
    with trio.move_on_after(0):
        await cursor.__anext__()
    add(journal, 2)
    with trio.CancelScope() as scope:
        scope.cancel()
        await cursor.__anext__()
    assert [(await cursor.__anext__()).seq for _ in range(2)] == [2, 3]
    assert repr(cursor) == "<RecordCursor at 3 of 3>"


async def test_a_slow_cursor_harms_nobody_and_misses_nothing(disk):
    """It is further back than what is kept in memory, and the log goes on while it reads."""
    journal = Journal(disk, durability="process", clock=lambda: 0.0)
    journal.append(opening(), *(item(number) for number in range(6000)))
    slow = RecordCursor(journal, 0)
    got = [(await slow.__anext__()).seq for _ in range(300)]
    assert len(journal._window) < 6001, "memory is bounded"
    journal.append(*(item(number) for number in range(6000, 11_000)))
    journal.close()
    got += [record.seq async for record in slow]
    assert got == list(range(1, 11_002))


@pytest.mark.parametrize("after", [0, 1, 1023, 1024, 1025, 2000, 2903, 2904, 2905, 6999, 7000, 7001])
async def test_a_cursor_may_begin_anywhere(disk, after):
    journal = Journal(disk, durability="process", clock=lambda: 0.0)
    journal.append(opening(), *(item(number) for number in range(6999)))
    journal.close()
    assert [record.seq async for record in RecordCursor(journal, after)] == list(range(after + 1, 7001))


async def test_every_read_of_a_cursor_is_a_checkpoint(journal):
    add(journal, 3)
    cursor = RecordCursor(journal, 0)
    for _ in range(4):
        with trio.testing.assert_checkpoints():
            await cursor.__anext__()


async def test_what_is_appended_while_a_cursor_decides_to_wait_wakes_it(journal):
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(RecordCursor(journal, journal.seq).__anext__)
            nursery.start_soon(journal.changed, journal.seq)
        nursery.start_soon(_append_soon, journal)


async def _append_soon(journal: Journal) -> None:
    add(journal, 1)
    await trio.lowlevel.checkpoint()


# ------------------------------------------------------------------------------------------- KeyboardInterrupt


def leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    return error


@pytest.mark.law("L7", "R8")
@pytest.mark.parametrize("when", ["before the write", "after the write"])
def test_ctrl_c_in_an_append_waits_until_it_is_whole(when):
    class Interrupted(Disk):
        armed = False

        def write(self, data: bytes) -> None:
            if self.armed and when == "before the write":
                signal.raise_signal(signal.SIGINT)
            super().write(data)
            if self.armed and when == "after the write":
                signal.raise_signal(signal.SIGINT)

    disk, seen = Interrupted(), Seen()
    reached: list[str] = []

    async def main() -> None:
        journal = Journal(disk, durability="process", folds=(seen,), clock=lambda: 0.0)
        journal.append(opening())
        disk.armed = True
        journal.append(item(1), TurnStart("t1"))
        reached.append("after the append")
        disk.armed = False
        await trio.lowlevel.checkpoint()
        reached.append("after the checkpoint")

    # Called from a function that is itself protected, as in the kernel: then nothing can fall after it either.
    with pytest.raises(BaseException) as caught:
        trio.run(trio.lowlevel.enable_ki_protection(main))
    assert isinstance(leaf(caught.value), KeyboardInterrupt)
    assert reached == ["after the append"]
    assert disk.events == [opening(), item(1), TurnStart("t1")]
    assert [record.seq for record in seen.records] == [2, 3]


@pytest.mark.law("L8")
def test_ctrl_c_in_a_flush_leaves_nobody_waiting_for_a_leader_that_is_gone():
    disk = Disk()

    async def main() -> None:
        journal = Journal(disk, durability="power", clock=lambda: 0.0)
        journal.append(opening())
        disk.gate.clear()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_interrupt_when_blocked)
                await journal.flush()
        finally:
            disk.gate.set()
            with trio.CancelScope(shield=True):
                await journal.flush()

    with pytest.raises(BaseException) as caught:
        trio.run(main)
    assert isinstance(leaf(caught.value), KeyboardInterrupt)
    assert disk.synced


class _InterruptedLot:
    """A parking lot that gets Ctrl-C as soon as somebody is to be woken."""

    def __init__(self, lot: trio.lowlevel.ParkingLot) -> None:
        self.park = lot.park
        self._lot = lot

    def unpark_all(self) -> None:
        signal.raise_signal(signal.SIGINT)
        self._lot.unpark_all()


@pytest.mark.law("L8")
def test_ctrl_c_when_a_sync_has_ended_does_not_keep_the_others_from_being_told():
    disk = Disk()
    flushed: list[str] = []

    async def follow(journal: Journal) -> None:
        with trio.move_on_after(10) as scope:
            scope.shield = True
            await journal.flush()
            flushed.append("follower")

    async def open_gate() -> None:
        await trio.to_thread.run_sync(disk.syncing.wait)
        disk.gate.set()

    async def main() -> None:
        journal = Journal(disk, durability="power", clock=lambda: 0.0)
        journal.append(opening())
        journal._flushers = _InterruptedLot(journal._flushers)  # type: ignore[assignment]
        disk.gate.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow, journal)
            nursery.start_soon(open_gate)
            await journal.flush()
            # Ctrl-C is raised at the next checkpoint of this trio task, and not in the middle of the waking.
            await trio.lowlevel.checkpoint()

    with pytest.raises(BaseException) as caught:
        trio.run(main)
    assert isinstance(leaf(caught.value), KeyboardInterrupt)
    assert flushed == ["follower"]


async def _interrupt_when_blocked() -> None:
    await wait_all_tasks_blocked()
    signal.raise_signal(signal.SIGINT)


# ------------------------------------------------------------------------------------------------- the hot path


def test_a_delta_costs_one_write_and_moves_no_fold_that_did_not_ask(disk):
    seen = Seen()
    journal = Journal(disk, durability="process", folds=(seen,), clock=lambda: 0.0)
    journal.append(opening(), item(1), TurnStart("t1"), InboxConsumed("i1", "t1", "t1.s1"))
    journal.append(StepStart("t1", "t1.s1", "w", "m"))
    writes, before = disk.writes, len(seen.records)
    for number in range(10):
        journal.append(ModelDelta("t1", "t1.s1", 0, "text", f"word {number} "))
    assert disk.writes == writes + 10
    assert len(seen.records) == before
