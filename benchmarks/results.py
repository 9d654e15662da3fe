"""A recorded measurement as Markdown: `python benchmarks/results.py RECORDED > RESULTS.md`. Reads one file."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HEAD = """# Results

Medians in milliseconds, floor and subject measured turn by turn in one process; `best` is the ratio of the two
shortest runs, which says what the machine does when nobody else is on it. Limits are those of the design.
"""


def markdown(recorded: Mapping[str, Any]) -> str:
    """The whole page."""
    where = recorded["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    lines = [
        HEAD,
        f"{where['date']}: {where['processor']}, {where['processors']} processors, {where['system']},"
        f" {where['python']}; {versions}.",
        "",
        "| from `cancel()` to, or what | runs | floor | ours | p95 | ratio | best | limit | met |",
        "|---|---:|---:|---:|---:|---:|---:|---|---|",
        *(_row(figure) for figure in recorded["figures"]),
        "",
        "Where the time goes that is over a limit, in milliseconds:",
        "",
        *(line for figure in recorded["figures"] if figure["met"] is False for line in _split(figure)),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _row(figure: Mapping[str, Any]) -> str:
    floor = figure["floor"]
    cells = [
        figure["title"],
        f"{figure['runs']:,}",
        _time(floor["median"]),
        _time(figure["median"]),
        _time(figure["p95"]),
        f"{figure['ratio']:.2f}",
        f"{figure['best'] / floor['best']:.2f}",
        _limit(figure["limit"]),
        {True: "yes", False: "**no**", None: ""}[figure["met"]],
    ]
    return f"| {' | '.join(cells)} |"


def _time(milliseconds: float) -> str:
    return f"{milliseconds:.4g}" if milliseconds < 1000 else f"{milliseconds:.0f}"


def _limit(limit: Mapping[str, float] | None) -> str:
    if limit is None:
        return ""
    times = "" if limit["times"] in (0.0, 1.0) else f"{limit['times']:g} x"
    plus = f"{'+' if limit['times'] else ''}{limit['plus']:g} ms" if limit["plus"] else ""
    return f"{times} {plus}".strip()


def _split(figure: Mapping[str, Any]) -> Iterator[str]:
    yield f"- {figure['title']}"
    for share in figure["shares"]:
        yield f"  - {_time(share['median'])}: {share['what']}"


def main(arguments: Sequence[str]) -> int:
    """Print the page; the exit code."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    print(markdown(json.loads(Path(arguments[0]).read_text())), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
