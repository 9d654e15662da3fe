"""Runs a tool's synchronous function in a thread, and waits for it. Starts threads; touches nothing else.

A thread can't be stopped from outside. A cancel asks it (`trio.from_thread.check_cancelled`) and waits; only at
urgency *now*, or when the session's patience is over, is it left behind, and then it is named.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

import trio

from turnkernel.causes import Urgency
from turnkernel.events import SessionOpen
from turnkernel.tool import Answered, Hosted, Tasks, Tool, ToolContext

__all__ = ["ThreadContext", "run_in_thread"]

T = TypeVar("T")


async def run_in_thread(ctx: ToolContext, name: str, call: Callable[[ToolContext], T]) -> T:
    """Run `call` in a thread, with a context that it may use from there; its result, or what it raised.

    Under cancellation the thread's next `trio.from_thread.check_cancelled()` raises `trio.Cancelled`, and it is
    waited for. What it returns or raises all the same is kept: the cancel goes on at the next checkpoint. At
    urgency *now*, or after the session's `thread_grace_seconds`, a thread that is still running is left and named
    with `ctx.survivor`. Its context is over then,
    so that it can't say anything in the log any more.
    """
    work = _Work(ThreadContext(ctx), call)
    thread = f"{name} {ctx.call_id}"
    await trio.lowlevel.checkpoint_if_cancelled()  # past this the thread starts for certain, so `over` will be set
    with ctx.holding("thread", thread):
        try:
            return await trio.to_thread.run_sync(
                work.run,
                trio.lowlevel.current_trio_token(),
                thread_name=thread,
                abandon_on_cancel=True,  # so that we can wait on our own terms
                limiter=trio.CapacityLimiter(1),  # stuck tools must not hold threads that the log needs
            )
        except trio.Cancelled:
            with ctx.critical(f"waiting for the thread of {name}", ctx.thread_grace_seconds):
                await work.over.wait()
            if work.results:
                return work.results[0]
            if work.errors:
                raise work.errors[0] from None
            if not work.is_over:
                ctx.survivor("thread", thread)
            raise


class _Work:
    """One function in one thread. Its fields outlive our waiting for the thread."""

    def __init__(self, context: "ThreadContext", call: Callable[[ToolContext], Any]) -> None:
        self.context = context
        self.over = trio.Event()
        self.is_over = False
        """Like `over`, true a moment earlier."""
        self.results: list[Any] = []
        self.errors: list[Exception] = []
        self._call = call

    def __repr__(self) -> str:
        return f"<_Work {'over' if self.is_over else 'running'}>"

    def run(self, token: trio.lowlevel.TrioToken) -> Any:
        """In the thread."""
        try:
            result = self._call(self.context)
            self.results.append(result)
        except Exception as error:
            self.errors.append(error)
            raise
        finally:
            self.is_over = True
            with suppress(trio.RunFinishedError):  # we were left, and everybody is gone
                token.run_sync_soon(self.over.set)
        return result


class ThreadContext:
    """A `ToolContext` for a thread: each use is made in trio's thread. What would wait is not there."""

    def __init__(self, ctx: ToolContext) -> None:
        self._ctx = ctx

    def __repr__(self) -> str:
        return f"<ThreadContext of {self._ctx.call_id}>"

    @property
    def call_id(self) -> str:
        """See `ToolContext`."""
        return self._ctx.call_id

    @property
    def work_id(self) -> str:
        """See `ToolContext`."""
        return self._ctx.work_id

    @property
    def session_id(self) -> str:
        """See `ToolContext`."""
        return self._ctx.session_id

    @property
    def opened(self) -> SessionOpen:
        """See `ToolContext`."""
        return self._ctx.opened

    @property
    def folder(self) -> Path | None:
        """See `ToolContext`."""
        return self._ctx.folder

    @property
    def deadline(self) -> float:
        """See `ToolContext`."""
        return self._ctx.deadline

    @property
    def tools(self) -> Mapping[str, Tool]:
        """See `ToolContext`."""
        return self._ctx.tools

    @property
    def tasks(self) -> Tasks:
        """Not in a thread: raises RuntimeError."""
        self._refuse("tasks")

    @property
    def log(self) -> str | None:
        """Not in a thread, which can't open a session: raises RuntimeError."""
        self._refuse("log")

    def log_at(self, name: str) -> Any:
        """Not in a thread: raises RuntimeError."""
        self._refuse("log_at")

    def hosting(self, child: Hosted) -> AbstractContextManager[object]:
        """Not in a thread: raises RuntimeError."""
        self._refuse("hosting")

    @property
    def resumed_state(self) -> Any:
        """See `ToolContext`."""
        return self._ctx.resumed_state

    @property
    def urgency(self) -> Urgency | None:
        """See `ToolContext`."""
        return self._ctx.urgency

    def emit(self, text: str, stream: str = "stdout") -> None:
        """See `ToolContext`."""
        trio.from_thread.run_sync(self._ctx.emit, text, stream)

    def checkpoint(self, state: Any) -> None:
        """See `ToolContext`."""
        trio.from_thread.run_sync(self._ctx.checkpoint, state)

    def survivor(self, kind: Literal["thread", "process"], name: str) -> None:
        """See `ToolContext`."""
        trio.from_thread.run_sync(self._ctx.survivor, kind, name)

    def holding(self, kind: Literal["thread", "process"], name: str) -> AbstractContextManager[object]:
        """Not in a thread: raises RuntimeError."""
        self._refuse("holding")

    @property
    def thread_grace_seconds(self) -> float:
        """See `ToolContext`."""
        return self._ctx.thread_grace_seconds

    def critical(self, reason: str, seconds: float, *, now_seconds: float = 0.0) -> AbstractContextManager[object]:
        """Not in a thread, which no cancel can cut: raises RuntimeError."""
        self._refuse("critical")

    async def urgent(self) -> None:
        """Not in a thread: raises RuntimeError."""
        self._refuse("urgent")

    async def ask(self, text: str, options: Sequence[str] = ()) -> Answered:
        """Not in a thread: raises RuntimeError."""
        self._refuse("ask")

    def _refuse(self, what: str) -> NoReturn:
        raise RuntimeError(f"ctx.{what} is for async tools; this one runs in a thread")
