"""Every system call of a log fails, once and for ever: it is told, and nothing promised is lost or left behind."""

import contextlib
import errno
import inspect
import os

import pytest

from turnkernel.codec import encode
from turnkernel.disk import Disk
from turnkernel.store import FileStore, ReadOnlyStore
from turnkernel.testing.disk_faults import CALLS, CallFault, FaultyDisk, sweep_calls
from turnkernel.testing.programs import PROGRAMS
from turnkernel.testing.sweep import play

LONG = bool(os.environ.get("TURNKERNEL_LONG"))
PLAIN, SMALL = PROGRAMS[0], next(one for one in PROGRAMS if one.title == "a steer while a call runs")
LINES = [encode(record) for record in play(SMALL).box.records]


def test_every_call_of_a_disk_is_made_to_fail():
    public = {name for name, _ in inspect.getmembers(Disk, inspect.isfunction) if not name.startswith("_")}
    assert public == set(CALLS)


@pytest.mark.law("L4", "L7", "L8")
def test_whatever_call_fails_a_new_log_is_whole_or_not_there(tmp_path, told):
    told("failing calls, a new log", sweep_calls(SMALL, tmp_path, every_error=LONG))


@pytest.mark.law("L7", "L8")
def test_whatever_call_fails_a_torn_log_is_recovered_then_or_at_the_next_opening(tmp_path, told):
    told(
        "failing calls, a torn log",
        sweep_calls(PLAIN, tmp_path, every_error=LONG, before=b"".join(LINES[:17]) + LINES[17][:40]),
    )


@pytest.mark.law("L7", "L8")
def test_whatever_call_fails_a_damaged_log_is_salvaged_then_or_at_the_next_opening(tmp_path, told):
    told(
        "failing calls, a salvage",
        sweep_calls(PLAIN, tmp_path, every_error=LONG, before=b"".join([*LINES[:9], *LINES[12:20]])),
    )


@pytest.mark.parametrize("call", ["open", "stat", "read"])
def test_who_only_reads_is_told_and_leaves_nothing_open(call, tmp_path):
    path = tmp_path / "session.log"
    path.write_bytes(LINES[0])
    disk = FaultyDisk(CallFault(call, 1, errno.EIO))
    with (
        pytest.raises(OSError, match="Input/output error"),
        contextlib.closing(ReadOnlyStore.open(path, disk)) as store,
    ):
        store.read(0, 100)
    assert disk.held == set()
    assert list(tmp_path.iterdir()) == [path]


def test_a_salvage_is_on_the_disk_before_the_log_says_so(tmp_path):
    """Of the copy: written, synced, renamed, the new name synced; then the record that names it."""
    path = tmp_path / "session.log"
    path.write_bytes(b"good\nbad\n")
    calls = []

    class Told(FaultyDisk):
        def _call(self, name, real, *args, **options):
            calls.append(name)
            return super()._call(name, real, *args, **options)

    store = FileStore.open(path, Told())
    calls.clear()
    store.keep_aside(5)
    assert [name for name in calls if name not in ("read", "open", "close")] == [
        "write",
        "sync_all",
        "rename",
        "sync_all",
    ]
    store.close()
