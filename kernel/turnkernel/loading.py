"""A log that is there to the state that follows from it, in bounded memory. Reads a store; waits for nothing.

Opening costs what reading costs. Nine records of ten are deltas of messages that are closed further on; those
are checked like every record, and not made into objects. Those of a message that a crash cut are.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .codec import BadLineError, event_of, parse
from .errors import GrammarError, LogDamagedError
from .events import ModelDelta, ModelMessage, ModelRetry, PassedOver, Record, SessionOpen, StepEnd
from .grammar import Grammar
from .records import Gap, gap_at
from .store import Source, lines

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

    def pass_over(self, gap: Gap) -> None:
        """Note a gap."""
        self.gaps[gap.name.offset] = gap.after

    def _load(self) -> PassedOver | None:
        offset, number, more = 0, 0, True
        while more:
            more = False
            for at, line, _ in lines(self._store, offset):
                number += 1
                reason = self._take(at, line)
                if reason is None:
                    continue
                gap = gap_at(self._store, at, number, reason)
                self.pass_over(gap)
                if not gap.named:
                    return gap.name
                offset, number, more = gap.after, number + gap.lines - 1, True
                break
        return None

    def _take(self, offset: int, line: bytes) -> str | None:
        """Take in a line; why it may not stand where it does, or None."""
        grammar = self._grammar
        try:
            fields = parse(line)
            seq, epoch = fields["seq"], fields["epoch"]
            if self._light and fields["type"] == "model/delta" and self._take_delta(fields, seq, epoch):
                event = None
            else:
                event = event_of(fields)
        except BadLineError as error:
            return str(error)
        if event is not None:
            if seq != grammar.seq + 1:
                return f"seq {seq} after {grammar.seq}"
            if epoch != grammar.epoch + (event.__class__ is SessionOpen):
                return f"epoch {epoch}, must be {grammar.epoch + isinstance(event, SessionOpen)}"
            try:
                grammar.check(event)
            except GrammarError as error:
                return str(error)
            if self._deltas:
                self._before(event)
            record = Record(seq, epoch, fields["t"], event)
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
