"""The system calls of a log's file. The only module of the kernel that touches the file system. Blocking; no trio.

Everything above sees a `File`: a model of a disk stands in for it where crashes are tried out.
"""

import ctypes
import errno
import fcntl
import io
import os
import stat
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from .errors import SessionLiveError

__all__ = ["DiskFile", "File", "ReadOnlyStore"]

_KEEP_SIZE = 1
"""FALLOC_FL_KEEP_SIZE of linux/falloc.h."""
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class File(Protocol):
    """One file that is appended to, as the system gives it. Every method may raise OSError."""

    @property
    def where(self) -> str:
        """For people: the path."""
        ...

    def length(self) -> int:
        """Bytes that are in it."""
        ...

    def append(self, data: bytes) -> int:
        """One write at the end; how much of it was written, which may be less than was given."""
        ...

    def truncate(self, size: int) -> None:
        """Cut it to a size, and give back what was allocated behind that."""
        ...

    def allocate(self, offset: int, size: int) -> bool:
        """Have the disk hold blocks for a range, also behind the end, without changing the file's length.

        False where that can't be had.
        """
        ...

    def sync(self) -> None:
        """Return when everything written is on the disk. May be called in a thread, also while it is closed."""
        ...

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset`; empty at the end."""
        ...

    def put_beside(self, suffix: str, chunks: Iterable[bytes]) -> str:
        """Write another file beside it, whole and durable or not at all; its name."""
        ...

    def close(self) -> None:
        """Let go of it, and of its lock."""
        ...


class DiskFile:
    """A file of mode 0600, with its lock in a file beside it.

    One raw descriptor, opened with O_APPEND; never a buffered file, because bytes whose write was reported as
    failed must not appear later. The lock is `flock` on `<path>.lock`: free after a `kill -9` whatever the file
    says, not inherited by processes that are started (O_CLOEXEC), and not dropped when somebody else in this
    process reads the log, as `lockf` would be. The log is locked as well: it may be known by another name too (a
    link), and somebody may take the file beside it for left over and remove it.
    """

    def __init__(self, path: Path, fd: int, lock: int) -> None:
        self.path = path
        self._fd = fd
        self._lock = lock
        self._closing = threading.Lock()

    def __repr__(self) -> str:
        return f"<DiskFile {self.path} fd={self._fd}>"

    @classmethod
    def open(cls, path: Path) -> "DiskFile":
        """Lock and open for writing, create it if it isn't there.

        Creating is one call, so a crash leaves no file or an empty one, and an empty one is a log in which nothing
        has happened. The directory is synced at every opening: whoever created the file may not have got to it.
        Raises `SessionLiveError` where somebody holds the lock, OSError where the file system refuses.
        """
        lock = _lock(path)
        try:
            fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                _hold(fd, path)
                _sync_directory(path.parent)
            except BaseException:
                os.close(fd)
                raise
        except BaseException:
            os.close(lock)
            raise
        return cls(path, fd, lock)

    @property
    def where(self) -> str:
        """The path."""
        return str(self.path)

    def length(self) -> int:
        """fstat."""
        return os.fstat(self._fd).st_size

    def append(self, data: bytes) -> int:
        """write."""
        return os.write(self._fd, data)

    def truncate(self, size: int) -> None:
        """ftruncate, which frees what was allocated behind the new end."""
        os.ftruncate(self._fd, size)

    def allocate(self, offset: int, size: int) -> bool:
        """fallocate with KEEP_SIZE, on Linux. `os.posix_fallocate` is no help: it changes the length."""
        if _fallocate is None:
            return False
        if _fallocate(self._fd, _KEEP_SIZE, offset, size) == 0:
            return True
        number = ctypes.get_errno()
        if number in _UNSUPPORTED:
            return False
        raise OSError(number, os.strerror(number), str(self.path))

    def sync(self) -> None:
        """fdatasync, or on macOS the barrier that reaches the medium."""
        with self._closing:
            # A descriptor of its own: a sync that nobody waits for any more may outlive `close`, and the number of
            # a descriptor that was closed is given to the next file.
            fd = os.dup(self._fd)
        try:
            barrier = getattr(fcntl, "F_FULLFSYNC", None)
            if barrier is not None:  # pragma: no cover - macOS
                fcntl.fcntl(fd, barrier)
            else:
                os.fdatasync(fd)
        finally:
            os.close(fd)

    def read(self, offset: int, size: int) -> bytes:
        """pread."""
        return os.pread(self._fd, size, offset)

    def put_beside(self, suffix: str, chunks: Iterable[bytes]) -> str:
        """A temporary file, written, synced, renamed, and its directory synced."""
        path = self.path.with_name(self.path.name + suffix)
        temporary = path.with_name(path.name + ".tmp")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with open(os.open(temporary, flags, 0o600), "wb") as file:  # noqa: PTH123 - no Path takes a mode
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        _sync_directory(path.parent)
        return path.name

    def close(self) -> None:
        """Close and unlock."""
        # Not left to the closing: a sync that goes on has a copy, and a process that is just being started has one
        # until its exec is over.
        with self._closing:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)
            self._fd = -1
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        os.close(self._lock)


class ReadOnlyStore:
    """A log in a file, to look at: takes no lock, changes nothing, and can be had while a kernel writes.

    It ends where the file ended when it was opened, which in a live log may be inside a record.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd
        self.size = os.fstat(fd).st_size
        """Bytes that were in it when it was opened."""

    def __repr__(self) -> str:
        return f"<ReadOnlyStore {self.path} {self.size} bytes>"

    @classmethod
    def open(cls, path: Path) -> "ReadOnlyStore":
        """Open for reading. Raises OSError, also for what is no regular file; never waits for a pipe's writer."""
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "a directory" if stat.S_ISDIR(mode) else "not a regular file", str(path))
        return cls(path, fd)

    @property
    def where(self) -> str:
        """The path."""
        return str(self.path)

    def write(self, data: bytes) -> None:
        """Refused: raises `io.UnsupportedOperation`, an OSError."""
        raise io.UnsupportedOperation(f"{self.path} is open for reading only")

    def sync(self) -> None:
        """Refused, as `write` is."""
        self.write(b"")

    def read(self, offset: int, size: int) -> bytes:
        """A part of what was there when it was opened. Raises OSError, which names the file."""
        try:
            return os.pread(self._fd, max(0, min(size, self.size - offset)), offset)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None

    def close(self) -> None:
        """Close it."""
        os.close(self._fd)


def _lock(path: Path) -> int:
    lock_path = path.with_name(path.name + ".lock")
    lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _hold(lock, path)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _hold(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SessionLiveError(str(path)) from None


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _find_fallocate() -> "ctypes._NamedFuncPointer | None":  # pyright: ignore[reportPrivateUsage] - its only name
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    function = getattr(libc, "fallocate64", None) or getattr(libc, "fallocate", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return function


_fallocate = _find_fallocate()
