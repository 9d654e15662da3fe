"""What the journal does when the disk does not: full, broken, slow. Laws: L7, L8, R7."""

import errno
import os
import threading

import pytest
import trio
import trio.testing

from turnkernel import open_session
from turnkernel.errors import LogFailedError
from turnkernel.events import InboxQueued, SessionOpen, ToolOutput, TurnEnd
from turnkernel.journal import Journal, read_records
from turnkernel.store import MemoryStore
from turnkernel.testing.laws import check_log
from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel.testing.scripted import ScriptedProvider, ScriptedTool

OPEN = SessionOpen("s", "now", "power")


class Disk(MemoryStore):
    """A store with so many bytes of room before the reserve, and syncs that fail or wait."""

    def __init__(self, data=b"", room=1 << 30):
        super().__init__(data)
        self.room = room
        self.sync_errors: list[OSError | None] = []
        self.syncs = 0
        self.gate = threading.Event()
        self.gate.set()

    def make_room(self, size):
        if self.size + size > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self):
        self.syncs += 1
        error = self.sync_errors.pop(0) if self.sync_errors else None
        self.gate.wait()
        if error is not None:
            raise error

    @property
    def bytes(self):
        return self.read(0, self.size)


@pytest.fixture
def virtual(autojump_clock, monkeypatch):
    """Virtual time, and syncs made where they stand: while a thread runs the clock would jump over the bound of
    the closing flush that waits for it."""

    async def here(function, *args, **options):
        await trio.lowlevel.checkpoint()
        return function(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", here)
    return autojump_clock


def eio():
    return OSError(errno.EIO, os.strerror(errno.EIO))


def journal(store=None, durability="power", **more):
    made = Journal(store or Disk(), durability=durability, clock=lambda: 0.0, **more)
    made.load()
    return made


def records(store):
    return [item for _, item in read_records(MemoryStore(store.bytes))]


def talker(size=1000):
    return ScriptedTool("talks", [{"emit": "x" * size}, {"emit": "y" * size}, {"sleep": 5.0}, {"result": "r"}])


def calls():
    return Reply(calls=[ReplyCall("c1", "talks"), ReplyCall("c2", "talks")])


# ------------------------------------------------------------------------------------------------ a full disk


@pytest.mark.law("L3", "L7", "R1")
async def test_a_disk_that_fills_ends_the_turn_in_order_out_of_the_reserve(virtual):
    """At every size of the disk: what there is room for is there, the turn is closed, and nothing is torn."""
    whole = Disk()
    async with open_session(
        whole, provider=ScriptedProvider([calls(), Reply(text="Done.")]), tools=[talker()]
    ) as session:
        await session.send("go")
        await session.rest()
    outcomes = set()
    for room in range(300, whole.size, 97):
        store, tool = Disk(room=room), talker()
        with pytest.raises(LogFailedError, match="No space left"):
            async with open_session(
                store, provider=ScriptedProvider([calls(), Reply(text="Done.")]), tools=[tool]
            ) as session:
                await session.send("go")
                await session.rest()
        assert tool.running == set()
        found = records(store)
        assert check_log(found, closed=True) == []
        outcomes |= {(one.event.outcome, one.event.code) for one in found if isinstance(one.event, TurnEnd)}
        # The next opening, with room, finds nothing to close.
        again = Disk(store.bytes)
        async with open_session(again, provider=ScriptedProvider([])):
            pass
        assert [one.event.type for one in records(again)[len(found) :]] == ["session/open", "session/close"]
    assert outcomes == {("failed", "log"), ("completed", None)}


async def test_on_a_full_disk_the_ending_is_synced_before_the_failure_is_told(virtual):
    synced = []

    class Watched(Disk):
        def sync(self):
            synced.append(self.size)

    store = Watched(room=3000)
    with pytest.raises(LogFailedError):
        async with open_session(
            store, provider=ScriptedProvider([calls(), Reply(text="Done.")]), tools=[talker()]
        ) as session:
            await session.send("go")
            await session.rest()
    assert isinstance(records(store)[-1].event, TurnEnd)
    assert synced[-1] == store.size


async def test_a_full_disk_at_rest_refuses_input_and_closes_the_log_for_writing():
    store = Disk()
    log = journal(store)
    log.append(OPEN)
    store.room = store.size + 10
    with pytest.raises(LogFailedError, match="No space left"):
        log.append(InboxQueued("i1", "prompt", "hello"))
    assert log.failure is not None
    store.room = 1 << 30
    with pytest.raises(LogFailedError):
        log.append(InboxQueued("i1", "prompt", "hello"))
    with pytest.raises(LogFailedError):
        await log.flush()
    assert len(records(store)) == 1


@pytest.mark.law("R7")
async def test_a_cancel_on_a_full_disk_never_raises_and_the_turn_is_aborted(virtual):
    store = Disk()
    with pytest.raises(LogFailedError):
        async with open_session(
            store, provider=ScriptedProvider([calls(), Reply(text="Done.")]), tools=[talker()]
        ) as session:
            await session.send("go")
            async for event in session.events():
                if isinstance(event, ToolOutput):
                    break
            store.room = store.size
            receipt = session.cancel()
            with pytest.raises(LogFailedError):
                await receipt.settled()
    end = records(store)[-1].event
    assert isinstance(end, TurnEnd)
    assert end.outcome == "aborted"


# -------------------------------------------------------------------------------------------------- a bad disk


@pytest.mark.law("L7")
async def test_a_record_whose_write_failed_never_comes_back():
    class Broken(Disk):
        def write(self, data):
            if b"lost" in data:
                raise eio()
            super().write(data)

    store = Broken()
    log = journal(store)
    log.append(OPEN)
    with pytest.raises(LogFailedError, match="append failed"):
        log.append(InboxQueued("i1", "prompt", "lost"))
    with pytest.raises(LogFailedError):
        log.append(InboxQueued("i2", "prompt", "found"))
    assert [one.event for one in records(store)] == [OPEN]


@pytest.mark.law("L8")
async def test_a_failed_sync_closes_the_log_and_is_never_tried_again():
    store = Disk()
    log = journal(store)
    log.append(OPEN)
    store.sync_errors = [eio()]
    with pytest.raises(LogFailedError, match="flush failed: Input/output error; 1 records"):
        await log.flush()
    with pytest.raises(LogFailedError):
        await log.flush()
    with pytest.raises(LogFailedError):
        log.append(InboxQueued("i1", "prompt", "x"))
    assert store.syncs == 1


@pytest.mark.law("L8")
async def test_everybody_who_waits_for_a_sync_is_told_of_its_failure(virtual):
    store = Disk()
    log = journal(store)
    log.append(OPEN)
    store.sync_errors = [eio()]
    told = []

    async def waits():
        try:
            await log.flush()
        except LogFailedError:
            told.append(True)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(waits)
    assert told == [True] * 5
    assert store.syncs == 1


@pytest.mark.parametrize("then", ["flush", "append", "flush while it runs"])
@pytest.mark.law("L8")
async def test_the_failure_of_a_sync_that_was_abandoned_is_not_lost(then):
    store = Disk()
    log = journal(store)
    log.append(OPEN)
    store.sync_errors = [eio()]
    store.gate.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.flush)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    if then == "flush while it runs":
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_refused, log.flush)
            await trio.testing.wait_all_tasks_blocked()
            store.gate.set()
    else:
        store.gate.set()
        # Trio does not count a thread that was abandoned; who comes next waits for its token.
        await trio.to_thread.run_sync(lambda: None, limiter=log._limiter)
        if then == "flush":
            await _refused(log.flush)
        else:
            with pytest.raises(LogFailedError):
                log.append(InboxQueued("i1", "prompt", "x"))
    assert store.syncs == 1
    assert len(records(store)) == 1


async def _refused(flush):
    with pytest.raises(LogFailedError):
        await flush()


@pytest.mark.parametrize("durability", ["process", "memory"])
async def test_without_power_durability_nothing_is_synced(durability):
    store = Disk()
    log = journal(store, durability)
    log.append(OPEN)
    await log.flush()
    assert store.syncs == 0


@pytest.mark.law("L4", "L8")
@pytest.mark.parametrize("number", range(1, 7))
async def test_whichever_sync_fails_nothing_runs_that_was_not_durable(number, virtual):
    store, tool = Disk(), talker(10)
    store.sync_errors = [*[None] * (number - 1), eio()]
    sent = []
    with pytest.raises(LogFailedError, match="Input/output"):
        async with open_session(
            store, provider=ScriptedProvider([calls(), Reply(text="Done.")]), tools=[tool]
        ) as session:
            await session.send("go")
            sent.append(True)
            await session.rest()
    assert store.syncs == number
    # 1: the opening; 2: the input (3, before it is claimed, has nothing new); then the intents of the calls.
    assert bool(sent) == (number > 2)
    if number <= 3:
        assert tool.began == []
    async with open_session(MemoryStore(store.bytes), provider=ScriptedProvider([])):
        pass


# ------------------------------------------------------------------------------------------------ cursors


async def test_a_cursor_far_back_reads_from_the_store_what_memory_does_not_hold():
    store = Disk()
    log = journal(store, "process")
    log.append(OPEN)
    for number in range(10_000):
        log.append(InboxQueued(f"i{number}", "prompt", "x"))
    again = journal(Disk(store.bytes), "process")
    again.append(OPEN)
    for made in (log, again):
        seen, seq = [], 1
        while batch := made.records_from(seq):
            seen += [one.seq for one in batch]
            seq = seen[-1] + 1
        assert seen == list(range(1, made.seq + 1))


@pytest.mark.law("D2")
async def test_what_could_not_be_written_is_not_in_the_state_either():
    """A status that counted it would differ from the log for as long as anybody looks."""
    store = Disk()
    log = journal(store)
    log.append(OPEN)
    before = log.seq, dict(log.grammar.items)

    def refuse(data):
        raise eio()

    store.write = refuse
    with pytest.raises(LogFailedError, match="1 records are not durable"):
        log.append(InboxQueued("i1", "prompt", "lost"))
    assert (log.seq, log.grammar.items) == before
