"""Asks, once, whether this system lets us make a PID namespace. Starts a process that tries, and waits for it.

What permits it can't be read anywhere: the user's rights, limits, security modules and the container around us all
have a say. So it is tried, in a process of its own, since only one with a single thread may.
"""

import subprocess
import threading
from functools import lru_cache

import trio

from .standalone import bare_environment, python
from .supervision import missing

__all__ = ["missing_for_namespace", "missing_for_namespace_soon"]

_SECONDS = 20.0
"""How long the trial may take. It takes less than a tenth of a second on an idle machine."""

_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from keeping.namespace import probe; probe()"

_lock = threading.Lock()


def missing_for_namespace() -> str | None:
    """What the tier `namespace` needs and this system has not. Blocks for about 50 ms, the first time."""
    with _lock:
        return _missing()


async def missing_for_namespace_soon() -> str | None:
    """The same, without blocking. A trial that is under way is not cancelled."""
    if _missing.cache_info().currsize:
        return _missing()
    # A limiter of its own: the shared one may be full of tools that are stuck.
    return await trio.to_thread.run_sync(missing_for_namespace, limiter=trio.CapacityLimiter(1))


@lru_cache(maxsize=1)
def _missing() -> str | None:
    if why := missing():
        return why
    try:
        done = subprocess.run(
            python(_PROGRAM),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=bare_environment(),
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"whether a PID namespace can be made could not be found out: {error}"
    if done.returncode != 0:
        return f"making a PID namespace was tried and ended with {done.returncode}"
    return done.stdout.decode("utf-8", "replace") or None
