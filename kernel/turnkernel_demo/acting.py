"""Makes acts happen in the synchronous step in which their record is appended, or later. Uses trio's clock only.

A journal of its own tells of every append before and after it; the acts that are due are done before the appender
goes on. Whatever an act counts is told before it is done, because it may be the last thing that is.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import attrs
import trio

from turnkernel.events import EVENT_TYPES, Event, Record, SessionOpen
from turnkernel.journal import Journal
from turnkernel.store import Store

from .acts import Schedule
from .ledger import Acted, Carry, Progress, Tell
from .scenario import Act
from .stores import Breaking

__all__ = ["Acting", "Actor", "Ear", "Watcher"]


class Actor(Protocol):
    """Who does the acts."""

    def act(self, act: Act, record: Record | None) -> str:
        """Do it; the answer. Synchronous; never raises, but for dying."""
        ...

    def about_to_act(self) -> None:
        """Tell what must be known if this act is the last."""
        ...


class Watcher(Protocol):
    """Who looks at a log with us."""

    def see(self, record: Record) -> None:
        """Take in a record that was just appended, before any act that is due at it."""
        ...

    def seen(self, record: Record) -> None:
        """The acts that were due at a record have happened."""
        ...


class Acting:
    """The acts of one life of a session and its children."""

    def __init__(self, acts: Sequence[Act], carry: Carry, actor: Actor, tell: Tell) -> None:
        self.moved = trio.lowlevel.ParkingLot()
        """Unparked after every append and every act."""
        self._schedule = Schedule(acts, carry.acts)
        self._clock = carry.clock
        self._started = 0.0
        self._actor = actor
        self._tell = tell
        self._ears: dict[str, Ear] = {}
        self._due: deque[int] = deque()
        self._busy = False

    def __repr__(self) -> str:
        return f"<Acting by {self._schedule!r}>"

    def ear(self, session: str, watcher: Watcher, breaking: Breaking) -> "Ear":
        """From now on the session of that name has this log. What can be wrong with its store is `breaking`."""
        ear = self._ears[session] = Ear(self, session, watcher, breaking)
        return ear

    @property
    def waiting(self) -> bool:
        """Whether an act waits for its time."""
        return self._schedule.next_due is not None

    def now(self) -> float:
        """Seconds of the run."""
        return self._clock + trio.current_time() - self._started

    def start(self) -> None:
        """The life begins now."""
        self._started = trio.current_time()

    def tell_progress(self) -> None:
        """Tell how far the acts have come."""
        self._tell(Progress(tuple(self._schedule.states)))

    async def run_timers(self) -> None:
        """Do the acts with a delay when their time comes. Ends by being cancelled."""
        while True:
            due = self._schedule.next_due
            if due is None:
                await self.moved.park()
                continue
            with trio.move_on_after(max(0.0, due - self.now())):
                await self.moved.park()
            # A sum of floats may fall short of the moment by less than it takes to wait for it.
            while places := self._schedule.due(self.now() + 1e-9):
                self._act(places[0])

    def reach(self, site: int) -> None:
        """A place of a virtual run, where acts may be due."""
        for place in self._schedule.reach(site):
            self._act(place)

    def _act(self, place: int) -> None:
        acted = self._note(place)
        act = self._schedule.acts[place]
        answer = self._actor.act(act, self._schedule.states[place].record)
        self._tell(attrs.evolve(acted, answer=answer))
        self.moved.unpark_all()

    def _note(self, place: int) -> Acted:
        """Tell that an act happens, before it does."""
        state = self._schedule.fire(place, self.now())
        ear = self._ears.get(self._schedule.acts[place].session)
        acted = Acted(place, state.fired, ear.seq if ear is not None else 0)
        self.tell_progress()
        self._actor.about_to_act()
        self._tell(acted)
        return acted

    # ------------------------------------------------------------------------------------- for the journals

    def before_append(self, ear: "Ear", records: Sequence[Record]) -> None:
        """Prepare the death in the middle of a record, where an act says so."""
        torn = self._schedule.torn(records, ear.session)
        if torn is not None:
            place, number = torn
            self._note(place)
            ear.breaking.tear(number, self._schedule.acts[place].bytes or 0)

    def after_append(self, ear: "Ear", records: Sequence[Record]) -> None:
        """Do what is due, in this same synchronous step.

        An act that appends comes back here; what it makes due waits until the acts before it have happened.
        """
        for record in records:
            ear.watcher.see(record)
            self._due += self._schedule.take(record, self.now(), ear.session)
        self.moved.unpark_all()
        if not self._busy:
            self._busy = True
            try:
                while self._due:
                    self._act(self._due.popleft())
            finally:
                self._busy = False
        for record in records:
            ear.watcher.seen(record)


class Ear:
    """What listens to the journal of one session. As a fold of the log it looks at everything."""

    types = frozenset(EVENT_TYPES)

    def __init__(self, acting: Acting, session: str, watcher: Watcher, breaking: Breaking) -> None:
        self.session = session
        """Its name in the scenario."""
        self.watcher = watcher
        self.breaking = breaking
        self.journal: Journal | None = None
        self.loaded: list[Record] = []
        """What was in the log when it was opened."""
        self._acting = acting
        self._fresh: list[Record] = []

    def __repr__(self) -> str:
        return f"<Ear at {self.session} {self.journal!r}>"

    @property
    def seq(self) -> int:
        """Number of the last record."""
        return self.journal.seq if self.journal is not None else 0

    def apply(self, record: Record) -> None:
        """Take in a record, as a fold does: nothing may be appended now."""
        self._fresh.append(record)

    def after_load(self) -> None:
        """What was taken in so far was there before this life."""
        self.loaded, self._fresh = self._fresh, []

    def before_append(self, journal: Journal, events: Sequence[Event]) -> None:
        """See `Acting.before_append`."""
        if journal.failure is not None:
            return
        grammar = journal.grammar
        records = [
            Record(seq, grammar.epoch + isinstance(event, SessionOpen), 0.0, event)
            for seq, event in enumerate(events, grammar.seq + 1)
        ]
        self._acting.before_append(self, records)

    def after_append(self) -> None:
        """See `Acting.after_append`."""
        fresh, self._fresh = self._fresh, []
        self._acting.after_append(self, fresh)

    def journal_type(self, base: type[Journal]) -> type[Journal]:
        """A journal whose appends make acts happen."""
        ear = self

        class ActingJournal(base):
            def __init__(
                self, store: Store, *, durability: str, folds: Any = (), clock: Callable[[], float]
            ) -> None:
                super().__init__(store, durability=durability, folds=(*folds, ear), clock=clock)
                ear.journal = self

            def load(self) -> Any:
                tail = super().load()
                ear.after_load()
                return tail

            @trio.lowlevel.enable_ki_protection
            def append(self, *events: Event) -> None:
                ear.before_append(self, events)
                super().append(*events)
                ear.after_append()

        return ActingJournal
