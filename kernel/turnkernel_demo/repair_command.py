"""The command `repair`. Locks a log, and appends what closes it, if anything does."""

import datetime
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from pathlib import Path
from typing import Never

import attrs
import click
import trio

from turnkernel import LogFailedError, Request, SessionLiveError, open_session
from turnkernel.events import Event, Record, Salvaged, SessionClose, SessionOpen
from turnkernel.reading import LogReader
from turnkernel.records import rest_of
from turnkernel.store import FileStore

from .exits import Failed, Unreadable, reason_of
from .log_commands import LOG, width_of_output
from .open_log import is_damaged, opened, say_how_it_ends
from .render import lines

__all__ = ["repair"]


@click.command(short_help="append what closes a log that a crash left open")
@LOG
@click.option("--dry-run", is_flag=True, help="Append nothing; print what would be appended.")
@click.option("--salvage", is_flag=True, help="Go on from before the damage of a log that is damaged.")
def repair(log: Path, dry_run: bool, salvage: bool) -> None:
    """Close what a crash has left open in LOG, by appending, and print what was appended.

    This is what every opening for writing does. Nothing that is there is changed or removed; a torn end is named
    and passed over. A log in which nothing is open and nothing torn stays as it is, to the byte. No model is
    called and no tool is run.

    A damaged log is refused, with the place. With --salvage it goes on from before the damage: the rest stays
    where it is, is copied to a file beside LOG, and is passed over from then on, which its session/open says.

    \b
    Example:
      kernel-demo repair --dry-run session.log
      kernel-demo repair session.log
      kernel-demo repair --salvage damaged.log

    \b
    Exit codes:
      0  repaired, or there was nothing to repair
      1  the log is damaged (standard error names line and byte) and is not to be salvaged, or can't be written:
         nothing was repaired
      2  it can't be read, is no log, or a live kernel holds it
    """
    with opened(log):
        pass  # an opening for writing would make a file where there is none, and add to any other
    appended = _repair(log, dry_run, salvage)
    for line in lines(appended, width_of_output()):
        click.echo(line)
    opening = appended[0].event if appended else None
    if isinstance(opening, SessionOpen) and opening.salvaged is not None:
        kept = opening.salvaged
        click.echo(f"salvaged: damage in {kept.reason}; {kept.records} records passed over; copy in {kept.file}")
    if not appended:
        click.echo("nothing is open and nothing torn: nothing to append")
    else:
        click.echo(f"{'would append' if dry_run else 'appended'}: {len(appended)} records")


def _repair(log: Path, dry_run: bool, salvage: bool) -> Sequence[Record]:
    """The records that were appended or, for a dry run, would be."""
    with ExitStack() as holding:
        store = _locked(log)
        holding.callback(store.close)
        reader = LogReader(store)
        for _ in reader:
            pass
        if is_damaged(reader) and not salvage:
            say_how_it_ends(reader, log)
            raise Failed(f"{log}: a damaged log is not repaired unless by --salvage; nothing was appended")
        seq, closing_events = reader.grammar.seq, reader.closers()
        if not closing_events and reader.tail is None and not is_damaged(reader):
            return []
        if dry_run:
            return _would_append(reader, closing_events, store)
        holding.pop_all()  # the session closes it
        _append(store)
    with opened(log) as after:
        return [record for record in after if record.seq > seq]


def _locked(log: Path) -> FileStore:
    try:
        return FileStore.open(log)
    except SessionLiveError as error:
        raise Unreadable(str(error)) from None
    except OSError as error:
        raise Unreadable(f"{error.filename or log}: {reason_of(error)}") from None


def _append(store: FileStore) -> None:
    """Open a session over the store, which recovers, and leave it at once."""

    async def recover() -> None:
        # Whether it may salvage was decided when the log was read, under the same lock.
        async with open_session(store, provider=_NoModel(), salvage=True):
            pass

    try:
        trio.run(recover)
    except LogFailedError as error:
        raise Failed(str(error)) from None


def _would_append(reader: LogReader, closing_events: Sequence[Event], store: FileStore) -> Sequence[Record]:
    grammar = reader.grammar
    known = grammar.opened
    damage = reader.refused or reader.damage
    passed_over, salvaged = reader.tail, None
    if damage is not None:
        rest = rest_of(store, damage.offset)
        passed_over = rest.name
        salvaged = Salvaged(f"line {damage.line}: {damage.reason}", "(a file beside it)", rest.records)
    opening = SessionOpen(
        known.session if known is not None else "(new)",
        datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        "power",
        passed_over=(passed_over,) if passed_over is not None else (),
        salvaged=salvaged,
    )
    events = [opening, *closing_events, SessionClose()]
    return [Record(grammar.seq + n, grammar.epoch + 1, 0.0, event) for n, event in enumerate(events, 1)]


@attrs.frozen
class _NoModel:
    """The provider of a session that makes no request."""

    wire: str = "none"
    model: str = "none"

    def stream(self, request: Request) -> AbstractAsyncContextManager[Never]:
        """Never called: an opening does not call the model."""
        raise AssertionError("a repair made a model request")
