"""The process that forks keepers and outlives none of its kernel. Forks, signals and reaps processes."""

import gc
import marshal
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence

from . import CHILDREN
from .below import (
    NAMED,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_NAME,
    PR_SET_PDEATHSIG,
    SHORTEST_PAUSE,
    Named,
    News,
    catch_signals,
    named,
    prctl,
    reap,
    send,
    walk,
)
from .ending import LEFT_SECONDS, say
from .keeper import Keeper

__all__ = ["Supervisor", "main"]

END_SECONDS = 10.0
"""How long it kills when its kernel is gone, before it leaves what can't be killed."""

_DESCRIPTORS = 5
"""That come with an order to keep; see `keeping`."""


class _Held:
    """A call, as the supervisor holds it."""

    def __init__(self, serial: int, channel: int) -> None:
        self.serial = serial
        self.channel = channel
        self.why = ""
        self.bound = 0.0

    def __repr__(self) -> str:
        return f"<_Held {self.serial}>"


class Supervisor:
    """Forks keepers, and ends what they leave when they are killed. Makes one of the process it is made in."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._news = News(control.fileno())
        self._keepers: dict[int, _Held] = {}
        self._lost: list[_Held] = []  # whose keepers were killed, and what those left may be alive
        self._killed: list[Named] = []

    def __repr__(self) -> str:
        return f"<Supervisor of {len(self._keepers)} keepers>"

    def run(self) -> None:
        """Until the kernel is gone and everything else is too."""
        while not self._news.wait(SHORTEST_PAUSE if self._lost else None) or self._obey():
            self._bury()
            if self._lost:
                self._end_strays()
        bound = time.monotonic() + END_SECONDS
        while reap()[1] and time.monotonic() < bound:
            for process in walk(os.getpid()):
                send(signal.SIGKILL, process)
            time.sleep(SHORTEST_PAUSE)

    def _obey(self) -> bool:
        """Carry out one order; False when no more will come."""
        data, fds, _, _ = socket.recv_fds(self._control, 4096, _DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        if not data:
            return False
        verb, serial = marshal.loads(data)
        if verb == "kill":
            for pid, held in self._keepers.items():
                if held.serial == serial:
                    os.kill(pid, signal.SIGKILL)
        elif len(fds) == _DESCRIPTORS:
            self._keep(serial, fds[0], fds[1:])
        else:  # more than we may have open: the system has cut them off. The channel ends, nothing was started
            _close(fds)
        return True

    def _keep(self, serial: int, channel: int, task: Sequence[int]) -> None:
        me = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            say(channel, "failed", error.errno, None)
            _close([channel, *task])
            return
        if pid == 0:
            code = 1
            try:
                self._leave()
                os.setsid()
                prctl(PR_SET_NAME, b"tk-keeper")
                prctl(PR_SET_CHILD_SUBREAPER, 1)
                # Sound, since the parent has one thread; the keeper asks who that is, too. SIGCONT wakes a keeper
                # also when a process of its call has stopped it.
                prctl(PR_SET_PDEATHSIG, signal.SIGCONT)
                Keeper(channel, me).run(task[0], task[1:])
                code = 0
            finally:
                os._exit(code)
        _close(task)
        self._keepers[pid] = _Held(serial, channel)

    def _leave(self) -> None:
        """In a keeper: close what is the supervisor's and the other calls'."""
        self._news.close()
        self._control.close()
        _close([held.channel for held in (*self._keepers.values(), *self._lost)])

    def _bury(self) -> None:
        for pid, code in reap()[0].items():
            held = self._keepers.pop(pid, None)
            if held is None:  # a stray
                continue
            if code == 0:
                os.close(held.channel)
                continue
            held.why = f"its keeper was killed by signal {-code}" if code < 0 else "its keeper failed"
            held.bound = time.monotonic() + LEFT_SECONDS
            self._lost.append(held)

    def _end_strays(self) -> None:
        """Kill what has lost its keeper: all that lives below us but keepers and what is below those."""
        strays = list(walk(os.getpid(), but=self._keepers))
        known = dict(self._killed)
        self._killed += named([one for one in strays if one[0] not in known][: NAMED - len(known)])
        for process in strays:
            send(signal.SIGKILL, process)
        if not strays or time.monotonic() > min(held.bound for held in self._lost):
            for held in self._lost:
                say(held.channel, "lost", self._killed, named(strays), held.why)
                os.close(held.channel)
            self._lost, self._killed = [], []


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


def main() -> None:
    """Supervise, for the kernel at the other end of the descriptor that the last argument names."""
    catch_signals()
    control = socket.socket(fileno=int(sys.argv[-1]))
    control.set_inheritable(False)
    try:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        prctl(PR_SET_NAME, b"tk-supervisor")
        os.close(os.pidfd_open(os.getpid()))
        os.close(os.open(CHILDREN.format(pid=os.getpid(), task=os.getpid()), os.O_RDONLY))
    except (OSError, AttributeError) as error:
        control.send(str(error).encode())
        return
    supervisor = Supervisor(control)
    gc.disable()
    gc.freeze()  # keepers share what is here with us as long as nobody writes to it
    control.send(b"ready")
    supervisor.run()
