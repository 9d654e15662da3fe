"""The port through which the model acts. attrs only, no trio.

A tool runs as a child task of the turn that called it, and never outlives it. What is to go on begins a task.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import attrs
import orjson

from .causes import Answer, Urgency
from .events import AskAnswer, ResultStatus, SessionOpen, TaskEnded, TaskStarted

__all__ = [
    "Answered",
    "Concurrency",
    "Effect",
    "FindsTasks",
    "Hosted",
    "OpensSession",
    "Resource",
    "Resumable",
    "TaskBody",
    "TaskContext",
    "TaskLifetime",
    "Tasks",
    "Tool",
    "ToolContext",
    "ToolOutput",
    "WorkContext",
    "checked",
    "resume_key",
]

Effect = Literal["read_only", "idempotent", "effect"]
Concurrency = Literal["shared", "exclusive"]
TaskLifetime = Literal["session", "detached"]


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


class Hosted(Protocol):
    """A session that runs inside the work of another one, as far as that one needs to know it."""

    def post(self, text: str, *, prompt: bool = False) -> str:
        """Queue words for it. Raises `SessionClosedError` when it takes none any more."""
        ...

    def press(self, urgency: Urgency) -> None:
        """The work that it runs in is to end, so urgently. Synchronous, never raises."""
        ...


class WorkContext(Protocol):
    """What any work of a session may do: a call, a task, a resource. Valid while the work lasts."""

    @property
    def work_id(self) -> str:
        """Unique in the session: the call's id, the task's, or the resource's name."""
        ...

    @property
    def call_id(self) -> str:
        """The call that it is, or that started it; empty for a resource."""
        ...

    @property
    def session_id(self) -> str:
        """The session that it is part of."""
        ...

    @property
    def opened(self) -> SessionOpen:
        """How the session was opened: a child session is as durable and as contained."""
        ...

    @property
    def folder(self) -> Path | None:
        """The folder beside the log for files of the session's tasks, which may have to be made (mode 0700); None
        for a log in memory.
        """
        ...

    @property
    def deadline(self) -> float:
        """Trio time by which it must be over; infinite as long as nobody says so."""
        ...

    @property
    def urgency(self) -> Urgency | None:
        """How urgently the work is to end; None while it is not."""
        ...

    async def urgent(self) -> None:
        """Wait until the work is to end *now*: graces are over. May be awaited inside `critical`."""
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
        """Names something that the work holds, while it does, for `turn/stuck` and the times of a cancel."""
        ...

    def survivor(self, kind: Literal["thread", "process"], name: str) -> None:
        """Names something that could not be stopped and is left alive. Said in the log."""
        ...

    def hosting(self, child: Hosted) -> AbstractContextManager[object]:
        """Lists a child session that runs inside the work, while it does. `open_session(within=...)` uses it."""
        ...

    def log_at(self, name: str) -> Any:
        """Where a child session's log with this name is, for `open_session`."""
        ...


class TaskContext(WorkContext, Protocol):
    """What a task may do besides its work."""

    @property
    def log(self) -> str | None:
        """The name of the log of the child session that the task is, if it is one."""
        ...

    @property
    def stopping(self) -> bool:
        """Whether somebody stopped the task. A cancelled task of lifetime *detached* that nobody has stopped lets
        go of its work and leaves it running.
        """
        ...


TaskBody = Callable[[TaskContext], Awaitable[ToolOutput]]
"""The work of a task. The same contract as a tool's `run`: when it has returned or raised, nothing that it started
is alive, unless it is detached. With status `unknown` it says that detached work is lost, and nobody knows how it
ended; with `stopped`, that it was stopped, whoever that was."""


class Tasks(Protocol):
    """The session's background work, for its tools."""

    async def start(
        self,
        name: str,
        body: TaskBody,
        *,
        lifetime: TaskLifetime = "session",
        detail: Mapping[str, Any] | None = None,
        log: str | None = None,
    ) -> str:
        """Begin a task; its id. `name` is the tool's, `detail` what a person or a later opening needs to know of
        it, `log` that of the child session that it is, if it is one.

        Under a cancel nothing begins; else there is no checkpoint in it. The body begins once `task/started` is
        durable. Raises RuntimeError when the session is being left.
        """
        ...

    def running(self) -> Sequence[TaskStarted]:
        """The tasks that run, oldest first."""
        ...

    def begun(self) -> Sequence[TaskStarted]:
        """Every task of the session, whether it runs or not, oldest first."""
        ...

    def known(self, task: str) -> TaskStarted | None:
        """How any task of the session began, whether it runs or not."""
        ...

    def end_of(self, task: str) -> TaskEnded | None:
        """How it ended, if it has."""
        ...

    def stop(self, task: str) -> Answer:
        """Stop one: `applied`, `repeated`, or `stale` where no such task runs. Synchronous."""
        ...

    async def over(self, task: str) -> None:
        """Wait until it has ended. Returns at once for one that does not run."""
        ...

    def say(self, task: str, text: str) -> bool:
        """Give words to the child session that a task is; False where none runs that takes them. Synchronous."""
        ...


class ToolContext(WorkContext, Protocol):
    """What a running call may do besides its work. Valid until `run` returns."""

    @property
    def log(self) -> str | None:
        """The name of the log of its child session, for a tool that opens one (`OpensSession`)."""
        ...

    @property
    def tools(self) -> Mapping[str, "Tool"]:
        """The session's tools by name."""
        ...

    @property
    def tasks(self) -> Tasks:
        """The session's background work."""
        ...

    @property
    def resumed_state(self) -> Any:
        """The last checkpoint of the last call with the same key that did not end `ok`, or None."""
        ...

    def emit(self, text: str, stream: str = "stdout") -> None:
        """Show output. In the log when it returns (256 KiB a call at most; the rest is counted)."""
        ...

    def checkpoint(self, state: Any) -> None:
        """Record progress (any JSON value); a later call with the same key finds it."""
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
class OpensSession(Protocol):
    """A tool that opens a child session. Its `tool/start` names the child's log, so a crash leaves it found."""

    opens_session: Literal[True]


@runtime_checkable
class FindsTasks(Protocol):
    """A tool whose tasks of lifetime *detached* can be found again when the log is opened."""

    def find(self, task: TaskStarted, folder: Path | None) -> TaskBody | None:
        """The body that waits for it, or None when it is not there any more. Synchronous, quick, never raises.

        `folder` is the session's, see `WorkContext`.
        """
        ...


Resource = Callable[[WorkContext], AbstractAsyncContextManager[Iterable[Tool]]]
"""Something that the whole session holds, such as a connection to a server: entered when the session is opened, it
gives tools, and is left after the last turn and the last task, in reverse order. It must be bounded in being left:
what waits there stands in `critical`."""


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


def checked(output: object) -> ToolOutput:
    """What a tool returned, if it keeps the port's contract; what this raises is the tool's failure."""
    if not isinstance(output, ToolOutput):
        raise TypeError(f"it returned {type(output).__name__}, not ToolOutput")
    if not isinstance(output.text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - a tool may be untyped
        raise TypeError(f"the text it returned is {type(output.text).__name__}, not str")
    if output.status is not None and output.status not in get_args(ResultStatus):
        raise ValueError(f"there is no status {output.status!r}")
    return output
