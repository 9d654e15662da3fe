"""What starting a process needs, and what holds its processes then, in whatever tier. Touches nothing."""

import marshal
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import attrs

from turnkernel.text import printable

__all__ = ["KILL_SECONDS", "Hold", "NotStartedError", "Task", "names"]

KILL_SECONDS = 2.0
"""How long the system may take to end processes after SIGKILL before they are named as survivors."""


_NAME_CHARACTERS = 120


class NotStartedError(Exception):
    """The caller's, or the system's: there is no such program or directory, an argument can't be passed on ..."""

    def __init__(self, why: str, left: Sequence[str] = ()) -> None:
        super().__init__(why)
        self.left = left
        """What may have been started all the same, and could not be stopped."""


@attrs.frozen
class Task:
    """What to run."""

    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    mark: str
    """The last word of `MARK` in `env`: all that descend from the process have it, unless they take it out."""
    streams: tuple[int, int, int]
    """Descriptors for standard input, output and error. Whoever starts it closes none of them."""
    inside: bool = False
    """Whether in a PID namespace of its own, if that can be had."""

    def named(self, pid: int | None) -> str:
        """The process, for a person; None where its pid is not known."""
        words = printable(" ".join(self.argv))[:200]
        return words if pid is None else f"pid {pid} {words}"

    def written(self) -> bytes:
        """For a keeper, which is a program of its own that knows neither our directory nor our encoding.

        Raises ValueError for what can't be passed on.
        """
        cwd = os.path.join(os.getcwd(), self.cwd)  # noqa: PTH118, PTH109 - not normalized: `..` may follow a link
        env = {_encoded(name): _encoded(value) for name, value in self.env.items()}
        return marshal.dumps(([_encoded(word) for word in self.argv], _encoded(cwd), env, self.inside))


def _encoded(word: str) -> bytes:
    encoded = os.fsencode(word)
    if b"\0" in encoded:
        raise ValueError("embedded null byte")
    return encoded


def names(processes: Iterable[tuple[int, bytes]]) -> Sequence[str]:
    """Processes by pid and command line, for a person."""
    texts = (
        (pid, line.rstrip(b"\0\n").replace(b"\0", b" ").decode("utf-8", "replace")) for pid, line in processes
    )
    return [f"pid {pid} {printable(text)[:_NAME_CHARACTERS]}" for pid, text in texts]


class Hold(Protocol):
    """The processes of one call. Valid until `close`; then all it has is closed and reaped."""

    @property
    def name(self) -> str:
        """The call's own process, for a person."""
        ...

    @property
    def told(self) -> Sequence[str]:
        """What was alive when it was first told to end."""
        ...

    @property
    def killed(self) -> Sequence[str]:
        """What SIGKILL has ended."""
        ...

    @property
    def left(self) -> Sequence[str]:
        """What could not be stopped."""
        ...

    @property
    def why(self) -> str | None:
        """Why it was ended, when nobody here wanted that."""
        ...

    @property
    def weaker(self) -> str | None:
        """Why less holds it than was wanted."""
        ...

    async def exited(self) -> None:
        """Wait until the call's own process has exited. Cancellable."""
        ...

    def is_over(self) -> bool:
        """Whether it is certain that nothing is alive."""
        ...

    async def terminate(self) -> None:
        """SIGTERM and SIGCONT to all there are, and again to who is left when those are gone. Cancellable.

        Until nothing is left. What is born meanwhile is not told at once: it may be how they clean up.
        """
        ...

    async def kill(self) -> None:
        """SIGKILL until nothing is left, for `KILL_SECONDS` at most. No cancel cuts it."""
        ...

    def close(self) -> int | None:
        """Let go; how the call's own process exited, a signal counting below zero. None when that is not known."""
        ...
