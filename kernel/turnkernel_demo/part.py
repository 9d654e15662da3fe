"""One session of a life: the root that the users talk to, or a child of it. Looks at its log; waits for nothing.

What is seen of it is held against its log: cancels, what is alive when a turn or task has ended, who has spoken.
"""

from collections import deque
from collections.abc import Callable, Container, Sequence

import attrs
import trio

from turnkernel.errors import LogFailedError, SessionClosedError
from turnkernel.events import (
    InboxQueued,
    Record,
    TaskEnded,
    ToolStart,
    TurnCancel,
    TurnEnd,
    TurnStart,
    TurnSurvivor,
)
from turnkernel.kernel import Kernel, Receipt
from turnkernel.session import Session

from .acting import Acting, Ear
from .ledger import Said, Tell
from .processes import Process
from .scenario import ROOT, User
from .stores import Breaking
from .witness import Cancels, TurnWatch, WitnessedProvider, kernel_of

__all__ = ["Common", "Part"]


@attrs.frozen(eq=False)
class Common:
    """What the sessions of a life have in common."""

    acting: Acting
    cancels: Cancels
    tell: Tell
    starters: Container[str]
    """Names of the tools that may start processes."""
    strays: Callable[[], Sequence[Process]]
    """Processes that are of nothing that still runs."""
    seen: Callable[[Record], None]
    """Told of every record, after the acts that were due at it."""


class Part:
    """See the module. Made before the session is opened; `open` once it is."""

    def __init__(
        self,
        common: Common,
        name: str,
        provider: WitnessedProvider,
        breaking: Breaking,
        users: deque[tuple[int, User]],
    ) -> None:
        self.name = name
        self.provider = provider
        self.breaking = breaking
        self.ear: Ear = common.acting.ear(name, self, breaking)
        self.session: Session | None = None
        """Once it is open, also when it has ended."""
        self.turn_before: str | None = None
        """The last turn that has ended."""
        self.interrupts = 0
        """How many have come in this turn."""
        self.saying: int | None = None
        """The user whose words are queued next."""
        self._common = common
        self._users = users
        self._watch = TurnWatch(provider, common.starters, common.strays, common.tell)

    def __repr__(self) -> str:
        return f"<Part {self.name} {self.session!r}>"

    def open(self, session: Session) -> None:
        """It is open now."""
        self.session = session
        ended = [record.event.turn for record in self.ear.loaded if isinstance(record.event, TurnEnd)]
        self.turn_before = self.turn_before or (ended[-1] if ended else None)

    @property
    def kernel(self) -> Kernel | None:
        """What its rooms share, once it is open."""
        return kernel_of(self.session) if self.session is not None else None

    @property
    def seq(self) -> int:
        """Number of its last record."""
        return self.ear.seq

    def cancelled(self, receipt: Receipt) -> None:
        """Note a receipt."""
        assert self.kernel is not None
        self._common.cancels.answered(receipt, self.seq, self.kernel.authority, self.name)

    def ask_of(self, meant: str) -> str | None:
        """The open ask of that id, or of the call of that id."""
        assert self.kernel is not None
        asks = self.kernel.asks
        if meant in asks:
            return meant
        return next((ask for ask, pending in asks.items() if pending.event.call == meant), None)

    def task_of(self, meant: str) -> str:
        """The task of that id, or that the call of that id has begun last."""
        assert self.kernel is not None
        begun = [task for task, live in self.kernel.tasks.items() if live.started.call == meant]
        return begun[-1] if begun and meant not in self.kernel.tasks else meant

    # -------------------------------------------------------------------------------------------- as a watcher

    def see(self, record: Record) -> None:
        """See `Watcher`."""
        authority = self.kernel.authority if self.kernel is not None else None
        match record.event:
            case InboxQueued() as event if self.saying is not None:
                self._common.tell(Said(self.saying, event.item, self.name))
                self.saying = None
            case TurnStart():
                self.interrupts = 0
                self._watch.turn_started(authority.nursery if authority is not None else None)
            case TurnCancel() as event:
                self._common.cancels.recorded(record, event, authority, self.name)
            case ToolStart() as event:
                self._watch.call_started(event)
            case TurnSurvivor() as event:
                self._watch.survivor(event)
            case TaskEnded() as event:
                self._watch.task_ended(record, event)
            case TurnEnd() as event:
                self.turn_before = event.turn
                started = trio.current_time()
                self._watch.turn_ended(record, event, self.session)
                self._common.cancels.discount(event.turn, trio.current_time() - started, self.name)
            case _:
                pass

    def seen(self, record: Record) -> None:
        """See `Watcher`. At the end of a child's turn its next user speaks: at rest it would be over."""
        if isinstance(record.event, TurnEnd) and self.name != ROOT:
            self._speak()
        self._common.seen(record)

    def _speak(self) -> None:
        kernel = self.kernel
        if not self._users or kernel is None or self.session is None or self._is_being_ended(kernel):
            return
        self.saying, user = self._users.popleft()
        try:
            self.session.post(user.text, prompt=True)
        except (SessionClosedError, LogFailedError):
            self.saying = None

    @staticmethod
    def _is_being_ended(kernel: Kernel) -> bool:
        """Whether its parent's work is: then it takes words and never reads them."""
        within = kernel.within
        return within is not None and within.urgency is not None
