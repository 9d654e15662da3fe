"""How a thing is timed: samples, their middle and their edge, and the state of the collector. Touches gc only."""

import gc
import math
import statistics
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager

import attrs

__all__ = ["Run", "Samples", "Series", "Tick", "interleaved", "quiet"]

Run = Callable[[], Awaitable[Mapping[str, float]]]
"""Does a thing once; the seconds that its parts took, by name."""
Tick = Callable[[], None]
"""Called after each turn of runs, for whoever waits."""


@attrs.frozen
class Samples:
    """Times of one thing, in seconds."""

    seconds: Sequence[float]

    @property
    def best(self) -> float:
        """The shortest: what the machine can do when it does nothing else."""
        return min(self.seconds)

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.seconds)

    @property
    def p95(self) -> float:
        """The one that 95 of 100 do not exceed (nearest rank)."""
        return sorted(self.seconds)[math.ceil(0.95 * len(self.seconds)) - 1]


@attrs.frozen
class Series:
    """What the runs of one thing gave."""

    runs: Sequence[Mapping[str, float]]

    def __getitem__(self, name: str) -> Samples:
        return Samples([run[name] for run in self.runs])

    def median(self, name: str) -> float:
        """The middle of one of its parts, in seconds."""
        return self[name].median


@contextmanager
def quiet() -> Generator[None, None, None]:
    """A stretch to be timed, without the collector, which would come into one run and not into the next.

    Garbage of the runs before is collected first. Floors and subjects are treated alike.
    """
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def interleaved(number: int, tick: Tick, *runs: Run) -> list[Series]:
    """Each of `runs`, `number` times, turn by turn, so that what slows the machine for a while slows all of them.

    The first turn is thrown away: it pays for imports and the first pages of memory. May be cancelled anywhere.
    """
    found: list[list[Mapping[str, float]]] = [[] for _ in runs]
    for turn in range(number + 1):
        for run, into in zip(runs, found, strict=True):
            times = await run()
            if turn:
                into.append(times)
        tick()
    return [Series(one) for one in found]
