"""Stores that break where a scenario says so: half a record and then death, a full disk, a bad disk.

They write where the kernel's own stores write; dying is what they were given to do it with.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NoReturn

import attrs

from turnkernel.store import FileStore, MemoryStore

from .ledger import Synced, Tell
from .scenario import ROOT

__all__ = ["IO_ERROR", "NO_SPACE", "BreakableFile", "BreakableMemory", "Breaking", "Dead"]

Op = Literal["append", "flush"]

NO_SPACE = errno.ENOSPC
IO_ERROR = errno.EIO


class Dead(BaseException):
    """The kernel of a virtual run was killed. Nothing may come after it; a real one has no need of it."""


@attrs.define(eq=False)
class Breaking:
    """What is wrong with the disk, and with the one who writes to it."""

    die: Callable[[], NoReturn]
    tell: Tell
    session: str = ROOT
    """Whose log it is."""
    dead: bool = False
    """Whether every further write fails like the one in which the kernel died."""
    _cut: tuple[int, int] | None = None
    _errors: dict[Op, tuple[int, bool]] = attrs.field(factory=dict[Op, tuple[int, bool]])

    def tear(self, line: int, size: int) -> None:
        """Die in the next write, after so many bytes of its n-th line (from 0)."""
        self._cut = line, size

    def fail(self, op: Op, number: int, *, lasting: bool) -> None:
        """Let the next append or flush fail with an errno; with `lasting`, all that follow too."""
        self._errors[op] = number, lasting

    def before(self, op: Op) -> None:
        """Raise what an append or flush is to meet."""
        if self.dead:
            raise Dead
        if op in self._errors and not (op == "append" and self._is_full()):
            self._meet(op)

    def room(self) -> None:
        """Raise what an append is to meet that would have to grow the file: a full disk says so here, and what
        closes the turn still goes into the reserve.
        """
        if self._is_full():
            self._meet("append")

    def _is_full(self) -> bool:
        return self._errors.get("append", (0, False))[0] == errno.ENOSPC

    def _meet(self, op: Op) -> NoReturn:
        number, lasting = self._errors[op]
        if not lasting:
            del self._errors[op]
        raise OSError(number, os.strerror(number))

    def cut(self, data: bytes) -> bytes | None:
        """What is written of a write that is torn; None for a whole one."""
        if self._cut is None:
            return None
        line, size = self._cut
        lines = data.splitlines(keepends=True)
        return b"".join(lines[:line]) + lines[line][:size]


class BreakableFile(FileStore):
    """A log's file, breakable."""

    breaking: Breaking

    @classmethod
    def broken(cls, path: Path, breaking: Breaking) -> "BreakableFile":
        """Open; see `FileStore.open`."""
        store = cls.open(path)
        assert isinstance(store, cls)
        store.breaking = breaking
        return store

    def make_room(self, size: int) -> None:
        """As `FileStore`, or not."""
        self.breaking.room()
        super().make_room(size)

    def write(self, data: bytes) -> None:
        """As `FileStore`, or not."""
        self.breaking.before("append")
        part = self.breaking.cut(data)
        super().write(data if part is None else part)
        if part is not None:
            self.breaking.die()

    def sync(self) -> None:
        """As `FileStore`, or not. Tells what is on the disk."""
        self.breaking.before("flush")
        size = self.size
        super().sync()
        self.breaking.tell(Synced(size, self.breaking.session))


class BreakableMemory(MemoryStore):
    """A log in memory, breakable."""

    def __init__(self, data: bytes, breaking: Breaking) -> None:
        super().__init__(data)
        self.breaking = breaking

    def make_room(self, size: int) -> None:
        """As `MemoryStore`, or not."""
        self.breaking.room()
        super().make_room(size)

    def write(self, data: bytes) -> None:
        """As `MemoryStore`, or not."""
        self.breaking.before("append")
        part = self.breaking.cut(data)
        super().write(data if part is None else part)
        if part is not None:
            self.breaking.die()

    def sync(self) -> None:
        """As `MemoryStore`, or not. Tells what would be on a disk."""
        self.breaking.before("flush")
        self.breaking.tell(Synced(self.size, self.breaking.session))
