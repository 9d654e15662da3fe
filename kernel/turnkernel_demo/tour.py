"""The tour: the three classic accidents, played for a person. Plays scenarios, follows their logs, shows them.

The accidents happen in programs of their own, over real HTTP and with real processes. What is shown is read back
from their logs: the tour is one more cursor.
"""

import math
import signal
import tempfile
from collections import Counter
from pathlib import Path

import attrs
import click
import trio

from turnkernel.codec import event_fields
from turnkernel.events import ModelDelta, Record, SessionClose

from .builtin import load_builtin
from .lives import containment_of
from .played import Played
from .render import WIDTH
from .report import Result, judge
from .runner import play_for_real
from .scenario import Scenario
from .tail import Tail, writer_of
from .tour_scene import Scene
from .tour_script import ACCIDENTS, CLOSING_WORDS, KILLED, OPENING_WORDS, REMOVED, Accident, Cue, verdict
from .tour_stage import Stage, stage_for

__all__ = ["tour"]

Happening = Record | int | str
"""A record has come, so many have gone, or the program has died (`KILLED`)."""

_LOOK_SECONDS = 0.02
"""Between two looks at a log."""
_RECORD_SECONDS = 0.01
"""Between two records that come at once, where somebody reads along."""
_DRAW_SECONDS = 0.1
"""Between two pictures."""
_VERDICT_SECONDS = 1.6
_OPENING_SECONDS = 1.8


def tour(pace: float = 1.0) -> int:
    """Play it on standard output; the exit code. Ctrl-C, SIGTERM and a hangup leave at once, and leave nothing.

    `pace` stretches the times that a person is given to read, on a terminal; elsewhere there are none.
    """
    stage = stage_for(WIDTH)
    return trio.run(_play_all, stage, pace if stage.paced else 0.0)


async def _play_all(stage: Stage, pace: float) -> int:
    came: list[int] = []
    good = False
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:

            async def leave() -> None:
                async for number in signals:
                    came.append(number)
                    nursery.cancel_scope.cancel()

            nursery.start_soon(leave)
            with stage, tempfile.TemporaryDirectory(prefix="kernel-demo-") as folder:
                good = await _accidents(stage, pace, Path(folder))
            nursery.cancel_scope.cancel()
    if came:
        return 128 + came[0]
    for line in CLOSING_WORDS:
        click.echo(line)
    return 0 if good else 1


async def _accidents(stage: Stage, pace: float, folder: Path) -> bool:
    """Show them one after the other. The next begins while the verdict on the last is being read.

    Where nobody reads along all begin at once: each is in a folder of its own, and knows nothing of the others.
    """
    good: list[bool] = []
    async with trio.open_nursery() as nursery:
        playing = [
            _Playing(stage, pace, Scene(number, len(ACCIDENTS), accident.heading), accident, folder / str(number))
            for number, accident in enumerate(ACCIDENTS, 1)
        ]
        for one in playing[: 1 if pace else None]:
            one.start(nursery)
        stage.begin(playing[0].scene)
        await playing[0].say(OPENING_WORDS, _OPENING_SECONDS)
        for one, following in zip(playing, [*playing[1:], None], strict=True):
            result = await one.show()
            good.append(result.ok)
            if following is not None and pace:
                following.start(nursery)
            stage.end(one.scene, verdict(one.accident, result, one.scene.records))
            await one.hold(_VERDICT_SECONDS)
            if following is not None:
                stage.begin(following.scene)
    return all(good)


class _Playing:
    """One accident that is being played and shown."""

    def __init__(self, stage: Stage, pace: float, scene: Scene, accident: Accident, folder: Path) -> None:
        self.scene, self.accident = scene, accident
        self._stage, self._pace, self._folder = stage, pace, folder
        self._log = folder / "log"
        self._result: Result | None = None
        self._seen: Counter[int] = Counter()
        """By place of the cue: how often its event has been."""
        self._epoch = 0
        self._happens, self._happened = trio.open_memory_channel[Happening](math.inf)
        self._drawn_at = 0.0

    def start(self, nursery: trio.Nursery) -> None:
        """Let it happen, and follow its log from the beginning, whenever it will be shown."""
        nursery.start_soon(self._play, name=self.accident.scenario)
        nursery.start_soon(self._follow, name=f"{self.accident.scenario} followed")

    async def _play(self) -> None:
        root = self._folder / "work"
        root.mkdir(parents=True)
        scenario = _slowed(load_builtin(self.accident.scenario), self._pace)
        self._result = judge(_as_contained(await play_for_real(scenario, log=self._log, root=root)))

    async def _follow(self) -> None:
        tail, alive = Tail(self._log), False
        with self._happens:
            while True:
                over = self._result is not None
                # In this order: what was written before the writer went is then in the change.
                writer = writer_of(self._log)
                change = tail.look()
                if change.removed:
                    self._happens.send_nowait(change.removed)
                for record in change.records:
                    self._happens.send_nowait(record)
                closed = bool(tail.records) and isinstance(tail.records[-1].event, SessionClose)
                if alive and writer is None and not closed and not change.records:
                    self._happens.send_nowait(KILLED)
                alive = writer is not None
                if over and not change.records:
                    return
                await trio.sleep(_LOOK_SECONDS)

    async def show(self) -> Result:
        """Show what happens, from the beginning, until it is over; what came out."""
        while True:
            happened: Happening | None = None
            with trio.move_on_after(_DRAW_SECONDS):
                try:
                    happened = await self._happened.receive()
                except trio.EndOfChannel:
                    break
            match happened:
                case None:
                    self._pass(_DRAW_SECONDS)
                case Record():
                    await self._show(happened)
                case int():
                    await self._removed(happened)
                case str():
                    await self._killed()
        assert self._result is not None
        return self._result

    async def say(self, words: str, seconds: float) -> None:
        """Say it, and give a person time to read."""
        self.scene.caption = words
        await self.hold(seconds)

    async def hold(self, seconds: float) -> None:
        """Wait. The picture is drawn on, since times pass in it."""
        self._draw()
        until = trio.current_time() + seconds * self._pace
        while (wait := min(_DRAW_SECONDS, until - trio.current_time())) > 0:
            await trio.sleep(wait)
            self._pass(wait)
        await trio.lowlevel.checkpoint()

    def _pass(self, seconds: float) -> None:
        self.scene.since += seconds
        if trio.current_time() >= self._drawn_at + _DRAW_SECONDS:
            self._draw()

    def _draw(self) -> None:
        self._stage.changed(self.scene)
        self._drawn_at = trio.current_time()

    async def _show(self, record: Record) -> None:
        if self._epoch and record.epoch > self._epoch:
            await self._killed()
        self._epoch = record.epoch
        self.scene.show(record)
        for place, cue in enumerate(self.accident.cues):
            if cue.at == record.event.type and _fits(cue, record):
                self._seen[place] += 1
                if self._seen[place] == cue.nth:
                    await self.say(cue.words, cue.seconds)
                    return
        if self._pace and isinstance(record.event, ModelDelta):
            self._pass(0.0)  # many come at once, and they make one line
            await trio.lowlevel.checkpoint()
        else:
            await self.hold(_RECORD_SECONDS)

    async def _killed(self) -> None:
        if self.scene.dead:
            return
        self.scene.dead = True
        await self._say_at(KILLED)

    async def _removed(self, count: int) -> None:
        await self._killed()
        self.scene.remove(count)
        await self._say_at(REMOVED)

    async def _say_at(self, place: str) -> None:
        for cue in self.accident.cues:
            if cue.at == place:
                await self.say(cue.words, cue.seconds)


def _fits(cue: Cue, record: Record) -> bool:
    fields = event_fields(record.event)
    return all(fields.get(key) == value for key, value in cue.where.items())


def _as_contained(played: Played) -> Played:
    """Of a kill of the program, no more is expected than its containment can promise (docs/containment.md)."""
    if containment_of(played.log) in ("tree", "namespace"):
        return played
    expect = attrs.evolve(played.scenario.expect, survivors=None)
    return attrs.evolve(played, scenario=attrs.evolve(played.scenario, expect=expect))


def _slowed(scenario: Scenario, pace: float) -> Scenario:
    """The same at a person's speed: the model speaks word by word, and an interrupt lets the caption be read."""
    if not pace:
        return scenario
    return attrs.evolve(
        scenario,
        replies=tuple(attrs.evolve(reply, pace=0.03 * pace) for reply in scenario.replies),
        acts=tuple(attrs.evolve(act, delay=1.0 * pace) for act in scenario.acts),
    )
