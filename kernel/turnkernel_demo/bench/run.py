"""Runs all measurements, one after the other, in one trio run and a scratch folder that is removed afterwards."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from .calls import measure_calls
from .figures import Figure
from .logs import measure_append, measure_load
from .plan import Runs
from .processes import measure_processes
from .sessions import measure_steps
from .streams import measure_streams
from .timing import Tick

__all__ = ["Told", "run_all"]

Told = Callable[[str, int, int], None]
"""Called with what is measured, how many runs of it are done, and how many there will be."""


async def run_all(runs: Runs, told: Told) -> list[Figure]:
    """Every figure. Cancelled, it ends what it has started and leaves nothing."""
    with TemporaryDirectory(prefix="kernel-demo-bench-") as folder:
        scratch = Path(folder)
        figures: list[Figure] = []
        for what, number, measure in _parts(runs, scratch):
            figures += await measure(_counter(what, number, told))
        return figures


_Measure = Callable[[Tick], Awaitable[list[Figure]]]


def _parts(runs: Runs, scratch: Path) -> Sequence[tuple[str, int, _Measure]]:
    """What is measured: its name, its runs, and how."""
    append = partial(measure_append, runs.appends, scratch)
    steps = partial(measure_steps, runs.steps, runs.short_turns, runs.long_turns)
    calls: list[tuple[str, int, _Measure]] = [
        (f"{number:,} async calls", times, partial(measure_calls, number, times, scratch))
        for number, times in runs.calls
    ]
    return [
        ("a text stream", runs.streams, partial(measure_streams, runs.streams, scratch)),
        *calls,
        ("bash", runs.processes, partial(measure_processes, runs.processes, scratch)),
        ("one append", runs.appends, append),
        ("a step", runs.steps, steps),
        ("loading", runs.loads, partial(measure_load, runs.loads, runs.log_lines, scratch)),
    ]


def _counter(what: str, number: int, told: Told) -> Tick:
    done = -1  # the first run is not counted

    def tick() -> None:
        nonlocal done
        done += 1
        told(what, done, number)

    return tick
