"""What a session tells about itself while it is played, and the account of it. attrs only; touches nothing.

The session may die at any moment, by its own hand: whatever must be known afterwards is told before it is done.
What is told is a small value, made to go through a pipe.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import attrs

from turnkernel.events import InboxQueued, Record
from turnkernel.testing.laws import Violation

from .acts import ActState
from .scenario import ROOT

__all__ = [
    "MILESTONES",
    "NO_MORE",
    "OVER_LIMIT",
    "Acknowledged",
    "Acted",
    "Body",
    "Broken",
    "CancelSeen",
    "Carry",
    "Ledger",
    "Left",
    "Progress",
    "Report",
    "Said",
    "Stuck",
    "Survivor",
    "Synced",
    "Tell",
]

MILESTONES = ("stream_closed", "tasks_gone", "processes_gone", "ended", "durable")
"""What is reached after a cancel, in this order."""


OVER_LIMIT = "it took longer than its limit"
NO_MORE = "nothing can happen any more"


@attrs.frozen
class Progress:
    """How far the acts have come."""

    states: tuple[ActState, ...]


@attrs.frozen
class Acted:
    """An act happens. Told twice: without an answer before, with one after, unless it ended the kernel."""

    act: int
    """Its place in the file, from 0."""
    firing: int
    """From 1."""
    seq: int
    """Number of the last record before it."""
    answer: str | None = None


@attrs.frozen
class CancelSeen:
    """A cancel, of whatever origin. Told again when more of it is known."""

    number: int
    """Which cancel of this life, from 0."""
    turn: str | None
    seq: int
    """Number of its record, or of the last one before a cancel that left none."""
    cause: str
    answer: str
    milestones: Mapping[str, float]
    """Seconds from the cancel, as far as they were reached."""
    one_call: bool = False
    """It was of a call; the turn went on."""
    session: str = ROOT
    """Whose turn."""


@attrs.frozen
class Broken:
    """A law is broken."""

    violation: Violation


@attrs.frozen
class Survivor:
    """A process that is alive and should not be."""

    pid: int
    command: str
    after: str
    """What it outlived: a turn's id, or a task's; `kill` or `limit`, as which the kernel's process ended; `run`,
    its orderly end."""


@attrs.frozen
class Said:
    """A user's words are in the log."""

    user: int
    item: str
    session: str = ROOT


@attrs.frozen
class Acknowledged:
    """The one who queued an item was told that it is durable."""

    item: str
    text: str
    session: str = ROOT


@attrs.frozen
class Body:
    """Something about a tool's body, as the one who called it saw it."""

    call: str
    effect: str
    state: Literal["began", "returned", "raised"]
    detail: str = ""
    """`returned`: the status. `raised`: the exception's type, as the log writes it."""
    session: str = ROOT


@attrs.frozen
class Synced:
    """So many bytes of a log are on the disk."""

    size: int
    session: str = ROOT


@attrs.frozen
class Stuck:
    """The run was given up."""

    why: str
    holders: tuple[str, ...] = ()
    """Who holds it, a line each."""


@attrs.frozen
class Left:
    """The session's block was left in order. The last thing that a life tells."""

    why: Literal["over", "asked", "close", "signal", "host", "log"]
    """Nothing can happen any more; only an ask is left; the acts `close`, `terminate` or `interrupt`, and
    `host_cancel`; the log failed."""
    error: str | None = None
    """What came out of the block, where that is the kernel's fault."""


Report = Progress | Acted | CancelSeen | Broken | Survivor | Said | Acknowledged | Body | Synced | Stuck | Left
Tell = Callable[[Report], None]
"""Takes a report. Synchronous, from any thread; when it returns, the report survives the death of the teller."""


@attrs.frozen
class Carry:
    """What the next life of a session goes on from."""

    life: int = 0
    """How many there were before."""
    acts: tuple[ActState, ...] = ()
    users: frozenset[int] = frozenset()
    """Who has spoken, by their places in the file."""
    clock: float = 0.0
    """Seconds of the run so far."""


@attrs.define
class Ledger:
    """Everything that the lives of one session have told."""

    life: int = 0
    acts: tuple[ActState, ...] = ()
    acted: dict[tuple[int, int], Acted] = attrs.field(factory=dict[tuple[int, int], Acted])
    """By place and firing, in the order in which they happened."""
    cancels: dict[tuple[int, int], CancelSeen] = attrs.field(factory=dict[tuple[int, int], CancelSeen])
    """By life and number."""
    violations: list[Violation] = attrs.field(factory=list[Violation])
    survivors: list[Survivor] = attrs.field(factory=list[Survivor])
    said: list[Said] = attrs.field(factory=list[Said])
    acknowledged: list[Acknowledged] = attrs.field(factory=list[Acknowledged])
    bodies: list[Body] = attrs.field(factory=list[Body])
    synced: dict[str, int] = attrs.field(factory=dict[str, int])
    """By session, how much of its log is on the disk."""
    stuck: Stuck | None = None
    left: Left | None = None
    """How the last life ended; None while it goes on, and for one that was killed."""
    troubles: list[str] = attrs.field(factory=list[str])
    """What went wrong with the run itself, a line each."""

    def take(self, report: Report) -> None:
        """Take in what was told."""
        match report:
            case Progress():
                self.acts = report.states
            case Acted():
                self.acted[report.act, report.firing] = report
            case CancelSeen():
                self.cancels[self.life, report.number] = report
            case Broken():
                self.violations.append(report.violation)
            case Survivor():
                if report.pid not in [one.pid for one in self.survivors]:
                    self.survivors.append(report)
            case Said():
                self.said.append(report)
            case Acknowledged():
                self.acknowledged.append(report)
            case Body():
                self.bodies.append(report)
            case Synced():
                self.synced[report.session] = max(self.synced.get(report.session, 0), report.size)
            case Stuck():
                self.stuck = report
            case Left():
                self.left = report

    def check_kept(self, logs: Mapping[str, Sequence[Record]]) -> list[Violation]:
        """L8: what was acknowledged and is not in its session's log any more. Told once."""
        # By text too: a log that was cut back gives the same ids again.
        kept = {(name, event.item, event.text) for name, records in logs.items() for event in _queued(records)}
        lost = [one for one in self.acknowledged if (one.session, one.item, one.text) not in kept]
        self.acknowledged = [one for one in self.acknowledged if one not in lost]
        return [Violation("L8", 0, f"item {one.item} was acknowledged and is not in the log") for one in lost]

    def next_life(self, logs: Mapping[str, Sequence[Record]], clock: float) -> Carry:
        """Begin another life, on the logs as they are now.

        A user whose words are not in one and were not acknowledged says them again.
        """
        there = {(name, event.item) for name, records in logs.items() for event in _queued(records)}
        there |= {(one.session, one.item) for one in self.acknowledged}
        if self.said and (self.said[-1].session, self.said[-1].item) not in there:
            self.said.pop()
        self.life += 1
        self.left = None
        return Carry(self.life, self.acts, frozenset(one.user for one in self.said), clock)


def _queued(records: Sequence[Record]) -> list[InboxQueued]:
    return [record.event for record in records if isinstance(record.event, InboxQueued)]
