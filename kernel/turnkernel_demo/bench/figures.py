"""What is measured, as data: a subject beside its floor, the limit, and where the time goes. Pure."""

from collections.abc import Sequence
from typing import Any, Literal

import attrs

from .timing import Samples

__all__ = ["Figure", "Limit", "Share", "figure_to_json", "milliseconds"]

Unit = Literal["ms", "us"]


@attrs.frozen
class Limit:
    """The most that a median may be: `times` its floor's plus `plus` seconds."""

    times: float = 0.0
    plus: float = 0.0
    """Seconds."""

    def most(self, floor: float) -> float:
        """The bound for a floor, in seconds."""
        return self.times * floor + self.plus

    def __str__(self) -> str:
        times = f"{self.times:g} x" if self.times not in (0.0, 1.0) else ""
        plus = _duration(self.plus) if self.plus else ""
        if not plus:
            return times
        sign = "+" if self.times else ""
        return f"{times} {sign}{plus}".strip()


def _duration(seconds: float) -> str:
    return f"{seconds * 1e6:g} us" if seconds < 1e-4 else f"{seconds * 1e3:g} ms"


@attrs.frozen
class Share:
    """A part of the subject's time, measured in runs of its own."""

    what: str
    seconds: float
    """Median."""


@attrs.frozen
class Figure:
    """One thing that was measured."""

    key: str
    """Its name for programs; the same from version to version."""
    title: str
    """Its name for people."""
    floor_title: str
    """What the floor is."""
    floor: Samples
    subject: Samples
    limit: Limit | None = None
    """What a median must keep to, as a ratio or a time; None where no limit is set."""
    unit: Unit = "ms"
    """For people; JSON is in milliseconds."""
    shares: Sequence[Share] = ()

    @property
    def ratio(self) -> float:
        """Of the medians."""
        return self.subject.median / self.floor.median

    @property
    def met(self) -> bool | None:
        """Whether the limit is kept; None where there is none."""
        return None if self.limit is None else self.subject.median <= self.limit.most(self.floor.median)


def milliseconds(seconds: float) -> float:
    """For JSON, to the nanosecond."""
    return round(seconds * 1e3, 6)


def figure_to_json(figure: Figure) -> dict[str, Any]:
    """A figure as a JSON object; times in milliseconds."""
    limit = figure.limit
    return {
        "key": figure.key,
        "title": figure.title,
        "runs": len(figure.subject.seconds),
        "median": milliseconds(figure.subject.median),
        "p95": milliseconds(figure.subject.p95),
        "best": milliseconds(figure.subject.best),
        "floor": {
            "title": figure.floor_title,
            "median": milliseconds(figure.floor.median),
            "p95": milliseconds(figure.floor.p95),
            "best": milliseconds(figure.floor.best),
        },
        "ratio": round(figure.ratio, 3),
        "over": milliseconds(figure.subject.median - figure.floor.median),
        "limit": None if limit is None else {"times": limit.times, "plus": milliseconds(limit.plus)},
        "met": figure.met,
        "shares": [{"what": share.what, "median": milliseconds(share.seconds)} for share in figure.shares],
    }
