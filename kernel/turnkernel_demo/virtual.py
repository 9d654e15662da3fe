"""Plays a scenario in memory: scripted model and tools, trio's mock clock, a schedule that follows from a seed.

The same scenario and seed give the same log, but for the session's id and its wall clock.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import attrs
import trio
from trio.lowlevel import Task

from turnkernel.errors import ProviderError
from turnkernel.events import Record
from turnkernel.journal import Journal
from turnkernel.provider import ModelEvent
from turnkernel.testing.replies import Reply, model_events
from turnkernel.testing.scripted import ScriptedProvider
from turnkernel.testing.virtual import Site, run_virtually, where_of
from turnkernel_providers.anthropic_stream import AnthropicDecoder
from turnkernel_providers.context import messages_of
from turnkernel_providers.openai_chat_stream import OpenAIChatDecoder

from .ledger import NO_MORE, OVER_LIMIT, Carry, Report, Stuck
from .life import Life, World
from .lives import Lives, cut_back
from .played import MODEL, Played
from .scenario import ROOT, Scenario
from .stage import gate_of, settings_of, virtual_scripts
from .stores import BreakableMemory, Breaking, Dead

__all__ = ["play_virtually"]

_IDLE = 100
"""Waits without a step between them after which nothing can happen any more."""


def play_virtually(scenario: Scenario, *, seed: int = 0) -> Played:
    """Play it. Blocking; real time is bounded by the scenario's limit."""
    play = _Play(scenario, seed)
    begun = time.monotonic()
    carry: Carry | None = Carry()
    while carry is not None:
        carry = play.one_life(carry, begun + scenario.limit_seconds)
    requests = play.provider.requests
    return Played(
        scenario,
        play.lives.ledger,
        play.log,
        [messages_of(request, scenario.wire, MODEL) for request in requests],
        unmet_requests=play.provider.unmet,
        seconds=time.monotonic() - begun,
    )


class _Play:
    """What outlives the single lives."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        replies = [reply for reply in scenario.replies if reply.session == ROOT]
        says = partial(_says, wire=scenario.wire)
        self.provider = ScriptedProvider(replies, wire=scenario.wire, model=MODEL, events=says)
        self.lives = Lives(scenario)
        self.log = b""
        self.sites: list[Site] = []
        self._scenario = scenario
        self._seed = seed

    def one_life(self, carry: Carry, until: float) -> Carry | None:
        """Play one; what the next goes on from. `until` is by the real clock."""
        scenario, ledger = self._scenario, self.lives.ledger
        if scenario.session.recovery == "truncate" and carry.life:
            self.log = self.log[: cut_back(self.log).size]

        def tell(report: Report) -> None:
            if not breaking.dead:
                ledger.take(report)

        def die() -> NoReturn:
            breaking.dead = True
            raise Dead

        def raise_signal(number: int) -> None:
            trio.lowlevel.current_trio_token().run_sync_soon(life.on_signal, number)

        breaking = Breaking(die, tell)
        store = BreakableMemory(self.log, breaking)
        world = World(
            store=store,
            breaking=breaking,
            provider=self.provider,
            tools=virtual_scripts(scenario, lambda name: None),
            settings=settings_of(scenario),
            gate=gate_of(scenario),
            durability=scenario.session.durability,
            containment="none",
            tell=tell,
            die=die,
            raise_signal=raise_signal,
            processes=lambda: (),
            journal_type=_UnthreadedJournal,
            appended=lambda record: places.appended(record),
        )
        life = Life(scenario, carry, world)
        places = _Places(life, self.sites, until)
        clock = _Clock()
        try:
            run_virtually(clock.run, life, seed=self._seed, instruments=[places, life.shields])
        except trio.TrioInternalError as error:
            ledger.take(Stuck(NO_MORE, (repr(error.__cause__),)))
        except Dead:
            pass
        except BaseExceptionGroup as group:
            if group.split(Dead)[1] is not None:
                raise
        if places.error is not None:
            raise places.error
        self.log, following = self.lives.after(
            store.read(0, store.size), died=breaking.dead, clock=carry.clock + clock.seconds
        )
        return following


def _says(reply: Reply, wire: str) -> Sequence[ModelEvent | ProviderError]:
    """What a reply says; a recorded one is decoded as its wire is."""
    if reply.raw is None:
        return model_events(reply)
    decoder = AnthropicDecoder() if wire == "anthropic" else OpenAIChatDecoder([])
    events: list[ModelEvent | ProviderError] = [*decoder.feed(reply.raw), *decoder.eof()]
    return events if decoder.failure is None else [*events, decoder.failure]


@attrs.define
class _Clock:
    """How long a life took, on the mock clock."""

    seconds: float = 0.0

    async def run(self, life: Life) -> None:
        started = trio.current_time()
        try:
            await life.run()
        finally:
            self.seconds = trio.current_time() - started


class _UnthreadedJournal(Journal):
    """A journal whose syncs take no thread, which would wake from outside."""

    async def _sync(self) -> None:
        self._syncing = True
        upto = self.seq
        try:
            await trio.lowlevel.checkpoint()
            self._sync_in_thread(upto)
        finally:
            self._syncing = False
            self._flushers.unpark_all()


class _Places(trio.abc.Instrument):
    """Counts the sites of a run, does the acts that are due at one, and notices when nothing moves any more.

    trio silently drops a hook that raises, so this one keeps what was raised.
    """

    def __init__(self, life: Life, sites: list[Site], until: float) -> None:
        self.error: Exception | None = None
        self._life = life
        self._sites = sites
        self._until = until
        self._last: Task | None = None
        self._idle = 0
        self._given_up = False

    def before_task_step(self, task: Task) -> None:
        """B."""
        self._idle = 0
        self._last = None
        self._guard(self._step, "B", task)

    def after_task_step(self, task: Task) -> None:
        """Note whose step it was."""
        self._last = task

    def before_io_wait(self, timeout: float) -> None:
        """A; and nobody may have anything to wait for."""
        if self._last is not None:
            self._guard(self._step, "A", self._last)
            self._last = None
        self._idle += 1
        late = time.monotonic() > self._until
        if not self._given_up and (self._idle > _IDLE or late):
            self._given_up = True
            self._guard(self._life.stuck, OVER_LIMIT if late else NO_MORE)
            self._life.abandon()

    def appended(self, record: Record) -> None:
        """E."""
        if self._life.armed:
            self._reach(Site("E", record.event.type, str(record.seq)))

    def _step(self, kind: str, task: Task) -> None:
        if self._life.armed:
            self._reach(Site(kind, task.name.rsplit(".", 1)[-1], where_of(task)))

    def _reach(self, site: Site) -> None:
        self._sites.append(site)
        self._life.acting.reach(len(self._sites) - 1)

    def _guard(self, function: Callable[..., None], *args: Any) -> None:
        try:
            function(*args)
        except Dead:
            self._life.abandon()
        except Exception as error:  # noqa: BLE001 - kept, and raised by who made the run
            self.error = error
            self._life.abandon()
