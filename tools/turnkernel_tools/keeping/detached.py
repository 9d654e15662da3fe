"""The keeper of work that outlives its kernel: a program of its own. Starts, signals, reaps; writes into a folder.

    python -c PROGRAM FOLDER_OF_KEEPING SETTINGS PAPER REPORT

The settings are JSON (`Settings`), the last two descriptors: the order, and where the start is reported, once,
with `("started", pid)`, `("failed", errno, filename)`, or `("void",)` when somebody has looked for it before and
found that it had not started.

It forks once, so that it is nobody's child, has no death pipe, and holds nothing open that others wait for. It
takes orders as signals: SIGTERM, end politely; SIGUSR1, kill. What its process leaves behind it ends.
"""

import json
import math
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any, NamedTuple

from . import folder
from .below import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_NAME,
    Named,
    News,
    born,
    catch_signals,
    prctl,
    reap,
)
from .capped import CappedWriter
from .ending import Ending, say
from .starting import read_order, start

__all__ = ["DetachedKeeper", "Settings", "main"]

DRAIN_SECONDS = 0.2
"""How long it is waited for what others than the process itself may still write, before they are ended."""

_PIECE = 65536
_REST_BYTES = 1 << 20  # the most that a pipe holds, by default (pipe(7), pipe-max-size)


class Settings(NamedTuple):
    """How the work is kept."""

    folder: str
    mark: str
    """What is in the environment of all that descend from the process."""
    grace_seconds: float
    most_bytes: int
    """Of output, on disk."""
    timeout_seconds: float | None
    """After which it is ended."""


class Orders:
    """What the kernel has ordered, by signal."""

    def __init__(self) -> None:
        self.strongest = 0
        """0, SIGTERM or SIGKILL, the last being ordered by SIGUSR1."""
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._take)

    def __repr__(self) -> str:
        return f"<Orders {self.strongest}>"

    def _take(self, number: int, frame: object) -> None:
        """The wait that the signal ends looks for it afterwards."""
        if self.strongest != signal.SIGKILL:
            self.strongest = signal.SIGTERM if number == signal.SIGTERM else signal.SIGKILL


class DetachedKeeper:
    """Lives until nothing is left of the work. Makes one of a process that has just been forked."""

    def __init__(self, settings: Settings, orders: Orders, report: int) -> None:
        """Raises OSError."""
        self._settings = settings
        self._orders = orders
        self._report = report
        self._output = CappedWriter(settings.folder, settings.most_bytes)
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._news = News(self._read_end)
        self._facts: dict[str, list[Named]] = {}
        self._ending = Ending(self._facts.__setitem__)
        self._main: subprocess.Popen[bytes] | None = None
        self._code: int | None = None
        self._stopped = False
        self._timed_out = False
        self._due = math.inf
        """When its time, the drain after its exit, or the grace is over."""

    def __repr__(self) -> str:
        return f"<DetachedKeeper of {self._main}, {self._ending}>"

    def run(self, paper: int) -> None:
        """Start what the paper says, keep it until nothing is left, and say how it ended."""
        failed = self._start(paper)
        while self._has_children():
            self._end()
            self._ending.signal()
            if self._news.wait(self._seconds()) and not self._pump():
                self._news.signals_only()  # the end of the output
        rest = _REST_BYTES
        while rest > 0 and (got := self._pump()):
            rest -= got
        self._output.close()
        end = {
            "failed": failed,
            "code": self._code,
            "stopped": self._stopped,
            "timed_out": self._timed_out,
            "told": _lines(self._facts.get("told", [])),
            "killed": _lines(self._ending.killed),
            "bytes": self._output.written,
            "lost": None if self._output.error is None else str(self._output.error),
        }
        with suppress(OSError):  # nobody is left who could be told
            folder.write(self._settings.folder, folder.END, end, sync=True)

    def _start(self, paper: int) -> str | None:
        """Start it and report that; why it could not be."""
        null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        failed = None
        try:
            self._main = start(read_order(paper), (null, self._write_end, self._write_end))
        except OSError as error:
            failed = f"{error.strerror}: {os.fsdecode(error.filename)}" if error.filename else str(error)
            say(self._report, "failed", error.errno, error.filename)
        else:
            with suppress(OSError):  # it runs all the same
                folder.write(self._settings.folder, folder.TOOL, fact_of(self._main.pid))
            if self._settings.timeout_seconds is not None:
                self._due = time.monotonic() + self._settings.timeout_seconds
            say(self._report, "started", self._main.pid)
            os.close(self._report)  # otherwise it ends with us, when all is said in the folder too
        for fd in (null, paper, self._write_end):
            os.close(fd)
        return failed

    def _end(self) -> None:
        """Begin what was ordered, or what it is time for."""
        late = time.monotonic() >= self._due
        sent, ordered = self._ending.sent, self._orders.strongest
        if sent == signal.SIGKILL or not (late or ordered):
            return
        if ordered == signal.SIGKILL or (late and sent == signal.SIGTERM):
            self._ending.end(signal.SIGKILL)
            self._due = math.inf
        elif sent == 0:
            self._ending.end(signal.SIGTERM)
            self._due = time.monotonic() + self._settings.grace_seconds
        if self._code is None and not self._timed_out:
            self._stopped = bool(ordered)
            self._timed_out = not ordered

    def _has_children(self) -> bool:
        codes, more = reap()
        if self._main is not None and self._main.pid in codes:
            self._code = codes[self._main.pid]
            if self._ending.sent == 0:
                self._due = time.monotonic() + DRAIN_SECONDS
        return more

    def _seconds(self) -> float | None:
        """How long to wait for news at most."""
        pause = self._ending.seconds()
        if self._due == math.inf:
            return pause
        left = max(0.0, self._due - time.monotonic())
        return left if pause is None else min(pause, left)

    def _pump(self) -> int:
        """Write what can be read, at most a piece; how much that was."""
        try:
            data = os.read(self._read_end, _PIECE)
        except BlockingIOError:
            return 0
        self._output.write(data)
        return len(data)


def fact_of(pid: int) -> dict[str, Any]:
    """A process, for a file in the folder. One that has died already has no start and is never found."""
    process = born(pid)
    return {"pid": pid, "start": None if process is None else process[1], "here": folder.here()}


def _lines(processes: list[Named]) -> list[tuple[int, str]]:
    return [(pid, line.decode("utf-8", "replace")) for pid, line in processes]


def main() -> None:
    """Keep what the arguments say."""
    settings, paper, report = Settings(*json.loads(sys.argv[2])), int(sys.argv[3]), int(sys.argv[4])
    for fd in (paper, report):
        os.set_inheritable(fd, False)
    if os.fork() != 0:
        os._exit(0)
    os.setsid()
    catch_signals()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_NAME, b"tk-keeper")
    orders = Orders()  # from now on it can be found, and ordered
    try:
        if not folder.claim(settings.folder, {**fact_of(os.getpid()), "mark": settings.mark}):
            say(report, "void")
            return
        keeper = DetachedKeeper(settings, orders, report)
    except OSError as error:
        say(report, "failed", error.errno, error.filename)
        return
    keeper.run(paper)
