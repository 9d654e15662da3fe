"""The calls of one step: which run when, each in its own trio task, each closed by that task.

The nursery of a step's calls stands inside the turn's, so the turn's authority reaches every one of them. What
is decided here is decided synchronously (`_ready`); the tasks only wait.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import trio

from .background import CallTasks, TaskRecords
from .causes import Answer, Cause
from .context import CallContext, Checkpoints
from .errors import LogFailedError
from .events import ResultStatus, ToolCall, ToolResult, ToolStart
from .faults import apart, errors_of, is_ours, leaves
from .gate import AfterHook, Gate, Refused
from .journal import microseconds
from .kernel import Kernel, LiveCall
from .messages import ToolUse
from .text import clip, is_blank, safe
from .tool import OpensSession, Tool, ToolOutput, checked, resume_key
from .wording import MODEL_OUTPUT_BYTES, CallFacts

__all__ = ["Dispatch", "Folds", "stop_call"]


@attrs.frozen
class Folds:
    """What calls need to know of the log so far."""

    gate: Gate
    checkpoints: Checkpoints = attrs.field(factory=Checkpoints)
    tasks: TaskRecords = attrs.field(factory=TaskRecords)


class Dispatch:
    """Runs the calls of one step.

    Shared calls run together, at most `max_parallel`; an exclusive one runs alone; all are taken up in model
    order. When `run` has returned, every call has its result. When it is cancelled, every call that a trio task
    had taken up has one, and the turn's closers give one to the others.
    """

    def __init__(self, kernel: Kernel, folds: Folds, uses: Sequence[ToolUse]) -> None:
        assert kernel.authority is not None
        self._kernel = kernel
        self._gate = folds.gate
        self._folds = folds
        self._authority = kernel.authority
        self._turn = self._authority.turn
        self._queue = deque(LiveCall(use) for use in uses)
        self._running = 0
        self._exclusive = False
        self._nursery: trio.Nursery | None = None
        kernel.calls.update((live.use.id, live) for live in self._queue)

    async def run(self) -> None:
        """Run them all and wait."""
        try:
            async with trio.open_nursery() as self._nursery:
                self._start_ready(self._nursery)
            await trio.lowlevel.checkpoint_if_cancelled()
        finally:
            self._kernel.calls.clear()

    # ------------------------------------------------------------------------------------------- decisions

    def _start_ready(self, nursery: trio.Nursery) -> None:
        """Start what may start now. Synchronous."""
        while self._queue:
            live = self._queue[0]
            if live.stopped_by is not None:  # cancelled while queued; has its result
                self._queue.popleft()
                continue
            result = self._without_body(live)
            if result is not None:
                self._queue.popleft()
                self._close(result)
                continue
            tool = self._kernel.tools[live.use.name]
            exclusive = tool.concurrency == "exclusive"
            if not self._ready(exclusive):
                return
            self._queue.popleft()
            self._running += 1
            self._exclusive = exclusive
            live.scope = trio.CancelScope()
            nursery.start_soon(self._call, live, tool, nursery, name=f"call {live.use.id}")

    def _ready(self, exclusive: bool) -> bool:
        if self._running == 0:
            return True
        return not (exclusive or self._exclusive) and self._running < self._kernel.settings.max_parallel

    def _without_body(self, live: LiveCall) -> ToolResult | None:
        """The result of a call that can't run at all, or that new words of the user come before."""
        use, wording, kernel = live.use, self._kernel.wording, self._kernel
        if use.raw is not None:
            return self._result(live, "error", wording.bad_input(use.name, use.raw))
        if use.name not in kernel.tools:
            return self._result(live, "error", wording.unknown_tool(use.name, sorted(kernel.tools)))
        if kernel.settings.steer_policy == "skip_unstarted" and kernel.queued("steer"):
            return self._result(live, "not_started", wording.skipped(CallFacts(use.name)))
        return None

    # ---------------------------------------------------------------------------------------- one call

    async def _call(self, live: LiveCall, tool: Tool, nursery: trio.Nursery) -> None:
        """One call from being taken up to its result. Its own closer, because it alone knows how it ended."""
        result: ToolResult | None = None
        assert live.scope is not None
        try:
            with live.scope:
                try:
                    cleared = await self._cleared(live, tool)
                    if isinstance(cleared, Refused):
                        result = self._result(live, cleared.status, cleared.text)
                    else:
                        result = await self._run(live, tool, cleared)
                except trio.Cancelled:
                    # The task is over; `run` asks the cancel itself once its nursery has closed. Letting it out of
                    # every task would have the nursery gather a thousand exceptions with all their frames, which
                    # measured as half the time from the cancel of 1,000 calls to the end of their turn.
                    pass
        finally:
            # No checkpoint since the tool returned (law R6), and none until its result is in the log.
            cut = result is None
            result = result or self._cut(live, tool)
            self._close(result)
        if (cut and not live.scope.cancel_called) or self._cancelled():
            # Nothing more begins: no queued call is looked at, no hook is told.
            return
        self._running -= 1
        self._exclusive = False
        self._start_ready(nursery)
        for hook in self._gate.after:
            await self._after(hook, result)

    async def _cleared(self, live: LiveCall, tool: Tool) -> Mapping[str, Any] | Refused:
        """Everything that comes before the body. Returns with no checkpoint after the last look at the cancel."""
        kernel, use, turn = self._kernel, live.use, self._turn
        # A spawned trio task runs to its first checkpoint even if a cancel came first; so this is the first.
        await trio.lowlevel.checkpoint_if_cancelled()
        kernel.append(ToolCall(turn, use.id, use.name))
        live.phase = "gate"
        cleared = await self._gate.clear(kernel, live)
        if isinstance(cleared, Refused):
            return cleared
        live.phase = "starting"
        await trio.lowlevel.checkpoint_if_cancelled()
        log = kernel.journal.child_name() if isinstance(tool, OpensSession) else None
        kernel.append(ToolStart(turn, use.id, use.name, cleared, tool.effect, log))
        if tool.effect != "read_only":
            await kernel.journal.flush()
        # The last thing before every body: the flush, or the append, may have outlived a cancel.
        await trio.lowlevel.checkpoint_if_cancelled()
        return cleared

    async def _run(self, live: LiveCall, tool: Tool, input: Mapping[str, Any]) -> ToolResult | None:
        """The body and what it returned; None when it was cut."""
        assert live.scope is not None
        live.phase, live.started = "running", trio.current_time()
        if tool.timeout is not None:
            live.scope.deadline = live.started + tool.timeout
        tasks = CallTasks(self._kernel, self._folds.tasks, live.use.id)
        ctx = CallContext(self._kernel, self._authority, live, tasks)
        try:
            key = resume_key(tool, input)
            ctx.resume(key, self._folds.checkpoints.state(tool.name, key))
            output = checked(await tool.run(ctx, input))
        except trio.Cancelled:
            # Caught here already, because every frame that it would unwind costs time; see `_call`.
            return None
        except Exception as error:
            if is_ours(error, self._kernel.journal):
                raise
            return self._raised(live, tool, error)
        except BaseExceptionGroup as group:
            cancelled, rest = apart(group)
            if cancelled is None or rest is None or is_ours(rest, self._kernel.journal):
                raise
            self._note(live, rest)
            raise cancelled from None
        finally:
            ctx.close()
        return self._returned(live, output, tool)

    # ------------------------------------------------------------------------------------------- results

    def _returned(self, live: LiveCall, output: ToolOutput, tool: Tool) -> ToolResult:
        status = output.status or ("error" if output.is_error else "ok")
        text = safe(output.text)
        blank = is_blank(text)
        if status in ("stopped", "timed_out", "dismissed") and blank:
            return self._worded(status, live, tool)
        text = self._kernel.wording.empty() if blank else clip(text, MODEL_OUTPUT_BYTES)
        return self._result(live, status, text, _seconds(live))

    def _raised(self, live: LiveCall, tool: Tool, error: Exception) -> ToolResult:
        """A failure of the body. While it is being stopped it is noted, and does not hide that it was stopped."""
        self._note(live, error)
        return self._worded("error" if self._cause(live) is None else "stopped", live, tool)

    def _note(self, live: LiveCall, error: Exception) -> None:
        shown = "; ".join(f"{type(leaf).__name__}: {safe(str(leaf))}".rstrip(": ") for leaf in leaves(error))
        live.error = shown
        if self._cancelled() or live.stopped_by is not None:
            self._authority.errors += errors_of(error, f"call {live.use.id}")

    def _cut(self, live: LiveCall, tool: Tool) -> ToolResult:
        """The result of a call that a cancel cut, by how far it had come."""
        if self._cause(live) is None and self._cut_from_outside():
            # The first to notice says so, before the results that follow from it.
            self._kernel.cancel(self._kernel.host_cause, keep_inbox=True, urgency=self._kernel.host_urgency)
        return self._worded(self._status_of_cut(live), live, tool)

    def _status_of_cut(self, live: LiveCall) -> ResultStatus:
        assert live.scope is not None
        if self._cause(live) is None and live.scope.cancel_called:
            return "timed_out"  # nobody else cancels it
        if live.asking and live.stopped_by is None:
            return "withdrawn"
        if live.phase != "running":
            return "not_started"
        return "unknown" if live.survived else "stopped"

    def _cut_from_outside(self) -> bool:
        """Whether a scope around the turn is cancelled, and none of the turn's own."""
        ours = (self._authority.nursery, self._nursery)
        own = any(nursery is not None and nursery.cancel_scope.cancel_called for nursery in ours)
        return not own and trio.current_effective_deadline() == -math.inf

    def _cancelled(self) -> bool:
        return self._authority.cause is not None or self._cut_from_outside()

    def _cause(self, live: LiveCall) -> Cause | None:
        return live.stopped_by or self._authority.cause

    def _worded(self, status: ResultStatus, live: LiveCall, tool: Tool) -> ToolResult:
        """A result whose text is the kernel's."""
        call = self._kernel.grammar.calls[live.use.id]
        seconds = _seconds(live)
        facts = CallFacts(
            live.use.name,
            cause=self._cause(live) or self._kernel.host_cause,
            seconds=seconds,
            output=call.output.text() if call.output is not None else "",
            error=live.error,
            effect=tool.effect,
            process=live.process,
            resumable=live.checkpointed,
            alone=live.stopped_by is not None,
        )
        wording = self._kernel.wording
        text = wording.raised(facts) if status == "error" else wording.result(status, facts)
        return self._result(live, status, text, seconds)

    def _result(self, live: LiveCall, status: ResultStatus, text: str, seconds: float | None = None) -> ToolResult:
        is_error = status not in ("ok", "dismissed")
        return ToolResult(self._turn, live.use.id, live.use.name, status, is_error, text, seconds)

    def _close(self, result: ToolResult) -> None:
        del self._kernel.calls[result.call]
        self._kernel.append(result)

    async def _after(self, hook: AfterHook, result: ToolResult) -> None:
        try:
            await hook(result)
        except Exception as error:
            if is_ours(error, self._kernel.journal):
                raise
            # The result stands; the hook's failure is told in turn/end.
            self._authority.errors += errors_of(error, f"after-hook of call {result.call}")


def _seconds(live: LiveCall) -> float | None:
    """How long the body has run; None if it does not."""
    return microseconds(trio.current_time() - live.started) if live.phase == "running" else None


def stop_call(kernel: Kernel, call_id: str, cause: Cause = Cause.USER) -> Answer:
    """Stop one call. Synchronous, never raises. `stale` where it has its result, or never was.

    One that is queued gets its result at once; one that a trio task has taken up gets it from that task.
    """
    live = kernel.calls.get(call_id)
    if live is None:
        return Answer.STALE
    if live.stopped_by is not None:
        return Answer.REPEATED
    live.stopped_by = cause
    if live.scope is not None:
        live.scope.cancel(reason=cause.value)
    else:
        authority = kernel.authority
        assert authority is not None
        facts = CallFacts(live.use.name, cause=cause, alone=True)
        text = kernel.wording.result("not_started", facts)
        del kernel.calls[call_id]
        try:
            kernel.append(ToolResult(authority.turn, call_id, live.use.name, "not_started", True, text))
        except LogFailedError:
            pass  # it will not start all the same; the failure is told by whoever waits on the log
    return Answer.APPLIED
