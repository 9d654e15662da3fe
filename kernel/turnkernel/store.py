"""Where the bytes of a log are: a file, or memory. The only module of the kernel that touches the file system.

A store appends whole writes, syncs, and reads back. It knows nothing of records. Blocking; no trio.
"""

import errno
import fcntl
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from .errors import SessionLiveError

__all__ = ["FileStore", "MemoryStore", "ReadOnlyStore", "Store", "lines"]

_CHUNK = 1 << 20


class Store(Protocol):
    """Bytes that are appended to. A failed write leaves the store as it was before it."""

    @property
    def where(self) -> str:
        """For people: the path, or `memory`."""
        ...

    @property
    def size(self) -> int:
        """Bytes that are in it."""
        ...

    def write(self, data: bytes) -> None:
        """Append all of it or nothing; raises OSError."""
        ...

    def sync(self) -> None:
        """Return when everything written is on the disk; raises OSError. Called in a worker thread."""
        ...

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset`; empty at the end."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class MemoryStore:
    """A log that dies with the process: for virtual runs and tests, and `durability = "memory"`."""

    where = "memory"

    def __init__(self, data: bytes = b"") -> None:
        self._data = bytearray(data)

    @property
    def size(self) -> int:
        """Bytes that are in it."""
        return len(self._data)

    def write(self, data: bytes) -> None:
        """Append."""
        self._data += data

    def sync(self) -> None:
        """Nothing to do."""

    def read(self, offset: int, size: int) -> bytes:
        """A part of it."""
        return bytes(self._data[offset : offset + size])

    def close(self) -> None:
        """Nothing to do."""


class FileStore:
    """A log in a file of mode 0600, with its lock in a file beside it.

    One raw descriptor, opened with O_APPEND; never a buffered file, because bytes whose write was reported as
    failed must not appear later. The lock is `flock` on `<path>.lock`: free after a `kill -9`, not inherited by
    processes that are started (O_CLOEXEC), and not dropped when somebody reads the log, as `lockf` would be.
    """

    def __init__(self, path: Path, fd: int, lock: int) -> None:
        self.path = path
        self._fd = fd
        self._lock = lock
        self._size = os.fstat(fd).st_size

    def __repr__(self) -> str:
        return f"<FileStore {self.path} {self._size} bytes>"

    @classmethod
    def open(cls, path: Path) -> "FileStore":
        """Lock and open for writing, create it if it isn't there.

        Raises `SessionLiveError` where somebody holds the lock, OSError where the file system refuses.
        """
        lock = _lock(path)
        try:
            flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
            try:
                fd = os.open(path, flags)
            except FileNotFoundError:
                fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
                _sync_directory(path.parent)
        except BaseException:
            os.close(lock)
            raise
        return cls(path, fd, lock)

    @property
    def where(self) -> str:
        """The path."""
        return str(self.path)

    @property
    def size(self) -> int:
        """Bytes of whole writes."""
        return self._size

    def write(self, data: bytes) -> None:
        """One write; what a short one left is cut off again before the error is raised."""
        try:
            written = os.write(self._fd, data)
        except OSError:
            # Nothing is known to have been written, but a signal or a driver may have let part of it through.
            os.ftruncate(self._fd, self._size)
            raise
        if written != len(data):
            os.ftruncate(self._fd, self._size)
            raise OSError(errno.ENOSPC, f"short write: {written} of {len(data)} bytes")
        self._size += written

    def sync(self) -> None:
        """fdatasync, or on macOS the barrier that reaches the medium."""
        barrier = getattr(fcntl, "F_FULLFSYNC", None)
        if barrier is not None:  # pragma: no cover - macOS
            fcntl.fcntl(self._fd, barrier)
        else:
            os.fdatasync(self._fd)

    def read(self, offset: int, size: int) -> bytes:
        """A part of the file."""
        return os.pread(self._fd, size, offset)

    def close(self) -> None:
        """Close and unlock."""
        os.close(self._fd)
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
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise SessionLiveError(str(path)) from None
    except BaseException:
        os.close(lock)
        raise
    return lock


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def lines(store: Store, offset: int = 0) -> Iterator[tuple[int, bytes, bool]]:
    """The lines from `offset`: where each begins, its bytes without the newline, whether it had one.

    Memory is bounded by the longest line, not by the log.
    """
    rest = b""
    start = offset
    while chunk := store.read(start + len(rest), _CHUNK):
        data = rest + chunk
        pos = 0
        while (end := data.find(b"\n", pos)) >= 0:
            yield start + pos, data[pos:end], True
            pos = end + 1
        rest = data[pos:]
        start += pos
    if rest:
        yield start, rest, False
