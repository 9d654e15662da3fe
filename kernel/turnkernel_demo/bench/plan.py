"""How often each thing is measured, and in what order. Decides only."""

import attrs

__all__ = ["Runs"]


@attrs.frozen
class Runs:
    """Numbers of runs, and sizes. The defaults together take less than a minute on a small machine."""

    calls: tuple[tuple[int, int], ...] = ((1, 100), (10, 60), (100, 40), (1000, 20))
    """Numbers of calls that run, each with its runs."""
    streams: int = 60
    processes: int = 25
    appends: int = 5000
    short_turns: int = 10
    long_turns: int = 2000
    """Turns of the two sessions that are compared."""
    steps: int = 60
    log_lines: int = 200_000
    loads: int = 3
