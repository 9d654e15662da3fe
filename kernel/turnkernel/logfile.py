"""The file that a log is in: one writer, and what it has made and not used is gone again. Blocking; no trio.

Reaches the file system through `disk.Disk` only. Everything above sees a `File`: a model of a disk stands in for
it where crashes are tried out.
"""

import errno
import io
import os
import stat
import threading
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import attrs

from .disk import Disk
from .errors import SessionLiveError

__all__ = ["DiskFile", "File", "ReadOnlyStore", "is_there", "make_private"]

_TRIES = 10
"""How often somebody else may remove a file between our opening and our locking it."""


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

    def close(self, *, unused: bool) -> None:
        """Let go of it, and of its lock, also where this raises.

        `unused`: nothing whole was written to it. What this opening has made is removed then.
        """
        ...


@attrs.frozen
class _Held:
    """A file that is open and locked."""

    disk: Disk
    path: Path
    fd: int
    made: bool
    """Whether this opening has created it."""

    def release(self, *, unused: bool) -> None:
        """Unlock and close it. What was made and not used goes first, while nobody else can have it."""
        with ExitStack() as last:
            last.callback(self.disk.close, self.fd)
            # Not left to the closing: a sync that goes on has a copy, and a process that is just being started has
            # one until its exec is over.
            last.callback(self.disk.unlock, self.fd)
            if self.made and unused and _is_at(self.disk, self.fd, self.path):
                self.disk.remove(self.path)


class DiskFile:
    """A file of mode 0600, with its lock in a file beside it.

    One raw descriptor, opened with O_APPEND; never a buffered file, because bytes whose write was reported as
    failed must not appear later. The lock is `flock` on `<path>.lock`: free after a `kill -9` whatever the file
    says, not inherited by processes that are started (O_CLOEXEC), and not dropped when somebody else in this
    process reads the log, as `lockf` would be. The log is locked as well: it may be known by another name too (a
    link), and somebody may take the file beside it for left over and remove it.
    """

    def __init__(self, disk: Disk, log: _Held, lock: _Held) -> None:
        self.path = log.path
        self._disk = disk
        self._log = log
        self._lock = lock
        self._fd = log.fd
        self._closing = threading.Lock()

    def __repr__(self) -> str:
        return f"<DiskFile {self.path} fd={self._fd}>"

    @classmethod
    def open(cls, path: Path, disk: Disk | None = None) -> "DiskFile":
        """Lock and open for writing, create it if it isn't there.

        Creating is one call, so a crash leaves no file or an empty one, and an empty one is a log in which nothing
        has happened. The directory is synced at every opening: whoever created the file may not have got to it.
        Raises `SessionLiveError` where somebody holds the lock, OSError where the file system refuses; then what
        it has made is gone again.
        """
        disk = disk if disk is not None else Disk()
        with ExitStack() as undo:
            lock = _hold(disk, path.with_name(path.name + ".lock"), path)
            undo.callback(lock.release, unused=True)
            log = _hold(disk, path, path)
            undo.callback(log.release, unused=True)
            _sync_directory(disk, path.parent)
            undo.pop_all()
        return cls(disk, log, lock)

    @property
    def where(self) -> str:
        """The path."""
        return str(self.path)

    def length(self) -> int:
        """fstat."""
        return self._disk.stat(self._fd).st_size

    def append(self, data: bytes) -> int:
        """write."""
        return self._disk.write(self._fd, data)

    def truncate(self, size: int) -> None:
        """ftruncate, which frees what was allocated behind the new end."""
        self._disk.truncate(self._fd, size)

    def allocate(self, offset: int, size: int) -> bool:
        """See `Disk.allocate`."""
        return self._disk.allocate(self._fd, offset, size)

    def sync(self) -> None:
        """See `Disk.sync`."""
        with self._closing:
            # A descriptor of its own: a sync that nobody waits for any more may outlive `close`, and the number of
            # a descriptor that was closed is given to the next file.
            fd = self._disk.duplicate(self._fd)
        try:
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)

    def read(self, offset: int, size: int) -> bytes:
        """pread."""
        return self._disk.read(self._fd, size, offset)

    def put_beside(self, suffix: str, chunks: Iterable[bytes]) -> str:
        """A temporary file, written, synced, renamed, and its directory synced."""
        path = self.path.with_name(self.path.name + suffix)
        temporary = path.with_name(path.name + ".tmp")
        with ExitStack() as undo:
            fd = self._disk.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            undo.callback(self._disk.remove, temporary)
            try:
                _write_all(self._disk, fd, chunks)
                self._disk.sync_all(fd)
            finally:
                self._disk.close(fd)
            self._disk.rename(temporary, path)
            undo.pop_all()
        _sync_directory(self._disk, path.parent)
        return path.name

    def close(self, *, unused: bool = False) -> None:
        """Close and unlock; see `File.close`."""
        with ExitStack() as last:
            last.callback(self._lock.release, unused=unused)
            with self._closing:
                self._fd = -1
                self._log.release(unused=unused)


class ReadOnlyStore:
    """A log in a file, to look at: takes no lock, changes nothing, and can be had while a kernel writes.

    It ends where the file ended when it was opened, which in a live log may be inside a record.
    """

    def __init__(self, disk: Disk, path: Path, fd: int, size: int) -> None:
        self.path = path
        self.size = size
        """Bytes that were in it when it was opened."""
        self._disk = disk
        self._fd = fd

    def __repr__(self) -> str:
        return f"<ReadOnlyStore {self.path} {self.size} bytes>"

    @classmethod
    def open(cls, path: Path, disk: Disk | None = None) -> "ReadOnlyStore":
        """Open for reading. Raises OSError, also for what is no regular file; never waits for a pipe's writer."""
        disk = disk if disk is not None else Disk()
        with ExitStack() as undo:
            fd = disk.open(path, os.O_RDONLY | os.O_NONBLOCK)
            undo.callback(disk.close, fd)
            status = disk.stat(fd)
            if not stat.S_ISREG(status.st_mode):
                what = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
                raise OSError(errno.EINVAL, what, str(path))
            undo.pop_all()
        return cls(disk, path, fd, status.st_size)

    @property
    def where(self) -> str:
        """The path."""
        return str(self.path)

    def is_live(self) -> bool:
        """Whether a kernel has it open for writing now. Makes no file; for an instant an opening is refused."""
        try:
            self._disk.lock(self._fd, shared=True)
        except BlockingIOError:
            return True
        self._disk.unlock(self._fd)
        return False

    def write(self, data: bytes) -> None:
        """Refused: raises `io.UnsupportedOperation`, an OSError."""
        raise io.UnsupportedOperation(f"{self.path} is open for reading only")

    def sync(self) -> None:
        """Refused, as `write` is."""
        self.write(b"")

    def read(self, offset: int, size: int) -> bytes:
        """A part of what was there when it was opened. Raises OSError, which names the file."""
        try:
            return self._disk.read(self._fd, max(0, min(size, self.size - offset)), offset)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None

    def close(self) -> None:
        """Close it."""
        self._disk.close(self._fd)


def _hold(disk: Disk, path: Path, log: Path) -> _Held:
    """Open and lock a file, make it if it isn't there. Raises `SessionLiveError` where somebody else holds it."""
    for _ in range(_TRIES):
        fd, made = _open(disk, path)
        held = _Held(disk, path, fd, made)
        try:
            disk.lock(fd)
            # Whoever held it before may have removed it after we opened it, and then we hold what nobody can find.
            if _is_at(disk, fd, path):
                return held
        except BlockingIOError:
            disk.close(fd)
            raise SessionLiveError(str(log)) from None
        except BaseException:
            held.release(unused=True)
            raise
        disk.close(fd)
    raise SessionLiveError(str(log))


def _open(disk: Disk, path: Path) -> tuple[int, bool]:
    """A descriptor, and whether the file was made for it."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
    try:
        return disk.open(path, flags | os.O_EXCL), True
    except FileExistsError:
        return disk.open(path, flags), False


def _is_at(disk: Disk, fd: int, path: Path) -> bool:
    try:
        named = disk.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(disk.stat(fd), named)


def _write_all(disk: Disk, fd: int, chunks: Iterable[bytes]) -> None:
    for chunk in chunks:
        rest = chunk
        while rest:
            rest = rest[disk.write(fd, rest) :]


def is_there(path: Path, disk: Disk | None = None) -> bool:
    """Whether there is something of that name. Raises OSError where that can't be said."""
    disk = disk if disk is not None else Disk()
    try:
        disk.stat(path)
    except FileNotFoundError:
        return False
    return True


def make_private(folder: Path, disk: Disk | None = None) -> None:
    """Make a folder for its owner only, durably, if it isn't there. Raises OSError."""
    disk = disk if disk is not None else Disk()
    try:
        disk.make_folder(folder)
    except FileExistsError:
        return
    _sync_directory(disk, folder.parent)


def _sync_directory(disk: Disk, path: Path) -> None:
    fd = disk.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        disk.sync_all(fd)
    finally:
        disk.close(fd)
