"""A log that is there to the state that follows from it, in bounded memory. Reads a store; waits for nothing.

Opening costs what reading costs. Nine records of ten are deltas of messages that are closed further on; those
are checked like every record, and not made into objects. Those of a message that a crash cut are.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .codec import BadLineError, event_of, parse
from .errors import LogDamagedError
from .events import ModelDelta, ModelMessage, ModelRetry, PassedOver, Record, SessionOpen, StepEnd
from .grammar import Grammar
from .records import Rest, lines_outside, named_gaps, refusal, tail_at
from .store import Source

__all__ = ["MARK_EVERY", "Loader"]

MARK_EVERY = 1024
"""The offset of every so many records is kept, so that a cursor far back need not read from the beginning."""


class Loader:
    """Reads a log into a grammar and folds. `folds` are the functions that are given each type's records."""

    def __init__(
        self, store: Source, grammar: Grammar, folds: Mapping[str, Sequence[Callable[[Record], None]]]
    ) -> None:
        self.marks: list[tuple[int, int]] = []
        """Number and offset of every so many records."""
        self.gaps: dict[int, int] = {}
        """What is passed over: where it begins, and where the next line does."""
        self.damage: LogDamagedError | None = None
        self._store = store
        self._grammar = grammar
        self._folds = folds
        self._light = not folds["model/delta"]
        """Whether nobody wants to see deltas."""
        self._deltas: list[dict[str, Any]] = []
        """Of the message that is streaming, as they were read."""

    def __repr__(self) -> str:
        return f"<Loader {self._store.where} seq={self._grammar.seq}>"

    def load(self) -> PassedOver | None:
        """Read everything; the name of a torn tail. Raises `LogDamagedError`, at whose place it has stopped."""
        try:
            return self._load()
        except LogDamagedError as damage:
            self.damage = damage
            raise
        finally:
            self._make_deltas()

    def pass_over(self, rest: Rest) -> None:
        """The rest of the log is a gap from now on."""
        self.gaps[rest.name.offset] = rest.name.offset + rest.name.length + 1

    def _load(self) -> PassedOver | None:
        store = self._store
        self.gaps = named_gaps(store)
        for at, line, number in lines_outside(store, self.gaps):
            try:
                reason = self._take(at, line)
            except BadLineError as error:
                tail = tail_at(store, at, number, str(error))
                self.gaps[tail.offset] = tail.offset + tail.length + 1
                return tail
            if reason is not None:
                raise LogDamagedError(store.where, at, number, reason)
        return None

    def _take(self, offset: int, line: bytes) -> str | None:
        """Take in a line; why it may not stand where it does, or None. Raises `BadLineError`."""
        grammar = self._grammar
        fields = parse(line)
        seq, epoch = fields["seq"], fields["epoch"]
        if not (self._light and fields["type"] == "model/delta" and self._take_delta(fields, seq, epoch)):
            record = Record(seq, epoch, fields["t"], event_of(fields))
            reason = refusal(grammar, record)
            if reason is not None:
                return reason
            event = record.event
            if self._deltas:
                self._before(event)
            grammar.apply(record)
            for apply in self._folds[event.type]:
                apply(record)
        if seq % MARK_EVERY == 1:
            self.marks.append((seq, offset))
        return None

    def _take_delta(self, fields: dict[str, Any], seq: int, epoch: int) -> bool:
        """Take in a delta without making it. False where anything about it is odd: then it is made, and checked
        as every record is."""
        grammar = self._grammar
        turn, step = grammar.turn, grammar.step
        if (
            step is None
            or turn is None
            or step.message is not None
            or turn.state == "cut"
            or fields.get("turn") != turn.id
            or fields.get("step") != step.id
            or seq != grammar.seq + 1
            or epoch != grammar.epoch
            or not _fits(fields)
        ):
            return False
        self._deltas.append(fields)
        grammar.seq = seq
        return True

    def _before(self, event: object) -> None:
        """Deltas are waiting, and something else comes: forget them if it closes their message, make them if it
        leaves it cut."""
        if isinstance(event, ModelRetry) or (isinstance(event, ModelMessage) and event.stop != "cut"):
            self._deltas.clear()
        elif isinstance(event, ModelMessage | StepEnd | SessionOpen):
            self._make_deltas()

    def _make_deltas(self) -> None:
        if self._deltas:
            step = self._grammar.step
            assert step is not None
            step.deltas += [_delta(fields) for fields in self._deltas]
            self._deltas.clear()


_PARTS = frozenset(ModelDelta.__annotations__["part"].__args__)
_TEXTS = (str, type(None))


def _fits(fields: dict[str, Any]) -> bool:
    return (
        fields.get("block").__class__ is int
        and fields.get("part") in _PARTS
        and fields.get("text", "").__class__ is str
        and fields.get("call").__class__ in _TEXTS
        and fields.get("name").__class__ in _TEXTS
    )


def _delta(fields: dict[str, Any]) -> ModelDelta:
    return ModelDelta(
        fields["turn"],
        fields["step"],
        fields["block"],
        fields["part"],
        fields.get("text", ""),
        fields.get("call"),
        fields.get("name"),
    )
