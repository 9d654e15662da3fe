"""The command `repair`. Locks a log, and appends what closes it, if anything does; a dry run only reads."""

import datetime
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from pathlib import Path
from typing import Never

import attrs
import click
import trio

from turnkernel import LogFailedError, Request, SessionLiveError, open_session
from turnkernel.events import Record, Salvaged, SessionClose, SessionOpen, ToolResult, TurnStart
from turnkernel.reading import LogReader
from turnkernel.records import rest_of
from turnkernel.store import FileStore, Source

from .below import lines_below, would_close
from .exits import Failed, Unreadable, reason_of
from .log_commands import LOG, width_of_output
from .open_log import is_damaged, opened, reading, say_how_it_ends
from .render import lines

__all__ = ["repair"]


@click.command(short_help="append what closes a log that a crash left open")
@LOG
@click.option("--dry-run", is_flag=True, help="Append nothing; print what would be appended.")
@click.option("--salvage", is_flag=True, help="Go on from before the damage of a log that is damaged.")
def repair(log: Path, dry_run: bool, salvage: bool) -> None:
    """Close what a crash has left open in LOG, by appending, and print what was appended.

    This is what every opening for writing does. Logs of child sessions that were open with it are closed first,
    the deepest first. Nothing that is there is changed or removed; a torn end is named
    and passed over. A log in which nothing is open and nothing torn stays as it is, to the byte. No model is
    called and no tool is run. The last line tells how much of an unfinished turn was kept: a recovery that cuts
    it off instead would have removed that.

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
    with opened(log) as looked_at:
        # An opening for writing would make a file where there is none, and add to any other.
        kept = _unfinished(looked_at)
    appended, below = _would_append(log, salvage) if dry_run else _append(log, salvage)
    for path, records in below.items():
        word = "would first be appended" if dry_run else "first appended"
        click.echo(f"{word} to the log of a child, {path}: {records} records")
    for line in lines(appended, width_of_output()):
        click.echo(line)
    opening = appended[0].event if appended else None
    if isinstance(opening, SessionOpen) and opening.salvaged is not None:
        gone = opening.salvaged
        click.echo(f"salvaged: damage in {gone.reason}; {gone.records} records passed over; copy in {gone.file}")
    if not appended:
        click.echo("nothing is open and nothing torn: nothing to append")
    else:
        click.echo(f"{'would append' if dry_run else 'appended'}: {len(appended)} records{kept}")


def _unfinished(reader: LogReader) -> str:
    """What there is of an unfinished turn, in words: what a recovery that cuts it off would remove."""
    records, results = 0, 0
    for record in reader:
        if isinstance(record.event, TurnStart):
            records, results = 0, 0
        records += 1
        results += isinstance(record.event, ToolResult)
    turn = reader.grammar.turn
    if turn is None or is_damaged(reader):
        return ""
    return f"; kept: {records} of the unfinished turn {turn.id}, {results} of them results of calls"


def _read(store: Source, log: Path, salvage: bool) -> LogReader:
    """The whole of it. Raises `Failed` if it is damaged and not to be salvaged."""
    reader = LogReader(store)
    for _ in reader:
        pass
    if is_damaged(reader) and not salvage:
        say_how_it_ends(reader, log)
        raise Failed(f"{log}: a damaged log is not repaired unless by --salvage; nothing was appended")
    return reader


def _is_in_order(reader: LogReader) -> bool:
    return not reader.closers() and reader.tail is None and not is_damaged(reader)


def _would_append(log: Path, salvage: bool) -> tuple[Sequence[Record], Mapping[Path, int]]:
    """The records that a repair would append, and how many to which logs below. Only reads: no lock is made."""
    with reading(log) as store:
        if store.is_live():
            raise Unreadable(str(SessionLiveError(str(log))))
        reader = _read(store, log, salvage)
        if _is_in_order(reader):
            return [], {}
        if is_damaged(reader):
            return _planned(reader, store, {}), {}
        words, below = would_close(log)
        return _planned(reader, store, words), below


def _append(log: Path, salvage: bool) -> tuple[Sequence[Record], Mapping[Path, int]]:
    """The records that were appended, and how many to which logs below."""
    with ExitStack() as holding:
        store = _locked(log)
        holding.callback(store.close)
        reader = _read(store, log, salvage)
        if _is_in_order(reader):
            return [], {}
        seq, before = reader.grammar.seq, lines_below(log)
        holding.pop_all()  # the session closes it
        _recover(store, _containment(reader))
    below = {path: lines - before.get(path, 0) for path, lines in lines_below(log).items()}
    with opened(log) as after:
        appended = [record for record in after if record.seq > seq]
    return appended, {path: more for path, more in below.items() if more}


def _locked(log: Path) -> FileStore:
    try:
        return FileStore.open(log)
    except SessionLiveError as error:
        raise Unreadable(str(error)) from None
    except OSError as error:
        raise Unreadable(f"{error.filename or log}: {reason_of(error)}") from None


def _containment(reader: LogReader) -> str:
    """A repair starts no process; it says of the log's what the log has said."""
    known = reader.grammar.opened
    return known.containment if known is not None else "none"


def _recover(store: FileStore, containment: str) -> None:
    """Open a session over the store, which recovers, and leave it at once."""

    async def recover() -> None:
        # Whether it may salvage was decided when the log was read, under the same lock.
        async with open_session(store, provider=_NoModel(), containment=containment, salvage=True):
            pass

    try:
        trio.run(recover)
    except LogFailedError as error:
        raise Failed(str(error)) from None
    except OSError as error:
        raise Failed(f"{error.filename or store.where}: {reason_of(error)}") from None


def _planned(reader: LogReader, store: Source, children: Mapping[str, str]) -> Sequence[Record]:
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
        _containment(reader),
        passed_over=(passed_over,) if passed_over is not None else (),
        salvaged=salvaged,
    )
    events = [opening, *reader.closers(children=children), SessionClose()]
    return [Record(grammar.seq + n, grammar.epoch + 1, 0.0, event) for n, event in enumerate(events, 1)]


@attrs.frozen
class _NoModel:
    """The provider of a session that makes no request."""

    wire: str = "none"
    model: str = "none"

    def stream(self, request: Request) -> AbstractAsyncContextManager[Never]:
        """Never called: an opening does not call the model."""
        raise AssertionError("a repair made a model request")
