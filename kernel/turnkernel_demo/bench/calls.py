"""From the cancel of N async calls to the end of their turn. Uses trio, and logs in a scratch folder."""

from collections.abc import Mapping
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
from .timing import Samples, Tick, interleaved, median_of, quiet

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


@attrs.frozen
class _Stopped:
    """Seconds from the cancel."""

    returned: float
    """Until `cancel()` had returned."""
    tasks_gone: float
    ended: float
    durable: float


async def _bare(number: int) -> float:
    """N sleepers in a nursery: seconds from its cancel until it has closed."""
    began = 0.0
    with ExitStack() as stack:
        async with trio.open_nursery() as nursery:
            for _ in range(number):
                nursery.start_soon(trio.sleep, _LONG)
            await trio.testing.wait_all_tasks_blocked()
            stack.enter_context(quiet())
            began = trio.current_time()
            nursery.cancel_scope.cancel()
        return trio.current_time() - began


async def _kernel(number: int, scratch: Path, journal_type: type[Journal] = Journal) -> _Stopped:
    """N calls of a session with its log on the disk: when what was reached."""
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
            ClockedJournal.appending = 0.0
            began = trio.current_time()
            receipt = session.cancel()
            returned = trio.current_time() - began
            reached = (await receipt.settled()).milestones
    log.unlink()
    return _Stopped(returned, reached["tasks_gone"], reached["ended"], reached["durable"])


async def _shares(number: int, splits: int, scratch: Path, floor: float) -> list[Share]:
    """Where the time of N calls goes, in runs of their own."""
    stopped: list[_Stopped] = []
    appending: list[float] = []
    for _ in range(splits):
        stopped.append(await _kernel(number, scratch, ClockedJournal))
        appending.append(ClockedJournal.appending)
    closing = median_of(one.ended - one.tasks_gone for one in stopped)
    total, log = median_of(one.ended for one in stopped), median_of(appending)
    rest = total - closing - log - floor
    return [
        Share("trio's own: as much as the bare nursery", floor),
        Share(f"appending {number:,} results, each written by its call", log),
        Share("the closing block: step/end, turn/end and its reminder", closing),
        Share("the rest: a scope per call, wording, making the result", rest),
    ]


async def measure_calls(number: int, runs: int, splits: int, scratch: Path, tick: Tick) -> list[Figure]:
    """The figures of N calls."""
    bare, ours = await interleaved(runs, partial(_bare, number), partial(_kernel, number, scratch), tick)
    floor = Samples(bare)
    title = f"{number:,} async call{'s' if number > 1 else ''}"
    shares = await _shares(number, splits, scratch, floor.median)
    ended = Figure(
        f"calls_{number}_ended",
        f"{title}: turn ended",
        "bare nursery with as many sleepers",
        floor,
        Samples([one.ended for one in ours]),
        _LIMITS.get(number),
        shares=shares,
    )
    durable = attrs.evolve(
        ended,
        key=f"calls_{number}_durable",
        title=f"{title}: durable",
        subject=Samples([one.durable for one in ours]),
        limit=None,
        shares=(),
    )
    return [ended, durable]
