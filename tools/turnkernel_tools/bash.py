"""The tool `bash`: one command in a shell of its own, waited for or as a task. Starts processes through others."""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import attrs

from turnkernel.events import TaskStarted
from turnkernel.text import Clip
from turnkernel.tool import TaskBody, TaskLifetime, ToolContext, ToolOutput

from .background import BackgroundCommands
from .containment import Tier
from .function import FunctionTool, tool
from .process import NotStartedError
from .shell import Shell, ended

__all__ = ["BashTool", "bash_tool"]

KEPT_BYTES = 31 * 1024
"""Of the output, for the model: what the kernel lets through, less room for what is said about its end."""

_DESCRIPTION = """\
Run a command in bash and wait for it. Its output and error output come back, in the order read.

Each command has a shell of its own: directory, variables and functions are not kept. It has no terminal and no
input. Whatever it leaves running is ended with it: what is to go on takes `background`, which makes a task of the
whole command and returns at once. A task is not stopped when the user stops your turn; it {lives}. You are told
when it has ended; until then task_list, task_output and task_stop take care of it."""

_LIVES = {
    "session": "ends with this session",
    "detached": "goes on when this session ends, where the session has a log to find it again by",
}


@attrs.frozen
class BashTool(FunctionTool):
    """The tool `bash`, which can also tell of its tasks. Made by `bash_tool`."""

    commands: BackgroundCommands = attrs.field(repr=False)

    def find(self, task: TaskStarted, folder: Path | None) -> TaskBody | None:
        """See `FindsTasks`."""
        return self.commands.find(task, folder)

    def shown(self, ctx: ToolContext, task: TaskStarted) -> str | None:
        """See `ShowsTasks`."""
        return self.commands.shown(task, ctx.folder)


def bash_tool(
    root: Path,
    *,
    grace_seconds: float = 2.0,
    hidden: Collection[str] = (),
    tier: Tier = "tree",
    background: TaskLifetime = "session",
) -> BashTool:
    """The tool `bash {command, timeout_seconds?, background?}`, working in `root`.

    `root` is where commands start, not a wall: a command can go where the user can. `hidden` names further
    environment variables that commands do not get. `grace_seconds` lie between SIGTERM and SIGKILL. `tier` is
    the containment that is wanted. `background` is the lifetime of background tasks; `docs/tasks.md` says what
    becomes of them.

    Under cancellation the command and all that it started are ended, see `run_process`; what it had printed is in
    the log. A background task is ended by its own stop or with its session, not by a cancel of the turn.
    """
    shell = Shell(root, grace_seconds, hidden, tier)
    commands = BackgroundCommands(shell, background)

    @tool(
        name="bash",
        effect="effect",
        concurrency="exclusive",
        description=_DESCRIPTION.format(lives=_LIVES[background]),
    )
    async def bash(
        ctx: ToolContext,
        command: Annotated[str, "The command, for bash -c."],
        timeout_seconds: Annotated[float | None, "Stop the command after so many seconds."] = None,
        background: Annotated[bool, "Make a task of it and return at once."] = False,
    ) -> ToolOutput:
        if timeout_seconds is not None and timeout_seconds <= 0:
            return ToolOutput(f"timeout_seconds is {timeout_seconds:g}; it must be above 0.", is_error=True)
        if background:
            return await commands.start(ctx, command, timeout_seconds)
        shown = Clip(KEPT_BYTES)

        def show(text: str, stream: str) -> None:
            shown.add(text)
            ctx.emit(text, stream)

        try:
            end = await shell.run(command, ctx, show, timeout_seconds)
        except NotStartedError as error:
            return ToolOutput(f"The command could not be started: {error}", is_error=True)
        return ended(shown.text(), end)

    return BashTool(**attrs.asdict(bash, recurse=False), commands=commands)
