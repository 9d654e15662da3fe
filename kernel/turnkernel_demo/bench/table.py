"""The figures for a person: plain text, no colour, at most 100 columns. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .figures import Figure

__all__ = ["table"]

_TITLES = ("from cancel() to, or what", "floor", "p95", "ours", "p95", "ratio", "limit", "met", "runs")


def table(figures: Sequence[Figure], where: Mapping[str, Any]) -> str:
    """What was measured, where, and where the time goes that is over a limit."""
    rows = [_TITLES, *map(_row, figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_TITLES))]
    lines = [
        f"{where['processor']}, {where['processors']} processors, {where['system']}, {where['python']}",
        f"{where['date']}; medians and p95 of runs taken turn by turn with the floor's; us or ms as written",
        "",
        *(_line(row, widths) for row in rows),
    ]
    for figure in figures:
        lines += _split(figure)
    lines += ["", *_floors(figures)]
    return "\n".join(lines)


def _row(figure: Figure) -> tuple[str, ...]:
    unit = figure.unit
    return (
        figure.title,
        _time(figure.floor.median, unit),
        _time(figure.floor.p95, unit),
        f"{_time(figure.subject.median, unit)} {unit}",
        _time(figure.subject.p95, unit),
        f"{figure.ratio:.2f}",
        str(figure.limit or ""),
        {True: "yes", False: "NO", None: ""}[figure.met],
        f"{len(figure.subject.seconds):,}",
    )


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = row
    cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))]
    return "  ".join(cells).rstrip()


def _time(seconds: float, unit: str) -> str:
    value = seconds * (1e6 if unit == "us" else 1e3)
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _split(figure: Figure) -> Iterator[str]:
    """Where the time goes, for a limit that is not met."""
    if figure.met is not False or not figure.shares:
        return
    yield ""
    yield f"Over its limit: {figure.title}. Its median is made of:"
    for share in figure.shares:
        yield f"  {_time(share.seconds, figure.unit):>8} {figure.unit}  {share.what}"


def _floors(figures: Sequence[Figure]) -> Iterator[str]:
    """What the floors are."""
    yield "Floors:"
    for floor in dict.fromkeys(figure.floor_title for figure in figures):
        titles = [figure.title.partition(":")[0] for figure in figures if figure.floor_title == floor]
        yield f"  {floor}: {', '.join(dict.fromkeys(titles))}"
