"""Background work: each task in a trio task of its own, closed by that task. Decides and appends; bodies wait.

A task lives in the session's nursery, not in the turn's: a cancel of the turn leaves it alone. `task/ended` is its
one end and its notice at once, so there is exactly one, over a crash too.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import trio

from .causes import Answer, Cause, Urgency
from .context import Work
from .errors import LogFailedError, SessionClosedError
from .events import Record, TaskEnded, TaskStarted
from .faults import apart, errors_of, is_ours
from .kernel import Kernel, LiveTask, Receipt
from .repair import task_end, task_lost, task_words
from .text import safe
from .tool import FindsTasks, TaskBody, TaskLifetime, ToolOutput, checked
from .wording import TaskFacts

__all__ = ["CallTasks", "TaskRecords", "TaskWork", "find_detached", "leave_tasks", "stop_all_tasks", "stop_task"]


_EARLIER = -math.inf
"""When a task began that was found."""


class TaskRecords:
    """How every task began and ended. A fold of the log."""

    types = frozenset(("task/started", "task/ended"))

    def __init__(self) -> None:
        self.started: dict[str, TaskStarted] = {}
        self.ended: dict[str, TaskEnded] = {}

    def apply(self, record: Record) -> None:
        """Take in the next event."""
        event = record.event
        if isinstance(event, TaskStarted):
            self.started[event.task] = event
        elif isinstance(event, TaskEnded):
            self.ended[event.task] = event


class TaskWork(Work):
    """See `tool.TaskContext`, whose promises this keeps."""

    def __init__(self, kernel: Kernel, live: LiveTask) -> None:
        super().__init__(kernel, live, live.started.task, live.started.call)
        self._live = live
        self.log = live.started.log

    @property
    def stopping(self) -> bool:
        """Whether somebody stopped it."""
        return self._live.stopped_by is not None

    def survivor(self, kind: Literal["thread", "process"], name: str) -> None:
        """Told in the task's end: no turn is its own."""
        super().survivor(kind, name)
        self._live.survivors.append(name)


class CallTasks:
    """See `tool.Tasks`, whose promises this keeps, for one call."""

    def __init__(self, kernel: Kernel, records: TaskRecords, call: str) -> None:
        self._kernel = kernel
        self._records = records
        self._call = call

    def __repr__(self) -> str:
        return f"<CallTasks of {self._call}: {len(self._kernel.tasks)} run>"

    async def start(
        self,
        name: str,
        body: TaskBody,
        *,
        lifetime: TaskLifetime = "session",
        detail: Mapping[str, Any] | None = None,
        log: str | None = None,
    ) -> str:
        """Begin a task, unless a cancel has come. No checkpoint between that look and the task."""
        await trio.lowlevel.checkpoint_if_cancelled()
        kernel = self._kernel
        nursery = kernel.tasks_nursery
        if nursery is None:
            raise RuntimeError("the session is being left; no task begins any more")
        live = LiveTask(TaskStarted(f"k{kernel.journal.seq + 1}", self._call, name, lifetime, detail, log))
        task = live.started.task
        kernel.tasks[task] = live
        try:
            kernel.append(live.started)
        except BaseException:
            del kernel.tasks[task]
            raise
        nursery.start_soon(_run, kernel, live, body, name=f"task {task}")
        return task

    def running(self) -> Sequence[TaskStarted]:
        """As the log stands."""
        return tuple(self._kernel.grammar.tasks.values())

    def begun(self) -> Sequence[TaskStarted]:
        """Every one."""
        return tuple(self._records.started.values())

    def known(self, task: str) -> TaskStarted | None:
        """How it began."""
        return self._records.started.get(task)

    def end_of(self, task: str) -> TaskEnded | None:
        """How it ended, if it has."""
        return self._records.ended.get(task)

    def stop(self, task: str) -> Answer:
        """Stop one."""
        return stop_task(self._kernel, task, by_call=self._call).answer

    async def over(self, task: str) -> None:
        """Wait until it has ended."""
        live = self._kernel.tasks.get(task)
        if live is None:
            await trio.lowlevel.checkpoint()
        else:
            await live.over.wait()

    def say(self, task: str, text: str) -> bool:
        """Give words to a child session."""
        child = self._kernel.children.get(task)
        if child is None:
            return False
        try:
            child.post(text)
        except (SessionClosedError, LogFailedError):
            return False
        return True


async def _run(kernel: Kernel, live: LiveTask, body: TaskBody) -> None:
    """One task from its record to its end. Its own closer, because it alone knows how it ended."""
    output: ToolOutput | None = None
    try:
        with live.scope:
            if live.began is None:
                # Intent before effect, as for calls. One that was found runs already: if it is stopped in this
                # very instant its body must see to that.
                await kernel.journal.flush()
                await trio.lowlevel.checkpoint_if_cancelled()
                live.began = trio.current_time()
            output = await _result(kernel, live, body)
    except LogFailedError:
        pass  # kept by the journal; the driver raises it
    finally:
        # No checkpoint since the body returned: a result that is there is kept.
        _end(kernel, live, output)


async def _result(kernel: Kernel, live: LiveTask, body: TaskBody) -> ToolOutput:
    """What the body returned or raised. `trio.Cancelled` passes."""
    work = TaskWork(kernel, live)
    try:
        return checked(await body(work))
    except Exception as error:
        if is_ours(error, kernel.journal):
            raise
        return _failed(error)
    except BaseExceptionGroup as group:
        cancelled, rest = apart(group)
        if rest is None or is_ours(rest, kernel.journal):
            raise
        if cancelled is None:
            return _failed(rest)
        live.error = _words(rest)
        raise cancelled from None
    finally:
        work.close()


def _failed(error: Exception) -> ToolOutput:
    return ToolOutput(_words(error), is_error=True)


def _words(error: Exception) -> str:
    return "; ".join(f"{one.type}: {one.text}" for one in errors_of(error, ""))


def _end(kernel: Kernel, live: LiveTask, output: ToolOutput | None) -> None:
    """Record the end, unless the work goes on without us. Synchronous."""
    started = live.started
    del kernel.tasks[started.task]
    begun = live.began is not None and started.lifetime == "detached"
    goes_on = output is None and begun and live.stopped_by is None
    try:
        if not goes_on and kernel.journal.failure is None and not kernel.journal.closed:
            kernel.append(task_end(started, kernel.wording, _facts(kernel, live, output)))
    except LogFailedError:
        pass  # kept by the journal; the driver raises it
    finally:
        live.over.set()
        kernel.changed.unpark_all()


def _facts(kernel: Kernel, live: LiveTask, output: ToolOutput | None) -> TaskFacts:
    started = live.started
    cause = live.stopped_by
    if output is None and cause is None:
        cause = Cause.SHUTDOWN if kernel.tasks_nursery is None else kernel.host_cause
    return TaskFacts(
        started.task,
        started.name,
        task_words(started),
        _status(output),
        cause=cause,
        by_call=bool(live.by_call),
        seconds=None if live.began in (None, _EARLIER) else trio.current_time() - live.began,
        output=safe(live.error if output is None else output.text),
        survivors=tuple(live.survivors),
    )


def _status(output: ToolOutput | None) -> Literal["ok", "error", "stopped", "lost"]:
    """The body's own word, if it has returned; `unknown` is what it says of work that is lost."""
    match output.status if output is not None else "stopped":
        case "stopped":
            return "stopped"
        case "unknown":
            return "lost"
        case "timed_out":
            return "error"
        case _:
            return "error" if output is not None and output.is_error else "ok"


def stop_task(kernel: Kernel, task: str, cause: Cause = Cause.USER, *, by_call: str = "") -> Receipt:
    """Stop one. Synchronous, never raises. A second time it becomes urgent; `stale` where no such task runs."""
    live = kernel.tasks.get(task)
    going_on = tuple(one for one in kernel.grammar.tasks.values() if one.task != task)
    if live is None:
        return Receipt(Answer.STALE, cause, None, going_on=going_on)
    answer = Answer.APPLIED if live.stopped_by is None else Answer.REPEATED
    if live.stopped_by is None:
        live.stopped_by, live.by_call = cause, by_call
    live.press(Urgency.POLITE if answer is Answer.APPLIED else Urgency.NOW)
    live.scope.cancel(reason=cause.value)
    return Receipt(answer, live.stopped_by, None, going_on=going_on, stopped=(live.started,), tasks=(live,))


def stop_all_tasks(kernel: Kernel, cause: Cause = Cause.USER) -> tuple[LiveTask, ...]:
    """Stop every one; those that were stopped. Synchronous, never raises."""
    stopped = tuple(kernel.tasks.values())
    for live in stopped:
        stop_task(kernel, live.started.task, cause)
    return stopped


def leave_tasks(kernel: Kernel, urgency: Urgency) -> None:
    """The session is being left: tasks of lifetime *session* end, detached ones are let go of. Synchronous."""
    kernel.tasks_nursery = None
    for live in tuple(kernel.tasks.values()):
        live.press(urgency)
        live.scope.cancel(reason="the session's block was left")


def find_detached(kernel: Kernel) -> None:
    """After an opening: wait for the detached tasks of earlier ones, each as its tool finds it. Synchronous.

    What its tool does not find is lost. One whose tool this session does not have is left as it is: nobody can
    tell.
    """
    assert kernel.tasks_nursery is not None
    for started in tuple(kernel.grammar.tasks.values()):
        tool = kernel.tools.get(started.name)
        if not isinstance(tool, FindsTasks):
            continue
        body = tool.find(started, kernel.journal.folder)
        if body is None:
            kernel.append(task_lost(started, kernel.wording))
        else:
            live = kernel.tasks[started.task] = LiveTask(started)
            live.began = _EARLIER
            kernel.tasks_nursery.start_soon(_run, kernel, live, body, name=f"task {started.task}")
