"""What a virtual run of a sweep costs beside the same program on bare trio. Runs both in turn; writes nothing.

    python benchmarks/virtual_run.py [RUNS]

The program is two turns: words and two calls that run together, the answer; one more prompt and its answer; ten
pieces a message. Bare, the same scripted model streams and the bodies of the same tools run, in a nursery per turn
and per batch of calls, under the same clock and schedule: what is missing is the kernel, its log and its laws.
Both are measured alone, and with every scheduling point named, as a sweep does; ours also as a sweep plays it,
with all laws checked. Times are of the processor.
"""

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import trio

from turnkernel import ToolContext, open_session
from turnkernel.events import Delta
from turnkernel.provider import Finish, Request
from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel.testing.scripted import ScriptedProvider, ScriptedTool
from turnkernel.testing.sweep import Program, play
from turnkernel.testing.virtual import Site, run_virtually, where_of

PIECES = 8
"""Words of a message; with its end and its finish there are ten pieces."""
WORDS = "word " * PIECES
CALLS = [ReplyCall("c1", "slow"), ReplyCall("c2", "fast")]
PROGRAM = Program(
    "two steps",
    [Reply(text=WORDS, calls=CALLS), Reply(text=WORDS)],
    lambda: [
        ScriptedTool("slow", [{"sleep": 2.0}, {"result": "slow"}], effect="read_only"),
        ScriptedTool("fast", [{"sleep": 0.5}, {"result": "fast"}], effect="read_only"),
    ],
    epilogue=(Reply(text=WORDS),),
)


class _Ctx:
    """As much of a call's context as those tools ask for."""

    urgency = None

    def __init__(self, call_id: str) -> None:
        self.call_id = call_id


async def _message(provider: ScriptedProvider) -> list[Delta]:
    said: list[Delta] = []
    async with provider.stream(Request("", (), (), 0)) as events:
        async for event in events:
            if isinstance(event, Finish):
                break
            said.append(event)
    return said


async def _bare() -> None:
    provider = ScriptedProvider([*PROGRAM.replies, *PROGRAM.epilogue])
    tools = {tool.name: tool for tool in PROGRAM.tools()}
    for _ in range(2):
        async with trio.open_nursery():
            while calls := [delta for delta in await _message(provider) if delta.part == "call"]:
                async with trio.open_nursery() as nursery:
                    for call in calls:
                        ctx = cast(ToolContext, _Ctx(call.call or ""))
                        input: Mapping[str, Any] = {}
                        nursery.start_soon(tools[call.name or ""].run, ctx, input)


async def _session() -> None:
    provider = ScriptedProvider([*PROGRAM.replies, *PROGRAM.epilogue])
    async with open_session(None, provider=provider, tools=PROGRAM.tools()) as session:
        for prompt in ("go", "and now?"):
            await session.send(prompt)
            await session.rest()


class _Named(trio.abc.Instrument):
    """Names every scheduling point, as a sweep must."""

    def __init__(self) -> None:
        self.sites: list[Site] = []

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.sites.append(Site("B", task.name, where_of(task)))


def _empty() -> None:
    run_virtually(trio.lowlevel.checkpoint, seed=0)


def _run_bare() -> None:
    run_virtually(_bare, seed=0)


def _name_bare() -> None:
    run_virtually(_bare, seed=0, instruments=[_Named()])


def _run_session() -> None:
    run_virtually(_session, seed=0)


def _name_session() -> None:
    run_virtually(_session, seed=0, instruments=[_Named()])


def _play() -> None:
    run = play(PROGRAM)
    assert not run.violations, run.violations


WAYS: Sequence[tuple[str, Callable[[], None]]] = (
    ("an empty run", _empty),
    ("the program on bare trio", _run_bare),
    ("as a session", _run_session),
    ("bare, every point named", _name_bare),
    ("as a session, every point named", _name_session),
    ("as a sweep plays and checks it", _play),
)


def measured(runs: int) -> dict[str, list[float]]:
    """Milliseconds of each way, turn by turn; the first turn is not counted."""
    found: dict[str, list[float]] = {name: [] for name, _ in WAYS}
    for number in range(runs + 1):
        for name, way in WAYS:
            begun = time.process_time()
            way()
            if number:
                found[name].append(1000 * (time.process_time() - begun))
    return found


def main() -> None:
    """Measure and print."""
    found = measured(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
    bare = found["the program on bare trio"]
    for name, times in found.items():
        median, best = statistics.median(times), min(times)
        print(
            f"{name}: median {median:.2f} ms, {median / statistics.median(bare):.2f} x bare;"
            f" best {best:.2f} ms, {best / min(bare):.2f} x"
        )


if __name__ == "__main__":
    main()
