"""Types of the command line's options. click only; touches nothing."""

from collections.abc import Iterable
from typing import Any

import click

from .scenario import RUN_LIMIT
from .values import Problem, bounded, number

__all__ = ["SecondsOfRun", "wires"]


class SecondsOfRun(click.ParamType):
    """How long a run may take, in the bounds that a scenario file has for it."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. Fails, as click's own types do, for what is none, not finite or out of bounds."""
        try:
            seconds = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        try:
            return bounded(number, RUN_LIMIT)(seconds)
        except Problem as problem:
            self.fail(problem.reason, param, ctx)


def wires(there: Iterable[str]) -> str:
    """The wires that this version has, as a sentence names them."""
    return " and ".join(sorted(there))
