"""Watches over the kernel's process: what it leaves alive when it ends or dies is told, and ended.

Detached tasks are left: the next life finds them, and the run looks at them and ends them when it is over.

The warden is the parent, and orphans of everything below come to it (prctl(2), PR_SET_CHILD_SUBREAPER; on Linux):
however a process has got away from its tool, here it is seen. One thread, no trio.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import NoReturn

import attrs

from turnkernel.testing.laws import Violation

from .ledger import Broken, Survivor, Tell
from .processes import children_of, descendants_of, is_detached_keeper

__all__ = ["STUCK", "Bounds", "split"]

STUCK = 3
"""Exit code of a kernel that had to leave a stuck turn behind."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LOOK_SECONDS = 0.005
_END_SECONDS = 5.0
"""How long the system may take to end what was sent SIGKILL."""


@attrs.frozen
class Bounds:
    """How long what the kernel has started may outlive it, in seconds."""

    orderly: float
    """After an end in order."""
    killed: float
    """After any other."""
    holds: bool
    """Whether the containment promises to hold then, so that anything left is a violation of R1."""


def split(tell: Tell, bounds: Bounds) -> None:
    """Fork. Returns in the child, the kernel to be; the warden waits for it, looks around, and exits as it did.

    To be called before there is any thread. Signals that ask to end go to the kernel. If the warden is killed, so
    is the kernel.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    warden = os.getpid()
    child = os.fork()
    if child:
        _watch(child, tell, bounds)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != warden:
        os._exit(1)  # it died before we asked to be told


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _watch(child: int, tell: Tell, bounds: Bounds) -> NoReturn:
    alive = True

    def forward(number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            if alive:
                os.kill(child, number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, forward)
    status = _wait_for(child)
    alive = False
    code = os.waitstatus_to_exitcode(status)
    killed = code == -signal.SIGKILL
    _reap_until(time.monotonic() + (bounds.killed if code else bounds.orderly))
    for one in descendants_of(os.getpid()):
        if one.detached:
            continue
        tell(Survivor(one.pid, one.command, "kill" if killed else "limit" if code == STUCK else "run"))
        if killed and bounds.holds:
            tell(Broken(Violation("R1", 0, f"process {one.pid} ({one.command}) outlived the kernel")))
    _end_all()
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(abs(code))


def _wait_for(child: int) -> int:
    """Its wait status. Orphans that end meanwhile are reaped."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            return status


def _reap() -> bool:
    """Reap who has ended; whether anybody is left who should not be."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return bool(_to_end())


def _to_end() -> Sequence[int]:
    """Our children but the keepers of detached tasks, as long as the run is there to end these."""
    children = children_of(os.getpid())
    if _run_is_gone():
        return children
    return [pid for pid in children if not is_detached_keeper(pid)]


def _run_is_gone() -> bool:
    """Whether the other end of standard input is closed."""
    poll = select.poll()
    poll.register(0, 0)  # errors and hangups only, which are always told (poll(2))
    return bool(poll.poll(0))


def _reap_until(end: float) -> None:
    while _reap() and time.monotonic() < end:
        time.sleep(_LOOK_SECONDS)


def _end_all() -> None:
    """SIGKILL our children, and those who then become ours, until there are none, for a bounded time.

    Nobody else can be hit: the number of a child is its own until we reap it.
    """
    end = time.monotonic() + _END_SECONDS
    while _reap() and time.monotonic() < end:
        for pid in _to_end():
            os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_SECONDS)
