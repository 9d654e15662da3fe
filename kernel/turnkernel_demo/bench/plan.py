"""How often each thing is measured, and in what order. Decides only."""

import attrs

__all__ = ["Runs"]


@attrs.frozen
class Runs:
    """Numbers of runs, and sizes. The defaults together take less than a minute on a small machine."""

    calls: tuple[tuple[int, int], ...] = ((1, 200), (10, 100), (100, 50), (1000, 25))
    """Numbers of calls that run, each with its runs."""
    streams: int = 100
    processes: int = 30
    appends: int = 40
    """Runs of `append_batch` appends each."""
    append_batch: int = 250
    short_turns: int = 10
    long_turns: int = 2000
    """Turns of the two sessions that are compared."""
    steps: int = 200
    log_lines: int = 200_000
    loads: int = 3
