"""What the command line's options take. click only; touches nothing."""

from collections.abc import Iterable

import click

from .scenario import RUN_LIMIT
from .values import Problem, bounded, number

__all__ = ["seconds_of_run", "wires"]


def seconds_of_run(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """How long a run may take, in the bounds that a scenario file has for it. A callback of an option."""
    try:
        return None if value is None else bounded(number, RUN_LIMIT)(value, None)
    except Problem as problem:
        raise click.BadParameter(problem.reason, ctx, param) from None


def wires(there: Iterable[str]) -> str:
    """The wires that this version has, as a sentence names them."""
    return " and ".join(sorted(there))
