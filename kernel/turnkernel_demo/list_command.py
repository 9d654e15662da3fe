"""The command `list`. Reads the package's own files; writes to standard output."""

import click

from .builtin import scenarios
from .exits import json_line

__all__ = ["list_scenarios"]


@click.command("list", short_help="the built-in scenarios")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line: name, title.")
def list_scenarios(as_json: bool) -> None:
    """List the built-in scenarios: name and title. The first three are those of the tour.

    \b
    Example:
      kernel-demo list
      kernel-demo run esc-in-a-long-tool

    Exit code: 0.
    """
    listed = scenarios()
    width = max(len(one.name) for one in listed)
    for one in listed:
        click.echo(
            json_line({"name": one.name, "title": one.title}) if as_json else f"{one.name:<{width}}  {one.title}"
        )
