"""Every crash of every program: what is found opens, says so, and has lost nothing that was promised.

In CI a crash is tried at every operation, and at every so many bytes of what was written or not synced: half a
minute of one processor. With TURNKERNEL_LONG=1 at every byte, with a crash at every operation of the recovery
besides, for all programs: a million crashes, half of them distinct, and a quarter of an hour. With `-n 0` it says
how far it is.
"""

import os
import time
import zlib
from collections.abc import Callable

import attrs
import pytest
import trio

from turnkernel.codec import BadLineError, decode
from turnkernel.codec import parse as codec_parse
from turnkernel.errors import LogFailedError
from turnkernel.journal import Journal
from turnkernel.repair import closers
from turnkernel.store import FileStore, lines
from turnkernel.testing.crash import Parts, play_on_disk, sweep_crashes
from turnkernel.testing.disk_faults import sweep_faults
from turnkernel.testing.disk_model import Fault
from turnkernel.testing.programs import PROGRAMS

LONG = bool(os.environ.get("TURNKERNEL_LONG"))
TITLES = {program.title: program for program in PROGRAMS}
SMALL = TITLES["a steer while a call runs"]
OPERATIONS = 1 << 30
"""A stride over every byte: only whole operations."""

IDS = {"argvalues": PROGRAMS, "ids": [program.title for program in PROGRAMS]}


@pytest.fixture
def progress(request, capsys):
    """Tells how far a long sweep is, every ten seconds."""
    last = time.monotonic()

    def tell(done, total):
        nonlocal last
        if time.monotonic() > last + 10.0:
            last = time.monotonic()
            with capsys.disabled():
                print(f"\n{request.node.name}: {done} of {total} crashes", flush=True)

    return {"progress": tell} if LONG else {}


@pytest.mark.law("L1", "L3", "L4", "L6", "L7", "L8", "C1", "C2")
@pytest.mark.parametrize("program", **IDS)
def test_no_crash_of_any_program_breaks_a_law(program, told, progress):
    played = play_on_disk(program)
    assert played.error is None
    swept = sweep_crashes(played, stride=1 if LONG else 211, deeper=61 if LONG else 0, **progress)
    told(program.title, swept)


@pytest.mark.law("L7", "L8")
def test_no_crash_at_any_byte_breaks_a_law(told, progress):
    told("byte by byte", sweep_crashes(play_on_disk(SMALL), stride=1 if LONG else 17, **progress))


@pytest.mark.law("L7")
def test_no_crash_in_a_recovery_breaks_a_law(told):
    swept = sweep_crashes(play_on_disk(SMALL), stride=OPERATIONS, deeper=7 if LONG else 127)
    told("in the recovery", swept)


@pytest.mark.law("L8")
@pytest.mark.parametrize("durability", ["process", "memory"])
def test_no_promise_is_broken_in_the_other_modes(durability, told, progress):
    played = play_on_disk(SMALL, durability=durability)
    told(durability, sweep_crashes(played, stride=1 if LONG else 211, **progress))


@pytest.mark.law("L7", "L8")
@pytest.mark.parametrize("title", TITLES if LONG else ["words only", SMALL.title])
def test_no_failing_write_or_sync_breaks_a_law(title, told):
    told(f"failing disk, {title}", sweep_faults(TITLES[title]))


# ------------------------------------------------------------------------------------------------ planted bugs


class NoSync(Journal):
    async def flush(self):
        await trio.lowlevel.checkpoint()
        self._synced = self.seq


class EarlyAck(Journal):
    """Acknowledges, and syncs with the next append."""

    late = False

    async def flush(self):
        await trio.lowlevel.checkpoint()
        self.late = True

    def append(self, *events):
        super().append(*events)
        if self.late:
            self._store.sync()
            self.late = False


class RetriedSync(Journal):
    def _sync_in_thread(self, upto):
        super()._sync_in_thread(upto)
        if self._sync_error is not None:
            self._sync_error = None
            super()._sync_in_thread(upto)


class NoCutBack(FileStore):
    def _cut_back(self):
        pass


class NotSyncedCut(FileStore):
    """Cuts back, and leaves it to the next sync, which never comes, to tell the disk."""

    def _cut_back(self):
        self._file.truncate(self._size)


class Buffered(FileStore):
    """As a buffered file does: what could not be written is written with the next, or when it is closed."""

    buffer = b""

    def write(self, data):
        try:
            super().write(data)
        except OSError:
            self.buffer = data
            raise

    def close(self):
        try:
            if self.buffer:
                self._file.append(self.buffer)
        except OSError:
            pass
        super().close()


class SkipsBadLines(Journal):
    """Reads what it can, and says nothing of the rest."""

    def load(self):
        for offset, line, _ in lines(self._store):
            try:
                record = decode(line)
            except BadLineError:
                continue
            self.grammar.apply(record)
            self._keep(offset, record)
        self._end_with_newline()


def no_crc(monkeypatch):
    def lenient(line):
        if line[:8] == b'{"crc":"' and line[16:18] == b'",':
            line = b'{"crc":"%08x' % zlib.crc32(line[18:]) + line[16:]
        return codec_parse(line)

    for place in ("codec", "records", "loading"):
        monkeypatch.setattr(f"turnkernel.{place}.parse", lenient)


def doubled_closer(monkeypatch):
    def twice(*args):
        events = closers(*args)
        return [*events, *events[-1:]]

    monkeypatch.setattr("turnkernel.recovery.closers", twice)


PLAIN = Parts()


@attrs.frozen
class Planted:
    """A bug, and the check that must catch it."""

    law: str
    says: str
    parts: Parts = PLAIN
    faults: bool = False
    """Whether it shows on a disk that fails, and not in a crash."""
    plant: Callable[[pytest.MonkeyPatch], None] | None = None
    """Into what recovers; the log was written without it."""


PLANTED = {
    "no sync": Planted("L8", "was acknowledged and is lost", Parts(journal=NoSync)),
    "acknowledged early": Planted("L4", "ran and nothing says so", Parts(journal=EarlyAck)),
    "bad lines skipped": Planted("L7", "a log without damage was refused", Parts(journal=SkipsBadLines)),
    "no cut-back of a short write": Planted(
        "L7", "is no prefix of what was written", Parts(store=NoCutBack), faults=True
    ),
    "a cut-back that is not synced": Planted(
        "L7", "is no prefix of what was written", Parts(store=NotSyncedCut), faults=True
    ),
    "a buffered file": Planted("L7", "is no prefix of what was written", Parts(store=Buffered), faults=True),
    "a sync tried again": Planted(
        "L8", "the disk failed, and nobody was told", Parts(journal=RetriedSync), faults=True
    ),
    "no crc": Planted("L7", "is no prefix of what was written", plant=no_crc),
    "a closer too many": Planted("L7", "recovery raised GrammarError", plant=doubled_closer),
}
"""`lockf` for `flock` is caught in test_store: two openings at once are no crash."""


@pytest.mark.law("L4", "L7", "L8")
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_caught_by_its_check_and_the_shortest_case_is_told(name, monkeypatch, capsys):
    """Crashes come in the order of the trace, and those of the shortest program first."""
    bug = PLANTED[name]
    for program in (TITLES["words only"], SMALL):
        if bug.faults:
            found = sweep_faults(program, parts=bug.parts, most=1).found
        else:
            played = play_on_disk(program, parts=bug.parts)
            with monkeypatch.context() as patch:
                if bug.plant is not None:
                    bug.plant(patch)
                found = sweep_crashes(played, stride=37, parts=bug.parts, most=1).found
        if found:
            break
    where, violation = found[0]
    with capsys.disabled():
        print(f"\n{name}: {violation.law}: {violation.detail} ({program.title}: {where})")
    assert violation.law == bug.law
    assert bug.says in violation.detail


class SplitWrite(FileStore):
    """A line in one write and its newline in another is right as well: the crc says what is whole."""

    def write(self, data):
        super().write(data[:-1])
        super().write(data[-1:])


def test_a_write_in_two_is_no_bug(told):
    played = play_on_disk(SMALL, parts=Parts(store=SplitWrite))
    told("split write", sweep_crashes(played, stride=211, parts=Parts(store=SplitWrite)))


def test_a_log_that_failed_is_reported():
    played = play_on_disk(SMALL, fault=Fault("sync", 2))
    assert isinstance(played.error, LogFailedError)
