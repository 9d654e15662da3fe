"""The processes of one call: finds and signals them. Reads /proc; starts nothing, waits for nothing, no trio.

Which processes belong to a call can't be asked of the system without a keeper, so it is put together from what
can be seen: the sessions that the call's own process and others of the call lead, the parents, and a mark in the
environment that every descendant inherits. A process that has left them all, lost its parent *and* cleared its
environment is not found; that is what the containment tier `group` does not hold.
"""

import os
import re
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

import attrs

from turnkernel.text import printable

__all__ = ["Family", "GroupFamily", "MarkedFamily", "Member", "family_of"]

_LOOKS = 8
"""How often a scan under which other processes came and went is made again before it is believed."""

_KERNEL_THREAD = 0x00200000  # PF_KTHREAD, include/linux/sched.h
_NAME_CHARACTERS = 120
_PIECE = 65536


@attrs.frozen
class Member:
    """One process, named for good: a pid comes again, a pid with its start time does not."""

    pid: int
    start: int
    """Clock ticks from boot to its start; -1 where the system does not tell."""
    group: int
    command: str = attrs.field(eq=False)
    """What it runs, for a person."""

    def __str__(self) -> str:
        return f"pid {self.pid} {self.command}"


class Family(Protocol):
    """What belongs to one call. Valid while the call's own process, the leader, has not been reaped."""

    def scan(self) -> list[Member]:
        """Everything of the call that is alive now, the leader included."""
        ...

    def left(self) -> list[Member]:
        """Like `scan`, but cheap while something that was seen before is alive: then it tells only of that."""
        ...

    def send(self, number: signal.Signals, members: Iterable[Member]) -> None:
        """Send a signal to these members; those in the leader's process group get it at once, all or none.

        What can't be reached is left.
        """
        ...


def family_of(leader: int, mark: str, reap: Callable[[], object]) -> Family:
    """The family of a process that was just started as the leader of a session, with `mark` in its environment.

    Without a /proc (macOS) the process group is all that can be seen, and `reap` is called to know of the leader.
    """
    stat = _read_stat(leader)
    return GroupFamily(leader, reap) if stat is None else MarkedFamily(leader, stat.start, mark)


@attrs.frozen
class _Stat:
    """What is read of /proc/PID/stat (proc_pid_stat(5))."""

    alive: bool
    parent: int
    group: int
    session: int
    kernel_thread: bool
    start: int


def _read_stat(pid: int) -> _Stat | None:
    """The state of a process; None when there is none."""
    data = _read(pid, "stat")
    if data is None:
        return None
    fields = data[data.rindex(b")") + 2 :].split()  # the command before it may hold spaces and brackets
    # The zombie of a main thread whose other threads go on is alive.
    alive = fields[0] not in (b"Z", b"X") or int(fields[17]) > 1
    flags = int(fields[6])
    return _Stat(
        alive, int(fields[1]), int(fields[2]), int(fields[3]), bool(flags & _KERNEL_THREAD), int(fields[19])
    )


def _read(pid: int | str, name: str) -> bytes | None:
    """A file of /proc/PID; None when the process is gone, or there is no such file. Raises PermissionError."""
    try:
        fd = os.open(
            f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC
        )  # half the time of pathlib, and this is hot
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        data = piece = os.read(fd, _PIECE)
        while len(piece) == _PIECE:
            piece = os.read(fd, _PIECE)
            data += piece
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)
    return data


def _command(pid: int) -> str:
    raw = _read(pid, "cmdline") or _read(pid, "comm") or b"?"
    text = raw.decode("utf-8", "replace").rstrip("\0\n").replace("\0", " ").replace("\n", " ")
    return printable(text)[:_NAME_CHARACTERS]


class MarkedFamily:
    """The session of a leader, its descendants, their sessions, and whatever bears the call's mark. Linux."""

    def __init__(self, leader: int, start: int, mark: str) -> None:
        self.leader = leader
        self._start = start
        self._forks = _forks()
        self._mark = mark.encode()
        self._known: dict[tuple[int, int], Member] = {}
        self._sessions = {leader}  # and those led by members, as long as anybody is in them
        self._dead: set[tuple[int, int]] = set()  # zombies that have been seen as such

    def __repr__(self) -> str:
        return f"<MarkedFamily of pid {self.leader}, {len(self._known)} known>"

    def scan(self) -> list[Member]:
        """See `Family`. About 10 µs for each process that is younger than the leader.

        A pass is believed when it found somebody, or when nothing that it had listed died before it was looked
        at: a process that forks and exits under a pass would hide its child from it otherwise.
        """
        leader = _read_stat(self.leader)
        if leader is not None and not leader.alive:
            self._dead.add((self.leader, leader.start))
        for _ in range(_LOOKS):
            certain = self._look()
            if certain or self._known:
                break
        return list(self._known.values())

    def left(self) -> list[Member]:
        """See `Family`."""
        for key in [key for key in self._known if not self._is_alive(*key)]:
            del self._known[key]
        return list(self._known.values()) or self.scan()

    def send(self, number: signal.Signals, members: Iterable[Member]) -> None:
        """See `Family`."""
        members = list(members)
        if any(member.group == self.leader for member in members):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.leader, number)  # so that none of them can fork away in between
        for member in members:
            stat = _read_stat(member.pid)  # now, since it may have left the group since it was seen there
            if stat is not None and not (member.group == stat.group == self.leader):
                self._send_one(number, member)

    def _send_one(self, number: signal.Signals, member: Member) -> None:
        if sys.platform != "linux":
            return
        try:
            fd = os.pidfd_open(member.pid)
        except OSError:  # gone; or no pidfd here, and then nobody is hit in its place
            return
        try:
            if self._is_alive(member.pid, member.start):  # asked with the pid held: it can't be another's now
                signal.pidfd_send_signal(fd, number)
        except (ProcessLookupError, PermissionError):
            pass
        finally:
            os.close(fd)

    def _is_alive(self, pid: int, start: int) -> bool:
        stat = _read_stat(pid)
        return stat is not None and stat.alive and stat.start == start

    def _look(self) -> bool:
        """One pass over all processes; sets what is known. Whether nobody can have been missed."""
        certain = True
        ours: dict[int, _Stat] = {}
        others: dict[int, _Stat] = {}
        for pid in self._pids():
            stat = _read_stat(pid)
            if stat is None:
                certain = False
            elif stat.kernel_thread or stat.start < self._start:
                pass
            elif not stat.alive:
                certain = certain and (pid, stat.start) in self._dead
                self._dead.add((pid, stat.start))
            else:
                known = stat.session in self._sessions or (pid, stat.start) in self._known
                belongs = known or self._bears_mark(pid)
                (ours if belongs else others)[pid] = stat
                certain = certain and belongs is not None
        while found := {pid: stat for pid, stat in others.items() if stat.parent in ours}:
            ours |= found
            others = {pid: stat for pid, stat in others.items() if pid not in found}
        self._sessions &= {stat.session for stat in ours.values()}
        self._sessions |= {self.leader} | {pid for pid, stat in ours.items() if stat.session == pid}
        before = self._known
        self._known = {}
        for pid, stat in ours.items():
            key = (pid, stat.start)
            command = before[key].command if key in before else _command(pid)
            self._known[key] = Member(
                pid, stat.start, stat.group, command
            )  # the group of now: it may have changed
        return certain

    def _bears_mark(self, pid: int) -> bool | None:
        """Whether the mark is in its environment; None when that can't be seen at the moment.

        The environment reads empty while a process is between two programs (fs/proc/base.c, environ_read).
        """
        try:
            environment = _read(pid, "environ")
        except PermissionError:  # another user's; or ours with another user's rights, which is beyond us anyway
            return False
        return self._mark in environment if environment else None

    def _pids(self) -> Iterable[int]:
        """All pids that a member could have.

        Pids are given out upwards (alloc_pid, kernel/pid.c), so as long as too few processes were made since for
        the numbers to have begun again, all that are younger than the leader have higher ones. There are hundreds
        of older processes on a machine; asking each is what a scan would cost.
        """
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - twice as fast
        now, highest = _forks(), _first_number("sys/kernel/pid_max")
        if self._forks is None or now is None or highest is None:
            return pids
        if self.leader + 2 * (now - self._forks) + 1000 >= highest:
            return pids
        return [pid for pid in pids if pid >= self.leader]


def _forks() -> int | None:
    """Processes and threads made since boot, in whatever namespace (proc_stat(5)); None where that is not told."""
    return _first_number("stat", after=b"\nprocesses ")


def _first_number(name: str, after: bytes = b"") -> int | None:
    data = _read("", name) or b""
    found = re.match(rb"\d+", data[data.find(after) + len(after) :])
    return int(found.group()) if found and after in data else None


class GroupFamily:
    """The process group of a leader, and nothing else. It can't tell zombies, so the leader is reaped at once."""

    def __init__(self, leader: int, reap: Callable[[], object]) -> None:
        self.leader = leader
        self._reap = reap

    def __repr__(self) -> str:
        return f"<GroupFamily of pid {self.leader}>"

    def scan(self) -> list[Member]:
        """See `Family`. One member stands for the whole group."""
        self._reap()
        try:
            os.killpg(self.leader, 0)
        except (ProcessLookupError, PermissionError):  # the second: only zombies are left (macOS)
            return []
        return [Member(self.leader, -1, self.leader, "and its process group")]

    def left(self) -> list[Member]:
        """See `Family`."""
        return self.scan()

    def send(self, number: signal.Signals, members: Iterable[Member]) -> None:
        """See `Family`."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.leader, number)
