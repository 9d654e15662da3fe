"""The records of a store in order, and what is passed over between them. Reads a store; waits for nothing.

A *gap* is a stretch of a log that is no part of the session: what a crash has torn, or what a salvage has left
behind. It is passed over only if the `session/open` right behind it names its offset, length and crc; only then
nobody can have come by it otherwise. A gap at the end that holds no whole record is a torn tail, which the next
opening names. Anything else is damage.
"""

import zlib
from collections.abc import Callable, Iterator

import attrs

from .codec import BadLineError, decode, parse
from .errors import GrammarError, LogDamagedError
from .events import PassedOver, Record, SessionOpen
from .grammar import Grammar
from .store import Source, lines

__all__ = ["Gap", "gap_at", "read_records", "refusal", "rest_of"]


@attrs.frozen
class Gap:
    """A stretch of a log that is passed over."""

    name: PassedOver
    lines: int
    """How many lines are in it."""
    records: int
    """How many of them are whole records."""
    named: bool
    """Whether a `session/open` right behind it names it; else it is the end of the log."""

    @property
    def after(self) -> int:
        """Where the next line begins."""
        return self.name.offset + self.name.length + 1


def read_records(
    store: Source,
    refuse: Callable[[Record], str | None] = lambda record: None,
    *,
    offset: int = 0,
    number: int = 1,
) -> Iterator[tuple[int, Record | PassedOver]]:
    """The records of a log with their offsets, from an offset on, where line `number` begins.

    `refuse` says why a record may not stand where it does, or None. A torn tail comes last, as a `PassedOver`.
    Raises `LogDamagedError` for damage.
    """
    more = True
    while more:
        more = False
        for at, line, _ in lines(store, offset):
            try:
                record = decode(line)
                reason = refuse(record)
            except BadLineError as error:
                reason = str(error)
            else:
                if reason is None:
                    yield at, record
                    number += 1
                    continue
            gap = gap_at(store, at, number, reason)
            if gap.named:
                offset, number, more = gap.after, number + gap.lines, True
            else:
                yield at, gap.name
            break


def gap_at(store: Source, offset: int, number: int, reason: str) -> Gap:
    """The gap that begins at an offset, line `number`. Raises `LogDamagedError`, with the reason, if none does."""
    gap = _gap(store, offset, to_end=False)
    if gap.named or not gap.records:
        return gap
    raise LogDamagedError(store.where, offset, number, reason)


def rest_of(store: Source, offset: int) -> Gap:
    """Everything from an offset to the end as one gap, to be named by a salvage."""
    return _gap(store, offset, to_end=True)


def _gap(store: Source, offset: int, *, to_end: bool) -> Gap:
    """What lies from `offset` to the opening that names it, or to the end."""
    crc, length, count, records = 0, 0, 0, 0
    for at, line, _ in lines(store, offset):
        if not to_end and at > offset and _names(line, PassedOver(offset, length, f"{crc:08x}")):
            return Gap(PassedOver(offset, length, f"{crc:08x}"), count, records, named=True)
        records += _is_record(line)
        crc = zlib.crc32(line, crc if at == offset else zlib.crc32(b"\n", crc))
        length = at - offset + len(line)
        count += 1
    return Gap(PassedOver(offset, length, f"{crc:08x}"), count, records, named=False)


def _names(line: bytes, gap: PassedOver) -> bool:
    if b'"passed_over"' not in line:
        return False
    try:
        event = decode(line).event
    except BadLineError:
        return False
    return isinstance(event, SessionOpen) and gap in event.passed_over


def _is_record(line: bytes) -> bool:
    try:
        parse(line)
    except BadLineError:
        return False
    return True


def refusal(grammar: Grammar, record: Record) -> str | None:
    """Why a record that was read may not stand next in its log, or None."""
    if record.seq != grammar.seq + 1:
        return f"seq {record.seq} after {grammar.seq}"
    expected = grammar.epoch + isinstance(record.event, SessionOpen)
    if record.epoch != expected:
        return f"epoch {record.epoch}, must be {expected}"
    try:
        grammar.check(record.event)
    except GrammarError as error:
        return str(error)
    return None
