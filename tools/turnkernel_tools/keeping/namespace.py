"""A PID namespace for the processes of one call, and its init. Unshares, forks, mounts, starts and reaps. Linux.

The init is a child of the keeper. When an init ends, in whatever way, the system kills all that is in its
namespace before the init can be reaped (pid_namespaces(7)); and it is killed when the keeper is, by a parent-death
signal that is sound here, since the keeper has one thread. From inside, nobody outside can be signalled, or even
be named, and an init gets no signal that it has no handler for.

Who may not make a PID namespace takes a user namespace as well, in which only the own user and group have names;
programs that run with another user's rights (`sudo`) run without them there (user_namespaces(7)).
"""

import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from .below import PR_SET_NAME, PR_SET_PDEATHSIG, libc, prctl
from .ending import say
from .starting import Order, start

__all__ = ["Unshared", "probe", "serve", "unshare"]

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWPID = 0x20000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_SLAVE = 2, 4, 8, 1 << 14, 1 << 19


def unshare() -> "Unshared":
    """The next child of this process is the init of a PID namespace. Raises OSError when there can't be one."""
    try:
        libc("unshare", _CLONE_NEWPID)
    except PermissionError:
        libc("unshare", _CLONE_NEWUSER | _CLONE_NEWPID)
        return Unshared(new_user=True)
    return Unshared(new_user=False)


class Unshared:
    """The right to fork one init. This process itself stays outside of the namespace."""

    def __init__(self, *, new_user: bool) -> None:
        self._new_user = new_user

    def __repr__(self) -> str:
        return f"<Unshared{' with a user namespace' if self._new_user else ''}>"

    def fork(self, init: Callable[[], None]) -> int:
        """Fork the init, which does `init` and ends, and is killed when this process is. Raises OSError."""
        if self._new_user:
            _write("setgroups", "deny")  # a condition for the last one; the groups that we are in stay
            _write("uid_map", f"{os.geteuid()} {os.geteuid()} 1")
            _write("gid_map", f"{os.getegid()} {os.getegid()} 1")
        keeper = os.pidfd_open(os.getpid())
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                if not select.select([keeper], [], [], 0)[0]:  # readable: dead already. An init has no getppid
                    os.close(keeper)
                    init()
                    code = 0
            finally:
                os._exit(code)
        os.close(keeper)
        return pid


def _write(name: str, text: str) -> None:
    fd = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def serve(channel: int, order: Order, streams: Sequence[int]) -> None:
    """Be the init: start what is ordered, report it, and reap until nothing is left."""
    prctl(PR_SET_NAME, b"tk-init")
    numbers_outside = os.open("/proc/thread-self/children", os.O_RDONLY | os.O_CLOEXEC)
    _mount_proc()
    try:
        main = start(order, streams)
    except OSError as error:
        say(channel, "failed", error.errno, error.filename)
        return
    for fd in streams:  # the output ends when the call's own processes have closed it
        os.close(fd)
    # It is there, as nobody but us reaps it, and the first, as orphans of its own come after it.
    say(channel, "started", int(os.pread(numbers_outside, 100, 0).split()[0]))
    os.close(numbers_outside)
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return
        if pid == main.pid:
            say(channel, "exited", os.waitstatus_to_exitcode(status))


def _mount_proc() -> None:
    """A /proc with the numbers that count here, in a mount namespace of its own.

    Where it can't be mounted (inside some containers) the one outside stays in view: wrong numbers are told there,
    and nothing else changes.
    """
    with suppress(OSError):
        libc("unshare", _CLONE_NEWNS)
        libc("mount", b"none", b"/", None, _MS_REC | _MS_SLAVE, None)
        libc("mount", b"proc", b"/proc", b"proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, None)


def probe() -> None:
    """For a process of its own: print why there can't be such a namespace here, or nothing."""
    try:
        pid = unshare().fork(lambda: None)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except (OSError, AttributeError) as error:
        sys.stdout.write(f"no PID namespace can be made: {error}")
    else:
        sys.stdout.write("" if code == 0 else f"the init of a PID namespace has ended with {code}")
