"""How a thing is timed: samples, their middle and their edge, and the state of the collector. Touches gc only."""

import gc
import math
import statistics
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import TypeVar

import attrs

__all__ = ["Samples", "Tick", "interleaved", "median_of", "quiet"]

Tick = Callable[[], None]
"""Called after each run, for whoever waits."""


@attrs.frozen
class Samples:
    """Times of one thing, in seconds."""

    seconds: Sequence[float]

    @property
    def median(self) -> float:
        """The middle one."""
        return median_of(self.seconds)

    @property
    def p95(self) -> float:
        """The one that 95 of 100 do not exceed (nearest rank)."""
        return sorted(self.seconds)[math.ceil(0.95 * len(self.seconds)) - 1]


def median_of(seconds: Iterable[float]) -> float:
    """The middle one."""
    return statistics.median(seconds)


@contextmanager
def quiet() -> Generator[None, None, None]:
    """A stretch to be timed, without the collector, which would come into one run and not into the next.

    Garbage of the runs before is collected first. Floor and subject are treated alike.
    """
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


F = TypeVar("F")
S = TypeVar("S")


async def interleaved(
    runs: int, floor: Callable[[], Awaitable[F]], subject: Callable[[], Awaitable[S]], tick: Tick
) -> tuple[list[F], list[S]]:
    """Both, `runs` times, turn by turn, so that what slows the machine for a while slows both.

    The first run of each is thrown away: it pays for imports and for the first pages of memory. May be cancelled
    anywhere.
    """
    floors: list[F] = []
    subjects: list[S] = []
    for _ in range(runs + 1):
        floors.append(await floor())
        subjects.append(await subject())
        tick()
    return floors[1:], subjects[1:]
