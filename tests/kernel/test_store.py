"""A log's file: whole writes or none, a reserve, one writer. Law: L7."""

import ast
import errno
import fcntl
import os
import pathlib
import resource
import signal
import stat
import subprocess
import sys
from contextlib import contextmanager

import pytest

import turnkernel.disk
from turnkernel.disk import Disk
from turnkernel.errors import SessionLiveError
from turnkernel.logfile import DiskFile
from turnkernel.store import RESERVE_BYTES, FileStore, MemoryStore, lines


@pytest.fixture
def path(tmp_path):
    return tmp_path / "session.log"


@contextmanager
def limited(size):
    """Files of this process may not grow beyond a size; a write over it is short, as on a full disk.

    Over when the block is, because the limit holds for what the tests' own report is written to as well.
    """
    kept = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, kept[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, kept)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_new_log_is_for_its_owner_only(path):
    store = FileStore.open(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.with_name("session.log.lock").stat().st_mode) == 0o600
    store.close()


def test_what_an_opening_has_made_and_not_written_to_is_gone_again(path):
    FileStore.open(path).close()
    assert list(path.parent.iterdir()) == []
    path.touch()
    FileStore.open(path).close()
    assert list(path.parent.iterdir()) == [path], "somebody else's stays"
    store = FileStore.open(path)
    store.write(b"one\n")
    store.close()
    FileStore.open(path).close()
    assert len(list(path.parent.iterdir())) == 2


def test_a_log_that_its_maker_has_removed_meanwhile_is_made_anew(path):
    """Who waits between opening and locking would hold a file that nobody can find."""
    maker = FileStore.open(path)

    class Late(Disk):
        gone = False

        def open(self, path, flags):
            fd = super().open(path, flags)
            if not self.gone:
                maker.close()
                self.gone = True
            return fd

    store = FileStore.open(path, Late())
    assert store._file._lock.made
    store.write(b"one\n")
    assert path.read_bytes() == b"one\n"
    with pytest.raises(SessionLiveError):
        FileStore.open(path)
    store.close()


def test_the_directory_is_synced_at_every_opening_before_anything_is_written(path, monkeypatch):
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(stat.S_ISDIR(os.fstat(fd).st_mode)), fsync(fd)))
    FileStore.open(path).close()
    FileStore.open(path).close()
    assert synced == [True, True]


def test_an_opening_that_fails_leaves_no_lock(path, monkeypatch):
    def refuse(fd):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="Input/output"):
            FileStore.open(path)
    FileStore.open(path).close()


@pytest.mark.law("L7")
def test_a_short_write_is_cut_back_to_the_last_whole_one(path):
    store = FileStore.open(path)
    store.write(b"one\n")
    with limited(6):
        with pytest.raises(OSError, match="short write: 2 of 4"):
            store.write(b"two\n")
        assert path.read_bytes() == b"one\n"
        with pytest.raises(OSError, match="short write"):
            store.write(b"two\n")
    store.write(b"three\n")
    assert store.size == 10
    store.close()
    assert path.read_bytes() == b"one\nthree\n"


def test_what_could_not_be_cut_back_is_not_read_and_goes_when_the_log_is_closed(path, monkeypatch):
    store = FileStore.open(path)
    store.write(b"one\n")
    with limited(6), monkeypatch.context() as patch:

        def refuse(fd, size):
            raise OSError(errno.EIO, "Input/output error")

        patch.setattr(os, "ftruncate", refuse)
        with pytest.raises(OSError, match="short write"):
            store.write(b"two\n")
    assert path.read_bytes() == b"one\ntw"
    assert store.read(0, 100) == b"one\n"
    store.close()
    assert path.read_bytes() == b"one\n"


def _blocks(path):
    return path.stat().st_blocks * 512


def _reserves(path) -> bool:
    store = FileStore.open(path)
    try:
        return store._file.allocate(0, 4096)
    finally:
        store.close()


def test_the_reserve_is_held_behind_the_end_and_given_back(path):
    if not _reserves(path):
        pytest.skip("this file system can't allocate behind the end of a file; run it on ext4, xfs or tmpfs")
    store = FileStore.open(path)
    store.make_room(100)
    assert _blocks(path) >= RESERVE_BYTES + 100
    assert path.stat().st_size == 0
    for _ in range(40):
        store.make_room(10_000)
        store.write(bytes(10_000))
        assert _blocks(path) >= store.size + RESERVE_BYTES
    store.close()
    assert path.stat().st_size == 400_000
    assert _blocks(path) < 400_000 + RESERVE_BYTES


class Full(DiskFile):
    """A disk with so many bytes on it."""

    size = 0

    def allocate(self, offset, size):
        if offset + size > self.size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return True


def test_a_full_disk_shows_before_the_write_and_leaves_the_reserve(path):
    Full.size = RESERVE_BYTES + 1000
    store = FileStore(Full.open(path))
    store.make_room(1000)
    store.write(bytes(1000))
    with pytest.raises(OSError, match="No space left"):
        store.make_room(1)
    store.write(bytes(100))
    assert path.stat().st_size == 1100
    store.close()


def test_without_a_way_to_allocate_it_goes_on_without_a_reserve(path, monkeypatch):
    monkeypatch.setattr("turnkernel.disk._fallocate", None)
    store = FileStore.open(path)
    store.make_room(100)
    store.write(b"one\n")
    store.close()
    assert path.read_bytes() == b"one\n"


def test_the_disk_is_the_only_way_to_the_file_system():
    """So that whatever a log does there can be made to fail. Names of files are no files: `os.fspath` is fine."""
    of_paths = {"chmod", "exists", "glob", "hardlink_to", "is_dir", "is_file", "iterdir", "lstat", "mkdir", "open"}
    of_paths |= {"read_bytes", "read_text", "rename", "rmdir", "stat", "symlink_to", "touch", "unlink"}
    of_paths |= {"write_bytes", "write_text"}
    wrong = []
    for path in pathlib.Path(turnkernel.disk.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if path.name == "disk.py" or not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            what, _, method = called.rpartition(".")
            if what == "os":
                bad = method not in ("fspath", "strerror", "path.samestat")
            else:
                bad = called == "open" or what in ("fcntl", "io.open") or method in of_paths
            if bad and not what.endswith(("disk", "FileStore", "DiskFile", "cls")):
                wrong.append(f"{path.name}:{node.lineno} {called}")
    assert wrong == []


# ------------------------------------------------------------------------------------------------ one writer

HOLD = """
import sys, pathlib, time
from turnkernel.store import FileStore
store = FileStore.open(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def _holder(path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_a_log_that_another_process_holds_is_refused_and_free_after_its_kill(path):
    with _holder(path) as holder:
        # Whatever a file says: the lock counts.
        path.with_name("session.log.lock").write_text("999999")
        with pytest.raises(SessionLiveError, match="another kernel"):
            FileStore.open(path)
        holder.kill()
        holder.wait()
    FileStore.open(path).close()


def test_a_log_is_one_log_by_whatever_name_it_is_opened(path):
    store = FileStore.open(path)
    store.write(b"one\n")
    other = path.with_name("other.log")
    other.symlink_to(path)
    hard = path.with_name("hard.log")
    hard.hardlink_to(path)
    for name in (other, hard):
        with pytest.raises(SessionLiveError, match=name.name):
            FileStore.open(name)
    path.with_name("session.log.lock").unlink()
    with pytest.raises(SessionLiveError):
        FileStore.open(path)
    store.close()
    FileStore.open(other).close()
    FileStore.open(path).close()


def _one_writer(path) -> bool:
    """Whether a log that this process holds is refused, also after somebody here has read it and its lock."""
    store = FileStore.open(path)
    try:
        for _ in range(2):
            try:
                FileStore.open(path).close()
            except SessionLiveError:
                pass
            else:
                return False
            path.read_bytes()
            path.with_name("session.log.lock").read_bytes()
        return True
    finally:
        store.close()


def test_a_log_that_this_process_holds_is_refused_and_reading_it_does_not_let_go(path):
    assert _one_writer(path)
    FileStore.open(path).close()


def test_lockf_for_flock_is_caught(path, monkeypatch):
    monkeypatch.setattr("turnkernel.disk.fcntl.flock", fcntl.lockf)
    assert not _one_writer(path)


def test_a_process_that_was_started_does_not_inherit_the_lock(path):
    store = FileStore.open(path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False) as child:
        store.close()
        FileStore.open(path).close()
        child.kill()


def test_a_sync_may_outlive_the_log_and_syncs_nobody_else_s_file(path, monkeypatch):
    store = FileStore.open(path)
    store.write(b"one\n")
    synced = []
    fdatasync = os.fdatasync

    def slow(fd):
        store.close()
        with open("/dev/null", "rb"):  # whoever comes next is given the numbers that are free
            synced.append(os.fstat(fd).st_ino)
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", slow)
    store.sync()
    assert synced == [path.stat().st_ino]
    with pytest.raises(OSError, match="Bad file descriptor"):
        store.sync()


# ------------------------------------------------------------------------------------------------ reading


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 100])
def test_lines_are_the_same_however_they_are_cut(chunk, monkeypatch):
    monkeypatch.setattr("turnkernel.store._CHUNK", chunk)
    store = MemoryStore(b"one\n\nthree\nfour")
    assert list(lines(store)) == [(0, b"one", True), (4, b"", True), (5, b"three", True), (11, b"four", False)]
    assert list(lines(store, 5)) == [(5, b"three", True), (11, b"four", False)]
    assert list(lines(MemoryStore())) == []


def test_what_is_kept_aside_is_whole_and_named_by_place_and_content(path):
    store = FileStore.open(path)
    store.write(b"good\nbad\nworse")
    name = store.keep_aside(5)
    assert store.keep_aside(5) == name
    assert (path.parent / name).read_bytes() == b"bad\nworse"
    assert stat.S_IMODE((path.parent / name).stat().st_mode) == 0o600
    assert sorted(one.name for one in path.parent.iterdir()) == sorted([path.name, path.name + ".lock", name])
    store.close()
    assert path.read_bytes() == b"good\nbad\nworse"
