"""The processes of one run's calls: finds them by their marks and ends them. Reads /proc; signals processes.

Independent of how the tools contain their processes, because it is what they are held against. Every process of
a run bears the run's token in its environment; those of a call also bear another call mark than the kernel itself.
"""

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from turnkernel.text import printable
from turnkernel_tools.process import MARK

__all__ = ["RUN", "call_processes", "end", "run_processes"]

RUN = "TURNKERNEL_RUN"
"""The environment variable with the run's token."""

_OURS = "turnkernel_"
"""In the command line of every program of ours: what holds the processes of calls is no process of a call."""

_SHOWN = 120
_PIECE = 65536
_PROC = Path("/proc")


def call_processes(token: str) -> Sequence[tuple[int, str]]:
    """Processes of calls of this run that are alive: pid and command. None can be seen without a /proc.

    A process that has cleared its environment is not found. One that bears no mark of a call but is no program of
    ours either has dropped it, and counts.
    """
    mark, ours = MARK.encode(), os.environb.get(MARK.encode())
    found = [(pid, _command(pid), environment.get(mark) != ours) for pid, environment in _of_run(token).items()]
    return [(pid, command) for pid, command, marked in found if command and (marked or _OURS not in command)]


def run_processes(token: str) -> Sequence[tuple[int, str]]:
    """All processes of this run but this one, those of no call too: keepers and the like."""
    return [(pid, command) for pid in _of_run(token) if (command := _command(pid))]


def end(token: str, pids: Sequence[int]) -> None:
    """SIGKILL these processes, where they still are of this run. Those that are gone are left."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            fd = os.pidfd_open(pid)
            try:
                # Asked with the process held: the number can't be another's now.
                if f"{RUN}={token}".encode() in _read(pid, "environ").split(b"\0"):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
            finally:
                os.close(fd)


def _of_run(token: str) -> Mapping[int, Mapping[bytes, bytes]]:
    """The processes of this run but this one, with their environments."""
    if not _PROC.is_dir():
        return {}
    mark = f"{RUN}={token}".encode()
    found: dict[int, Mapping[bytes, bytes]] = {}
    for name in os.listdir(_PROC):  # noqa: PTH208 - half the time of iterdir, and somebody waits for this
        if name.isdigit() and int(name) != os.getpid():
            pairs = _read(int(name), "environ").split(b"\0")
            if mark in pairs:
                found[int(name)] = {key: value for key, _, value in (pair.partition(b"=") for pair in pairs)}
    return found


def _command(pid: int) -> str:
    words = _read(pid, "cmdline").rstrip(b"\0").replace(b"\0", b" ")
    return printable(words.decode("utf-8", "replace"))[:_SHOWN]


def _read(pid: int, name: str) -> bytes:
    """A file of /proc/PID; empty for a process that is gone, a zombie, or another user's."""
    try:
        fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        data = piece = os.read(fd, _PIECE)
        while len(piece) == _PIECE:
            piece = os.read(fd, _PIECE)
            data += piece
        return data
    except OSError:
        return b""
    finally:
        os.close(fd)
