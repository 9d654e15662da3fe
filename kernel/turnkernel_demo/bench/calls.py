"""From the cancel of N async calls to the end of their turn. Uses trio, and logs in a scratch folder."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio
import trio.testing

from turnkernel import Settings, ToolContext, ToolOutput, open_session
from turnkernel.journal import Journal
from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel.testing.scripted import ScriptedProvider
from turnkernel.tool import Concurrency, Effect

from .clocked import ClockedJournal
from .figures import Figure, Limit, Share
from .timing import Series, Tick, interleaved, quiet

__all__ = ["measure_calls"]

_LONG = 3600.0
_LIMITS: Mapping[int, Limit] = {1: Limit(1.0, 0.5e-3), 1000: Limit(1.5)}


class _Sleeper:
    """A tool that sleeps; `asleep` is set once as many calls as expected do."""

    name = "sleep"
    description = "Sleeps."
    schema: Mapping[str, Any] = {"type": "object"}
    effect: Effect = "read_only"  # so that the start of a thousand does not wait for the disk
    concurrency: Concurrency = "shared"
    timeout = None

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self.asleep = trio.Event()

    async def run(self, ctx: ToolContext, input: Mapping[str, Any]) -> ToolOutput:
        self._expected -= 1
        if not self._expected:
            self.asleep.set()
        await trio.sleep(_LONG)
        return ToolOutput("slept")


async def _bare(number: int) -> Mapping[str, float]:
    """N sleepers in a nursery: from its cancel until it has closed."""
    began = returned = 0.0
    with ExitStack() as stack:
        async with trio.open_nursery() as nursery:
            for _ in range(number):
                nursery.start_soon(trio.sleep, _LONG)
            await trio.testing.wait_all_tasks_blocked()
            stack.enter_context(quiet())
            began = trio.current_time()
            nursery.cancel_scope.cancel()
            returned = trio.current_time()
        return {"returned": returned - began, "ended": trio.current_time() - began}


async def _kernel(number: int, scratch: Path, journal_type: type[Journal] = Journal) -> Mapping[str, float]:
    """N calls of a session with its log on the disk: from the cancel until each milestone."""
    tool = _Sleeper(number)
    asked = [ReplyCall(f"call_{n}", tool.name, {"seconds": _LONG}) for n in range(1, number + 1)]
    log = scratch / "calls.log"
    async with open_session(
        log,
        provider=ScriptedProvider([Reply(calls=asked)]),
        tools=[tool],
        settings=Settings(max_parallel=number),
        journal_type=journal_type,
    ) as session:
        await session.send("Sleep.")
        await tool.asleep.wait()
        await trio.testing.wait_all_tasks_blocked()
        with quiet():
            began = trio.current_time()
            receipt = session.cancel()
            returned = trio.current_time() - began
            ClockedJournal.appending = 0.0
            reached = (await receipt.settled()).milestones
            appending = ClockedJournal.appending
    log.unlink()
    return {**reached, "returned": returned, "appending": appending}


def _shares(number: int, bare: Series, clocked: Series) -> Sequence[Share]:
    """Where the time of N calls goes, from runs with a clock in every append."""
    returning = clocked.median("returned") - bare.median("returned")
    closing = clocked.median("ended") - clocked.median("tasks_gone")
    floor, log = bare.median("ended"), clocked.median("appending")
    rest = clocked.median("ended") - floor - returning - closing - log
    return [
        Share("trio's own, as much as the bare nursery takes", floor),
        Share("cancel() itself, over the bare one: a scope more per call, turn/cancel", returning),
        Share(f"append: {number:,} results, each written by its call", log),
        Share("the closing block: step/end, and turn/end with its reminder", closing),
        Share("the rest: leaving a scope and frames per call, wording, making the result", rest),
    ]


async def measure_calls(number: int, runs: int, scratch: Path, tick: Tick) -> list[Figure]:
    """The figures of N calls."""
    kernel = partial(_kernel, number, scratch)
    bare, ours, clocked = await interleaved(
        runs, tick, partial(_bare, number), kernel, partial(kernel, ClockedJournal)
    )
    title = f"{number:,} async call{'s' if number > 1 else ''}"
    ended = Figure(
        f"calls_{number}_ended",
        f"{title}: turn ended",
        "bare nursery with as many sleepers",
        bare["ended"],
        ours["ended"],
        _LIMITS.get(number),
        shares=_shares(number, bare, clocked),
    )
    durable = attrs.evolve(
        ended,
        key=f"calls_{number}_durable",
        title=f"{title}: durable",
        subject=ours["durable"],
        limit=None,
        shares=(),
    )
    return [ended, durable]
