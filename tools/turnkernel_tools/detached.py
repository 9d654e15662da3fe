"""Work that outlives its kernel: started under a keeper of its own, and found again. Starts and signals processes.

    work = await start_detached(["bash", "-c", command], folder, work_id=task, cwd=root)
    ...                                      # the kernel ends, or is killed; another one finds it by its folder
    work = Detached.find(folder)
    match work.state():
        case Running(): ...                  # await work.exited(), work.terminate(), work.kill()
        case Ended(exit_code=code): ...
        case Lost(): await work.kill()       # nobody knows how it ended; what it may have left is ended
    work.output().text()                     # at any time: head and tail

The folder belongs to one piece of work. Whoever wants to find it after a crash writes the folder's name down
before the start: at whatever instant the kernel is killed then, either nothing runs and nothing will, or `find`
finds it.

Everything below its keeper is ended with it, however it left the session or its parents: by the keeper, when the
process has exited, at a timeout, or when it is told so. What it does not hold: its keeper may be killed itself (by
the tool, for one). Then nobody ends what is left until somebody calls `kill` on what is `Lost`, which ends what
bears the work's mark in its environment. Linux, as tier `tree`.
"""

import json
import marshal
import os
import select
import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import trio

from turnkernel.cancel import shield

from . import hold
from .family import MarkedFamily
from .group import kill_family
from .hold import NotStartedError, Task, names
from .keeping import folder as facts
from .keeping.below import Process, send, walk
from .keeping.capped import MOST_BYTES, Output, read_output
from .process import child_environment, new_mark, signal_name
from .standalone import bare_environment, python
from .supervision import missing

__all__ = ["Detached", "Ended", "Lost", "Running", "State", "start_detached"]

START_SECONDS = 10.0
"""How long a keeper may take to start the process. It takes less than a tenth of a second on an idle machine."""

_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from keeping.detached import main; main()"
_REPORT_BYTES = 65536
_NOBODY = -1


@attrs.frozen
class Running:
    """Its keeper is there."""

    keeper: int
    """Its pid, which is a number of this moment."""
    pid: int | None
    """The process's, if it is known and alive."""


@attrs.frozen
class Ended:
    """Nothing of it is left."""

    exit_code: int | None
    """As a shell tells it: 128 + the number of the signal that killed it. None for what could not be started."""
    signal: str | None
    """The signal that killed the process, `SIGKILL` for one."""
    stopped: bool
    """It was told to end before it did."""
    timed_out: bool
    """It was ended when its time was up."""
    failed: str | None
    """Why it could not be started."""
    ended_too: Sequence[str]
    """What the process had left running and was ended then, `pid 12 sleep 60` for one."""
    killed: Sequence[str]
    """What SIGKILL has ended."""
    lost_output: str | None
    """Why not all of the output that should have been kept was: the disk was full, for one."""


@attrs.frozen
class Lost:
    """Its keeper is gone and has not said how it ended; something that it started may be alive, see `kill`."""

    never_started: bool
    """Nothing was started, and nothing will be."""


State = Running | Ended | Lost


async def start_detached(
    argv: Sequence[str],
    folder: Path,
    *,
    work_id: str,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    hidden: Collection[str] = (),
    timeout_seconds: float | None = None,
    grace_seconds: float = 2.0,
    most_bytes: int = MOST_BYTES,
) -> "Detached":
    """Start a process that outlives this kernel, with all that it needs in `folder`, which is made (mode 0700).

    Its input is /dev/null, its output and error output go to files there in the order written, `most_bytes` of
    them. It gets none of our keys, nor what `hidden` names. `work_id` is part of the mark in its environment.

    A cancel that comes before it is started starts nothing; one that comes later does not cut the start, and there
    is no checkpoint after it. Takes an interpreter's start, about 50 ms.

    Raises `NotStartedError` when it can't be started, also where keepers can't be had at all.
    """
    if why := missing():
        raise NotStartedError(why)
    mark = new_mark(work_id)
    environment = child_environment(mark, env=env, hidden=hidden)
    settings = json.dumps([f"{Path.cwd() / folder}", mark, grace_seconds, most_bytes, timeout_seconds])
    try:
        order = Task(argv, cwd, environment, mark, (_NOBODY, _NOBODY, _NOBODY)).written()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # noqa: ASYNC240 - a moment
        # A limiter of its own: the shared one may be full of tools that are stuck.
        said = await trio.to_thread.run_sync(_start, settings, order, limiter=trio.CapacityLimiter(1))
    except (OSError, ValueError) as error:  # the second: a NUL byte or a lone surrogate in an argument
        raise NotStartedError(str(error)) from error
    work = Detached.find(folder)
    if said[:1] == ("failed",):
        _, number, name = said
        raise NotStartedError(
            str(OSError(number, os.strerror(number), None if name is None else os.fsdecode(name)))
        )
    if said[:1] == ("started",):
        return work
    if work.mark != mark:
        raise NotStartedError(f"{folder} was used, or looked for, before")
    if isinstance(work.state(), Lost):
        raise NotStartedError("its keeper was killed", await work.kill())
    return work  # the keeper is late, or could not say so


def _start(settings: str, order: bytes) -> tuple[Any, ...]:
    """In a thread: start the keeper and wait for its word; empty when it does not come. Raises OSError."""
    read_end, write_end = os.pipe()
    try:
        paper = os.memfd_create("order")
        try:
            os.write(paper, order)
            starting = subprocess.Popen(
                python(_PROGRAM, settings, str(paper), str(write_end)),
                pass_fds=[paper, write_end],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=bare_environment(),
                start_new_session=True,
            )
        finally:
            os.close(write_end)
            os.close(paper)
        try:
            starting.wait(START_SECONDS)  # it forks, and ends
        except subprocess.TimeoutExpired:
            starting.kill()
            starting.wait()
            return ()
        word = b""
        while select.select([read_end], [], [], START_SECONDS)[0] and (piece := os.read(read_end, _REPORT_BYTES)):
            word += piece
        return marshal.loads(word) if word else ()
    finally:
        os.close(read_end)


class Detached:
    """A piece of work, by its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return f"<Detached {self.folder}>"

    @classmethod
    def find(cls, folder: Path) -> "Detached":
        """The work that was started with this folder, in whatever state it is.

        Where it is not started yet it never will be: its place is taken. Synchronous, quick; raises nothing.
        """
        with suppress(OSError):  # no folder: then it was never started, and the one who might have is gone
            if facts.read(os.fspath(folder), facts.KEEPER) is None:
                facts.claim(os.fspath(folder), {"void": True})
        return cls(folder)

    @property
    def mark(self) -> str | None:
        """The word that its processes bear in their environment; None for what was never started."""
        return (self._read(facts.KEEPER) or {}).get("mark")

    def state(self) -> State:
        """How it is now. Reads the folder and /proc."""
        claim = self._read(facts.KEEPER) or {"void": True}
        if keeper := facts.is_there(claim):  # asked first: its last word is there when it is gone
            tool = facts.is_there(self._read(facts.TOOL))
            return Running(keeper[0], None if tool is None else tool[0])
        end = self._read(facts.END)
        return Lost(never_started=bool(claim.get("void"))) if end is None else _ended(end)

    def output(self) -> Output:
        """What it has written so far: head and tail."""
        return read_output(self.folder)

    async def exited(self) -> Ended | Lost:
        """Wait until nothing of it runs. Cancellable; then it goes on."""
        while isinstance(state := self.state(), Running):
            with suppress(ProcessLookupError):
                fd = os.pidfd_open(state.keeper)
                try:
                    if isinstance(self.state(), Running):  # so it is the keeper that we have
                        await trio.lowlevel.wait_readable(fd)
                finally:
                    os.close(fd)
            with suppress(ChildProcessError):  # a kernel that is process 1 has become its parent
                os.waitpid(state.keeper, os.WNOHANG)  # noqa: ASYNC222 - does not wait
        return state

    async def terminate(self) -> Ended | Lost:
        """Have it ended: SIGTERM to all there are, SIGKILL after the grace. Waits for the end.

        Cancellable; it goes on ending.
        """
        self._order(signal.SIGTERM)
        return await self.exited()

    async def kill(self) -> Sequence[str]:
        """Kill all there are; who is left, for `KILL_SECONDS` at most. No cancel cuts it.

        If the keeper does not answer it is killed too. If it is gone, what bears the work's mark is killed.
        """
        self._order(signal.SIGUSR1)
        with shield("ending a process", hold.KILL_SECONDS):
            await self.exited()
        state = self.state()
        if isinstance(state, Ended):
            return []
        strays: list[Process] = []
        if isinstance(state, Running):
            strays = list(walk(state.keeper))
            self._order(signal.SIGKILL)
        for process in strays:
            send(signal.SIGKILL, process)
        if self.mark is None:
            return []
        _, left = await kill_family(MarkedFamily(_NOBODY, 0, self.mark))
        return [str(member) for member in left]

    def _order(self, number: int) -> None:
        """Signal the keeper, and nobody in its place. A stopped one is woken."""
        if keeper := facts.is_there(self._read(facts.KEEPER)):
            send(number, keeper)
            send(signal.SIGCONT, keeper)

    def _read(self, name: str) -> dict[str, Any] | None:
        return facts.read(os.fspath(self.folder), name)


def _ended(end: Mapping[str, Any]) -> Ended:
    code = end["code"]
    killed_by = -code if code is not None and code < 0 else None
    return Ended(
        exit_code=code if killed_by is None else 128 + killed_by,
        signal=None if killed_by is None else signal_name(killed_by),
        stopped=end["stopped"],
        timed_out=end["timed_out"],
        failed=end["failed"],
        ended_too=() if end["stopped"] or end["timed_out"] else _names(end["told"]),
        killed=_names(end["killed"]),
        lost_output=end["lost"],
    )


def _names(processes: Sequence[tuple[int, str]]) -> Sequence[str]:
    return names((pid, line.encode()) for pid, line in processes)
