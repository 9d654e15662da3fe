"""The containment tiers `tree` and `namespace`: a keeper holds the processes of a call. Starts nothing itself.

The kernel's end of what `keeping` describes.
"""

import marshal
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import trio

from turnkernel.cancel import shield

from .family import MarkedFamily
from .group import kill_family
from .hold import KILL_SECONDS, NotStartedError, Task, names
from .supervision import Supervisor, supervisor

__all__ = ["Kept", "start_kept"]

START_SECONDS = 10.0
"""How long a keeper may take to start a process, which for example a file system that hangs can keep it from."""

_TRIES = 3
_REPORT_BYTES = 65536
_NOBODY = -1


async def start_kept(task: Task) -> "Kept | None":
    """Start it under a keeper; None where there is no supervisor to be had, and then nothing was started.

    A cancel can't lose it: until it is ordered nothing is started, and then its start is waited for.
    Raises `NotStartedError`.
    """
    try:
        kept = await _order(task)
    except (OSError, ValueError) as error:  # the second: a NUL byte or a lone surrogate in an argument
        raise NotStartedError(str(error)) from error
    if kept is not None:
        try:
            await kept.started()
        except BaseException:
            kept.close()
            raise
    return kept


async def _order(task: Task) -> "Kept | None":
    with ExitStack() as undo:
        paper = os.memfd_create("task")
        undo.callback(os.close, paper)
        os.write(paper, task.written())
        for _ in range(_TRIES):
            running = await supervisor()
            if running is None:
                return None
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs, ExitStack() as undo_ours:
                undo_ours.callback(ours.close)
                ours.setblocking(False)
                try:
                    serial = await running.keep([theirs.fileno(), paper, *task.streams])
                except (BrokenPipeError, ConnectionResetError):
                    continue  # it was killed; there will be another one
                undo_ours.pop_all()
                return Kept(task, ours, running, serial)
    raise NotStartedError("the supervisor of processes is killed again and again")


class Kept:
    """See `hold.Hold`."""

    def __init__(self, task: Task, channel: socket.socket, running: Supervisor, serial: int) -> None:
        self.name = task.named(None)
        self.told: Sequence[str] = ()
        self.killed: Sequence[str] = ()
        self.left: Sequence[str] = ()
        self.why: str | None = None
        self.weaker: str | None = None
        self._task = task
        self._channel = channel
        self._supervisor = running
        self._serial = serial
        self._init: int | None = None  # a pidfd
        self._starting = False
        self._started = False
        self._failed: OSError | None = None
        self._exit_code: int | None = None
        self._exit_seen = False
        self._confirmed = False
        """Somebody who knows has said that nothing is left, or what."""
        self._ended = False
        """The channel has: no keeper is there any more."""

    def __repr__(self) -> str:
        return f"<Kept {self.name}>"

    async def started(self) -> None:
        """Wait until it has started. No cancel cuts it. Raises `NotStartedError`; then nothing is left of it.

        It is taken for started, too, if nobody is left who could say so.
        """
        with shield("starting a process", START_SECONDS):
            await self._until(lambda: self._started or self._ended)
        if self._started or (self._starting and self._ended and self._failed is None):
            return
        await self.kill()
        if self._failed is not None:
            raise NotStartedError(str(self._failed)) from self._failed
        why = self.why or f"its keeper has not started it within {START_SECONDS:g} s"
        raise NotStartedError(why, self.left)

    async def exited(self) -> None:
        """See `hold.Hold`."""
        await self._until(lambda: self._exit_seen or self._ended)

    def is_over(self) -> bool:
        """See `hold.Hold`."""
        self._take()
        return self._ended and self._confirmed

    async def terminate(self) -> None:
        """See `hold.Hold`."""
        self._order(b"T")
        await self._until(lambda: self._ended)

    async def kill(self) -> None:
        """See `hold.Hold`. Who does not answer is killed too: the keeper at first, then the supervisor."""
        remedies: Sequence[Callable[[], None]] = (
            partial(self._order, b"K"),
            partial(self._supervisor.kill_keeper, self._serial),
            self._supervisor.condemn,
        )
        for remedy in remedies:
            if self._ended or self.left:
                break
            remedy()
            with shield("ending a process", KILL_SECONDS / len(remedies)):
                await self._until(lambda: self._ended or bool(self.left))
        if not self._confirmed and not self.left:
            await self._sweep()

    async def _sweep(self) -> None:
        """Nobody is left who knows, keeper and supervisor having been killed. So what bears the mark is ended.

        An init that has died with its keeper is waited for: that is the end of all in its namespace.
        """
        if self._init is not None:
            with shield("ending a process", KILL_SECONDS):
                await trio.lowlevel.wait_readable(self._init)
        self.why = self.why or "its keeper and the supervisor of processes were killed"
        killed, left = await kill_family(MarkedFamily(_NOBODY, 0, self._task.mark))
        self.killed = [*self.killed, *map(str, killed)]
        self.left = [str(member) for member in left]
        self._confirmed = True

    def close(self) -> int | None:
        """See `hold.Hold`."""
        self._channel.close()
        if self._init is not None:
            os.close(self._init)
            self._init = None
        return self._exit_code

    def _order(self, order: bytes) -> None:
        try:
            self._channel.send(order)
        except OSError:
            pass  # the keeper is gone; what it said is still to be read

    async def _until(self, done: Callable[[], bool]) -> None:
        self._take()
        while not done():
            await trio.lowlevel.wait_readable(self._channel)
            self._take()

    def _take(self) -> None:
        """Hear what has been reported."""
        while not self._ended:
            try:
                report = self._channel.recv(_REPORT_BYTES)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # it ended before it had read an order of ours; its reports are told after this
            if report:
                self._hear(*marshal.loads(report))
            else:
                self._ended = True

    def _hear(self, what: str, *said: Any) -> None:
        if what == "starting":
            self._starting = True
        elif what == "started":
            self._started = True
            self.name = self._task.named(said[0])
        elif what == "inside":
            with suppress(OSError):  # it is gone already
                self._init = os.pidfd_open(said[0])
        elif what == "weaker":
            (self.weaker,) = said
        elif what == "exited":
            (self._exit_code,) = said
            self._exit_seen = True
        elif what == "told":
            self.told = names(said[0])
        elif what == "left":
            self.left = names(said[0])
        elif what == "failed":
            number, name = said
            self._failed = OSError(number, os.strerror(number), None if name is None else os.fsdecode(name))
            self._confirmed = True
        elif what == "gone":
            self.killed, self.left, self.why = names(said[0]), (), said[1]
            self._confirmed = True
        elif what == "lost":
            self.killed, self.left, self.why = names(said[0]), names(said[1]), said[2]
            self._confirmed = True
