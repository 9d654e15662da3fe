"""The kernel's end of the supervisor of processes: starts it, gives it orders, sees it out. Starts nothing else.

There is one for each process that runs a kernel, started with its first call. It ends with the process, however
that ends: its death pipe closes.
"""

import atexit
import errno
import itertools
import marshal
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import trio

from .keeping import CHILDREN
from .standalone import bare_environment, python

__all__ = ["Supervisor", "missing", "refused", "supervisor"]

START_SECONDS = 20.0
"""How long the supervisor may take to start. It takes less than a tenth of a second on an idle machine."""

END_SECONDS = 5.0
"""How long leaving Python waits for the supervisor, which has nothing to do by then."""

_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from keeping.supervisor import main; main()"


@lru_cache(maxsize=1)
def missing() -> str | None:
    """What tier `tree` needs and this system or this Python has not."""
    if sys.platform != "linux":
        return "only Linux has subreapers"
    if not Path(CHILDREN.format(pid="self", task=os.getpid())).exists():
        return "/proc does not list the children of a process"
    if not (hasattr(os, "pidfd_open") and hasattr(os, "memfd_create") and find_spec("_ctypes")):
        return "this Python was built without pidfd, memfd or ctypes"
    if getattr(sys, "frozen", False) or not sys.executable:
        return "there is no Python interpreter to start"
    return None


class Supervisor:
    """The kernel's end of a running one; see `keeping`."""

    def __init__(self, popen: subprocess.Popen[bytes], control: socket.socket) -> None:
        self._popen = popen
        self._control = control
        self._serials = itertools.count(1)

    def __repr__(self) -> str:
        return f"<Supervisor pid {self._popen.pid}>"

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    def is_running(self) -> bool:
        """Whether it has not ended. Reaps it if it has."""
        return self._popen.poll() is None

    async def keep(self, fds: Sequence[int]) -> int:
        """Have a keeper forked, with these descriptors; its serial number. Cancellable until that is under way.

        Raises OSError when the supervisor is gone, and then nothing was started.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        serial = next(self._serials)
        order = marshal.dumps(("keep", serial))
        while True:
            try:
                socket.send_fds(self._control, [order], fds)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.ETOOMANYREFS):
                    raise
            else:
                return serial
            await trio.sleep(0.001)  # hundreds of orders, or of descriptors, are under way: it is reading them

    def kill_keeper(self, serial: int) -> None:
        """Have a keeper that does not answer killed; what it leaves is ended."""
        with suppress(OSError):
            self._control.send(marshal.dumps(("kill", serial)))

    def condemn(self) -> None:
        """Kill it: it does not answer. Its keepers end their calls, and the next call starts another one."""
        self._popen.kill()

    def end(self) -> None:
        """Close the death pipe and wait for the end of all that it holds. Blocks, bounded."""
        self._control.close()
        try:
            self._popen.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()

    def forget(self) -> None:
        """In a forked child of the kernel: this is the parent's. A copy here would keep the death pipe open."""
        self._control.close()
        self._popen.returncode = 0  # not ours to wait for


class _Process:
    """What is known of the supervisor of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running: Supervisor | None = None
        self.refused: str | None = None
        """Why none could be started; that is not tried again."""

    def __repr__(self) -> str:
        return f"<_Process {self.running or self.refused}>"


_this = _Process()


def refused() -> str | None:
    """Why none could be started although nothing is `missing`; None as long as that has not happened."""
    return _this.refused


async def supervisor() -> Supervisor | None:
    """The running one, started if need be; None where there can't be one.

    A start that is under way is not cancelled: whoever comes next will want it.
    """
    if _this.running is not None and _this.running.is_running():
        return _this.running
    if _this.refused or missing():
        return None
    # A limiter of its own: the shared one may be full of tools that are stuck.
    return await trio.to_thread.run_sync(_obtain, limiter=trio.CapacityLimiter(1))


def _obtain() -> Supervisor | None:
    """In a thread. Other runs of trio in other threads may want one at the same moment."""
    with _this.lock:
        if _this.running is not None:
            if _this.running.is_running():
                return _this.running
            _this.running.end()
            _this.running = None
        try:
            _this.running = _start()
        except OSError as error:
            _this.refused = str(error)
        return _this.running


def _start() -> Supervisor:
    """Start one and wait for its word. Blocks, bounded. Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ExitStack() as undo:
        undo.callback(ours.close)
        with theirs:
            popen = subprocess.Popen(
                python(_PROGRAM, str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=bare_environment(),
                start_new_session=True,  # no signal that a terminal sends to the kernel reaches it
            )
        undo.callback(popen.wait)
        undo.callback(popen.kill)
        ours.settimeout(START_SECONDS)
        word = ours.recv(1000)
        if word != b"ready":
            raise OSError(word.decode() or "the supervisor of processes ended at once")
        ours.setblocking(False)
        undo.pop_all()
    return Supervisor(popen, ours)


def _forked() -> None:
    """In a forked child of the kernel."""
    global _this
    if _this.running is not None:
        _this.running.forget()
    _this = _Process()


def _leaving() -> None:
    if _this.running is not None:
        _this.running.end()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
atexit.register(_leaving)
