"""From one life of a session to the next: what a death leaves of the log, and who goes on. Pure."""

from collections.abc import Iterable, Mapping, Sequence

import attrs

from turnkernel.errors import LogDamagedError
from turnkernel.events import (
    PassedOver,
    Record,
    SessionOpen,
    TaskEnded,
    TaskStarted,
    ToolResult,
    ToolStart,
    TurnEnd,
    TurnStart,
)
from turnkernel.journal import read_records
from turnkernel.store import MemoryStore
from turnkernel.testing.laws import Violation, check_append_only

from .ledger import Acted, Carry, Ledger
from .scenario import Scenario
from .truth import check_bodies

__all__ = ["Cut", "Lives", "Logs", "children_of", "containment_of", "cut_back", "detached_of", "records_of"]


def records_of(log: bytes) -> tuple[list[Record], LogDamagedError | None]:
    """The records of a log as far as it can be read, and what stopped the reading."""
    records: list[Record] = []
    try:
        for _, item in read_records(MemoryStore(log)):
            if not isinstance(item, PassedOver):
                records.append(item)
    except LogDamagedError as damage:
        return records, damage
    return records, None


def containment_of(log: bytes) -> str:
    """The containment of processes that the last opening of a log names."""
    events = [record.event for record in records_of(log)[0]]
    return next((event.containment for event in reversed(events) if isinstance(event, SessionOpen)), "none")


@attrs.frozen
class Cut:
    """What a recovery that truncates does to a log."""

    size: int
    """Bytes that are left."""
    records: int
    """How many records go."""
    results: int
    """How many of them are results of calls: finished work."""


def cut_back(log: bytes) -> Cut:
    """Where a recovery that truncates cuts: before the `turn/start` of a turn without an end; else nowhere.

    A torn tail goes with it. For contrast with a recovery that appends.
    """
    size, gone, results = len(log), 0, 0
    in_turn = False
    for offset, item in read_records(MemoryStore(log)):
        if isinstance(item, PassedOver):
            size = min(size, offset)
            break
        if isinstance(item.event, TurnStart):
            in_turn, size, gone, results = True, offset, 0, 0
        gone += in_turn
        results += in_turn and isinstance(item.event, ToolResult)
        if isinstance(item.event, TurnEnd):
            in_turn, size, gone, results = False, len(log), 0, 0
    return Cut(size, gone, results)


Logs = Mapping[str, bytes]
"""Logs by the names of their sessions."""


def children_of(records: Sequence[Record]) -> dict[str, str]:
    """The logs of a session's children, by the names of these: each is called as the call that began it."""
    logs: dict[str, str] = {}
    for record in records:
        match record.event:
            case ToolStart(call=call, log=str(log)) | TaskStarted(call=call, log=str(log)):
                if log not in logs.values():
                    logs[call] = log
            case _:
                pass
    return logs


def detached_of(records: Iterable[Record]) -> set[str]:
    """The detached tasks that run, as far as a log knows."""
    tasks: set[str] = set()
    for record in records:
        match record.event:
            case TaskStarted(task=task, lifetime="detached"):
                tasks.add(task)
            case TaskEnded(task=task):
                tasks.discard(task)
            case _:
                pass
    return tasks


class Lives:
    """The lives of one session and its children: their common account, and what one leaves to the next."""

    def __init__(self, scenario: Scenario) -> None:
        self.ledger = Ledger()
        self._acts = scenario.acts
        self._durability = scenario.session.durability
        self._before: Logs = {}
        """The logs as the last life found them."""
        self._began: set[tuple[str, str]] = set()
        """Calls whose bodies began in earlier lives, each behind its session."""

    def __repr__(self) -> str:
        return f"<Lives {self.ledger.life + 1}>"

    def after(self, logs: Logs, *, died: bool, clock: float) -> tuple[Logs, Carry | None]:
        """What is there of the logs after a life, and what the next goes on from: None where there is none.

        Notes which laws this life has broken. `clock` is in seconds of the run.
        """
        ledger = self.ledger
        for name, log in logs.items():
            ledger.violations += _append_only(self._before.get(name, b""), log)
        power_cut = died and self._last_kill_loses()
        if power_cut:
            logs = {name: log[: ledger.synced.get(name, 0)] for name, log in logs.items()}
        self._before = logs
        records = {name: records_of(log)[0] for name, log in logs.items()}
        promised = self._durability == "power" or (self._durability == "process" and not power_cut)
        lost = ledger.check_kept(records)
        ledger.violations += lost if promised else []
        for name in {body.session for body in ledger.bodies}:
            bodies = [body for body in ledger.bodies if body.session == name]
            ledger.violations += check_bodies(bodies, records.get(name, ()), promised=promised)
        began = {(body.session, body.call) for body in ledger.bodies if body.state == "began"}
        twice = sorted(began & self._began)
        ledger.violations += [Violation("L4", 0, f"the body of {call} ran in two lives") for _, call in twice]
        self._began |= began
        ledger.bodies.clear()
        return logs, ledger.next_life(records, clock) if died or self._goes_on() else None

    def _last_kill_loses(self) -> bool:
        last: Acted | None = next(reversed(self.ledger.acted.values()), None)
        return last is not None and self._acts[last.act].lose == "unflushed"

    def _goes_on(self) -> bool:
        """Whether a log whose block was left in order is opened again."""
        left = self.ledger.left
        if left is None or self.ledger.stuck is not None or left.error is not None:
            return False
        disks = [self._acts[place] for place, _ in self.ledger.acted if self._acts[place].do.startswith("disk_")]
        # On a disk that stays bad another opening would fail as this one did.
        return left.why == "signal" or (left.why == "log" and bool(disks) and not disks[-1].lasting)


def _append_only(before: bytes, after: bytes) -> list[Violation]:
    """L7 between the log that a life found and the one that it left, with how much is gone."""
    found = check_append_only(before, after)
    if not found:
        return []
    kept = set(after.splitlines())
    gone = [line for line in before.splitlines() if line not in kept]
    results = sum(b'"type":"tool/result"' in line for line in gone)
    detail = f"{found[0].detail}: {len(gone)} records are gone, results of calls among them: {results}"
    return [Violation("L7", 0, detail)]
