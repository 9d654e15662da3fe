"""The records of a stretch of a log, checked many at a time and not parsed. No trio, no I/O; pure.

Nine records of ten are deltas of messages that are whole further on: of them nobody wants to know more than that
they are what they should be. One pattern says so for a thousand lines at once, in the form in which `codec.encode`
writes them. What it does not know is not wrong, but has to be parsed line by line to find out.
"""

import re
import struct
import zlib
from binascii import unhexlify
from collections.abc import Sequence
from itertools import compress
from operator import not_
from typing import get_args

import attrs

from .events import ModelDelta, Part

__all__ = ["Bulk", "delta_head", "look_over"]

_DIGITS = rb"(?:0|[1-9][0-9]{0,14}+)"
_TIME = _DIGITS + rb"(?:\.[0-9]++)?+(?:e-[0-9]++)?+"
_PLAIN = rb'[^"\\\x00-\x1f]*+'
_STRING = rb'"' + _PLAIN + rb'(?:\\["\\/bfnrt]' + _PLAIN + rb')*+"'
_TEXTS = b"".join(rb'(?:,"%b":%b)?+' % (name, _STRING) for name in (b"text", b"call", b"name"))
_DELTA = rb'%b",("turn":"%b","step":"%b"),"block":%b,"part":"(?:%b)"%b(?=\}\n)(\})' % (
    ModelDelta.type.encode(),
    _PLAIN,
    _PLAIN,
    _DIGITS,
    "|".join(get_args(Part)).encode(),
    _TEXTS,
)
_ROW = re.compile(
    rb'\{"crc":"([^"]{8})",("seq":([0-9]++),"epoch":([0-9]++),"t":%b,"type":"(?:%b|[^\n]*+))\n|[^\n]*+\n'
    % (_TIME, _DELTA)
)
"""A line: its crc; what the crc is of; seq and epoch; turn and step if it begins as a delta, and a brace if it is
one to its end. (What a group has caught may stay when what follows does not fit, so the last one counts.) Nothing
at all if it is no line of the log."""
_AROUND = len(b'{"crc":"00000000",') + len(b"\n")


@attrs.frozen
class Bulk:
    """Records whose crcs are right and whose numbers follow each other."""

    first: int
    """Number of the first."""
    bodies: Sequence[bytes]
    """Their lines from the key `"seq"` on, without the newline. Those that are no deltas may be no JSON."""
    epochs: Sequence[bytes]
    heads: Sequence[bytes]
    """Of deltas the fields `turn` and `step`, as `delta_head` makes them."""
    others: Sequence[int]
    """The places of those that are no deltas, or none that is all that it should be."""

    def offset(self, place: int) -> int:
        """Bytes from the beginning of the stretch to the record at a place."""
        return sum(map(len, self.bodies[:place])) + _AROUND * place


def look_over(data: bytes) -> Bulk | None:
    """The records of a stretch of whole lines; None where anything about them is odd."""
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError:
            return None
    rows = _ROW.findall(data)
    if not rows:
        return None
    crcs, bodies, seqs, epochs, heads, deltas = zip(*rows, strict=True)
    if b"" in crcs:
        return None
    hexes = b"".join(crcs)
    try:
        numbers = list(map(int, seqs))
        right = (
            (hexes.islower() or hexes.isdigit())
            and struct.unpack(f">{len(rows)}I", unhexlify(hexes)) == tuple(map(zlib.crc32, bodies))
            and numbers == list(range(numbers[0], numbers[0] + len(rows)))
        )
    except ValueError:  # no hex digits, or a number of too many digits
        return None
    if not right:
        return None
    return Bulk(numbers[0], bodies, epochs, heads, list(compress(range(len(rows)), map(not_, deltas))))


def delta_head(turn: str, step: str) -> bytes:
    """The fields `turn` and `step` of a delta, as they are written; ids that JSON would escape match none."""
    return b'"turn":"%b","step":"%b"' % (turn.encode(errors="replace"), step.encode(errors="replace"))
