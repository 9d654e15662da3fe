"""Where the bytes of a log are: a file, or memory. Blocking; no trio.

A store appends whole writes, syncs, and reads back. It knows nothing of records. The file system is reached
through `logfile` only.
"""

import errno
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Protocol

from .disk import Disk
from .logfile import DiskFile, File, ReadOnlyStore

__all__ = [
    "RESERVE_BYTES",
    "FileStore",
    "MemoryStore",
    "ReadOnlyStore",
    "Source",
    "Store",
    "lines",
    "stretches",
]

RESERVE_BYTES = 64 * 1024
"""Kept free behind the end of a log, where the file system can, for what closes it when the disk is full."""
_AHEAD = 256 * 1024
"""Allocated in one go, so that few appends wait for it."""
_CHUNK = 1 << 18
_STRETCH = 1 << 16
"""Bytes at a time: what is made of them should fit into the processor's cache."""


class Source(Protocol):
    """Bytes that can be read."""

    @property
    def where(self) -> str:
        """For people: the path, or `memory`."""
        ...

    @property
    def size(self) -> int:
        """Bytes that are in it."""
        ...

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset`; empty at the end."""
        ...


class Store(Source, Protocol):
    """Bytes that are appended to. A failed write leaves the store as it was before it."""

    def make_room(self, size: int) -> None:
        """See to it that `size` bytes fit, and the reserve behind them; raises OSError where the disk is full.

        Where nothing can be reserved this does nothing, and a full disk shows in `write`.
        """
        ...

    def write(self, data: bytes) -> None:
        """Append all of it or nothing, in the reserve too; raises OSError."""
        ...

    def sync(self) -> None:
        """Return when everything written is on the disk; raises OSError. Called in a worker thread."""
        ...

    def keep_aside(self, offset: int) -> str:
        """Copy everything from `offset` on to another place, durably; its name. Raises OSError."""
        ...

    @property
    def folder(self) -> Path | None:
        """The folder beside it for what belongs to it, which may have to be made; None in memory."""
        ...

    def beside(self, name: str) -> "Path | Store":
        """Where another log is, named as seen from the folder that this one is in. Raises ValueError for a name
        that leads out of `folder`.
        """
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


def _below(name: str, folder: str) -> str:
    parts = PurePosixPath(name).parts
    if parts[:1] != (folder,) or ".." in parts or len(parts) < 2:
        raise ValueError(f"{name!r} does not lead into {folder}")
    return name


class MemoryStore:
    """A log that dies with the process: for virtual runs and tests, and `durability = "memory"`."""

    where = "memory"

    def __init__(self, data: bytes = b"") -> None:
        self._data = bytearray(data)
        self.aside: dict[str, bytes] = {}
        """What was kept aside, by name."""
        self.children: dict[str, MemoryStore] = {}
        """The logs beside it, by name."""

    @property
    def size(self) -> int:
        """Bytes that are in it."""
        return len(self._data)

    def make_room(self, size: int) -> None:
        """Nothing to do."""

    def write(self, data: bytes) -> None:
        """Append."""
        self._data += data

    def sync(self) -> None:
        """Nothing to do."""

    def read(self, offset: int, size: int) -> bytes:
        """A part of it."""
        return bytes(self._data[offset : offset + size])

    def keep_aside(self, offset: int) -> str:
        """Into `aside`."""
        name = _aside(self, offset)
        self.aside[name] = bytes(self._data[offset:])
        return name

    @property
    def folder(self) -> Path | None:
        """None."""
        return None

    def beside(self, name: str) -> Store:
        """In `children`, made when it is first asked for."""
        return self.children.setdefault(_below(name, "memory.d"), MemoryStore())

    def close(self) -> None:
        """Nothing to do."""


class FileStore:
    """A log in a file: whole writes or none, and a reserve for what closes it."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._size = file.length()
        self._allocated = self._size
        """Where the blocks end that the disk holds for it."""
        self._can_reserve = True
        self._torn = False
        """Whether there may be bytes behind `_size` that could not be cut off yet."""
        self._unused = True
        """Whether nothing whole was written since it was opened."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.where} {self._size} bytes>"

    @classmethod
    def open(cls, path: Path, disk: Disk | None = None) -> "FileStore":
        """Lock and open for writing, create it if it isn't there; see `DiskFile.open`."""
        file = DiskFile.open(path, disk)
        try:
            return cls(file)
        except BaseException:
            file.close(unused=True)
            raise

    @property
    def where(self) -> str:
        """The path."""
        return self._file.where

    @property
    def size(self) -> int:
        """Bytes of whole writes."""
        return self._size

    def make_room(self, size: int) -> None:
        """Allocate ahead of the end, without changing the file's length."""
        need = self._size + size + RESERVE_BYTES
        if need <= self._allocated or not self._can_reserve:
            return
        try:
            self._allocate(need + _AHEAD)
        except OSError:
            self._allocate(need)

    def _allocate(self, upto: int) -> None:
        self._can_reserve = self._file.allocate(self._size, upto - self._size)
        self._allocated = upto

    def write(self, data: bytes) -> None:
        """One write; what a short one left is cut off again before the error is raised."""
        try:
            written = self._file.append(data)
        except OSError:
            # Nothing is known to have been written, but a signal or a driver may have let part of it through.
            self._cut_back()
            raise
        if written != len(data):
            self._cut_back()
            raise OSError(errno.ENOSPC, f"short write: {written} of {len(data)} bytes")
        self._size += written
        self._unused = False

    def _cut_back(self) -> None:
        """Off the disk too, before anybody is told: else a power cut could bring back what was reported as failed.

        Waits for a sync, where there is something to cut.
        """
        self._allocated = self._size
        self._torn = True
        try:
            if self._file.length() > self._size:
                self._file.truncate(self._size)
                self._torn = False
                self._file.sync()
            self._torn = False
        except OSError:
            # Of a disk that fails twice. Cut again when it is closed; what fails then as well, the next opening
            # finds at the end.
            pass

    def _give_back(self) -> None:
        """What is allocated and not used; and what could not be cut off before."""
        if not self._torn and self._allocated <= self._size:
            return
        try:
            self._file.truncate(self._size)
        except OSError:
            pass  # blocks that stay allocated cost room and nothing else

    def sync(self) -> None:
        """The file's."""
        self._file.sync()

    def read(self, offset: int, size: int) -> bytes:
        """A part of the file, up to the end of what was written whole."""
        return self._file.read(offset, min(size, max(0, self._size - offset)))

    def keep_aside(self, offset: int) -> str:
        """Into a file beside it, of mode 0600."""
        return self._file.put_beside(_aside(self, offset), _chunks(self, offset))

    @property
    def folder(self) -> Path:
        """Its own name with `.d`."""
        path = Path(self._file.where)
        return path.with_name(f"{path.name}.d")

    def beside(self, name: str) -> Path:
        """The path of a log in `folder`."""
        return self.folder.parent / _below(name, self.folder.name)

    def close(self) -> None:
        """Give back what is allocated and not used, close and unlock; a log that was made and not written to, and
        its lock, are removed.
        """
        self._give_back()
        self._file.close(unused=self._unused)


def _chunks(store: Source, offset: int) -> Iterator[bytes]:
    while chunk := store.read(offset, _CHUNK):
        yield chunk
        offset += len(chunk)


def _aside(store: Source, offset: int) -> str:
    """The suffix of what is kept aside: the same bytes from the same place have the same."""
    crc = 0
    for chunk in _chunks(store, offset):
        crc = zlib.crc32(chunk, crc)
    return f".salvaged-{offset}-{crc:08x}"


def lines(store: Source, offset: int = 0) -> Iterator[tuple[int, bytes, bool]]:
    """The lines from `offset`: where each begins, its bytes without the newline, whether it had one.

    Memory is bounded by the longest line, not by the log.
    """
    for begin, data in stretches(store, offset, store.size):
        offset, whole = begin, data.endswith(b"\n")
        for line in data.removesuffix(b"\n").split(b"\n"):
            yield offset, line, whole
            offset += len(line) + 1


def stretches(store: Source, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The lines from one place to another, whole, many at a time: where the first begins, and their bytes.

    Few enough to stay in the processor's cache while something is made of them. If the last has no newline, it
    comes alone.
    """
    rest = b""
    while chunk := store.read(begin + len(rest), min(_CHUNK, end - begin - len(rest))):
        data = rest + chunk
        place = 0
        while cut := (data.rfind(b"\n", place, place + _STRETCH) + 1 or data.find(b"\n", place + _STRETCH) + 1):
            yield begin + place, data[place:cut]
            place = cut
        rest = data[place:]
        begin += place
    if rest:
        yield begin, rest
