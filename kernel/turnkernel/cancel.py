"""The authority over a running turn, what presses work to end, and the table of shields. Uses trio scopes; knows
no log.

The authority is the nursery's own cancel scope together with the first cause. There is one or none: it is made
when a turn opens its nursery and gone before `turn/end` is appended, so a handle kept from an earlier turn has
nothing left to cancel.
"""

import math
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Literal

import attrs
import trio

from .causes import Answer, Cause, Urgency
from .events import Error

__all__ = ["SHIELDS", "Authority", "Holder", "Pressure", "Settled", "is_listed", "shield"]

SHIELDS = {
    "closing flush": "what a turn or session appended last must reach the disk although everything is cancelled",
    "critical section": "what a tool must not have cut half-way, such as a rename",
    "starting a process": "one that is being started must be known of before anybody goes, or it would be lost",
    "ending a process": "after SIGKILL it must be confirmed that nothing is left, or said what is",
    "watching a stuck turn": "who holds a cancelled turn must be said although the host cancelled the watcher",
    "closing a response": "a connection must be closed although the request was cancelled",
}
"""Every shield there is and why (law R9)."""

_listed: "weakref.WeakSet[trio.CancelScope]" = weakref.WeakSet()


def shield(kind: str, seconds: float, *, outer_deadline: float = math.inf) -> trio.CancelScope:
    """A scope that keeps outer cancels away until an absolute deadline: the only way to make one.

    `kind` is a line of `SHIELDS`. `outer_deadline` is that of the shield around, if any, so that bounds don't
    add up. Not a context manager function, so that `with` and what it swallows stand at the call site. Raises
    ValueError where neither bounds it: a shield without an end is a hang.
    """
    if kind not in SHIELDS:
        raise ValueError(f"no such shield: {kind!r}")
    deadline = min(trio.current_time() + seconds, outer_deadline)
    if not math.isfinite(deadline):
        raise ValueError(f"a shield of {seconds} seconds has no end")
    scope = trio.CancelScope(deadline=deadline, shield=True)
    _listed.add(scope)
    return scope


def is_listed(scope: trio.CancelScope) -> bool:
    """Whether a shield came from `shield`."""
    return scope in _listed


@attrs.frozen(eq=False)
class Holder:
    """Something that a call or other work holds besides its trio task."""

    call: str
    """The call, or the id of the work."""
    kind: Literal["thread", "process"]
    name: str


@attrs.frozen
class Settled:
    """How a cancelled turn came to rest."""

    outcome: str | None
    """The outcome in `turn/end`; None where no turn was running."""
    durable: bool
    """Whether everything of it is as durable as the session's mode promises."""
    milestones: dict[str, float]
    """Seconds from the first cancel to `stream_closed`, `tasks_gone`, `processes_gone`, `ended`, `durable`, as far
    as they happened."""


def _hurry(scope: trio.CancelScope, seconds: float) -> None:
    if seconds:
        scope.deadline = min(scope.deadline, trio.current_time() + seconds)
    else:
        scope.cancel(reason="now")


class Pressure:
    """How urgently some work is to end, and what of it can't end at once. The urgency only rises."""

    def __init__(self) -> None:
        self.urgency: Urgency | None = None
        """None while it is not to end."""
        self.holders: set[Holder] = set()
        self.followers: list[Callable[[Urgency], None]] = []
        """Told of every urgency, in the same step: what runs inside the work. Must not raise."""
        self._urgent = trio.Event()
        self._sections: dict[trio.CancelScope, float] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} urgency={self.urgency!r} holders={len(self.holders)}>"

    def press(self, urgency: Urgency) -> None:
        """Raise the urgency. Synchronous. At *now* the open sections keep what they have for that."""
        if self.urgency is None or urgency > self.urgency:
            self.urgency = urgency
        if self.urgency is Urgency.NOW:
            self._urgent.set()
            for section, seconds in self._sections.items():
                _hurry(section, seconds)
        for follow in self.followers:
            follow(self.urgency)

    async def urgent(self) -> None:
        """Wait until it is to end *now*."""
        await self._urgent.wait()

    @contextmanager
    def section(self, scope: trio.CancelScope, now_seconds: float) -> Generator[None, None, None]:
        """While inside, `scope` has no more than `now_seconds` left once the urgency is *now*."""
        self._sections[scope] = now_seconds
        if self.urgency is Urgency.NOW:
            _hurry(scope, now_seconds)
        try:
            yield
        finally:
            del self._sections[scope]

    @contextmanager
    def holding(self, holder: Holder) -> Generator[None, None, None]:
        """Names something that is alive, while it is."""
        self.holders.add(holder)
        try:
            yield
        finally:
            self.holders.discard(holder)
            self.let_go(holder)

    def let_go(self, holder: Holder) -> None:
        """Told that something is not alive any more."""


class Authority(Pressure):
    """The one right to cancel a running turn, and what the turn's rooms tell each other meanwhile."""

    def __init__(self, turn: str, nursery: trio.Nursery) -> None:
        super().__init__()
        self.turn = turn
        self.cause: Cause | None = None
        """The first one; later ones change nothing."""
        self.cancelled_at = 0.0
        self.milestones: dict[str, float] = {}
        self.errors: list[Error] = []
        """Every error of the turn, for `turn/end`."""
        self.settled = trio.Event()
        self.outcome: Settled | None = None
        self.nursery = nursery

    def __repr__(self) -> str:
        return f"<Authority {self.turn} cause={self.cause} urgency={self.urgency!r} holders={len(self.holders)}>"

    def cancel(self, cause: Cause, urgency: Urgency) -> Answer:
        """Cancel the turn's scope, or raise the urgency if that was done. Synchronous."""
        answer = Answer.REPEATED
        if self.cause is None:
            self.cause = cause
            self.cancelled_at = trio.current_time()
            self.nursery.cancel_scope.cancel(reason=cause.value)
            answer = Answer.APPLIED
        self.press(urgency)
        return answer

    def let_go(self, holder: Holder) -> None:
        """Notes when the last process was gone."""
        if holder.kind == "process" and not any(other.kind == "process" for other in self.holders):
            self.mark("processes_gone")

    def mark(self, milestone: str) -> None:
        """Note when something was reached, counted from the cancel; before a cancel nothing is noted."""
        if self.cause is not None:
            self.milestones[milestone] = trio.current_time() - self.cancelled_at
