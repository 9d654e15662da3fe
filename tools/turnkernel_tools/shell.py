"""One command in a shell of its own, and how its end is told. Starts processes through `process` only."""

import signal
from collections.abc import Collection
from pathlib import Path

import attrs

from turnkernel.tool import ToolOutput, WorkContext

from .containment import Tier
from .output import OnOutput
from .process import ProcessEnd, run_process, signal_name

__all__ = ["Shell", "argv", "ended", "notes"]


@attrs.frozen
class Shell:
    """Where and how commands are run."""

    root: Path
    """Where they start."""
    grace_seconds: float
    """Between SIGTERM and SIGKILL."""
    hidden: Collection[str]
    """Environment variables that they do not get, besides the providers' keys."""
    tier: Tier
    """The containment that is wanted."""

    async def run(
        self, command: str, ctx: WorkContext, on_output: OnOutput, timeout_seconds: float | None
    ) -> ProcessEnd:
        """Run a command to its end, with all that it started; see `run_process`. Raises `NotStartedError`."""
        return await run_process(
            argv(command),
            ctx=ctx,
            cwd=self.root,
            on_output=on_output,
            hidden=self.hidden,
            timeout_seconds=timeout_seconds,
            grace_seconds=self.grace_seconds,
            tier=self.tier,
        )


def argv(command: str) -> list[str]:
    """The process that a command is."""
    return ["bash", "-c", command]


def ended(text: str, end: ProcessEnd) -> ToolOutput:
    """What the model is told of a command that was not cancelled: its output, then how it ended."""
    said = notes(end)
    if said and text and not text.endswith("\n"):
        text += "\n"
    text += "\n".join(said)
    failed = end.timed_out or end.stopped is not None or end.exit_code != 0
    status = "timed_out" if end.timed_out else None if end.stopped is None else "stopped"
    return ToolOutput(text if text.strip() else "(no output)", is_error=failed, status=status)


def notes(end: ProcessEnd) -> list[str]:
    """What the model is told besides the output, a line each."""
    said: list[str] = []
    if end.timed_out:
        said.append(f"[Timed out after {end.seconds:.1f} s: the command was stopped before it had ended]")
    elif end.stopped is not None:
        said.append(f"[The command and all that it started were stopped: {end.stopped}. It may have had effects]")
    elif end.signal is not None:
        said.append(f"[The command was killed by {end.signal} ({end.exit_code})]")
    elif end.exit_code is not None and end.exit_code != 0:
        said.append(f"[Exit code {end.exit_code}{_shells_word(end.exit_code)}]")
    if end.ended_too:
        said.append(f"[Left running by the command and ended with it: {', '.join(end.ended_too)}]")
    if end.survivors:
        said.append(f"[Could not be stopped and is still running: {', '.join(end.survivors)}]")
    if not end.drained:
        said.append("[Something still holds the output open; what it writes is lost]")
    return said


def _shells_word(exit_code: int) -> str:
    """What a shell means by an exit code over 128: the last command in it was killed, and by what (bash(1))."""
    number = exit_code - 128
    known = number in {one.value for one in signal.Signals}
    return f": as when a command in it was killed by {signal_name(number)} ({exit_code})" if known else ""
