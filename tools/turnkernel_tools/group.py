"""The containment tier `group`: what is left of a call is found by looking. Starts, signals and reaps processes.

The call's process leads a session of its own; what left that is swept by a mark in the environment (`family`).
When the kernel itself is killed nobody is left to do so.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial

import trio

from . import hold
from .family import Family, Member, family_of
from .hold import NotStartedError, Task

__all__ = ["Grouped", "kill_family", "start_grouped"]

_LONGEST_PAUSE = 0.05


async def start_grouped(task: Task) -> "Grouped":
    """Start it. No checkpoint between its birth and the return, so that a cancel can't lose it.

    Raises `NotStartedError`.
    """
    start = partial(
        subprocess.Popen[bytes],
        task.argv,
        stdin=task.streams[0],
        stdout=task.streams[1],
        stderr=task.streams[2],
        cwd=task.cwd,
        env=task.env,
        # Not a process group only: reading /dev/tty would stop it with SIGTTIN. Never preexec_fn: 13 ms.
        start_new_session=True,
    )
    try:
        # The shared limiter may be full of tools that are stuck.
        popen = await trio.to_thread.run_sync(start, limiter=trio.CapacityLimiter(1))
    except (OSError, ValueError) as error:  # the second: a NUL byte or a lone surrogate in an argument
        raise NotStartedError(str(error)) from error
    return Grouped(popen, task.named(popen.pid), family_of(popen.pid, task.mark, popen.poll))


class Grouped:
    """See `hold.Hold`."""

    def __init__(self, popen: subprocess.Popen[bytes], name: str, family: Family) -> None:
        self.name = name
        self.why: str | None = None
        self.weaker: str | None = None
        self._popen = popen
        self._family = family
        self._pidfd = _pidfd(popen.pid)
        self._told: list[Member] = []
        self._killed: list[Member] = []
        self._left: list[Member] = []

    def __repr__(self) -> str:
        return f"<Grouped {self.name}>"

    @property
    def told(self) -> Sequence[str]:
        """See `hold.Hold`."""
        return _named(self._told)

    @property
    def killed(self) -> Sequence[str]:
        """See `hold.Hold`."""
        return _named(self._killed)

    @property
    def left(self) -> Sequence[str]:
        """See `hold.Hold`."""
        return _named(self._left)

    async def exited(self) -> None:
        """See `hold.Hold`. With a pidfd the process is left unreaped.

        While it is a zombie its number, which is its group's too, can't be another's, so signals hit nobody else.
        """
        if self._pidfd is not None:
            await trio.lowlevel.wait_readable(self._pidfd)
            return
        while self._popen.poll() is None:  # noqa: ASYNC110 - no event to wait for here
            await trio.sleep(_LONGEST_PAUSE)

    def is_over(self) -> bool:
        """See `hold.Hold`."""
        self._left = self._told = self._family.scan()
        return not self._left

    async def terminate(self) -> None:
        """See `hold.Hold`."""
        told = [*self._left]
        self._tell(told)
        await self.exited()
        pause = 0.001
        self._left = self._family.left()
        while self._left:
            newborn = [member for member in self._left if member not in told]
            told += newborn
            self._tell(newborn)
            await trio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            self._left = self._family.left()

    def _tell(self, members: Sequence[Member]) -> None:
        self._family.send(signal.SIGTERM, members)
        self._family.send(signal.SIGCONT, members)  # a stopped process would keep the SIGTERM pending

    async def kill(self) -> None:
        """See `hold.Hold`."""
        if self._left:
            self._killed, self._left = await kill_family(self._family)

    def close(self) -> int | None:
        """See `hold.Hold`."""
        if self._pidfd is not None:
            os.close(self._pidfd)
        self._popen.poll()  # reaped now and not before: see `exited`
        return self._popen.returncode


async def kill_family(family: Family) -> tuple[list[Member], list[Member]]:
    """SIGKILL until none is left, for `KILL_SECONDS` at most; who was killed and who is left. No cancel cuts it.

    At urgency *now* the section around it is over and any wait would be cut, but R1 wants the confirmation. So it
    does not wait: it yields, with an absolute bound. The system takes about a millisecond.
    """
    bound = time.monotonic() + hold.KILL_SECONDS  # the real clock, as the processes are
    left = first = family.scan()
    while left and time.monotonic() < bound:
        family.send(signal.SIGKILL, left)
        while family.left() == left and time.monotonic() < bound:
            await trio.lowlevel.cancel_shielded_checkpoint()
        left = family.scan()
    return [member for member in first if member not in left], left


def _named(members: Iterable[Member]) -> Sequence[str]:
    return [str(member) for member in members]


def _pidfd(pid: int) -> int | None:
    """A descriptor that is readable once the process has exited; None where there are none."""
    if sys.platform == "linux":
        with suppress(OSError):
            return os.pidfd_open(pid)
    return None
