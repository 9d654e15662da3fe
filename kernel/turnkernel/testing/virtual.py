"""A trio run on a virtual clock, with a schedule that follows from a seed.

The same function and seed take the same steps. Uses trio's private scheduling switches, guarded by
`tests/kernel/test_sweep.py`. Not for runs with worker threads, processes or sockets: what wakes from outside is
in nobody's hand.
"""

import gc
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import attrs
import trio
import trio.testing

__all__ = ["Livelock", "Site", "run_virtually", "where_of"]

_MOST_IDLE = 1000


class Livelock(BaseException):
    """Everybody is blocked and no deadline is left: the run would spin for ever under a virtual clock."""


@attrs.frozen
class Site:
    """One place where a cancel can strike."""

    kind: str
    """`A`, `B` or `E`; see `sweep`."""
    task: str
    """The trio task; for E the event's type."""
    where: str
    """Innermost await of the task, function and line; for E the event's number."""

    def __str__(self) -> str:
        return f"{self.kind} {self.task} at {self.where}"


def where_of(task: trio.lowlevel.Task) -> str:
    """The innermost await of a trio task, function and line."""
    frames = [f"{frame.f_code.co_name}:{line}" for frame, line in task.iter_await_frames()]
    return frames[-1] if frames else "start or exit"


def run_virtually(
    function: Callable[..., Awaitable[None]],
    *args: object,
    seed: int,
    instruments: Sequence[trio.abc.Instrument] = (),
) -> None:
    """`trio.run` of the function. Raises what it raises, and `trio.TrioInternalError` of a `Livelock`."""
    core = cast(Any, trio)._core._run
    kept = core._r, core._ALLOW_DETERMINISTIC_SCHEDULING
    core._r, core._ALLOW_DETERMINISTIC_SCHEDULING = _Chooser(seed), True
    collecting = gc.isenabled()
    # The collector closes abandoned generators whenever it comes, and each takes a step.
    gc.disable()
    try:
        trio.run(
            function,
            *args,
            clock=trio.testing.MockClock(autojump_threshold=0),
            instruments=instruments,
        )
    finally:
        core._r, core._ALLOW_DETERMINISTIC_SCHEDULING = kept
        if collecting:
            gc.enable()


class _Chooser:
    """Stands in for trio's random generator: every batch order is ours, and a deadlock is noticed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._idle = 0

    def shuffle(self, batch: list[Any]) -> None:
        self._idle = 0 if batch else self._idle + 1
        if self._idle > _MOST_IDLE:
            raise Livelock("everybody is blocked and no deadline is left")
        self._random.shuffle(batch)

    def random(self) -> float:
        return 0.5

    def uniform(self, low: float, high: float) -> float:
        return low
