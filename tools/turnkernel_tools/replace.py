"""Replaces a file whole or not at all. Touches one file and one temporary one beside it; blocks; no trio."""

import os
import secrets
import stat
import sys
from contextlib import suppress

from .confined import Place, RefusedError

__all__ = ["replace_file"]


def replace_file(place: Place, data: bytes) -> bool:
    """Make `data` the content of the file at `place`; whether there was none before.

    At every moment the file holds the old content or the new, also when this process is killed. Mode and owner
    are kept; extended attributes are not, and another name of the same file (a hard link) keeps the old content.
    The new content is on the disk before it takes the name, so that a power cut finds one or the other too.

    Raises `RefusedError` for what is no regular file or may not be written, OSError from the system; then nothing
    has changed.
    """
    old = place.status()
    if old is not None:
        _may_write(place)
    temporary = f".turnkernel-{secrets.token_hex(8)}.tmp"
    fd, named = _open_temporary(place.directory, temporary)
    try:
        try:
            _write_all(fd, data)
            if old is not None:
                _keep_owner_and_mode(fd, old, place)
            os.fsync(fd)
            if not named:
                os.link(f"/proc/self/fd/{fd}", temporary, dst_dir_fd=place.directory, follow_symlinks=True)
                named = True
        finally:
            os.close(fd)
        os.rename(temporary, place.name, src_dir_fd=place.directory, dst_dir_fd=place.directory)
        named = False
    finally:
        if named:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=place.directory)
    return old is None


def _may_write(place: Place) -> None:
    """A rename asks for the directory's permission only; who made a file read-only meant it."""
    if not os.access(place.name, os.W_OK, dir_fd=place.directory):
        raise RefusedError(f"{place.path}: is not writable")


def _open_temporary(directory: int, name: str) -> tuple[int, bool]:
    """A new file and whether it has its name yet.

    Without one where the system can (O_TMPFILE, open(2)), so that being killed while a long text is written
    leaves nothing behind.
    """
    if sys.platform == "linux" and os.path.isdir("/proc/self/fd"):  # noqa: PTH112
        with suppress(OSError):  # this file system has no such files
            return os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666, dir_fd=directory), False
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, flags, 0o666, dir_fd=directory), True


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _keep_owner_and_mode(fd: int, old: os.stat_result, place: Place) -> None:
    new = os.fstat(fd)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        try:
            os.fchown(fd, old.st_uid, old.st_gid)
        except PermissionError:
            raise RefusedError(f"{place.path}: belongs to another user or group; that could not be kept") from None
    os.fchmod(fd, stat.S_IMODE(old.st_mode))  # after the owner, whose change takes bits away
