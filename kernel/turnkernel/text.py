"""Making text safe and short. Pure; touches nothing.

Two dangers are met here and nowhere else: a lone surrogate (no JSON encoder takes it, and real model APIs
answer 400), and text without end (a flood of output must cost bounded memory, in the log and in the context).
"""

import re

__all__ = ["Clip", "clip", "is_blank", "printable", "safe", "scrub"]

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_BYTES = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def scrub(text: str) -> str:
    """The text with surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def is_blank(text: str) -> bool:
    """Whether a text has nothing in it that a model API would accept as text."""
    return not text.strip()


def printable(text: str) -> str:
    """The text with everything that could drive a terminal made visible (`\\x1b` for an escape).

    Newlines and tabs stay; every other control character, the C1 range and the characters that turn the
    reading direction are written as escapes.
    """
    return _CONTROL.sub(lambda found: ascii(found.group())[1:-1], scrub(text))


def safe(text: str) -> str:
    """Output of a tool as it goes into the log and to the model: no lone surrogates, control bytes visible.

    Newlines, carriage returns and tabs stay; characters of any script stay.
    """
    return _BYTES.sub(lambda found: ascii(found.group())[1:-1], scrub(text))


def clip(text: str, most: int) -> str:
    """The text, or its head and tail with the cut told in between, in at most about `most` bytes of UTF-8."""
    kept = Clip(most)
    kept.add(text)
    return kept.text()


class Clip:
    """Text that is added to without end and kept in bounded memory: its head, its tail, and what was cut.

    `most` is in bytes of UTF-8: half of it for the head, the rest for the tail. What is kept depends on the text
    alone, not on the pieces in which it came.
    """

    __slots__ = ("_head", "_tail", "cut", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self.cut = 0
        """Bytes left out between head and tail so far."""
        self._head = bytearray()
        self._tail = bytearray()

    def __repr__(self) -> str:
        return f"<Clip of {self.total} bytes, {self.cut} cut>"

    @property
    def total(self) -> int:
        """Bytes added so far."""
        return len(self._head) + len(self._tail) + self.cut

    def add(self, text: str) -> None:
        """Add text at the end."""
        data = text.encode("utf-8", "replace")
        if not self._tail and not self.cut:
            room = self.most // 2 - len(self._head)
            head = data[:room].decode("utf-8", "ignore").encode("utf-8")
            self._head += head
            data = data[len(head) :]
        self._tail += data
        if len(self._tail) > 2 * self.most + 4096:
            self._trim()

    def _trim(self) -> None:
        """Keep of the tail what there is room for, from the beginning of a character on."""
        tail = self._tail
        start = max(0, len(tail) - (self.most - len(self._head)))
        while start < len(tail) and tail[start] & 0xC0 == 0x80:
            start += 1
        self.cut += start
        del tail[:start]

    def text(self) -> str:
        """What is kept, with the cut told where it is."""
        self._trim()
        head, tail = self._head.decode("utf-8"), self._tail.decode("utf-8")
        if not self.cut:
            return head + tail
        return f"{head}\n[... {self.cut} bytes left out ...]\n{tail}"
