"""The records of a store in order, and what is passed over between them. Reads a store; waits for nothing.

A *gap* is a stretch of a log that is no part of the session: what a crash has torn, or what a salvage has left
behind. It is passed over only if the `session/open` right behind it names its offset, length and crc: only an
opening of this log can have written that. Bytes at the end are a torn tail, which the next opening names, if they
are what crashes leave: a line that is no record, and behind it, where recoveries from that crashed too, the
beginnings of their openings. Anything else is damage, and so is a file that does not begin as a log.
"""

import re
import zlib
from collections.abc import Callable, Iterator

import attrs

from .codec import BadLineError, decode, parse
from .errors import GrammarError, LogDamagedError
from .events import PassedOver, Record, SessionOpen
from .grammar import Grammar
from .store import Source, lines

__all__ = [
    "Rest",
    "line_at",
    "lines_outside",
    "named_gaps",
    "outside",
    "read_records",
    "refusal",
    "rest_of",
    "tail_at",
]

_KEY = b'"passed_over"'
_CHUNK = 1 << 18


@attrs.frozen
class Rest:
    """Everything from some place of a log on."""

    name: PassedOver
    records: int
    """Whole records in it."""
    torn: bool
    """Whether crashes alone can have left it."""


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
    for at, line, count in lines_outside(store, named_gaps(store), offset, number):
        try:
            record = decode(line)
            reason = refuse(record)
        except BadLineError as error:
            yield at, tail_at(store, at, count, str(error))
            return
        if reason is not None:
            raise LogDamagedError(store.where, at, count, reason)
        yield at, record


def named_gaps(store: Source) -> dict[int, int]:
    """The gaps that are passed over: where each begins, and where the next line does."""
    if not any(True for _ in _chunks_with(store, _KEY)):
        return {}
    gaps: dict[int, int] = {}
    for at, line, _ in lines(store):
        if _KEY not in line:
            continue
        try:
            event = decode(line).event
        except BadLineError:
            continue
        for name in event.passed_over if isinstance(event, SessionOpen) else ():
            if name.offset + name.length + 1 == at and _is_gap(store, name):
                gaps[name.offset] = at
    return gaps


def _is_gap(store: Source, name: PassedOver) -> bool:
    begins_line = name.offset == 0 or store.read(name.offset - 1, 1) == b"\n"
    return begins_line and _crc(store, name.offset, name.length) == name.crc


def _chunks_with(store: Source, key: bytes) -> Iterator[int]:
    """The offsets of the chunks in which a key is. Far faster than looking at every line."""
    offset = 0
    while chunk := store.read(offset, _CHUNK):
        if key in chunk:
            yield offset
        if len(chunk) <= len(key):
            return
        offset += len(chunk) - len(key)


def _crc(store: Source, offset: int, length: int) -> str:
    crc = 0
    while length > 0 and (chunk := store.read(offset, min(length, _CHUNK))):
        crc = zlib.crc32(chunk, crc)
        offset, length = offset + len(chunk), length - len(chunk)
    return f"{crc:08x}"


def lines_outside(
    store: Source, gaps: dict[int, int], offset: int = 0, number: int = 1
) -> Iterator[tuple[int, bytes, int]]:
    """The lines that are in no gap, from an offset on: where each begins, its bytes, and its number."""
    after_gap = 0
    for count, (at, line, _) in enumerate(lines(store, offset), number):
        # A gap may hold what was once a log with gaps of its own.
        after_gap = max(after_gap, gaps.get(at, 0))
        if at >= after_gap:
            yield at, line, count


def outside(gaps: dict[int, int], size: int) -> Iterator[tuple[int, int]]:
    """What of a store's bytes is in no gap: from where to where."""
    begin = 0
    for gap in sorted(gaps):
        if begin < gap:
            yield begin, gap
        begin = max(begin, gaps[gap])
    if begin < size:
        yield begin, size


def line_at(store: Source, offset: int) -> int:
    """The number of the line that begins at an offset, from 1."""
    number, place = 1, 0
    while chunk := store.read(place, min(_CHUNK, offset - place)):
        number += chunk.count(b"\n")
        place += len(chunk)
    return number


def tail_at(store: Source, offset: int, number: int, reason: str) -> PassedOver:
    """The torn tail that begins at an offset, line `number`. Raises `LogDamagedError` if it is none."""
    rest = rest_of(store, offset)
    if not rest.torn:
        raise LogDamagedError(store.where, offset, number, reason)
    return rest.name


def rest_of(store: Source, offset: int) -> Rest:
    """Everything from an offset on, the last newline not counted; to be named by an opening."""
    records, torn, last = 0, True, (offset, b"")
    for at, line, _ in lines(store, offset):
        whole = _is_record(line)
        records += whole
        # The first may be the beginning of any record. Only an opening begins a log, and comes after a torn line.
        torn = torn and not whole and (0 < at == offset or _begins_opening(line))
        last = at, line
    length = last[0] + len(last[1]) - offset
    return Rest(PassedOver(offset, length, _crc(store, offset, length)), records, torn)


_OPENING = b'{"crc":"","seq":0,"epoch":0,"t":0,"type":"session/open",'
_NUMBER = re.compile(rb":[0-9][0-9.e+-]*")


def _begins_opening(line: bytes) -> bool:
    """Whether a line, as far as it goes, is an opening's. A power cut may leave zeros where the rest should be."""
    line = line.rstrip(b"\0")
    alike = line[:8] + _NUMBER.sub(b":0", line[16:])
    return alike.startswith(_OPENING) or _OPENING.startswith(alike)


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
