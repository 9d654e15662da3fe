"""One life of a session that is played: from its opening to its end, or to its death by an act.

Opens the session, lets the users speak, and tells what must be known of it. The same for a real run and a virtual
one; what differs between them is the `World`. Uses trio, and the session's insides where a scripted interrupt
needs what a user of the library does not.
"""

import signal
from collections import deque
from collections.abc import AsyncGenerator, Callable, Container, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Literal, NoReturn

import attrs
import trio

from turnkernel.errors import LogFailedError, SessionClosedError
from turnkernel.events import Record, TurnStuck
from turnkernel.faults import in_words
from turnkernel.gate import Gate
from turnkernel.journal import Journal
from turnkernel.kernel import Kernel, Settings
from turnkernel.observe import holders_of
from turnkernel.provider import Provider
from turnkernel.repair import task_words
from turnkernel.session import Session, open_session
from turnkernel.store import Store
from turnkernel.testing.laws import Violation
from turnkernel.tool import Tool
from turnkernel_tools.process import new_mark

from .acting import Acting
from .ledger import Acknowledged, Broken, Carry, Left, Stuck, Tell
from .part import Common, Part
from .processes import Process
from .scenario import ROOT, Act, Scenario, User
from .stores import Breaking
from .verbs import perform
from .witness import Cancels, ShieldWatch, WitnessedProvider, WitnessedTool, in_no_call, kernel_of

__all__ = ["Children", "Life", "World"]

Why = Literal["over", "asked", "close", "signal", "host", "log"]
OpenChild = Callable[..., AbstractAsyncContextManager[Session]]


def _ignore(record: Record) -> None:
    """Nobody wants to know."""


@attrs.frozen(eq=False)
class Children:
    """What child sessions are made of."""

    tools: Callable[[Callable[[str], Provider], OpenChild], Sequence[Tool]]
    """The tools that open them: with the provider of a child by its name, and what opens its session."""
    provider: Callable[[str], AbstractAsyncContextManager[Provider]]
    """The model of the child of that name."""
    store: Callable[[Any, Breaking], Store]
    """The log at a place that the parent's work gives."""


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
    children: Children | None = None
    """None: there can't be any."""
    journal_type: type[Journal] = Journal
    appended: Callable[[Record], None] = _ignore
    """Told of every record, after the acts that were due at it."""


class Life:
    """See the module. `run` is to be called once; the other methods while it runs, from its trio run."""

    def __init__(self, scenario: Scenario, carry: Carry, world: World) -> None:
        self.tell = world.tell
        self.die = world.die
        self.raise_signal = world.raise_signal
        self.cancels = Cancels(world.tell)
        self.acting = Acting(scenario.acts, carry, self, world.tell)
        self.shields = ShieldWatch(world.tell, lambda: self.root.seq)
        """To be an instrument of the trio run."""
        self._scenario = scenario
        self._carry = carry
        self._world = world
        self._common = Common(
            self.acting,
            self.cancels,
            world.tell,
            world.starters,
            self._strays,
            lambda record: world.appended(record),
        )
        self._users: dict[str, deque[tuple[int, User]]] = {}
        for place, user in enumerate(scenario.users):
            if place not in carry.users:
                self._users.setdefault(user.session, deque()).append((place, user))
        self.root = Part(self._common, ROOT, WitnessedProvider(world.provider), world.breaking, deque())
        self.parts: dict[str, Part] = {ROOT: self.root}
        """Every session that was open in this life, by its name."""
        self._nursery: trio.Nursery | None = None
        self._task: trio.lowlevel.Task | None = None
        self._host = trio.CancelScope()
        self._inside = trio.CancelScope()
        self._left_inside = False
        self._host_cancelled = False
        self._why: Why = "over"
        self._winding_down = False

    def __repr__(self) -> str:
        return f"<Life {self._carry.life} {self._why} {list(self.parts.values())}>"

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
            self.tell(Broken(Violation("R8", self.root.seq, "the host's cancel did not go on")))
        self.cancels.tell_milestones()
        self.acting.tell_progress()
        self.tell(Left(self._why, error))

    async def _play(self) -> None:
        """The session's block."""
        world = self._world
        more = () if world.children is None else world.children.tools(_Named, self.open_child)
        async with open_session(
            world.store,
            provider=self.root.provider,
            tools=[WitnessedTool(tool, self.tell) for tool in (*world.tools, *more)],
            settings=world.settings,
            gate=world.gate,
            durability=world.durability,
            containment=world.containment,
            journal_type=self.root.ear.journal_type(world.journal_type),
        ) as session:
            self.root.open(session)
            try:
                with self._inside:
                    await self._converse_until_told(session)
            finally:
                self._left_inside = True

    async def _converse_until_told(self, session: Session) -> None:
        """`_converse`; once it is told to go, the users say no more, and what runs is waited for."""
        try:
            await self._converse(session)
        except SessionClosedError:
            if not self._winding_down:
                raise
        if self._winding_down:
            await trio.sleep_forever()

    async def _converse(self, session: Session) -> None:
        """The users speak, each at rest; then until nothing can happen any more."""
        left = self._users.pop(ROOT, deque())
        if not left and self._carry.life:
            session.go_on()
        for place, user in left:
            await session.rest()
            self.root.saying = place
            self.tell(Acknowledged(await session.send(user.text), user.text))
        await session.rest()
        while self.acting.waiting or kernel_of(session).tasks:
            self._leave_if_only_asks()
            await self.acting.moved.park()
            await session.rest()

    @asynccontextmanager
    async def open_child(
        self, place: Any, *, provider: "_Named", tools: Sequence[Tool], **opening: Any
    ) -> AsyncGenerator[Session]:
        """Open a child session, watched as the root is; otherwise as `open_session`."""
        children = self._world.children
        assert children is not None
        with in_no_call():
            async with self._open_child(children, place, provider, tools, opening) as child:
                yield child

    @asynccontextmanager
    async def _open_child(
        self, children: Children, place: Any, provider: "_Named", tools: Sequence[Tool], opening: dict[str, Any]
    ) -> AsyncGenerator[Session]:
        async with children.provider(provider.name) as model:
            breaking = Breaking(self.die, self.tell, provider.name)
            users = self._users.setdefault(provider.name, deque())
            part = Part(self._common, provider.name, WitnessedProvider(model), breaking, users)
            self.parts[provider.name] = part
            async with open_session(
                children.store(place, breaking),
                provider=part.provider,
                tools=[one.within(part.name) if isinstance(one, WitnessedTool) else one for one in tools],
                journal_type=part.ear.journal_type(self._world.journal_type),
                **opening,
            ) as child:
                part.open(child)
                yield child

    def _strays(self) -> Sequence[Process]:
        """Processes that are of no task that the logs know as running, and of no call that runs."""
        works = (
            work
            for part in self.parts.values()
            if (kernel := part.kernel) is not None
            for work in (*kernel.calls, *kernel.grammar.tasks)
        )
        running = {new_mark(work).rpartition(".")[0] for work in works}
        return [one for one in self._world.processes() if one.work not in running]

    async def _watch_asks(self) -> None:
        """Leaves the block when only an unanswered ask of a running turn is left."""
        while True:
            await self.acting.moved.park()
            if self.root.kernel is not None and self.root.kernel.authority is not None:
                self._leave_if_only_asks()

    def _leave_if_only_asks(self) -> None:
        kernel = self.root.kernel
        if kernel is not None and not self.acting.waiting and _only_asks(kernel):
            self.leave("asked")

    # ------------------------------------------------------------------------------------------ for the verbs

    @property
    def leaving(self) -> bool:
        """Whether the session's block is being left."""
        return self._inside.cancel_called

    @property
    def armed(self) -> bool:
        """Whether the session is open and its block not left: when places count."""
        return self.root.session is not None and not self._left_inside

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
        """As `turnkernel.signals.stop_on_signals`, but every cancel is noted: SIGINT stops the turn, a second one
        leaves; the others wind down, and leave then; a second one leaves at once.
        """
        session = self.root.session
        if session is None or self._winding_down or (number == signal.SIGINT and self.root.interrupts):
            self.leave("signal")
        elif number == signal.SIGINT:
            self.root.interrupts += 1
            self.root.cancelled(session.cancel())
        elif self._nursery is not None:
            self._winding_down = True
            self._nursery.start_soon(self._wind_down, session, name="winding down")

    async def _wind_down(self, session: Session) -> None:
        await session.wind_down()
        self.leave("signal")

    def acknowledge(self, part: Part, item: str, text: str) -> None:
        """Tell, as soon as it is so, that an item is durable."""
        if self._nursery is not None:
            self._nursery.start_soon(self._acknowledge, part, item, text)

    async def _acknowledge(self, part: Part, item: str, text: str) -> None:
        try:
            await _flush(part)
        except LogFailedError:
            return
        self.tell(Acknowledged(item, text, part.name))

    async def flush(self) -> None:
        """`Journal.flush` of the logs that are open."""
        for part in self.parts.values():
            await _flush(part)

    # ------------------------------------------------------------------------------------------ being stuck

    def stuck(self, why: str) -> None:
        """The run is given up: tell who holds it, and say so in the log where a turn is held."""
        holders = tuple(self._holders())
        self.tell(Stuck(why, holders))
        journal = self.root.ear.journal
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
        kernel = self.root.kernel
        if kernel is not None and kernel.authority is not None:
            return holders_of(kernel.authority, kernel.authority.nursery)
        assert self._task is not None
        frames = [f"{frame.f_code.co_name}:{number}" for frame, number in self._task.iter_await_frames()]
        tasks = [live.started for live in kernel.tasks.values()] if kernel is not None else []
        return [
            f"no turn runs; the session's block is at {' > '.join(frames[-6:])}",
            *(f"task {task.task} runs: {task.name} {task_words(task)}" for task in tasks),
        ]

    # -------------------------------------------------------------------------------------------- as an actor

    def act(self, act: Act, record: Record | None) -> str:
        """See `Actor`."""
        return perform(self, act, record)

    def about_to_act(self) -> None:
        """See `Actor`."""
        self.cancels.tell_milestones()


@attrs.frozen
class _Named:
    """Stands for the model of a child session, until that is opened and its model with it."""

    name: str
    wire: str = ""
    model: str = ""

    def stream(self, request: Any) -> NoReturn:
        """Nobody asks it."""
        raise NotImplementedError


async def _flush(part: Part) -> None:
    journal = part.ear.journal
    if journal is not None and not journal.closed:
        await journal.flush()


def _only_asks(kernel: Kernel) -> bool:
    """Whether nothing can happen in a session unless somebody answers: in its turn, its tasks and its children."""
    if kernel.authority is None and not kernel.tasks:
        return False
    if kernel.authority is not None and (kernel.settings.turn_seconds is not None or not kernel.calls):
        return False
    asking = {pending.event.call for pending in kernel.asks.values() if pending.answered is None}
    calls = {
        call: (call in asking and kernel.tools[live.use.name].timeout is None) or _asks_below(kernel, call)
        for call, live in kernel.calls.items()
        if live.scope is not None
    }
    return (
        all(calls.values())
        and all(_asks_below(kernel, task) for task in kernel.tasks)
        and bool(calls or kernel.tasks)
    )


def _asks_below(kernel: Kernel, work: str) -> bool:
    """Whether a call or task is a child session in which that is so."""
    child = kernel.children.get(work)
    return isinstance(child, Session) and _only_asks(kernel_of(child))
