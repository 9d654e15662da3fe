"""How a keeper ends what is below it: told politely, then killed, until none is left. Signals; does not wait."""

import marshal
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from .below import LONGEST_PAUSE, SHORTEST_PAUSE, Named, Process, named, send, walk

__all__ = ["LEFT_SECONDS", "Ending", "say"]

INIT_SECONDS = 0.05
"""How long an init may take to see all others die and to say how the call's process did, before it is killed."""

LEFT_SECONDS = 0.8
"""How long the system may take to end processes after SIGKILL before they are reported as left."""


def say(channel: int, *report: str | int | list[Named] | None) -> None:
    """Tell the kernel of a call. If it is gone or has given up the call, nobody is told."""
    with suppress(OSError):
        os.write(channel, marshal.dumps(report))


class Ending:
    """What has been sent so far to all below this process, and what is to be done next."""

    def __init__(self, tell: Callable[[str, list[Named]], None]) -> None:
        self.sent = 0
        """The strongest signal so far."""
        self.killed: list[Named] = []
        """Who was alive when SIGKILL was sent first."""
        self.root = os.getpid()
        """What the processes in question are below of: this process, or the init that it has started for them."""
        self._tell = tell
        self._bound = 0.0
        self._init_bound = 0.0
        self._pause = SHORTEST_PAUSE
        self._told: set[Process] = set()

    def __repr__(self) -> str:
        return f"<Ending with signal {self.sent}>"

    def end(self, number: int) -> None:
        """From now on send this signal to all there are; never a weaker one afterwards."""
        if self.sent in (number, signal.SIGKILL):
            return
        alive = named(walk(self.root))
        if self.sent == 0:
            self._tell("told", alive)
        if number == signal.SIGKILL:
            self.killed = alive
            self._bound = time.monotonic() + LEFT_SECONDS
            self._init_bound = time.monotonic() + INIT_SECONDS
        self.sent, self._pause = number, SHORTEST_PAUSE

    def signal(self) -> None:
        """Send what is to be sent now."""
        if self.sent == signal.SIGKILL:
            for process in walk(self.root):
                send(signal.SIGKILL, process)
            if self.root != os.getpid() and time.monotonic() > self._init_bound:
                os.kill(self.root, signal.SIGKILL)  # a child of ours that has not been reaped
        elif self.sent == signal.SIGTERM:
            alive = set(walk(self.root))
            if alive & self._told:  # what is born meanwhile may be their way to clean up
                return
            self._told = alive
            for number in (signal.SIGTERM, signal.SIGCONT):  # a stopped process would keep the SIGTERM pending
                for process in alive:
                    send(number, process)

    def seconds(self) -> float | None:
        """How long to wait for news at most before the next look. Says who is `left`, once, when it is time."""
        if self.sent == 0:
            return None
        if self.sent == signal.SIGTERM:
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        elif self._pause == SHORTEST_PAUSE and time.monotonic() > self._bound:
            self._tell("left", named(walk(self.root)))
            self._pause = LONGEST_PAUSE  # from now on at leisure
        return self._pause
