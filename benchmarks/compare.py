"""A measurement beside a recorded one: `python benchmarks/compare.py RECORDED [NEW]`. Reads files; may measure.

Without NEW it measures now. Compared are the ratios to the bare floors, which were measured in the same minute on
the same machine as their subjects; absolute times of two days or two machines say little. Exit code 1 where a
ratio has become worse by more than a quarter, which on a machine that does nothing else is no accident.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

WORSE = 1.25
"""By which factor a ratio may grow before it is called worse."""


@attrs.frozen
class Change:
    """One figure, then and now."""

    key: str
    then: float
    """Ratio to its floor."""
    now: float

    @property
    def factor(self) -> float:
        """Above 1: it takes longer, beside its floor, than it did."""
        return self.now / self.then

    @property
    def worse(self) -> bool:
        """Whether somebody should look."""
        return self.factor > WORSE


def changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """The figures that both measurements have, in the order of the newer."""
    before = {figure["key"]: figure["ratio"] for figure in then["figures"]}
    return [
        Change(figure["key"], before[figure["key"]], figure["ratio"])
        for figure in now["figures"]
        if figure["key"] in before
    ]


def measured() -> Mapping[str, Any]:
    """A measurement of this moment, by the command that users have."""
    command = [sys.executable, "-m", "turnkernel_demo", "bench", "--json"]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def main(arguments: Sequence[str]) -> int:
    """Print the comparison; the exit code."""
    if len(arguments) not in (1, 2):
        print(__doc__, file=sys.stderr)
        return 2
    then = json.loads(Path(arguments[0]).read_text())
    now = json.loads(Path(arguments[1]).read_text()) if len(arguments) == 2 else measured()
    found = changes(then, now)
    print(f"{'ratio to the floor':<24} {'then':>8} {'now':>8}  change")
    for one in found:
        print(
            f"{one.key:<24} {one.then:>8.2f} {one.now:>8.2f}  x {one.factor:.2f}{'  WORSE' if one.worse else ''}"
        )
    return int(any(one.worse for one in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
