"""The parent of one call's process: starts it, ends what it has left. Starts, signals and reaps processes."""

import os
import signal
import subprocess
from collections.abc import Sequence
from functools import partial

from . import namespace
from .below import News, reap
from .ending import Ending, say
from .starting import Order, read_order, start

__all__ = ["Keeper"]


class Keeper:
    """Lives until nothing is left of the call. Makes one of a process that has just been forked."""

    def __init__(self, channel: int, supervisor: int) -> None:
        self._channel = channel
        self._supervisor = supervisor
        self._news = News(channel)
        self._ending = Ending(partial(say, channel))
        self._main: subprocess.Popen[bytes] | None = None  # kept, because one that is dropped reaps
        self._why: str | None = None

    def __repr__(self) -> str:
        return f"<Keeper of {self._main}, {self._ending}>"

    def run(self, paper: int, streams: Sequence[int]) -> None:
        """Start what the paper says, and keep it until nothing is left."""
        self._look(0)  # the call may be over already, and the supervisor dead
        if self._ending.sent == 0:
            say(self._channel, "starting")
            try:
                self._start(read_order(paper), streams)
            except OSError as error:
                say(self._channel, "failed", error.errno, error.filename)
            else:
                for fd in (paper, *streams):  # the output ends when the call's own processes have closed it
                    os.close(fd)
                self._keep()
        say(self._channel, "gone", self._ending.killed, self._why)

    def _start(self, order: Order, streams: Sequence[int]) -> None:
        """Raises OSError."""
        if order.inside:
            try:
                unshared = namespace.unshare()
            except OSError as error:
                say(self._channel, "weaker", str(error))
            else:
                self._fork_init(unshared, order, streams)
                return
        self._main = start(order, streams)
        say(self._channel, "started", self._main.pid)

    def _fork_init(self, unshared: namespace.Unshared, order: Order, streams: Sequence[int]) -> None:
        def init() -> None:
            self._news.close()
            namespace.serve(self._channel, order, streams)

        pid = unshared.fork(init)
        self._ending.root = pid
        say(self._channel, "inside", pid)

    def _keep(self) -> None:
        while self._has_children():
            self._ending.signal()
            self._look(self._ending.seconds())

    def _has_children(self) -> bool:
        codes, more = reap()
        if self._main is not None and self._main.pid in codes:
            say(self._channel, "exited", codes[self._main.pid])
        if codes.get(self._ending.root) and self._ending.sent == 0:
            self._why = "the init of its PID namespace has failed"
        return more

    def _look(self, seconds: float | None) -> None:
        """Wait for an order, a signal or the time."""
        if self._news.wait(seconds):
            try:
                order = os.read(self._channel, 1)
            except ConnectionResetError:  # closed, with a report of ours unread
                order = b""
            if not order:
                self._news.signals_only()
            self._ending.end(signal.SIGTERM if order == b"T" else signal.SIGKILL)
        if os.getppid() != self._supervisor:
            self._why = "the supervisor of processes was killed"
            self._ending.end(signal.SIGKILL)  # at once: who would end all this if we were killed too?
