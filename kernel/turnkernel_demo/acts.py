"""Which acts of a scenario are due, and when. Pure; touches nothing.

What an act has counted and fired outlives the kernel that it may have killed: the state of every act is a value
that the next life of the session goes on from.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import attrs

from turnkernel.codec import event_fields
from turnkernel.events import Record

from .scenario import ROOT, Act

__all__ = ["ActState", "Schedule", "matches"]


@attrs.frozen
class ActState:
    """How far one act has come."""

    seen: int = 0
    """Matches so far."""
    fired: int = 0
    """How often it has happened."""
    due: float | None = None
    """When it happens next, in seconds of the run; None while it waits for its match, and when it is through."""
    record: Record | None = None
    """The record that it matched; None for one that waits for a site."""


def matches(act: Act, record: Record, session: str = ROOT) -> bool:
    """Whether a record of a session is one that the act waits for."""
    if act.on != record.event.type or act.session != session:
        return False
    return all(_field(record, key) == value for key, value in act.where.items())


def _field(record: Record, key: str) -> Any:
    if key in ("seq", "epoch"):
        return getattr(record, key)
    fields: Mapping[str, Any] = event_fields(record.event)
    return fields[key] if key in fields else _plain(getattr(record.event, key, None))


def _plain(value: Any) -> Any:
    """A default, which is left out of the fields, as a file would say it."""
    return list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value


class Schedule:
    """The acts of one life of a session. Each method says which acts happen now, by their places in the file.

    `states` are those that an earlier life left. Times are in seconds of the run.
    """

    def __init__(self, acts: Sequence[Act], states: Sequence[ActState] = ()) -> None:
        self.acts = acts
        self.states = list(states) or [ActState() for _ in acts]

    def __repr__(self) -> str:
        return f"<Schedule of {len(self.acts)} acts, next at {self.next_due}>"

    def take(self, record: Record, now: float, session: str = ROOT) -> list[int]:
        """Take in a record of a session: the acts that happen right after it, in file order.

        Those with a delay are noted.
        """
        at_once: list[int] = []
        for place, act in enumerate(self.acts):
            state = self.states[place]
            if state.seen >= act.nth or not matches(act, record, session):
                continue
            state = self.states[place] = attrs.evolve(state, seen=state.seen + 1)
            if state.seen == act.nth:
                if act.delay is None:
                    at_once.append(place)
                due = None if act.delay is None else now + act.delay
                self.states[place] = attrs.evolve(state, record=record, due=due)
        return at_once

    def reach(self, site: int) -> list[int]:
        """The acts that happen at a site."""
        return [
            place
            for place, act in enumerate(self.acts)
            if act.site == site and not self.states[place].fired and self.states[place].due is None
        ]

    def fire(self, place: int, now: float) -> ActState:
        """Note that an act happens now; its state from here on."""
        act, state = self.acts[place], self.states[place]
        fired = state.fired + 1
        due = now + act.gap if fired < act.times else None
        # A record that was torn was not taken in, and is matched no more.
        state = attrs.evolve(state, fired=fired, due=due, seen=max(state.seen, act.nth))
        self.states[place] = state
        return state

    @property
    def next_due(self) -> float | None:
        """When an act is due next; None if none is."""
        return min((state.due for state in self.states if state.due is not None), default=None)

    def due(self, now: float) -> list[int]:
        """The acts whose time has come: the earliest first, those due together in file order."""
        places = [place for place, state in enumerate(self.states) if state.due is not None and state.due <= now]
        return sorted(places, key=lambda place: (self.states[place].due, place))

    def torn(self, records: Sequence[Record], session: str = ROOT) -> tuple[int, int] | None:
        """Where a write of these records is cut by a `kill` after so many bytes: the act, and which record.

        Nothing is noted: the record is not there yet.
        """
        for place, act in enumerate(self.acts):
            if act.do != "kill" or act.bytes is None or act.delay is not None:
                continue
            left = act.nth - self.states[place].seen
            for number, record in enumerate(records):
                left -= matches(act, record, session)
                if left == 0 and self.states[place].seen < act.nth:
                    return place, number
        return None
