"""The port through which the model acts. attrs only, no trio.

A tool runs as a child task of the turn that called it, and never outlives it.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, runtime_checkable

import attrs
import orjson

from .causes import Urgency
from .events import AskAnswer, ResultStatus

__all__ = [
    "Answered",
    "Concurrency",
    "Effect",
    "Resumable",
    "Tool",
    "ToolContext",
    "ToolOutput",
    "resume_key",
]

Effect = Literal["read_only", "idempotent", "effect"]
Concurrency = Literal["shared", "exclusive"]


@attrs.frozen
class ToolOutput:
    """What a tool returns."""

    text: str
    """For the model. Cut to 32 KiB by the kernel, head and tail kept."""
    is_error: bool = False
    status: ResultStatus | None = None
    """Normally None: `error` or `ok` by `is_error`. `stopped`, `timed_out` or `dismissed` when the tool itself
    knows better, for example because the process it ran was told to end."""


@attrs.frozen
class Answered:
    """A person's answer to an ask."""

    answer: AskAnswer
    text: str


class ToolContext(Protocol):
    """What a running call may do besides its work. Valid until `run` returns."""

    @property
    def call_id(self) -> str:
        """Unique in the session; an idempotency key."""
        ...

    @property
    def resumed_state(self) -> Any:
        """The last checkpoint of the last call with the same key that did not end `ok`, or None."""
        ...

    @property
    def urgency(self) -> Urgency | None:
        """How urgently the call is to end; None while it is not."""
        ...

    async def urgent(self) -> None:
        """Wait until the call is to end *now*: graces are over. May be awaited inside `critical`."""
        ...

    def emit(self, text: str, stream: str = "stdout") -> None:
        """Show output. In the log when it returns (256 KiB a call at most; the rest is counted)."""
        ...

    def checkpoint(self, state: Any) -> None:
        """Record progress (any JSON value); a later call with the same key finds it."""
        ...

    def critical(self, reason: str, seconds: float, *, now_seconds: float = 0.0) -> AbstractContextManager[object]:
        """A bounded, listed shield for what must not be cut half-way.

        Once the urgency is *now* it has `now_seconds` left at most: for what must be confirmed even then, such as
        the end of a process after SIGKILL. When it ends early, as at its deadline, `trio.Cancelled` is raised
        inside it and swallowed at its end.
        """
        ...

    @property
    def thread_grace_seconds(self) -> float:
        """How long a thread that does not return is waited for after a cancel, before it is left and named."""
        ...

    def holding(self, kind: Literal["thread", "process"], name: str) -> AbstractContextManager[object]:
        """Names something that the call holds, while it does, for `turn/stuck` and the times of a cancel."""
        ...

    def survivor(self, kind: Literal["thread", "process"], name: str) -> None:
        """Names something that could not be stopped and is left alive. Says it in the log."""
        ...

    async def ask(self, text: str, options: Sequence[str] = ()) -> Answered:
        """Ask a person and wait. A dismissal is an answer (`dismissed`)."""
        ...


@runtime_checkable
class Tool(Protocol):
    """One thing that the model can do.

    Contract for implementations:

    - `run` returns a `ToolOutput` or raises; an exception becomes an error result for the model, siblings go on.
    - A bad input is an error result, never an exception that means something else.
    - When `run` has returned or raised, nothing that it started is alive.
    - `trio.Cancelled` passes. What must be undone is undone in `finally`, what must not be cut is inside
      `ctx.critical`. There is no shield of its own.
    - A result that is returned in spite of a cancel is kept; the turn ends all the same.
    """

    @property
    def name(self) -> str:
        """Letters, digits, `_` and `-`; at most 64."""
        ...

    @property
    def description(self) -> str:
        """For the model."""
        ...

    @property
    def schema(self) -> Mapping[str, Any]:
        """JSON Schema of the input, an object."""
        ...

    @property
    def effect(self) -> Effect:
        """What running it twice would do. `effect` when in doubt."""
        ...

    @property
    def concurrency(self) -> Concurrency:
        """Whether it may run beside other calls of its step."""
        ...

    @property
    def timeout(self) -> float | None:
        """Seconds that the body may run, or None."""
        ...

    async def run(self, ctx: ToolContext, input: Mapping[str, Any]) -> ToolOutput:
        """Do it; see the class for the contract."""
        ...


@runtime_checkable
class Resumable(Protocol):
    """A tool whose checkpoints are found by a key of its own."""

    def resume_key(self, input: Mapping[str, Any]) -> str:
        """The same for two inputs that mean the same work."""
        ...


def resume_key(tool: Tool, input: Mapping[str, Any]) -> str:
    """The key under which a call's checkpoints are found again: the tool's own, or its canonical input."""
    if isinstance(tool, Resumable):
        return tool.resume_key(input)
    return orjson.dumps(dict(input), option=orjson.OPT_SORT_KEYS).decode()
