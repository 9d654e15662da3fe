"""Families of processes that are hard to end. Each makes a file `r`, and says `ready`, once it is so."""

import sys
from collections.abc import Mapping

DOUBLE_FORK = f"""{sys.executable} -S -c 'import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("r", "w").close(); print("ready", flush=True); time.sleep(600)
    os._exit(0)
os.wait()'"""

# A child forks the next one and leaves, each in a session of its own, all deaf.
MOVING_ON = f"""{sys.executable} -S -c '
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("r", "w").close(); print("ready", flush=True)
while True:
    if os.fork() == 0:
        os.setsid()
        time.sleep(0.01)
    else:
        os._exit(0)'"""

# Never the kernel itself, should there be no keeper. In a PID namespace, its init is all that can be tried.
KILL_KEEPER = "grep -Eqx 'tk-(keeper|init)' /proc/$PPID/comm && kill -9 $PPID"

FAMILIES: Mapping[str, str] = {
    "a plain child": "touch r; echo ready; exec sleep 600",
    "one in the background": "sleep 600 & touch r; echo ready; sleep 600",
    "a pipeline": "sleep 600 | { touch r; echo ready >&2; cat; }",
    "one that ignores SIGTERM": "trap '' TERM; touch r; echo ready; while :; do sleep 600; done",
    "one in a session of its own": "setsid bash -c 'touch r; echo ready; sleep 600; :' & wait",
    "a double fork": f"{DOUBLE_FORK}; sleep 600",
    "one that moves on": f"{MOVING_ON} & sleep 600",
    "a stopped child": (
        "sleep 600 & kill -STOP $!; until grep -q ') T ' /proc/$!/stat; do :; done; touch r; echo ready; wait"
    ),
    "one that kills its keeper": (
        f"setsid sleep 600 & (setsid sleep 600 &); touch r; echo ready; {KILL_KEEPER}; sleep 600"
    ),
    "one that wants the terminal": "cat </dev/tty; touch r; echo ready; sleep 600",
    "one whose output passes through another": (
        "exec > >(trap '' TERM; exec cat); trap 'echo bye; exit' TERM;"
        "touch r; echo ready; while :; do sleep 0.01; done"
    ),
    "a flood": "touch r; echo ready; exec yes",
}
LEFT_BY_THE_EXITED = {"left by a tool that has exited": DOUBLE_FORK}
ALL = {**FAMILIES, **LEFT_BY_THE_EXITED}
