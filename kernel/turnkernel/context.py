"""What running work may do besides its work: the kernel's side of `tool.WorkContext` and `tool.ToolContext`.

Appends what a call shows, lists what work holds, and shields what it must not have cut.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import orjson
import trio

from .cancel import Authority, Holder, Pressure, shield
from .causes import Urgency
from .events import Record, SessionOpen, ToolCheckpoint, ToolResult, TurnSurvivor
from .events import ToolOutput as ToolOutputEvent
from .gate import ask
from .grammar import LOG_OUTPUT_BYTES
from .kernel import Kernel, LiveCall
from .text import Clip, safe
from .tool import Answered, Hosted, Tasks, Tool

__all__ = ["CallContext", "Checkpoints", "Work"]


_HEAD_BYTES = LOG_OUTPUT_BYTES // 2
_THREAD_SECONDS = 24 * 3600.0


class Checkpoints:
    """The last checkpoint of every piece of work that did not end `ok`. A fold of the log."""

    types = frozenset(("tool/checkpoint", "tool/result"))

    def __init__(self) -> None:
        self._states: dict[tuple[str, str], Any] = {}
        self._open: dict[str, tuple[str, str]] = {}

    def apply(self, record: Record) -> None:
        """Take in the next event."""
        event = record.event
        if isinstance(event, ToolCheckpoint):
            self._open[event.call] = (event.name, event.key)
            self._states[event.name, event.key] = event.state
        elif isinstance(event, ToolResult):
            key = self._open.pop(event.call, None)
            if key is not None and event.status == "ok":
                # Gone already where two calls of the same work both left one.
                self._states.pop(key, None)

    def state(self, tool: str, key: str) -> Any:
        """Where the same work got to before, or None."""
        return self._states.get((tool, key))


class Work:
    """See `tool.WorkContext`, whose promises this keeps: what calls, tasks and resources have in common."""

    def __init__(self, kernel: Kernel, pressure: Pressure, work_id: str, call_id: str) -> None:
        self._kernel = kernel
        self._pressure = pressure
        self._open: list[trio.CancelScope] = []
        """The critical sections that are open."""
        self._over = False
        self.work_id = work_id
        self.call_id = call_id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.work_id} {'over' if self._over else 'running'}>"

    def close(self) -> None:
        """The work is over, and nothing more may be said in its name."""
        self._over = True

    def _check(self) -> None:
        if self._over:
            raise RuntimeError(f"{self.work_id} is over; its context can't be used any more")

    @property
    def opened(self) -> SessionOpen:
        """How the session was opened."""
        opened = self._kernel.grammar.opened
        assert opened is not None
        return opened

    @property
    def session_id(self) -> str:
        """The session's."""
        return self.opened.session

    @property
    def folder(self) -> Path | None:
        """The folder beside the log, which may have to be made; None for a log in memory."""
        return self._kernel.journal.folder

    def log_at(self, name: str) -> Any:
        """Where the child's log with this name is."""
        return self._kernel.journal.beside(name)

    @property
    def deadline(self) -> float:
        """The session's, or that of the critical section that ends first."""
        return min([self._kernel.deadline, *(section.deadline for section in self._open)])

    @property
    def urgency(self) -> Urgency | None:
        """How urgently the work is to end; None while it is not."""
        return self._pressure.urgency

    async def urgent(self) -> None:
        """Wait until the work is to end *now*."""
        await self._pressure.urgent()

    @contextmanager
    def critical(
        self, reason: str, seconds: float, *, now_seconds: float = 0.0
    ) -> Generator[trio.CancelScope, None, None]:
        """A bounded shield, listed, that has `now_seconds` left once the urgency is *now*.

        One inside another ends with it at the latest, so that bounds don't add up.
        """
        self._check()
        scope = shield("critical section", seconds, outer_deadline=self.deadline)
        self._open.append(scope)
        try:
            with scope, self._pressure.section(scope, now_seconds):
                yield scope
        finally:
            self._open.remove(scope)

    @property
    def thread_grace_seconds(self) -> float:
        """The session's, or a day: until the urgency is *now*. In a child session not more than its parent's."""
        seconds, within = self._kernel.settings.thread_grace_seconds, self._kernel.within
        own = _THREAD_SECONDS if seconds is None else seconds
        return own if within is None else min(own, within.thread_grace_seconds)

    @contextmanager
    def holding(self, kind: Literal["thread", "process"], name: str) -> Generator[None, None, None]:
        """Lists what the work holds, while it does: what a child session holds, its caller holds."""
        self._check()
        within = self._kernel.within
        with (
            nullcontext() if within is None else within.holding(kind, name),
            self._pressure.holding(Holder(self.work_id, kind, name)),
        ):
            yield

    def survivor(self, kind: Literal["thread", "process"], name: str) -> None:
        """Tells the parent too: what a child session leaves alive, its caller leaves alive."""
        self._check()
        if self._kernel.within is not None:
            self._kernel.within.survivor(kind, name)

    @contextmanager
    def hosting(self, child: Hosted) -> Generator[None, None, None]:
        """Lists a child session, while it runs."""
        self._check()
        if self.work_id in self._kernel.children:
            raise RuntimeError(f"{self.work_id} has a child session already")
        self._kernel.children[self.work_id] = child
        self._pressure.followers.append(child.press)
        try:
            yield
        finally:
            self._pressure.followers.remove(child.press)
            del self._kernel.children[self.work_id]


class CallContext(Work):
    """See `tool.ToolContext`, whose promises this keeps."""

    def __init__(self, kernel: Kernel, authority: Authority, live: LiveCall, tasks: Tasks) -> None:
        super().__init__(kernel, authority, live.use.id, live.use.id)
        self._authority = authority
        self._live = live
        self._key = ""
        self._shown = 0
        self._tail: Clip | None = None
        """What came after the head, once that was full."""
        self._stream = "stdout"
        self.tasks = tasks
        self.resumed_state: Any = None

    def resume(self, key: str, state: Any) -> None:
        """The key of the call's work, and where it got to before."""
        self._key, self.resumed_state = key, state

    def close(self) -> None:
        """The body has returned: the tail of its output is logged, and nothing more may be said in its name."""
        super().close()
        if self._tail is not None and self._tail.total:
            self._kernel.append(
                ToolOutputEvent(self._authority.turn, self.call_id, self._stream, self._tail.text())
            )

    @property
    def log(self) -> str | None:
        """The name of the log of its child session."""
        call = self._kernel.grammar.calls.get(self.call_id)
        return call.log if call is not None else None

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The session's tools by name."""
        return self._kernel.tools

    @property
    def urgency(self) -> Urgency | None:
        """How urgently the call is to end; None while it is not."""
        if self._live.stopped_by is not None and self._authority.urgency is None:
            return Urgency.POLITE
        return self._authority.urgency

    def emit(self, text: str, stream: str = "stdout") -> None:
        """Append `tool/output`: the first 128 KiB of a call as they come, the last 128 KiB when it ends."""
        self._check()
        text = safe(text)
        if not text:
            return
        if self._tail is None:
            data = text.encode()
            head = data[: _HEAD_BYTES - self._shown].decode(errors="ignore")
            text = text[len(head) :]
            self._shown += len(head.encode())
            if text:
                self._tail = Clip(LOG_OUTPUT_BYTES - _HEAD_BYTES)
            if head:
                self._kernel.append(ToolOutputEvent(self._authority.turn, self.call_id, stream, head))
        if self._tail is not None and text:
            self._tail.add(text)
            self._stream = stream

    def checkpoint(self, state: Any) -> None:
        """Append `tool/checkpoint`. Raises TypeError for a state that is no JSON value."""
        self._check()
        state = orjson.loads(orjson.dumps(state))
        self._live.checkpointed = True
        self._kernel.append(
            ToolCheckpoint(self._authority.turn, self.call_id, self._live.use.name, self._key, state)
        )

    @contextmanager
    def holding(self, kind: Literal["thread", "process"], name: str) -> Generator[None, None, None]:
        """Lists what the call holds, while it does."""
        if kind == "process":
            self._live.process = True
        with super().holding(kind, name):
            yield

    def survivor(self, kind: Literal["thread", "process"], name: str) -> None:
        """Append `turn/survivor`; the call's result will be *unknown*."""
        super().survivor(kind, name)
        self._live.survived = True
        self._kernel.append(TurnSurvivor(self._authority.turn, self.call_id, kind, name))

    async def ask(self, text: str, options: Sequence[str] = ()) -> Answered:
        """Ask a person and wait; see `gate.ask`."""
        self._check()
        return await ask(self._kernel, self._live, "question", text, options)
