"""The tools `task_list`, `task_output` and `task_stop`: what the model can do with background work.

They ask the kernel; what a task has shown so far they ask the tool that began it. A child session's log is read.
"""

from collections import deque
from contextlib import closing
from pathlib import Path
from typing import Annotated, Protocol, runtime_checkable

from turnkernel.causes import Answer
from turnkernel.events import TaskStarted
from turnkernel.messages import Text
from turnkernel.reading import LogReader
from turnkernel.repair import task_words
from turnkernel.store import MemoryStore, ReadOnlyStore
from turnkernel.text import clip
from turnkernel.tool import Tool, ToolContext, ToolOutput

from .function import tool
from .thread import run_in_thread

__all__ = ["ShowsTasks", "task_list_tool", "task_output_tool", "task_stop_tool"]

LISTED = 50
"""How many tasks that have ended are listed: the latest."""

_SHOWN_BYTES = 31 * 1024
"""Of a task's output, for the model: what the kernel lets through, less room for what is said about it."""


@runtime_checkable
class ShowsTasks(Protocol):
    """A tool that can tell what its tasks have shown so far."""

    def shown(self, ctx: ToolContext, task: TaskStarted) -> str | None:
        """The output of a task that it began, running or ended, of bounded size and with any cut told; None
        where nothing is known of it. Synchronous, never raises.
        """
        ...


def task_list_tool() -> Tool:
    """The tool `task_list {}`: every task that runs, and the latest that have ended."""

    @tool(name="task_list", effect="read_only")
    async def task_list(ctx: ToolContext) -> ToolOutput:
        """List background tasks: which run, and how the others ended."""
        lines = [_state(ctx, task) for task in ctx.tasks.running()]
        over = [task for task in ctx.tasks.begun() if ctx.tasks.end_of(task.task) is not None]
        lines += [_state(ctx, task) for task in over[-LISTED:]]
        if len(over) > LISTED:
            lines.append(f"[{len(over) - LISTED} older tasks, all ended, are left out]")
        return ToolOutput("\n".join(lines) or "There are no tasks.")

    return task_list


def task_output_tool() -> Tool:
    """The tool `task_output {task}`: the state of a task, and what it has shown so far, whether it runs or not."""

    @tool(name="task_output", effect="read_only")
    async def task_output(ctx: ToolContext, task: Annotated[str, "The task's id."]) -> ToolOutput:
        """Show a background task's state and its output so far: the beginning and the end of it, if it is long.

        For a task that has ended too. Do not call it again and again to wait for an end: you will be told.
        """
        started = ctx.tasks.known(task)
        if started is None:
            return _unknown(task)
        by = ctx.tools.get(started.name)
        shown = by.shown(ctx, started) if isinstance(by, ShowsTasks) else None
        if shown is None and started.log is not None and ctx.tasks.end_of(task) is None:
            shown = await _last_words(ctx, started.log)
        # Looked at last: a task that ended meanwhile is told as ended, with output that is as old as the call.
        end = ctx.tasks.end_of(task)
        if end is not None and shown is None:
            return ToolOutput(end.text)
        head = _state(ctx, started) if end is None else _ending(end.text)
        if shown is None:
            return ToolOutput(f"{head}\nNothing is known of its output.")
        return ToolOutput(f"{head}\n{clip(shown, _SHOWN_BYTES) if shown.strip() else '(no output so far)'}")

    return task_output


def task_stop_tool() -> Tool:
    """The tool `task_stop {task}`: ends a task and waits until it has ended.

    Cancelled while it waits, the task is ended all the same.
    """

    @tool(name="task_stop", effect="idempotent")
    async def task_stop(ctx: ToolContext, task: Annotated[str, "The task's id."]) -> ToolOutput:
        """Stop a background task, with all that it runs, and wait until it has ended.

        What it has done until then stays done.
        """
        if ctx.tasks.known(task) is None:
            return _unknown(task)
        if ctx.tasks.stop(task) is Answer.STALE:
            end = ctx.tasks.end_of(task)
            how = "its tool is not there, so nobody can tell how it goes" if end is None else end.text
            return ToolOutput(f"Task {task} does not run. Nothing was stopped.\n{how}", is_error=True)
        await ctx.tasks.over(task)
        end = ctx.tasks.end_of(task)
        return ToolOutput(f"Task {task} goes on." if end is None else end.text, is_error=end is None)

    return task_stop


def _unknown(task: str) -> ToolOutput:
    return ToolOutput(f"There is no task {task!r}. task_list shows those there are.", is_error=True)


def _state(ctx: ToolContext, task: TaskStarted) -> str:
    """One line: the task's state, its tool, what it does."""
    end = ctx.tasks.end_of(task.task)
    if end is not None:
        return _ending(end.text)
    since = (task.detail or {}).get("began")
    lives = " and goes on when this session ends" if task.lifetime == "detached" else ""
    state = f"[Task {task.task} runs{f' since {since}' if since else ''}{lives}]"
    return f"{state} {': '.join(filter(None, (task.name, task_words(task))))}"


def _ending(notice: str) -> str:
    """How a task ended, in a line: the first of its notice."""
    return notice.split("\n", 1)[0]


async def _last_words(ctx: ToolContext, log: str) -> str | None:
    """What the model of a child session has said last; None where its log can't be read."""
    place = ctx.log_at(log)
    if isinstance(place, MemoryStore):
        return _said(LogReader(place))
    return await run_in_thread(ctx, "reading a log", lambda _: _said_in(Path(place)))


def _said_in(path: Path) -> str | None:
    try:
        with closing(ReadOnlyStore.open(path)) as store:
            return _said(LogReader(store))
    except OSError:
        return None


def _said(reader: LogReader) -> str:
    deque(reader, maxlen=0)
    for message in reversed(reader.context.messages):
        words = "\n".join(block.text for block in message.blocks if isinstance(block, Text))
        if message.role == "assistant" and words:
            return f"It said last:\n{words}"
    return ""
