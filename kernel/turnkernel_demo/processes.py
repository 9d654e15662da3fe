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

_SHOWN = 120
_PROC = Path("/proc")


def call_processes(token: str) -> Sequence[tuple[int, str]]:
    """Processes of calls of this run that are alive: pid and command. None can be seen without a /proc.

    A process that has cleared its environment is not found.
    """
    ours = os.environb.get(MARK.encode())
    return [
        (pid, command)
        for pid, environment in _of_run(token).items()
        if environment.get(MARK.encode()) != ours and (command := _command(pid))
    ]


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
                if _environment(pid).get(RUN.encode()) == token.encode():
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
            finally:
                os.close(fd)


def _of_run(token: str) -> Mapping[int, Mapping[bytes, bytes]]:
    if not _PROC.is_dir():
        return {}
    pids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    found = {pid: _environment(pid) for pid in pids if pid != os.getpid()}
    return {
        pid: environment for pid, environment in found.items() if environment.get(RUN.encode()) == token.encode()
    }


def _environment(pid: int) -> Mapping[bytes, bytes]:
    """The environment that a process was started with; empty for one that is gone, a zombie, or another user's."""
    pairs = (pair.partition(b"=") for pair in _read(pid, "environ").split(b"\0"))
    return {name: value for name, _, value in pairs}


def _command(pid: int) -> str:
    words = _read(pid, "cmdline").rstrip(b"\0").replace(b"\0", b" ")
    return printable(words.decode("utf-8", "replace"))[:_SHOWN]


def _read(pid: int, name: str) -> bytes:
    try:
        return (_PROC / str(pid) / name).read_bytes()
    except OSError:
        return b""
