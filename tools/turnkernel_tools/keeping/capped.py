"""Output in files of bounded size: its head and its tail are kept. Writes and reads files. Standard library only.

In a folder are `output.head`, with the first bytes, and up to two segments `output.tail.N`, where N is the place
in the whole output at which the segment begins. When one is full the older one is removed and the next is begun;
so what was cut can be told from the names, at any moment, also after a crash, and nothing else has to be kept. The
tail is between one and two segments long.
"""

import os
import re
from contextlib import suppress
from typing import NamedTuple

__all__ = ["MOST_BYTES", "CappedWriter", "Output", "read_output"]

MOST_BYTES = 1 << 20
"""Of output on disk, unless said otherwise."""

_HEAD = "output.head"
_TAIL = "output.tail."
_LOOKS = 100
"""How often a reader looks anew when the newest segment was replaced before it could open it."""


class Output(NamedTuple):
    """What was written, without the middle if that was cut. Raw: what a terminal must not see is still in it."""

    head: bytes
    cut: int
    """Bytes between head and tail that are not there."""
    tail: bytes

    def text(self) -> str:
        """For a person or a model: UTF-8, U+FFFD where it is not, and a line for what was cut."""
        if not self.cut:
            return (self.head + self.tail).decode("utf-8", "replace")
        head, tail = (part.decode("utf-8", "replace") for part in (self.head, self.tail))
        return f"{head}\n[{self.cut} bytes cut]\n{tail}"


class CappedWriter:
    """Writes output into a folder, never more than `most` bytes of it, with mode 0600.

    A write that fails (the disk is full) loses what it should have written, which then counts as cut, and nothing
    else: whoever pumps output goes on pumping, so that the writer of it is not held up.
    """

    def __init__(self, folder: str | os.PathLike[str], most: int = MOST_BYTES) -> None:
        """Raises OSError, FileExistsError where there is output already."""
        self.written = 0
        """Bytes so far, cut or not."""
        self.error: OSError | None = None
        """The last one."""
        self._folder = os.fspath(folder)
        self._head_bytes = most // 4
        self._segment_bytes = max(1, (most - self._head_bytes) // 2)
        self._segments: list[str] = []
        self._fd: int | None = None
        self._room = 0
        self._open(_HEAD, self._head_bytes)

    def __repr__(self) -> str:
        return f"<CappedWriter {self._folder}, {self.written} bytes>"

    def write(self, data: bytes) -> None:
        """Write all of it. Raises nothing; see the class."""
        view = memoryview(data)
        while view:
            try:
                if self._room == 0:
                    self._next_segment()
                assert self._fd is not None
                done = os.write(self._fd, view[: self._room])
            except OSError as error:
                self.error = error
                self._room = 0  # what comes now belongs to a later place, so to another segment
                if self._segments and self._segments[-1] == f"{_TAIL}{self.written}":
                    self._remove(self._segments.pop())  # nothing is in it, and the others are to stay
                self.written += len(view)
                return
            self.written += done
            self._room -= done
            view = view[done:]

    def close(self) -> None:
        """Let go of the files; they stay."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _next_segment(self) -> None:
        if len(self._segments) == 2:
            self._remove(self._segments.pop(0))
        name = f"{_TAIL}{self.written}"
        self._open(name, self._segment_bytes)
        self._segments.append(name)

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self._folder, name))  # noqa: PTH108, PTH118 - pathlib is not worth its import

    def _open(self, name: str, room: int) -> None:
        self.close()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(os.path.join(self._folder, name), flags, 0o600)  # noqa: PTH118
        self._room = room


def read_output(folder: str | os.PathLike[str]) -> Output:
    """What is in a folder now, whoever writes there. Empty where nothing was written yet. Only reads."""
    path = os.fspath(folder)
    offsets: list[int] = []
    found: list[tuple[int, bytes]] = []
    for _ in range(_LOOKS):
        offsets = _offsets(path)
        # The older one first: it is complete once there is another one.
        found = [(offset, data) for offset in offsets if (data := _read(path, f"{_TAIL}{offset}")) is not None]
        if not offsets or (found and found[-1][0] == offsets[-1]):
            break
    head = _read(path, _HEAD) or b""  # after the others: it is complete once there are any
    if not offsets:
        return Output(head, 0, b"")
    start, tail = found[-1] if found else (offsets[-1], b"")
    for offset, data in found[-2:-1]:
        if offset + len(data) == start:
            start, tail = offset, data + tail
    return Output(head, start - len(head), tail)


def _offsets(folder: str) -> list[int]:
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []
    return sorted(int(found[1]) for name in names if (found := re.fullmatch(r"output\.tail\.(\d+)", name)))


def _read(folder: str, name: str) -> bytes | None:
    try:
        with open(os.path.join(folder, name), "rb") as file:  # noqa: PTH118, PTH123
            return file.read()
    except OSError:
        return None
