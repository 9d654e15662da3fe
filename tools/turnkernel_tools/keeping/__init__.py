"""The programs that hold the processes of a kernel's work: imports nothing, so that it can stand alone.

The kernel starts it, once, as a process of its own: a **supervisor**, which forks a **keeper** for each call, the
parent of the call's process; no interpreter is started for that. Both are subreapers, so whoever loses a parent
below stays below (PR_SET_CHILD_SUBREAPER, prctl(2)): that, and not what can be seen in /proc, is what the promise
rests on. "Nothing is left" is what the system says with ECHILD.

Work that outlives its kernel has a keeper that is a program of its own instead (`detached`), with all that is
known of it in a folder (`folder`, `capped`).

They are run without site packages, as the top-level package `keeping`: only the standard library may be imported
here, and of that little, because a first call waits for it. Linux.

Between the two sides are SOCK_SEQPACKET pairs, and on them marshalled tuples, the same interpreter at both ends.

The control pair is the death pipe too: the kernel holds its end and nobody else does. When it closes, in whatever
way the kernel has ended, all that runs here is killed. The supervisor says `ready` on it once, or why not. Then
orders come: `("keep", serial)` with five descriptors (the call's channel, a file with an `Order`, standard input,
output and error), and `("kill", serial)`: the keeper does not answer.

A call's channel carries `T` (end politely) and `K` (kill) to the keeper; its closing is a `K`. Reports come back:

| report | |
|---|---|
| `("starting",)` | said before, because what is started can kill its keeper before that has said anything else |
| `("failed", errno, filename)` | could not be started |
| `("weaker", why)` | a PID namespace was wanted and could not be made; it is started without one |
| `("inside", pid)` | the init of the PID namespace, which will start it |
| `("started", pid)` | |
| `("exited", code)` | the call's own process; a signal counts below zero |
| `("told", processes)` | who was alive when the call was first told to end; `(pid, command line)` each |
| `("left", processes)` | who does not die. The keeper goes on trying |
| `("gone", killed, why)` | the last: nothing is left. `why` when it was not the kernel that ended it |
| `("lost", killed, left, why)` | the supervisor's, when the keeper was killed: it has ended what it adopted |

The channel ends when all that the call had is dead and reaped, the keeper too.
"""

__all__ = ["CHILDREN"]

CHILDREN = "/proc/{pid}/task/{task}/children"
"""Where the children of a thread are listed (proc_pid_task(5)); needs CONFIG_PROC_CHILDREN."""
