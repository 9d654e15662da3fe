"""Opening a log to look at it, and saying how it ends. Reads the file; speaks on standard error.

What `show`, `verify` and `context` have in common: they lock and change nothing, and work on live, open, torn and
damaged logs.
"""

from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from turnkernel.events import Event
from turnkernel.grammar import Grammar
from turnkernel.reading import LogReader, is_log
from turnkernel.store import ReadOnlyStore

from .exits import Unreadable, note, reason_of

__all__ = ["is_damaged", "open_things", "opened", "reading", "say_how_it_ends", "types_of"]


@contextmanager
def reading(path: Path) -> Generator[ReadOnlyStore]:
    """The bytes of the log at a path. Raises `Unreadable`, also for what is no log at all."""
    try:
        with closing(ReadOnlyStore.open(path)) as store:
            if not store.size:
                raise Unreadable(f"{path}: an empty file, no log")
            if not is_log(store):
                raise Unreadable(f"{path}: no log: there is no record at its beginning")
            yield store
    except OSError as error:
        if error.filename != str(path):
            raise  # not of reading: standard output's
        raise Unreadable(f"{path}: {reason_of(error)}") from None


@contextmanager
def opened(path: Path) -> Generator[LogReader]:
    """The log at a path, to be read. Raises as `reading`."""
    with reading(path) as store:
        yield LogReader(store)


def is_damaged(reader: LogReader) -> bool:
    """Whether an opening for writing would refuse it; known once the log has been read."""
    return reader.damage is not None or reader.refused is not None


def say_how_it_ends(reader: LogReader, path: Path) -> None:
    """A note for each thing that an unbroken, closed log does not have; none for one."""
    if reader.tail is not None:
        tail = reader.tail
        note(f"{path}: torn: the last {tail.length} bytes, from byte {tail.offset}, are no record; passed over")
    if reader.refused is not None:
        note(f"{path}: line {reader.refused.line} (byte {reader.refused.offset}): {reader.refused.reason}")
    if reader.damage is not None:
        damage = reader.damage
        note(f"{path}: damaged: line {damage.line} (byte {damage.offset}): {damage.reason}; read up to there")
    if closing_events := reader.closers():
        things, added = ", ".join(open_things(reader.grammar)), ", ".join(types_of(closing_events))
        note(f"{path}: open: {things}; closed in memory with {added}; nothing was written")


def open_things(grammar: Grammar) -> Sequence[str]:
    """What is open, a few words each."""
    turn = [f"turn {grammar.turn.id} ({grammar.turn.state})"] if grammar.turn is not None else []
    step = [f"step {grammar.step.id}"] if grammar.step is not None else []
    calls = [f"call {call.use.id} ({call.state})" for call in grammar.calls.values()]
    asks = [f"ask {ask}" for ask in grammar.asks]
    tasks = [f"task {task}" for task in grammar.tasks]
    return [*turn, *step, *calls, *asks, *tasks]


def types_of(events: Sequence[Event]) -> Sequence[str]:
    """The events' types, with how often where one comes several times in a row."""
    runs: list[tuple[str, int]] = []
    for event in events:
        if runs and runs[-1][0] == event.type:
            runs[-1] = (event.type, runs[-1][1] + 1)
        else:
            runs.append((event.type, 1))
    return [name if times == 1 else f"{times} {name}" for name, times in runs]
