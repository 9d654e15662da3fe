"""The system calls that a log needs. The only module of the kernel that touches files. Blocking; no trio.

Everything above goes through a `Disk`, one call at a time, so that each of them can be made to fail.
"""

import ctypes
import errno
import fcntl
import os
import sys
from pathlib import Path

__all__ = ["Disk"]

_KEEP_SIZE = 1
"""FALLOC_FL_KEEP_SIZE of linux/falloc.h."""
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class Disk:
    """The file system, a system call a method. Every method may raise OSError, and keeps nothing."""

    def open(self, path: Path, flags: int) -> int:
        """A descriptor that no process which is started inherits; what it creates is for its owner only."""
        return os.open(path, flags | os.O_CLOEXEC, 0o600)

    def close(self, fd: int) -> None:
        """Close; the descriptor is gone also where this raises."""
        os.close(fd)

    def duplicate(self, fd: int) -> int:
        """Another descriptor of the same open file."""
        return os.dup(fd)

    def lock(self, fd: int, *, shared: bool = False) -> None:
        """`flock` it, or raise BlockingIOError at once where somebody else holds it."""
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)

    def unlock(self, fd: int) -> None:
        """Let go of the lock, also where a copy of the descriptor is still open."""
        fcntl.flock(fd, fcntl.LOCK_UN)

    def stat(self, what: int | Path) -> os.stat_result:
        """Of a descriptor, or of what a path names."""
        return what.stat() if isinstance(what, Path) else os.fstat(what)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        """Up to `size` bytes from `offset`; empty at the end."""
        return os.pread(fd, size, offset)

    def write(self, fd: int, data: bytes) -> int:
        """One write; how much of it was written, which may be less than was given."""
        return os.write(fd, data)

    def truncate(self, fd: int, size: int) -> None:
        """Cut to a size; frees what was allocated behind that."""
        os.ftruncate(fd, size)

    def allocate(self, fd: int, offset: int, size: int) -> bool:
        """`fallocate` with KEEP_SIZE, on Linux; False where there is none.

        `os.posix_fallocate` is no help: it changes the length.
        """
        if _fallocate is None:
            return False
        if _fallocate(fd, _KEEP_SIZE, offset, size) == 0:
            return True
        number = ctypes.get_errno()
        if number in _UNSUPPORTED:
            return False
        raise OSError(number, os.strerror(number))

    def sync(self, fd: int) -> None:
        """The data and its length: `fdatasync`, or on macOS the barrier that reaches the medium."""
        barrier = getattr(fcntl, "F_FULLFSYNC", None)
        if barrier is not None:  # pragma: no cover - macOS
            fcntl.fcntl(fd, barrier)
        else:
            os.fdatasync(fd)

    def sync_all(self, fd: int) -> None:
        """`fsync`: of a file that is new, and of a directory what it names."""
        os.fsync(fd)

    def rename(self, old: Path, new: Path) -> None:
        """In one step; what had the new name is replaced."""
        old.rename(new)

    def make_folder(self, path: Path) -> None:
        """For its owner only. Raises FileExistsError where there is something of the name."""
        path.mkdir(mode=0o700)

    def remove(self, path: Path) -> None:
        """The name; who has it open keeps it."""
        path.unlink()


def _find_fallocate() -> "ctypes._NamedFuncPointer | None":  # pyright: ignore[reportPrivateUsage] - its only name
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    function = getattr(libc, "fallocate64", None) or getattr(libc, "fallocate", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return function


_fallocate = _find_fallocate()
