"""One life of a session that is played: from its opening to its end, or to its death by an act.

Opens the session, lets the users speak, and tells what must be known of it. The same for a real run and a virtual
one; what differs between them is the `World`. Uses trio, and the session's insides where a scripted interrupt
needs what a user of the library does not.
"""

import signal
from collections.abc import Callable, Container, Sequence
from typing import Literal, NoReturn

import attrs
import trio

from turnkernel.errors import LogFailedError
from turnkernel.events import (
    InboxQueued,
    Record,
    ToolStart,
    TurnCancel,
    TurnEnd,
    TurnStart,
    TurnStuck,
    TurnSurvivor,
)
from turnkernel.faults import in_words
from turnkernel.gate import Gate
from turnkernel.journal import Journal
from turnkernel.kernel import Kernel, Receipt, Settings
from turnkernel.observe import holders_of
from turnkernel.provider import Provider
from turnkernel.session import Session, open_session
from turnkernel.store import Store
from turnkernel.testing.laws import Violation
from turnkernel.tool import Tool

from .acting import Acting, acting_journal
from .ledger import Acknowledged, Broken, Carry, Left, Said, Stuck, Tell
from .processes import Process
from .scenario import ROOT, Act, Scenario
from .stores import Breaking
from .verbs import perform
from .witness import Cancels, ShieldWatch, TurnWatch, WitnessedProvider, WitnessedTool, kernel_of

__all__ = ["Life", "World"]

Why = Literal["over", "asked", "close", "signal", "host", "log"]


def _ignore(record: Record) -> None:
    """Nobody wants to know."""


@attrs.frozen(eq=False)
class World:
    """What a life is played in."""

    store: Store
    breaking: Breaking
    """What can be wrong with the store."""
    provider: Provider
    tools: Sequence[Tool]
    settings: Settings
    gate: Gate
    durability: str
    containment: str
    tell: Tell
    die: Callable[[], NoReturn]
    """Ends the kernel at once, as SIGKILL does."""
    raise_signal: Callable[[signal.Signals], None]
    """Brings a signal to `Life.on_signal`."""
    processes: Callable[[], Sequence[Process]]
    """Processes of calls that are alive now."""
    starters: Container[str] = ()
    """Names of the tools that may start some."""
    journal_type: type[Journal] = Journal
    appended: Callable[[Record], None] = _ignore
    """Told of every record, after the acts that were due at it."""


class Life:
    """See the module. `run` is to be called once; the other methods while it runs, from its trio run."""

    def __init__(self, scenario: Scenario, carry: Carry, world: World) -> None:
        self.tell = world.tell
        self.die = world.die
        self.raise_signal = world.raise_signal
        self.breaking = world.breaking
        self.session: Session | None = None
        self.turn_before: str | None = None
        """The last turn that has ended."""
        self.cancels = Cancels(world.tell)
        self.acting = Acting(scenario.acts, carry, self, world.tell, world.breaking)
        self.shields = ShieldWatch(world.tell, lambda: self.seq)
        """To be an instrument of the trio run."""
        self._scenario = scenario
        self._carry = carry
        self._world = world
        self._provider = WitnessedProvider(world.provider)
        self._watch = TurnWatch(self._provider, world.starters, world.processes, world.tell)
        self._nursery: trio.Nursery | None = None
        self._task: trio.lowlevel.Task | None = None
        self._host = trio.CancelScope()
        self._inside = trio.CancelScope()
        self._left_inside = False
        self._host_cancelled = False
        self._why: Why = "over"
        self._interrupts = 0
        self._saying: int | None = None

    def __repr__(self) -> str:
        return f"<Life {self._carry.life} {self._why} {self.session!r}>"

    # ------------------------------------------------------------------------------------------------ the run

    async def run(self) -> None:
        """Play, and tell how it ended. Cancelled, it leaves the session as a host's cancel would."""
        self.acting.start()
        self._task = trio.lowlevel.current_task()
        error: str | None = None
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            # Outside the session, so that no cancel of it reaches them.
            nursery.start_soon(self.acting.run_timers, name="acts")
            nursery.start_soon(self._watch_asks, name="asks")
            try:
                with self._host:
                    await self._play()
            except* LogFailedError:
                self._why = "log"
            except* Exception as group:  # noqa: BLE001 - whatever else leaves the block is what a run looks for
                error = in_words(group)
            nursery.cancel_scope.cancel()
        if self._host_cancelled and not self._host.cancelled_caught:
            self.tell(Broken(Violation("R8", self.seq, "the host's cancel did not go on")))
        self.cancels.tell_milestones()
        self.acting.tell_progress()
        self.tell(Left(self._why, error))

    async def _play(self) -> None:
        """The session's block."""
        world = self._world
        async with open_session(
            world.store,
            provider=self._provider,
            tools=[WitnessedTool(tool, self.tell) for tool in world.tools],
            settings=world.settings,
            gate=world.gate,
            durability=world.durability,
            containment=world.containment,
            journal_type=acting_journal(self.acting, world.journal_type),
        ) as session:
            self.session = session
            ended = [record.event.turn for record in self.acting.loaded if isinstance(record.event, TurnEnd)]
            self.turn_before = self.turn_before or (ended[-1] if ended else None)
            try:
                with self._inside:
                    await self._converse(session)
            finally:
                self._left_inside = True

    async def _converse(self, session: Session) -> None:
        """The users speak, each at rest; then until nothing can happen any more."""
        users = list(enumerate(self._scenario.users))[self._carry.users :]
        left = [(place, user.text) for place, user in users if user.session == ROOT]
        if not left and self._carry.life:
            session.go_on()
        for place, text in left:
            await session.rest()
            self._saying = place
            self.tell(Acknowledged(await session.send(text), text))
        await session.rest()
        while self.acting.waiting or kernel_of(session).grammar.tasks:
            await self.acting.moved.park()
            await session.rest()

    async def _watch_asks(self) -> None:
        """Leaves the block when only an unanswered ask is left."""
        while True:
            await self.acting.moved.park()
            if self.session is not None and not self.acting.waiting and _only_asks(kernel_of(self.session)):
                self.leave("asked")

    # ------------------------------------------------------------------------------------------ for the verbs

    @property
    def seq(self) -> int:
        """Number of the last record."""
        return self.acting.seq

    @property
    def leaving(self) -> bool:
        """Whether the session's block is being left."""
        return self._inside.cancel_called

    @property
    def armed(self) -> bool:
        """Whether the session is open and its block not left: when places count."""
        return self.session is not None and not self._left_inside

    def leave(self, why: Why) -> bool:
        """Leave the session's block, or don't enter it. False if that was done already."""
        if self._left_inside or self._inside.cancel_called:
            return False
        self._why = why
        self._inside.cancel()
        return True

    def host_cancel(self) -> bool:
        """Cancel the scope around the session. False once its block is left."""
        if self._left_inside or self._host_cancelled:
            return False
        self._host_cancelled = True
        self._why = "host"
        self._host.cancel()
        return True

    def on_signal(self, number: int) -> None:
        """As a program that uses the library: SIGINT stops the turn, a second one leaves, as the others do."""
        if number == signal.SIGINT and self.session is not None and not self._interrupts:
            self._interrupts += 1
            self.cancelled(self.session.cancel())
        else:
            self.leave("signal")

    def cancelled(self, receipt: Receipt) -> None:
        """Note a receipt."""
        assert self.session is not None
        self.cancels.answered(receipt, self.seq, kernel_of(self.session).authority)

    def ask_of(self, meant: str) -> str | None:
        """The open ask of that id, or of the call of that id."""
        assert self.session is not None
        asks = kernel_of(self.session).asks
        if meant in asks:
            return meant
        return next((ask for ask, pending in asks.items() if pending.event.call == meant), None)

    def acknowledge(self, item: str, text: str) -> None:
        """Tell, as soon as it is so, that an item is durable."""
        if self._nursery is not None:
            self._nursery.start_soon(self._acknowledge, item, text)

    async def _acknowledge(self, item: str, text: str) -> None:
        try:
            await self.flush()
        except LogFailedError:
            return
        self.tell(Acknowledged(item, text))

    async def flush(self) -> None:
        """`Journal.flush` of a log that is open; of any other nothing."""
        journal = self.acting.journal
        if journal is not None and not journal.closed:
            await journal.flush()

    # ------------------------------------------------------------------------------------------ being stuck

    def stuck(self, why: str) -> None:
        """The run is given up: tell who holds it, and say so in the log where a turn is held."""
        holders = tuple(self._holders())
        self.tell(Stuck(why, holders))
        journal = self.acting.journal
        if journal is None or journal.failure is not None or journal.grammar.turn is None:
            return
        turn = journal.grammar.turn
        if turn.state != "cut":
            journal.append(TurnStuck(turn.id, holders))

    def abandon(self) -> None:
        """Cancel the scope around the session, since the run is given up."""
        self._host.cancel()

    def _holders(self) -> Sequence[str]:
        """A line for each thing that holds the turn, or the session."""
        if self.session is not None and (authority := kernel_of(self.session).authority) is not None:
            return holders_of(authority, authority.nursery)
        assert self._task is not None
        frames = [f"{frame.f_code.co_name}:{number}" for frame, number in self._task.iter_await_frames()]
        return [f"no turn runs; the session's block is at {' > '.join(frames[-6:])}"]

    # -------------------------------------------------------------------------------------------- as an actor

    def act(self, act: Act, record: Record | None) -> str:
        """See `Actor`."""
        return perform(self, act, record)

    def about_to_act(self) -> None:
        """See `Actor`."""
        self.cancels.tell_milestones()

    def seen(self, record: Record) -> None:
        """See `Actor`."""
        self._world.appended(record)

    def see(self, record: Record) -> None:
        """See `Actor`."""
        authority = kernel_of(self.session).authority if self.session is not None else None
        match record.event:
            case InboxQueued() as event if self._saying is not None:
                self.tell(Said(self._saying, event.item))
                self._saying = None
            case TurnStart():
                self._interrupts = 0
                self._watch.turn_started(authority.nursery if authority is not None else None)
            case TurnCancel() as event:
                self.cancels.recorded(record, event, authority)
            case ToolStart() as event:
                self._watch.call_started(event)
            case TurnSurvivor() as event:
                self._watch.survivor(event)
            case TurnEnd() as event:
                self.turn_before = event.turn
                started = trio.current_time()
                self._watch.turn_ended(record, event, self.session)
                self.cancels.discount(event.turn, trio.current_time() - started)
            case _:
                pass


def _only_asks(kernel: Kernel) -> bool:
    """Whether nothing can happen in the running turn unless somebody answers."""
    if kernel.settings.turn_seconds is not None or not kernel.calls:
        return False
    asking = {pending.event.call for pending in kernel.asks.values() if pending.answered is None}
    return bool(asking) and all(
        (call in asking and kernel.tools[live.use.name].timeout is None) or live.scope is None
        for call, live in kernel.calls.items()
    )
