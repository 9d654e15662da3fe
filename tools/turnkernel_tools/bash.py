"""The tool `bash`: one command in a shell of its own. Starts processes through `process` only."""

import signal
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

from turnkernel.text import Clip
from turnkernel.tool import Tool, ToolContext, ToolOutput

from .containment import Tier
from .function import tool
from .process import NotStartedError, ProcessEnd, run_process, signal_name

__all__ = ["bash_tool"]

KEPT_BYTES = 31 * 1024
"""Of the output, for the model: what the kernel lets through, less room for what is said about its end."""


def bash_tool(
    root: Path, *, grace_seconds: float = 2.0, hidden: Collection[str] = (), tier: Tier = "tree"
) -> Tool:
    """The tool `bash {command, timeout_seconds?, background?}`, working in `root`.

    `root` is where commands start, not a wall: a command can go where the user can. `hidden` names further
    environment variables that commands do not get. `grace_seconds` lie between SIGTERM and SIGKILL. `tier` is
    the containment that is wanted.

    Under cancellation the command and all that it started are ended, see `run_process`; what it had printed is in
    the log.
    """

    @tool(name="bash", effect="effect", concurrency="exclusive")
    async def bash(
        ctx: ToolContext,
        command: Annotated[str, "The command, for bash -c."],
        timeout_seconds: Annotated[float | None, "Stop the command after so many seconds."] = None,
        background: Annotated[bool, "Not available in this version."] = False,
    ) -> ToolOutput:
        """Run a command in bash and wait for it. Its output and error output come back, in the order read.

        Each command has a shell of its own: directory, variables and functions are not kept. It has no terminal
        and no input. Whatever it leaves running in the background is ended with it.
        """
        if background:
            return ToolOutput("Background work is not available in this version. Nothing was run.", is_error=True)
        if timeout_seconds is not None and timeout_seconds <= 0:
            return ToolOutput(f"timeout_seconds is {timeout_seconds:g}; it must be above 0.", is_error=True)
        shown = Clip(KEPT_BYTES)

        def show(text: str, stream: str) -> None:
            shown.add(text)
            ctx.emit(text, stream)

        try:
            end = await run_process(
                ["bash", "-c", command],
                ctx=ctx,
                cwd=root,
                on_output=show,
                hidden=hidden,
                timeout_seconds=timeout_seconds,
                grace_seconds=grace_seconds,
                tier=tier,
            )
        except NotStartedError as error:
            return ToolOutput(f"The command could not be started: {error}", is_error=True)
        return _output(shown.text(), end)

    return bash


def _output(text: str, end: ProcessEnd) -> ToolOutput:
    notes = _notes(end)
    if notes and text and not text.endswith("\n"):
        text += "\n"
    text += "\n".join(notes)
    failed = end.timed_out or end.stopped is not None or end.exit_code != 0
    status = "timed_out" if end.timed_out else None if end.stopped is None else "stopped"
    return ToolOutput(text if text.strip() else "(no output)", is_error=failed, status=status)


def _notes(end: ProcessEnd) -> list[str]:
    """What the model is told besides the output, a line each."""
    notes: list[str] = []
    if end.timed_out:
        notes.append(f"[Timed out after {end.seconds:.1f} s: the command was stopped before it had ended]")
    elif end.stopped is not None:
        notes.append(f"[The command and all that it started were stopped: {end.stopped}. It may have had effects]")
    elif end.signal is not None:
        notes.append(f"[The command was killed by {end.signal} ({end.exit_code})]")
    elif end.exit_code is not None and end.exit_code != 0:
        notes.append(f"[Exit code {end.exit_code}{_shells_word(end.exit_code)}]")
    if end.ended_too:
        notes.append(f"[Left running by the command and ended with it: {', '.join(end.ended_too)}]")
    if end.survivors:
        notes.append(f"[Could not be stopped and is still running: {', '.join(end.survivors)}]")
    if not end.drained:
        notes.append("[Something still holds the output open; what it writes is lost]")
    return notes


def _shells_word(exit_code: int) -> str:
    """What a shell means by an exit code over 128: the last command in it was killed, and by what (bash(1))."""
    number = exit_code - 128
    known = number in {one.value for one in signal.Signals}
    return f": as when a command in it was killed by {signal_name(number)} ({exit_code})" if known else ""
