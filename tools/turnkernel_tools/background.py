"""Commands that go on when their call is over: bash's tasks. Starts processes through `process` and `detached`."""

import datetime
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from turnkernel.events import TaskStarted
from turnkernel.text import clip, printable
from turnkernel.tool import TaskBody, TaskContext, TaskLifetime, ToolContext, ToolOutput

from .detached import Detached, Ended, start_detached
from .hold import KILL_SECONDS
from .keeping.capped import read_output
from .kept import FileOutput, Kept, MemoryOutput, output_folder
from .process import NotStartedError, ProcessEnd
from .shell import Shell, argv, ended, notes
from .supervision import missing

__all__ = ["BackgroundCommands"]

LAST_BYTES = 4096
"""Of the output, in the notice of a task's end: the last of it. The rest is for `task_output`."""

REMEMBERED = 64
"""Of how many tasks the output is kept in memory, where the log is: the latest."""

_ENDS: Mapping[TaskLifetime, str] = {
    "session": "and ends with this session",
    "detached": "and when this session does; the next one that opens its log finds it again",
}


class BackgroundCommands:
    """The background tasks of one tool `bash`.

    The `detail` of a task names its folder, as seen from the log's, before anything is started: whatever a crash
    leaves of it is found by that.
    """

    def __init__(self, shell: Shell, lifetime: TaskLifetime) -> None:
        self._shell = shell
        self._lifetime: TaskLifetime = lifetime
        self._remembered: OrderedDict[str, MemoryOutput] = OrderedDict()

    def __repr__(self) -> str:
        return f"<BackgroundCommands {self._lifetime} in {self._shell.root}>"

    async def start(self, ctx: ToolContext, command: str, timeout_seconds: float | None) -> ToolOutput:
        """Begin a task that runs the command; what the model is told of it. Under a cancel nothing begins.

        A detached one could not be found again where the log is in memory, nor kept where there are no keepers: it
        ends with the session there.
        """
        beside = ctx.folder
        name = f"bash-{secrets.token_hex(8)}"
        detail: dict[str, Any] = {
            "what": clip(printable(command), 1024),
            "output": name if beside is None else f"{beside.name}/{name}",
            "began": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        if timeout_seconds is not None:
            detail["timeout_seconds"] = timeout_seconds
        if self._lifetime == "detached" and beside is not None and missing() is None:
            lifetime: TaskLifetime = "detached"
            body = partial(self._detach, command, detail, beside / name)
        else:
            lifetime = "session"
            body = partial(self._run, command, timeout_seconds, beside, name)
        task = await ctx.tasks.start("bash", body, lifetime=lifetime, detail=detail)
        where = "" if beside is None else f" Its output is kept in {beside / name}."
        return ToolOutput(
            f"Task {task} has begun. It goes on when this turn ends, {_ENDS[lifetime]}. You are told when it has "
            f"ended: do not wait for it. task_output shows its output so far, task_stop stops it.{where}"
        )

    async def _run(
        self, command: str, timeout_seconds: float | None, beside: Path | None, name: str, task: TaskContext
    ) -> ToolOutput:
        """The body of a task of lifetime *session*."""
        with closing(self._kept(beside, name)) as kept:
            try:
                end = await self._shell.run(command, task, lambda text, _: kept.add(text), timeout_seconds)
            except NotStartedError as error:
                return _not_started(str(error))
            output = ended(last_lines(kept.text()), end)
            kept.add("".join(f"\n{note}" for note in notes(end)))
            return output

    async def _detach(
        self, command: str, detail: Mapping[str, Any], folder: Path, task: TaskContext
    ) -> ToolOutput:
        """The body of a task of lifetime *detached*, in the session that has begun it."""
        try:
            work = await start_detached(
                argv(command),
                output_folder(folder.parent, folder.name),
                work_id=task.work_id,
                cwd=self._shell.root,
                hidden=self._shell.hidden,
                timeout_seconds=detail.get("timeout_seconds"),
                grace_seconds=self._shell.grace_seconds,
            )
        except NotStartedError as error:
            return _not_started(str(error))
        return await self._outlast(work, detail, task)

    async def _outlast(self, work: Detached, detail: Mapping[str, Any], task: TaskContext) -> ToolOutput:
        """Wait for the end of detached work. Cancelled, it is ended if the task is stopped, else let go of."""
        with task.holding("process", f"the keeper of {detail.get('what', 'a task')}"):
            try:
                state = await work.exited()
            finally:
                if task.stopping:
                    await self._end(work, task)
            if isinstance(state, Ended):
                return _told(last_lines(work.output().text()), state, detail)
            await _kill(work, task)
        why = "it was never started" if state.never_started else "its keeper was killed; what it left is ended"
        return ToolOutput(f"Nobody knows how it ended: {why}.", is_error=True, status="unknown")

    async def _end(self, work: Detached, task: TaskContext) -> None:
        """As any other process is ended: with the grace, that urgency *now* cuts, then without."""
        with task.critical("ending a detached task", self._shell.grace_seconds + KILL_SECONDS):
            await work.terminate()
        await _kill(work, task)

    def find(self, task: TaskStarted, folder: Path | None) -> TaskBody | None:
        """See `FindsTasks`. One that has not been started yet never will be: see `Detached.find`."""
        place = _place(task, folder)
        return None if place is None else partial(self._outlast, Detached.find(place), task.detail or {})

    def shown(self, task: TaskStarted, folder: Path | None) -> str | None:
        """See `ShowsTasks`. Where the log is in memory, of the latest tasks only."""
        place = _place(task, folder)
        if place is None:
            kept = self._remembered.get(_name(task))
            return None if kept is None else kept.text()
        text = read_output(place).text()
        state = Detached(place).state() if task.lifetime == "detached" else None
        return _told(text, state, task.detail or {}).text if isinstance(state, Ended) else text

    def _kept(self, beside: Path | None, name: str) -> Kept:
        if beside is not None:
            return FileOutput(output_folder(beside, name))
        kept = self._remembered[name] = MemoryOutput()
        while len(self._remembered) > REMEMBERED:
            self._remembered.popitem(last=False)
        return kept


def _name(task: TaskStarted) -> str:
    """The last part of what a task's `detail` calls its output."""
    return PurePosixPath(str((task.detail or {}).get("output", ""))).name


def _place(task: TaskStarted, folder: Path | None) -> Path | None:
    """Where the files of a task are: in the folder beside the log, wherever that is now, and nowhere else."""
    name = _name(task)
    return folder / name if folder is not None and name not in ("", "..") else None


async def _kill(work: Detached, task: TaskContext) -> None:
    """Kill what may be left, and name what is. Bounded, also under a cancel."""
    for name in await work.kill():
        task.survivor("process", name)


def _not_started(why: str) -> ToolOutput:
    return ToolOutput(f"The command could not be started: {why}", is_error=True)


def _told(text: str, state: Ended, detail: Mapping[str, Any]) -> ToolOutput:
    """What the model is told of detached work that has ended."""
    if state.failed is not None:
        return _not_started(state.failed)
    if state.killed:
        text += f"\n[Killed by SIGKILL: {', '.join(state.killed[:5])}]\n"
    if state.lost_output is not None:
        text += f"\n[Not all of its output could be kept: {state.lost_output}]\n"
    end = ProcessEnd(
        exit_code=state.exit_code,
        signal=state.signal,
        seconds=float(detail.get("timeout_seconds") or 0.0),
        timed_out=state.timed_out,
        drained=True,
        ended_too=state.ended_too,
        survivors=(),
        stopped="it was told to end" if state.stopped else None,
    )
    return ended(text, end)


def last_lines(text: str) -> str:
    """The last of an output, in whole lines where there are any, with the cut told."""
    data = text.encode("utf-8", "replace")
    if len(data) <= LAST_BYTES:
        return text
    last = data[-LAST_BYTES:].decode("utf-8", "ignore")
    _, _, lines = last.partition("\n")
    return f"[Only the end of its output; task_output shows more]\n{lines or last}"
