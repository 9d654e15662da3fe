"""The processes below one: finds, signals and reaps them, and waits for news. Reads /proc. Linux, no trio."""

import ctypes
import os
import select
import signal
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from itertools import islice

from . import CHILDREN

__all__ = [
    "LONGEST_PAUSE",
    "NAMED",
    "PR_SET_CHILD_SUBREAPER",
    "PR_SET_NAME",
    "PR_SET_PDEATHSIG",
    "SHORTEST_PAUSE",
    "Named",
    "News",
    "Process",
    "alive",
    "born",
    "catch_signals",
    "libc",
    "named",
    "prctl",
    "reap",
    "send",
    "walk",
]

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36

SHORTEST_PAUSE, LONGEST_PAUSE = 0.001, 0.05
"""Between two looks at processes that are to end, in seconds: those who are born or move are found by looking."""

NAMED = 50
"""How many processes a report names at most."""

# Signals that tell of a fault of our own. Python ignores SIGPIPE and SIGXFSZ and puts that right in its children.
_NOT_CAUGHT = ("KILL", "STOP", "SEGV", "BUS", "FPE", "ILL", "TRAP", "SYS", "ABRT", "PIPE", "XFSZ")

_NAME_BYTES = 200
_PIECE = 65536

Process = tuple[int, int]
"""Pid and start time: a pid comes again, the two together don't."""

Named = tuple[int, bytes]
"""Pid and command line."""


_libc = ctypes.CDLL(None, use_errno=True)  # here, since to make one costs a keeper as much as all else before exec


def libc(name: str, *arguments: int | bytes | None) -> None:
    """A system call that returns nothing, by the name it has in the C library. Raises OSError."""
    longs = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    if getattr(_libc, name)(*longs) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def prctl(option: int, value: int | bytes) -> None:
    """prctl(2). Raises OSError."""
    libc("prctl", option, value, 0, 0, 0)


def _read(path: str) -> bytes:
    """A file of /proc; empty when there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        data = piece = os.read(fd, _PIECE)
        while len(piece) == _PIECE:
            piece = os.read(fd, _PIECE)
            data += piece
    except OSError:
        return b""
    finally:
        os.close(fd)
    return data


def _stat(pid: int) -> tuple[bool, int, int] | None:
    """Whether a process is alive, its parent, its start time (proc_pid_stat(5)); None when there is none."""
    data = _read(f"/proc/{pid}/stat")
    fields = data[data.rfind(b")") + 2 :].split()  # the command before it may hold spaces and brackets
    if not fields:
        return None
    # The zombie of a main thread whose other threads go on is alive.
    return fields[0] not in (b"Z", b"X") or int(fields[17]) > 1, int(fields[1]), int(fields[19])


def _children(pid: int) -> Iterator[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - pathlib is not worth its import here
    except OSError:
        return
    for task in tasks:
        yield from map(int, _read(CHILDREN.format(pid=pid, task=task)).split())


def walk(root: int, but: Container[int] = ()) -> Iterator[Process]:
    """What lives below a process, parents first, without `but` and what is below those.

    Can miss one whose parent dies meanwhile; so who wants all looks again, until `reap` says that none is left.
    """
    todo = [root]
    while todo:
        parent = todo.pop()
        for pid in _children(parent):
            stat = None if pid in but else _stat(pid)
            if stat is not None and stat[1] == parent:
                todo.append(pid)
                if stat[0]:
                    yield pid, stat[2]


def born(pid: int) -> Process | None:
    """A process by its pid, with its start; None where there is none, or only a zombie."""
    stat = _stat(pid)
    return (pid, stat[2]) if stat is not None and stat[0] else None


def alive(process: Process) -> bool:
    """Whether it is, and not another one in its place."""
    return born(process[0]) == process


def send(number: int, process: Process) -> None:
    """Signal a process and nobody in its place. One that is gone or beyond us is left."""
    pid, start = process
    with suppress(OSError):
        fd = os.pidfd_open(pid)
        try:
            stat = _stat(pid)  # asked with the process held: the number can't be another's now
            if stat is not None and stat[2] == start:
                signal.pidfd_send_signal(fd, number)
        finally:
            os.close(fd)


def named(processes: Iterable[Process]) -> list[Named]:
    """For a person, and not more than fit into a report."""
    lines = ((pid, _read(f"/proc/{pid}/cmdline") or _read(f"/proc/{pid}/comm")) for pid, _ in processes)
    return [(pid, line[:_NAME_BYTES]) for pid, line in islice(lines, NAMED)]


def reap() -> tuple[dict[int, int], bool]:
    """Exit codes by pid of the children that have died, and whether there are others."""
    codes: dict[int, int] = {}
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return codes, True
            codes[pid] = os.waitstatus_to_exitcode(status)
    except ChildProcessError:
        return codes, False


def catch_signals() -> None:
    """From now on no signal ends or stops this process that can be caught, whoever sends it."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in signal.valid_signals() - {getattr(signal, f"SIG{name}") for name in _NOT_CAUGHT}:
        signal.signal(number, _ignore)


def _ignore(number: int, frame: object) -> None:
    """A handler and not SIG_IGN: that would be handed down to every process of a call."""


class News:
    """Waits for a socket and for signals."""

    def __init__(self, sock: int) -> None:
        self._sock = sock
        self._read_end, self._write_end = os.pipe()
        for fd in (self._read_end, self._write_end):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._poll.register(self._read_end, select.POLLIN)

    def __repr__(self) -> str:
        return f"<News on descriptor {self._sock} and of signals>"

    def wait(self, seconds: float | None) -> bool:
        """Until there is any, or the time is up; whether the socket can be read."""
        ready = [fd for fd, _ in self._poll.poll(None if seconds is None else seconds * 1000)]
        if self._read_end in ready:
            os.read(self._read_end, _PIECE)
        return self._sock in ready

    def signals_only(self) -> None:
        """The socket has come to its end, and would be ready for ever."""
        self._poll.unregister(self._sock)

    def close(self) -> None:
        """Does not close the socket."""
        signal.set_wakeup_fd(-1)
        os.close(self._read_end)
        os.close(self._write_end)
