"""The command `bench`. Starts everything that is measured; writes to the standard streams."""

import sys
from functools import partial

import click
import trio

from ..exits import json_line
from .figures import figure_to_json
from .machine import machine
from .plan import Runs
from .run import run_all
from .table import table

__all__ = ["bench", "measured"]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object, and nothing else. Times in milliseconds.")
def bench(as_json: bool) -> None:
    """Measure what a cancel takes, each figure beside a bare floor measured in the same run.

    From cancel() to the turn's end and to the server seeing the stream closed, for a text stream, for 1 to 1,000
    async calls and for bash; the cost of an append, of a step in a long session, of loading a long log. Takes
    about a minute; what else the machine does meanwhile shows in p95 first.

    \b
    Example:
      kernel-demo bench
      kernel-demo bench --json > today.json

    Exit code: 0, also where a limit is not met; the table and the JSON say so.
    """
    click.echo(measured(Runs(), as_json))


def measured(runs: Runs, as_json: bool) -> str:
    """What the command prints."""
    where = machine()
    shown = sys.stderr.isatty()
    try:
        figures = trio.run(partial(run_all, runs, _show if shown else _keep_quiet))
    finally:
        if shown:
            click.echo("\r\x1b[K", nl=False, err=True)
    if as_json:
        return json_line({"machine": where, "figures": [figure_to_json(figure) for figure in figures]})
    return table(figures, where)


def _show(what: str, done: int, runs: int) -> None:
    """One line that is written over, on a terminal only."""
    click.echo(f"\r\x1b[Kmeasuring {what}: {done} of {runs}", nl=False, err=True)


def _keep_quiet(what: str, done: int, runs: int) -> None:
    """Nobody looks."""
