"""The parent of one call's process: starts it, ends what it has left. Starts, signals and reaps processes."""

import marshal
import os
import signal
import subprocess
import time
from contextlib import suppress

from .below import LONGEST_PAUSE, SHORTEST_PAUSE, Named, News, Process, named, reap, send, walk

__all__ = ["LEFT_SECONDS", "Keeper", "say"]

LEFT_SECONDS = 0.8
"""How long the system may take to end processes after SIGKILL before they are reported as left."""


def say(channel: int, *report: str | int | list[Named] | None) -> None:
    """Tell the kernel of a call. If it is gone or has given up the call, nobody is told."""
    with suppress(OSError):
        os.write(channel, marshal.dumps(report))


class Keeper:
    """Lives until nothing is left of the call. Makes one of a process that has just been forked."""

    def __init__(self, channel: int, supervisor: int) -> None:
        self._channel = channel
        self._supervisor = supervisor
        self._news = News(channel)
        self._main: subprocess.Popen[bytes] | None = None  # kept, because one that is dropped reaps
        self._sent = 0  # the strongest signal so far
        self._bound = 0.0
        self._pause = SHORTEST_PAUSE
        self._told: set[Process] = set()
        self._killed: list[Named] = []
        self._why: str | None = None

    def __repr__(self) -> str:
        return f"<Keeper of {self._main}>"

    def run(self, paper: int, out: int, err: int) -> None:
        """Start what the paper says, and keep it until nothing is left."""
        self._look(0)  # the call may be over already, and the supervisor dead
        if self._sent == 0 and self._start(paper, out, err):
            while self._has_children():
                self._signal()
                self._look(self._seconds())
        say(self._channel, "gone", self._killed, self._why)

    def _start(self, paper: int, out: int, err: int) -> bool:
        say(self._channel, "starting")
        argv, cwd, env = marshal.loads(os.pread(paper, os.fstat(paper).st_size, 0))
        try:
            self._main = subprocess.Popen(
                argv,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,  # no controlling terminal: reading /dev/tty would stop it with SIGTTIN
            )
        except OSError as error:
            say(self._channel, "failed", error.errno, error.filename)
            return False
        for fd in (paper, out, err):  # the output ends when the call's own processes have closed it
            os.close(fd)
        say(self._channel, "started", self._main.pid)
        return True

    def _has_children(self) -> bool:
        codes, more = reap()
        if self._main is not None and self._main.pid in codes:
            say(self._channel, "exited", codes[self._main.pid])
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
            self._end(signal.SIGTERM if order == b"T" else signal.SIGKILL)
        if os.getppid() != self._supervisor:
            self._why = "the supervisor of processes was killed"
            self._end(signal.SIGKILL)  # at once: who would end all this if we were killed too?

    def _end(self, number: int) -> None:
        """From now on send this signal to all there are; never a weaker one afterwards."""
        if self._sent in (number, signal.SIGKILL):
            return
        alive = named(walk(os.getpid()))
        if self._sent == 0:
            say(self._channel, "told", alive)
        if number == signal.SIGKILL:
            self._killed = alive
            self._bound = time.monotonic() + LEFT_SECONDS
        self._sent, self._pause = number, SHORTEST_PAUSE

    def _signal(self) -> None:
        if self._sent == signal.SIGKILL:
            for process in walk(os.getpid()):
                send(signal.SIGKILL, process)
        elif self._sent == signal.SIGTERM:
            alive = set(walk(os.getpid()))
            if alive & self._told:  # what is born meanwhile may be their way to clean up
                return
            self._told = alive
            for number in (signal.SIGTERM, signal.SIGCONT):  # a stopped process would keep the SIGTERM pending
                for process in alive:
                    send(number, process)

    def _seconds(self) -> float | None:
        """How long to wait for news at most."""
        if self._sent == 0:
            return None
        if self._sent == signal.SIGTERM:
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        elif self._pause == SHORTEST_PAUSE and time.monotonic() > self._bound:
            say(self._channel, "left", named(walk(os.getpid())))
            self._pause = LONGEST_PAUSE  # said once; from now on at leisure
        return self._pause
