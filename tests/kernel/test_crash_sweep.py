"""Every crash of every program: what is found opens, says so, and has lost nothing that was promised.

In CI a crash is tried at every operation, and at every so many bytes of what was written or not synced. With
TURNKERNEL_LONG=1 at every byte, with a crash at every operation of the recovery besides, for all programs.
"""

import os
import zlib

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


def told(what, swept, capsys):
    with capsys.disabled():
        print(f"\n{what}: {swept.states} crashes, {swept.distinct} distinct, violations: {len(swept.found)}")
    assert swept.found == []


@pytest.mark.law("L1", "L3", "L4", "L6", "L7", "L8", "C1", "C2")
@pytest.mark.parametrize("program", **IDS)
def test_no_crash_of_any_program_breaks_a_law(program, capsys):
    played = play_on_disk(program)
    assert played.error is None
    swept = sweep_crashes(played, stride=1 if LONG else 211, deeper=61 if LONG else 0)
    told(program.title, swept, capsys)


@pytest.mark.law("L7", "L8")
def test_no_crash_at_any_byte_breaks_a_law(capsys):
    told("byte by byte", sweep_crashes(play_on_disk(SMALL), stride=1 if LONG else 11), capsys)


@pytest.mark.law("L7")
def test_no_crash_in_a_recovery_breaks_a_law(capsys):
    swept = sweep_crashes(play_on_disk(SMALL), stride=OPERATIONS, deeper=7 if LONG else 127)
    told("in the recovery", swept, capsys)


@pytest.mark.law("L8")
@pytest.mark.parametrize("durability", ["process", "memory"])
def test_no_promise_is_broken_in_the_other_modes(durability, capsys):
    played = play_on_disk(SMALL, durability=durability)
    told(durability, sweep_crashes(played, stride=1 if LONG else 211), capsys)


@pytest.mark.law("L7", "L8")
@pytest.mark.parametrize("title", TITLES if LONG else [SMALL.title, "an approval and a question"])
def test_no_failing_write_or_sync_breaks_a_law(title, capsys):
    told(f"failing disk, {title}", sweep_faults(TITLES[title]), capsys)


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
    def twice(grammar, wording, ending):
        events = closers(grammar, wording, ending)
        return [*events, *events[-1:]]

    monkeypatch.setattr("turnkernel.session.closers", twice)


def swept(parts=None, faults=False):
    parts = parts or Parts()
    if faults:
        came = sweep_faults(SMALL, parts=parts)
    else:
        came = sweep_crashes(play_on_disk(SMALL, parts=parts), stride=97, parts=parts)
    return {violation.law for _, violation in came.found}


@pytest.mark.parametrize("bug", [NoSync, EarlyAck])
@pytest.mark.law("L8", "L4")
def test_a_promise_before_the_sync_is_caught(bug):
    assert swept(Parts(journal=bug)) & {"L4", "L8"}


@pytest.mark.law("L8")
def test_a_sync_that_is_tried_again_is_caught():
    assert "L8" in swept(Parts(journal=RetriedSync), faults=True)


@pytest.mark.parametrize("bug", [NoCutBack, NotSyncedCut, Buffered])
@pytest.mark.law("L7")
def test_a_failed_write_that_comes_back_is_caught(bug):
    assert "L7" in swept(Parts(store=bug), faults=True)


@pytest.mark.law("L7")
def test_bad_lines_that_are_skipped_are_caught():
    assert "L7" in swept(Parts(journal=SkipsBadLines))


@pytest.mark.parametrize("bug", [no_crc, doubled_closer])
@pytest.mark.law("L7")
def test_a_missing_crc_and_a_closer_too_many_are_caught(bug, monkeypatch):
    played = play_on_disk(SMALL)
    bug(monkeypatch)
    assert sweep_crashes(played, stride=37).found


class SplitWrite(FileStore):
    """A line in one write and its newline in another is right as well: the crc says what is whole."""

    def write(self, data):
        super().write(data[:-1])
        super().write(data[-1:])


def test_a_write_in_two_is_no_bug(capsys):
    played = play_on_disk(SMALL, parts=Parts(store=SplitWrite))
    told("split write", sweep_crashes(played, stride=211, parts=Parts(store=SplitWrite)), capsys)


def test_a_log_that_failed_is_reported():
    played = play_on_disk(SMALL, fault=Fault("sync", 2))
    assert isinstance(played.error, LogFailedError)
