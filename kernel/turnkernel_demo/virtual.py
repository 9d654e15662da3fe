"""Plays a scenario in memory: scripted model and tools, trio's mock clock, a schedule that follows from a seed.

The same scenario and seed give the same log, but for the session's id and its wall clock.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

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
        sites=play.sites,
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
        self.scenario = scenario
        self.seed = seed

    def one_life(self, carry: Carry, until: float) -> Carry | None:
        """Play one; what the next goes on from. `until` is by the real clock."""
        if self.scenario.session.recovery == "truncate" and carry.life:
            self.log = self.log[: cut_back(self.log).size]
        life = _Life(self, carry, until)
        life.play(self.seed)
        log, died, clock = life.store.read(0, life.store.size), life.breaking.dead, carry.clock + life.seconds
        logs, following = self.lives.after({ROOT: log}, died=died, clock=clock)
        self.log = logs[ROOT]
        return following


class _Life:
    """One life on the virtual clock, and the world that it is played in."""

    def __init__(self, play: _Play, carry: Carry, until: float) -> None:
        self.breaking = Breaking(self._die, self._tell)
        self.store = BreakableMemory(play.log, self.breaking)
        self.seconds = 0.0
        """How long it took."""
        self._ledger = play.lives.ledger
        self._life = Life(play.scenario, carry, self._world(play))
        self._places = _Places(self._life, play.sites, until)

    def __repr__(self) -> str:
        return f"<_Life {self._life!r}>"

    def _world(self, play: _Play) -> World:
        scenario = play.scenario
        return World(
            store=self.store,
            breaking=self.breaking,
            provider=play.provider,
            tools=virtual_scripts(scenario),
            settings=settings_of(scenario),
            gate=gate_of(scenario),
            durability=scenario.session.durability,
            containment="none",
            tell=self._tell,
            die=self._die,
            raise_signal=self._raise_signal,
            processes=lambda: (),
            journal_type=_UnthreadedJournal,
            appended=self._appended,
        )

    def play(self, seed: int) -> None:
        """Play it to its end or death. Raises what the runner itself did wrong."""
        try:
            run_virtually(self._run, seed=seed, instruments=[self._places, self._life.shields])
        except trio.TrioInternalError as error:
            self._ledger.take(Stuck(NO_MORE, (repr(error.__cause__),)))
        except Dead:
            pass
        except BaseExceptionGroup as group:
            if group.split(Dead)[1] is not None:
                raise
        if self._places.error is not None:
            raise self._places.error

    async def _run(self) -> None:
        started = trio.current_time()
        try:
            await self._life.run()
        finally:
            self.seconds = trio.current_time() - started

    def _tell(self, report: Report) -> None:
        if not self.breaking.dead:
            self._ledger.take(report)

    def _die(self) -> NoReturn:
        self.breaking.dead = True
        raise Dead

    def _raise_signal(self, number: int) -> None:
        trio.lowlevel.current_trio_token().run_sync_soon(self._life.on_signal, number)

    def _appended(self, record: Record) -> None:
        self._places.appended(record)


def _says(reply: Reply, wire: str) -> Sequence[ModelEvent | ProviderError]:
    """What a reply says; a recorded one is decoded as its wire is."""
    if reply.raw is None:
        return model_events(reply)
    decoder = AnthropicDecoder() if wire == "anthropic" else OpenAIChatDecoder([])
    events: list[ModelEvent | ProviderError] = [*decoder.feed(reply.raw), *decoder.eof()]
    return events if decoder.failure is None else [*events, decoder.failure]


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
