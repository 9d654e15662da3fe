"""A log as it stands, to be looked at: nothing is locked, repaired or written. Reads a store; waits for nothing.

What an opening for writing would refuse is read as far as it goes, and the place is kept.
"""

from collections.abc import Iterator, Mapping

from .errors import LogDamagedError
from .events import Event, PassedOver, Record
from .grammar import Grammar
from .records import read_records, refusal
from .repair import INTERRUPTION, closers
from .replay import Context
from .store import Source
from .wording import DEFAULT, Wording

__all__ = ["LogReader", "is_log"]

_BEGINNING = b'{"crc":"'
_LOOKED_AT = 1 << 20


class LogReader:
    """The records of one log, in order, and how the log ends. To be iterated once; never raises for what it reads.

    A live log may be read too: it ends wherever the store did when it was opened.
    """

    def __init__(self, store: Source) -> None:
        self.grammar = Grammar()
        """What is open after the last record that may stand where it does."""
        self.context = Context()
        """What the model has been told and has said, up to the same record."""
        self.tail: PassedOver | None = None
        """Bytes at the end that are no record: torn by a crash, or being written at this moment."""
        self.damage: LogDamagedError | None = None
        """Where the reading had to stop, since what follows is no record and no opening has named it."""
        self.refused: LogDamagedError | None = None
        """The first record that is whole and may not stand where it does. Those after it are still given."""
        self._store = store
        self._reason: str | None = None
        """Why the last whole record that was looked at may not stand where it does."""

    def __repr__(self) -> str:
        return f"<LogReader {self._store.where} seq={self.grammar.seq}>"

    def __iter__(self) -> Iterator[Record]:
        try:
            for _, item in read_records(self._store, self._refusal):
                if isinstance(item, PassedOver):
                    self.tail = item
                else:
                    self.grammar.apply(item)
                    self.context.apply(item)
                    yield item
        except LogDamagedError as damage:
            if damage.reason is self._reason:
                self.refused = damage
            else:
                self.damage = damage
        if self.refused is not None:
            yield from self._rest(self.refused)

    def _refusal(self, record: Record) -> str | None:
        self._reason = refusal(self.grammar, record)
        return self._reason

    def _rest(self, refused: LogDamagedError) -> Iterator[Record]:
        """What stands behind a record that may not stand where it does, and itself."""
        try:
            for _, item in read_records(self._store, offset=refused.offset, number=refused.line):
                if isinstance(item, PassedOver):
                    self.tail = item
                else:
                    yield item
        except LogDamagedError as damage:
            self.damage = damage

    def closers(self, wording: Wording = DEFAULT, children: Mapping[str, str] | None = None) -> list[Event]:
        """What recovery would append, after the `session/open` of an opening, to close what is open.

        `children` says how child sessions ended, by the names of their logs.
        """
        return closers(self.grammar, wording, INTERRUPTION, children or {})

    def closed_context(self, wording: Wording = DEFAULT) -> Context:
        """The context once what is open is closed, in memory."""
        context, seq = self.context.copy(), self.grammar.seq
        for number, event in enumerate(self.closers(wording), seq + 1):
            context.apply(Record(number, self.grammar.epoch, 0.0, event))
        return context


def is_log(store: Source) -> bool:
    """Whether the bytes are a log's, be it torn or damaged: they begin as one, or there is a record near.

    What an opening for writing would take for the torn beginning of a log may be somebody's letter.
    """
    head = store.read(0, len(_BEGINNING))
    if head and _BEGINNING.startswith(head):
        return True
    near = store.read(0, _LOOKED_AT)
    return any(line.startswith(_BEGINNING) for line in near.split(b"\n"))
