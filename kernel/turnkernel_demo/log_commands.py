"""The commands `show` and `verify`. They read a log; they write to standard output and standard error only."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import orjson

from turnkernel.codec import encode
from turnkernel.events import Record, TurnEnd, TurnStart
from turnkernel.provider import Request
from turnkernel.reading import LogReader
from turnkernel.testing.laws import Violation, check_log
from turnkernel_providers.context import messages_of

from .exits import json_line, on_terminal
from .open_log import is_damaged, open_things, opened, say_how_it_ends, types_of
from .render import lines

__all__ = ["show", "verify"]

SHOWN_BY_A_LOG = ("L1", "L2", "L3", "L4", "L5", "L6", "L7", "C1", "C2", "C3", "C4", "C5", "C6", "R2", "R4", "R5")
"""The laws that a log can show; of L4 only that the order of the records allows it."""

EVERY_PREFIX_UP_TO = 2000
"""Records up to which the context is checked at each: the time that takes grows with the square of them."""

LOG = click.argument("log", type=click.Path(path_type=Path))


def width_of_output() -> int | None:
    """Columns of a line: the terminal's; without one no bound, for whoever searches in what is piped."""
    return shutil.get_terminal_size().columns if on_terminal() else None


@click.command(short_help="the log for a person, a line an event")
@LOG
@click.option("--json", "as_json", is_flag=True, help="The records as they stand in the log, one object per line.")
def show(log: Path, as_json: bool) -> None:
    """Show LOG for a person: a line an event, consecutive deltas of one block as one.

    Each line: number, seconds since this opening of the log, type, what happened. Only reads, and works on a
    live, an open (crashed), a torn and a damaged log: what is special about it is said on standard error.

    \b
    Example:
      kernel-demo show session.log
      kernel-demo show session.log --json | jq 'select(.type == "tool/result")'

    \b
    Exit codes:
      0  shown; an open or torn log too
      1  the log is damaged: shown up to there, and standard error names line and byte
      2  it can't be read, or is no log
    """
    with opened(log) as reader:
        if as_json:
            for record in reader:
                click.echo(json_line(orjson.loads(encode(record))))
        else:
            for line in lines(reader, width_of_output()):
                click.echo(line)
        say_how_it_ends(reader, log)
    if is_damaged(reader):
        sys.exit(1)


@click.command(short_help="check a log against every law that it can show")
@LOG
@click.option("--closed", is_flag=True, help="What is still open at the end is a violation too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object with everything that was found.")
def verify(log: Path, closed: bool, as_json: bool) -> None:
    """Check LOG against every law that a log can show: L1-L7, C1-C6, R2, R4, R5.

    A line per violation: the law, the number of the record at which it shows, what is wrong. Of L4 (intent before
    effect) a log shows only that the order of its records allows it. The context is checked as it would be sent,
    once closed, at every record (in a log of more than 2000 at every request and at the end). Only reads; works
    on live, open and torn logs.

    \b
    Example:
      kernel-demo verify session.log
      kernel-demo verify session.log --closed --json

    \b
    Exit codes:
      0  no violation; an open or torn log is none
      1  a law is violated, or the log is damaged
      2  it can't be read, or is no log
    """
    with opened(log) as reader:
        records = list(reader)
        say_how_it_ends(reader, log)
    violations = _violations(records, reader, closed)
    if as_json:
        click.echo(json_line(_report(log, records, reader, violations)))
    else:
        for one in violations:
            click.echo(f"{one.law} at {one.seq}: {one.detail}")
        click.echo(_summary(records, reader, violations))
    if violations:
        sys.exit(1)


def _violations(records: Sequence[Record], reader: LogReader, closed: bool) -> Sequence[Violation]:
    found = check_log(records, closed=closed, every_prefix=len(records) <= EVERY_PREFIX_UP_TO)
    if reader.refused is None:
        found += _cache_marks(reader)
    if reader.damage is not None:
        damage = reader.damage
        place = f"line {damage.line} (byte {damage.offset}): {damage.reason}"
        found.append(Violation("L7", records[-1].seq + 1 if records else 1, f"damaged: {place}"))
    return found


def _cache_marks(reader: LogReader) -> Sequence[Violation]:
    """C5, on the wire that has cache marks."""
    request = Request("", reader.closed_context().messages, (), 0)
    marked: list[int] = []
    for message in messages_of(request, "anthropic", "")["messages"]:
        marks = ["cache_control" in block for block in message["content"]]
        marked += [place == len(marks) for place, mark in enumerate(marks, 1) if mark]
    if len(marked) <= 4 and all(marked):
        return []
    return [Violation("C5", reader.grammar.seq, f"{len(marked)} cache marks, {sum(marked)} on a last block")]


def _report(
    log: Path, records: Sequence[Record], reader: LogReader, violations: Sequence[Violation]
) -> dict[str, object]:
    tail, damage = reader.tail, reader.damage
    return {
        "log": str(log),
        "ok": not violations,
        "records": len(records),
        "outcomes": _outcomes(records),
        "open": list(open_things(reader.grammar)),
        "closed_in_memory_with": [event.type for event in reader.closers()],
        "torn": tail and {"offset": tail.offset, "length": tail.length},
        "damage": damage and {"line": damage.line, "offset": damage.offset, "reason": damage.reason},
        "laws": list(SHOWN_BY_A_LOG),
        "violations": [{"law": one.law, "seq": one.seq, "detail": one.detail} for one in violations],
    }


def _summary(records: Sequence[Record], reader: LogReader, violations: Sequence[Violation]) -> str:
    turns = sum(isinstance(record.event, TurnStart) for record in records)
    outcomes = ", ".join(_outcomes(records))
    counted = f"records: {len(records)}, turns: {turns}" + (f" ({outcomes})" if outcomes else "")
    closing = reader.closers()
    state = f"closed in memory with {', '.join(types_of(closing))}" if closing else "nothing is open"
    if violations:
        return f"{counted}; {state}; violations: {len(violations)}"
    return f"{counted}; {state}; no violation of {' '.join(SHOWN_BY_A_LOG)}"


def _outcomes(records: Sequence[Record]) -> list[str]:
    return [record.event.outcome for record in records if isinstance(record.event, TurnEnd)]
