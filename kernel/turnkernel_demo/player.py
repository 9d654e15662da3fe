"""The process that a real run plays its session in, because some acts kill it. One life, then it exits.

Reads its job from standard input and tells what happens on standard output. When standard input ends, the run is
gone and so is this: nothing is left of the session. A warden watches over it, and is what the run sees of it.
"""

import faulthandler
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote

import trio

from turnkernel.logfile import make_private
from turnkernel.provider import Provider
from turnkernel.signals import STOPPING, each_signal
from turnkernel.tool import Tool
from turnkernel_tools import containment, standard_tools
from turnkernel_tools.agent import agent_tools

from .frames import Frames, Job, Teller
from .ledger import OVER_LIMIT
from .life import Children, Life, OpenChild, World
from .lives import cut_back
from .played import MODEL
from .processes import descendants_of
from .scenario import ROOT, Scenario
from .stage import gate_of, real_scripts, settings_of
from .stores import BreakableFile, Breaking
from .warden import STUCK, Bounds, split

__all__ = ["main"]

LEAVING_SECONDS = 10.0
"""How long leaving may take once a signal asks for it; what is still there then goes with the process."""

SETTLE_SECONDS = 0.3
"""How long the end of a kernel may take to reach what it has started."""

HELD_SECONDS = 5.0
"""How long it may take besides the grace where something holds what a dead kernel has started, and ends it."""


def main() -> None:
    """Play the job that comes on standard input."""
    # Whatever else writes to standard output must not get between the frames.
    tell = Teller(os.dup(1))
    os.dup2(2, 1)
    job = _read_job()
    split(tell, _bounds(job.scenario))
    # A kernel that hangs outside of trio can't tell who holds it; its stack goes where the run looks then.
    faulthandler.dump_traceback_later(job.seconds + 1.0, file=sys.stderr)
    trio.run(partial(_main, job, tell))


def _bounds(scenario: Scenario) -> Bounds:
    holds = containment(scenario.session.containment) != "group"
    return Bounds(SETTLE_SECONDS, scenario.tools.grace_seconds + HELD_SECONDS if holds else SETTLE_SECONDS, holds)


def _read_job() -> Job:
    frames = Frames()
    while data := os.read(0, 65536):
        for job in frames.feed(data):
            return job
    sys.exit("no job came")


async def _main(job: Job, tell: Teller) -> None:
    if job.scenario.session.recovery == "truncate" and job.carry.life:
        _truncate(job)
    async with _provider(job, ROOT) as provider, trio.open_nursery() as nursery:
        life = Life(job.scenario, job.carry, _world(job, tell, provider))
        trio.lowlevel.add_instrument(life.shields)
        limit = trio.CancelScope(deadline=trio.current_time() + job.seconds)
        nursery.start_soon(_leave_when_stuck, life, limit)
        nursery.start_soon(_leave_when_orphaned, life, limit)
        with each_signal(partial(_signalled, life, limit), *STOPPING):
            await life.run()
        nursery.cancel_scope.cancel()


def _truncate(job: Job) -> None:
    """The recovery that cuts back, for contrast."""
    with job.log.open("r+b") as file:
        file.truncate(cut_back(file.read()).size)


def _world(job: Job, tell: Teller, provider: Provider) -> World:
    scenario = job.scenario
    breaking = Breaking(_die, tell)
    scripts = real_scripts(scenario, job.root)
    scripted = {tool.name for tool in scripts}
    wanted = scenario.session.containment
    standard = standard_tools(
        job.root,
        grace_seconds=scenario.tools.grace_seconds,
        tier=wanted,
        background=scenario.tools.background,
    )
    real = [tool for tool in standard if tool.name not in scripted]

    def agents(provider: Callable[[str], Provider], open_child: OpenChild) -> list[Tool]:
        tools = agent_tools(
            provider=provider,
            gate=lambda: gate_of(scenario),
            settings=settings_of(scenario),
            open_child=open_child,
        )
        return [tool for tool in tools if tool.name not in scripted]

    return World(
        store=BreakableFile.broken(job.log, breaking),
        breaking=breaking,
        provider=provider,
        tools=[*real, *scripts],
        settings=settings_of(scenario),
        gate=gate_of(scenario),
        durability=scenario.session.durability,
        containment=containment(wanted),
        tell=tell,
        die=_die,
        raise_signal=lambda number: os.kill(os.getpid(), number),
        processes=lambda: descendants_of(os.getppid()),
        starters=frozenset((*(tool.name for tool in real), "agent", "send_to_task")),
        children=Children(agents, partial(_provider, job), _child_store),
    )


def _child_store(place: Path, breaking: Breaking) -> BreakableFile:
    make_private(place.parent)
    return BreakableFile.broken(place, breaking)


@asynccontextmanager
async def _provider(job: Job, session: str) -> AsyncGenerator[Provider]:
    """A session's client of the scenario's wire. Only that one is imported: a start costs what is imported."""
    from turnkernel_providers.http import Patience

    scenario = job.scenario
    base_url = job.base_url if session == ROOT else job.childrens_url + quote(session, safe="")
    silence = scenario.session.silence_seconds
    patience = Patience() if silence is None else Patience(silence_seconds=silence)
    if scenario.wire == "anthropic":
        from turnkernel_providers.anthropic import open_anthropic

        async with open_anthropic(MODEL, base_url=base_url, patience=patience) as provider:
            yield provider
    else:
        from turnkernel_providers.openai_chat import open_openai_chat

        async with open_openai_chat(MODEL, base_url=f"{base_url}/v1", patience=patience) as provider:
            yield provider


def _die() -> NoReturn:
    while True:
        os.kill(os.getpid(), signal.SIGKILL)


def _signalled(life: Life, limit: trio.CancelScope, number: int) -> None:
    life.on_signal(number)
    if life.leaving:
        limit.deadline = min(limit.deadline, trio.current_time() + LEAVING_SECONDS)


async def _leave_when_orphaned(life: Life, limit: trio.CancelScope) -> None:
    await trio.lowlevel.wait_readable(0)
    for _ in range(2):  # nobody is left who could wait for a grace
        _signalled(life, limit, signal.SIGTERM)


async def _leave_when_stuck(life: Life, limit: trio.CancelScope) -> None:
    """At the limit: say who holds the session, make that durable, and leave the process with everything in it."""
    with limit:
        await trio.sleep_forever()
    life.stuck(OVER_LIMIT)
    with trio.move_on_after(1.0):
        await life.flush()
    os._exit(STUCK)


if __name__ == "__main__":
    main()
