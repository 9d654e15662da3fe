"""The command `context`. Reads a log; writes to standard output and standard error only."""

import sys
from collections.abc import Iterable
from pathlib import Path

import click

from turnkernel.events import Record, StepStart
from turnkernel.provider import Request
from turnkernel_providers.context import WIRES, messages_of
from turnkernel_providers.pairing import PairingError

from .exits import Failed, Unreadable, json_text
from .log_commands import LOG
from .open_log import is_damaged, opened, say_how_it_ends
from .options import wires

__all__ = ["context"]

_NAMED = ("anthropic", "openai-chat", "openai-responses")


@click.command(short_help="the exact request messages of a log, as JSON")
@LOG
@click.option("--wire", type=click.Choice(_NAMED), metavar="WIRE", required=True,
              help=f"Whose shapes: {wires(WIRES)}.")  # fmt: skip
@click.option("--model", help="Which model is asked: thinking goes back only to the one that gave it. "
              "Without it: the last one in the log on that wire.")  # fmt: skip
def context(log: Path, wire: str, model: str | None) -> None:
    """Print what a model would be sent, as LOG stands: the exact request messages of a wire, as JSON.

    What is open is closed in memory first. Only reads; works on live, open, torn and damaged logs. The system
    prompt and the tools are not in a log, so `system` is empty and there are no tools.

    \b
    Example:
      kernel-demo context session.log --wire anthropic
      kernel-demo context session.log --wire openai-chat | jq '.messages[-1]'

    \b
    Exit codes:
      0  printed; of an open or torn log too
      1  the log is damaged: printed as it stood before the damage, and standard error names line and byte
      2  it can't be read, is no log, or the wire is not available in this version
    """
    if wire not in WIRES:
        raise Unreadable(f"the wire {wire} is not available yet; there are {wires(WIRES)}")
    with opened(log) as reader:
        last = _last_model(reader, wire)
        say_how_it_ends(reader, log)
    request = Request("", reader.closed_context().messages, (), 0)
    try:
        click.echo(json_text(messages_of(request, wire, model or last), indent=2))
    except PairingError as error:
        raise Failed(f"{log}: {error}") from None
    if is_damaged(reader):
        sys.exit(1)


def _last_model(records: Iterable[Record], wire: str) -> str:
    """The model that was asked last on that wire, or nothing if none was."""
    model = ""
    for record in records:
        if isinstance(record.event, StepStart) and record.event.wire == wire:
            model = record.event.model
    return model
