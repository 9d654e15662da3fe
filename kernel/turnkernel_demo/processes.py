"""The processes of a run: finds them in /proc and ends them. Starts none, waits for none, no trio.

Independent of how the tools contain their processes, because it is what they are held against.
"""

import os
import signal
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path

import attrs

from turnkernel.text import printable
from turnkernel_tools.process import MARK

__all__ = [
    "RUN",
    "Process",
    "bearers",
    "children_of",
    "descendants_of",
    "end_bearers",
    "is_detached_keeper",
    "members_of_run",
]

RUN = "TURNKERNEL_RUN"
"""The environment variable with a run's token, which everything that it starts inherits."""

_KEEPER = "keeping.supervisor"
"""In the command line of what holds the processes of calls and is none of them."""

_DETACHED_KEEPER = "keeping.detached"
"""In that of what holds a task that may outlive the kernel."""

_SHOWN = 120
_PIECE = 65536
_PROC = Path("/proc")


@attrs.frozen
class Process:
    """One that is alive."""

    pid: int
    command: str
    work: str = ""
    """The call or task that it is part of, as the mark in its environment has it; empty where nothing tells."""
    detached: bool = False
    """Whether a keeper holds it that may outlive the kernel."""


def descendants_of(pid: int) -> Sequence[Process]:
    """What a process has started, and so on, that is alive; but this process, and what holds the calls' processes.

    Complete where orphans go to the process itself (`warden`). None can be seen without a /proc.
    """
    parents = _parents()
    return _processes(_below(pid, parents) - {pid, os.getpid()}, parents)


def members_of_run(token: str) -> Sequence[Process]:
    """The same of what bears a run's token."""
    return _processes(set(bearers(token)), _parents())


def _below(pid: int, parents: Mapping[int, int]) -> set[int]:
    below = {pid}
    while more := {child for child, parent in parents.items() if parent in below} - below:
        below |= more
    return below


def _processes(pids: Set[int], parents: Mapping[int, int]) -> Sequence[Process]:
    # What has our own command line was forked here and is not yet the program that it is to be: of nothing yet.
    ours = _words(os.getpid())
    words = {pid: said for pid in sorted(pids) if (said := _words(pid)) and said != ours}
    works = {pid: _work_of(pid) for pid, said in words.items() if not _is_keeper(said)}
    found: list[Process] = []
    for pid, work in works.items():
        keeper = pid
        while keeper in works:  # up to what holds it
            keeper = parents.get(keeper, 0)
            work = work or works.get(keeper, "")
        # One that has cleared its environment is of the work that the others under its keeper are of.
        others = {works[one] for one in _below(keeper, parents) & works.keys()} if not work else set[str]()
        work = work or "".join(others - {""} if len(others - {""}) == 1 else ())
        held = keeper in words and _DETACHED_KEEPER in " ".join(words[keeper][:6])
        found.append(Process(pid, _shown(words[pid]), work, held))
    return found


def _work_of(pid: int) -> str:
    """The innermost call or task that is named in its environment."""
    marked = next((one for one in _read(pid, "environ").split(b"\0") if one.startswith(f"{MARK}=".encode())), b"")
    return marked.decode("utf-8", "replace").rpartition(" ")[2].removeprefix(f"{MARK}=").rpartition(".")[0]


def is_detached_keeper(pid: int) -> bool:
    """Whether it holds a task that may outlive the kernel."""
    return _DETACHED_KEEPER in " ".join(_words(pid)[:6])


def children_of(pid: int) -> Sequence[int]:
    """Its children, zombies among them."""
    return [child for child, parent in _parents().items() if parent == pid]


def bearers(token: str) -> Sequence[int]:
    """What bears a run's token in its environment and is alive; but this process."""
    mark = f"{RUN}={token}".encode()
    return [pid for pid in _pids() if pid != os.getpid() and mark in _read(pid, "environ").split(b"\0")]


def end_bearers(token: str) -> None:
    """SIGKILL what bears a run's token. What is gone is left."""
    mark = f"{RUN}={token}".encode()
    for pid in bearers(token):
        with suppress(ProcessLookupError, PermissionError):
            fd = os.pidfd_open(pid)
            try:
                # Asked with the process held: the number can't be another's now.
                if mark in _read(pid, "environ").split(b"\0"):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
            finally:
                os.close(fd)


def _pids() -> Sequence[int]:
    if not _PROC.is_dir():
        return ()
    return [int(name) for name in os.listdir(_PROC) if name.isdigit()]  # noqa: PTH208 - half the time of iterdir


def _parents() -> Mapping[int, int]:
    """The parent of every process (proc_pid_stat(5): the second field after the command, which is in brackets)."""
    stats = {pid: _read(pid, "stat").rpartition(b")")[2].split() for pid in _pids()}
    return {pid: int(fields[1]) for pid, fields in stats.items() if fields}


def _words(pid: int) -> Sequence[str]:
    """The command line; none for a process that is gone, a zombie, or the system's own."""
    return (
        _read(pid, "cmdline").decode("utf-8", "replace").rstrip("\0").split("\0") if _read(pid, "cmdline") else ()
    )


def _is_keeper(words: Sequence[str]) -> bool:
    # `-I` comes before anything that is not ours: a tool's own command line may hold any words behind it.
    return words[1:2] == ["-I"] and any(
        name in word for name in (_KEEPER, _DETACHED_KEEPER) for word in words[2:6]
    )


def _shown(words: Sequence[str]) -> str:
    return printable(" ".join(words))[:_SHOWN]


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
