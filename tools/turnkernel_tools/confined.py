"""Opens files beneath one directory, and nothing outside. Touches the file system; blocks; no trio.

A path is walked component by component over directory descriptors, never following a link on the system's
word, so that there is no moment between a check and a use in which a link could be put in place of a directory.
Links are read and walked by the same rule: one that stays inside is followed, one that leaves is refused.
"""

import os
import stat
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import attrs

__all__ = ["Place", "RefusedError", "Root"]

MAX_LINKS = 40
"""Links followed in one path, as on Linux (path_resolution(7))."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class RefusedError(Exception):
    """The caller's: this path is not for these tools. Its text names the path and says why."""


@attrs.frozen
class Root:
    """The directory that a walk can't leave."""

    path: Path = attrs.field(converter=lambda path: Path(path).absolute())  # type: ignore[misc]

    def place(self, path: str, *, create: bool = False) -> "Place":
        """Where a path leads, every link resolved; with `create`, missing directories are made on the way.

        Raises `RefusedError` for a path that leaves the root or can't be one, OSError from the system.
        """
        if "\0" in path or not path:
            raise RefusedError(f"{path!r}: not a path")
        try:
            os.fsencode(path)
        except UnicodeEncodeError:
            raise RefusedError(f"{path!r}: not a path: it holds a lone surrogate") from None
        with ExitStack() as opened:
            walk = _Walk(self, path, opened, create=create)
            name = walk.to_the_end()
            directory = os.dup(walk.fds[-1])
        return Place(path, directory, name)

    def beneath(self, path: str) -> list[str] | None:
        """The components of an absolute path after the root's, or None when it is not beneath the root."""
        for root in (str(self.path), os.path.realpath(self.path)):
            if path == root or path.startswith(root.rstrip("/") + "/"):
                return path[len(root) :].split("/")
        return None


class _Walk:
    """One path on its way down. `fds` are the directories from the root to here."""

    def __init__(self, root: Root, path: str, opened: ExitStack, *, create: bool) -> None:
        self.root = root
        self.path = path
        self.create = create
        self.links = 0
        self.opened = opened
        self.fds: list[int] = []
        self.todo: deque[str] = deque()
        self._push(
            os.open(root.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        )  # the host's word: links are fine
        self._prepend(path)

    def __repr__(self) -> str:
        return f"<_Walk {self.path!r}, {len(self.todo)} to go>"

    def _push(self, fd: int) -> None:
        self.opened.callback(os.close, fd)
        self.fds.append(fd)

    def _prepend(self, path: str) -> None:
        """What is to be walked next: the path itself, or what a link says."""
        if path.startswith("/"):
            parts = self.root.beneath(path)
            if parts is None:
                raise self._outside()
            del self.fds[1:]
        else:
            parts = path.split("/")
        self.todo.extendleft(reversed([part for part in parts if part not in ("", ".")]))

    def _outside(self) -> RefusedError:
        through = " through a symbolic link" if self.links else ""
        return RefusedError(f"{self.path}: leads out of {self.root.path}{through}")

    def to_the_end(self) -> str:
        """Walk; the name of the last component in the last directory, `.` when it is that directory itself."""
        while self.todo:
            name = self.todo.popleft()
            if name == "..":
                if len(self.fds) == 1:
                    raise self._outside()
                self.fds.pop()
            elif self._link(name):
                pass
            elif self.todo:
                self._push(self._open(name))
            else:
                return name
        return "."

    def _link(self, name: str) -> bool:
        """Whether it is a link; then what it says is put in its place."""
        try:
            target = os.readlink(name, dir_fd=self.fds[-1])
        except OSError:  # no link, or nothing there: opening it will tell
            return False
        self.links += 1
        if self.links > MAX_LINKS:
            raise RefusedError(f"{self.path}: too many symbolic links")
        self._prepend(target)
        return True

    def _open(self, name: str) -> int:
        try:
            return os.open(name, _DIRECTORY, dir_fd=self.fds[-1])
        except FileNotFoundError:
            if not self.create:
                raise
        os.mkdir(name, dir_fd=self.fds[-1])
        return os.open(name, _DIRECTORY, dir_fd=self.fds[-1])


class Place:
    """A name in an open directory: a file that is there, or could be. A context manager that closes it."""

    def __init__(self, path: str, directory: int, name: str) -> None:
        self.path = path
        """As it was asked for, for messages."""
        self.directory = directory
        self.name = name

    def __repr__(self) -> str:
        return f"<Place {self.path!r}>"

    def __enter__(self) -> "Place":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.directory)

    def status(self) -> os.stat_result | None:
        """Of the regular file there, or None. Raises `RefusedError` for a directory, a pipe, a device ..."""
        try:
            found = os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)
        except FileNotFoundError:
            return None
        self._must_be_file(found)
        return found

    def _must_be_file(self, found: os.stat_result) -> None:
        if stat.S_ISDIR(found.st_mode):
            raise RefusedError(f"{self.path}: is a directory")
        if not stat.S_ISREG(found.st_mode):
            raise RefusedError(f"{self.path}: is not a regular file but {_kind(found.st_mode)}")

    def open_to_read(self) -> int:
        """A descriptor of the file. Never waits for the other end of a pipe, never touches a device.

        Raises `RefusedError` as `status` does, FileNotFoundError.
        """
        self.status()
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(self.name, flags, dir_fd=self.directory)
        try:
            self._must_be_file(os.fstat(fd))
        except RefusedError:
            os.close(fd)
            raise
        return fd


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISLNK, "a symbolic link"))
    return next((words for test, words in kinds if test(mode)), "a device")
