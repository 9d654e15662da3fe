"""What a person or a program can see of a session: its status, a fold, and who holds a stuck turn. Reads only."""

import sys
import threading
import traceback
from typing import Literal

import attrs
import trio

from .cancel import Authority
from .events import Error, InboxCanceled, Record, TurnEnd, TurnStart
from .grammar import Grammar

__all__ = ["CallStatus", "Status", "StatusFold", "holders_of"]

State = Literal["rest", "streaming", "calling", "asking", "stopping", "stopped"]


@attrs.frozen
class CallStatus:
    """A call that has no result yet."""

    call: str
    name: str
    state: str
    """`asked`, `taken` or `running`."""
    seconds: float | None
    """How long its body has run."""


@attrs.frozen
class Status:
    """What a screen shows (docs/status.md)."""

    state: State
    turn: str | None = None
    calls: tuple[CallStatus, ...] = ()
    asks: tuple[str, ...] = ()
    """Ids of the asks that wait for a person."""
    tasks: tuple[str, ...] = ()
    """Ids of the background tasks that run."""
    queued: int = 0
    """Items that wait for a turn."""
    outcome: str | None = None
    """At rest: how the last turn ended; None where there was none, and while one runs."""
    dropped: tuple[str, ...] = ()
    """With `stopped`: items that its cancel dropped."""
    errors: tuple[Error, ...] = ()
    """At rest: what went wrong in the last turn, whatever its outcome (law R12)."""


class StatusFold:
    """The status of a session, event by event."""

    types = frozenset(("turn/start", "turn/end", "inbox/canceled"))

    def __init__(self) -> None:
        self._ended: TurnEnd | None = None
        self._dropped: list[str] = []

    def apply(self, record: Record) -> None:
        """Take in the next event."""
        match record.event:
            case TurnStart():
                self._ended = None
                self._dropped.clear()
            case TurnEnd() as event:
                self._ended = event
            case InboxCanceled(reason="cancel") as event:
                self._dropped.append(event.item)
            case _:
                pass

    def status(self, grammar: Grammar, now: float) -> Status:
        """The status at `now`, seconds of the log's epoch."""
        tasks, queued = tuple(grammar.tasks), len(grammar.items)
        turn = grammar.turn
        if turn is None:
            return self._at_rest(tasks, queued)
        calls = tuple(
            CallStatus(
                call.use.id, call.use.name, call.state, None if call.started is None else now - call.started
            )
            for call in grammar.calls.values()
        )
        return Status(_state(grammar), turn.id, calls, tuple(grammar.asks), tasks, queued)

    def _at_rest(self, tasks: tuple[str, ...], queued: int) -> Status:
        ended = self._ended
        if ended is None:
            return Status("rest", tasks=tasks, queued=queued)
        if ended.outcome == "completed":
            return Status("rest", tasks=tasks, queued=queued, outcome=ended.outcome, errors=ended.errors)
        dropped = tuple(self._dropped)
        return Status("stopped", ended.turn, (), (), tasks, queued, ended.outcome, dropped, ended.errors)


def _state(grammar: Grammar) -> State:
    assert grammar.turn is not None
    if grammar.turn.state != "running":
        return "stopping"
    if grammar.asks:
        return "asking"
    return "calling" if grammar.calls else "streaming"


def holders_of(authority: Authority, nursery: trio.Nursery) -> tuple[str, ...]:
    """A line for each thing that keeps a cancelled turn from ending: trio tasks, threads, processes.

    Trio tasks with their await stack, threads with their stack, processes as the tool named them.
    """
    lines = [f"trio task {task.name}: {_await_stack(task)}" for task in _innermost(nursery.parent_task)]
    for holder in sorted(authority.holders, key=lambda one: (one.call, one.kind, one.name)):
        stack = f": {_thread_stack(holder.name)}" if holder.kind == "thread" else ""
        lines.append(f"{holder.kind} of {holder.call}: {holder.name}{stack}")
    return tuple(lines)


def _innermost(task: trio.lowlevel.Task) -> list[trio.lowlevel.Task]:
    """The tasks at the ends of a task's tree: those that wait for something else than their children."""
    children = [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    below = [found for child in sorted(children, key=lambda one: one.name) for found in _innermost(child)]
    return below or [task]


def _await_stack(task: trio.lowlevel.Task) -> str:
    """The last places of the code that waits; of trio's own only the outermost, which says for what."""
    frames: list[str] = []
    for frame, number in task.iter_await_frames():
        frames.append(f"{frame.f_code.co_name}:{number}")
        if frame.f_globals.get("__name__", "").startswith("trio."):
            break
    return " > ".join(frames[-6:]) or "not started"


def _thread_stack(name: str) -> str:
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage] - documented, in spite of its name
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if thread.name == name and frame is not None:
            stack = traceback.extract_stack(frame)[-4:]
            return " > ".join(f"{entry.name}:{entry.lineno}" for entry in stack)
    return "its thread is gone"
