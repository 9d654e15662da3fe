"""A log that is there to the state that follows from it, in bounded memory. Reads a store; waits for nothing.

Opening costs what reading costs. Nine records of ten are deltas of messages that are closed further on; those
are checked like every record, and not made into objects. Those of a message that a crash cut are.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from .bulk import Bulk, delta_head, look_over
from .codec import BadLineError, event_of, fields_of, parse
from .errors import GrammarError, LogDamagedError
from .events import ModelDelta, ModelMessage, ModelRetry, PassedOver, Record, SessionOpen, StepEnd
from .grammar import Grammar
from .records import Rest, line_at, named_gaps, outside, refusal, tail_at
from .store import Source, stretches

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
        self._deltas: list[bytes | ModelDelta] = []
        """Of the message that is streaming; what was not made is as it was read, from the key `"seq"` on."""

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
        self.gaps = named_gaps(self._store)
        for begin, end in outside(self.gaps, self._store.size):
            for offset, data in stretches(self._store, begin, end):
                tail = self._take_stretch(offset, data)
                if tail is not None:
                    self.gaps[tail.offset] = tail.offset + tail.length + 1
                    return tail
        return None

    def _take_stretch(self, offset: int, data: bytes) -> PassedOver | None:
        """Take in whole lines, or the last one that lacks its newline; the torn tail, if it begins there."""
        bulk = look_over(data) if self._light else None
        if bulk is None or bulk.first != self._grammar.seq + 1:
            return self._take_lines(offset, data)
        self._mark(offset)
        place = 0
        for other in [*bulk.others, len(bulk.bodies)]:
            # Who can't be taken in so is taken in alone, which says why.
            if place < other and not self._take_deltas(bulk, place, other):
                break
            place = other
            if other < len(bulk.bodies) and not self._take_body(bulk.bodies[other]):
                break
            place = other + 1
        else:
            return None
        passed = bulk.offset(place)
        return self._take_lines(offset + passed, data[passed:])

    def _take_lines(self, offset: int, data: bytes) -> PassedOver | None:
        """The same, line by line."""
        for line in data.removesuffix(b"\n").split(b"\n"):
            self._mark(offset)
            try:
                reason = self._take(parse(line))
            except BadLineError as error:
                return tail_at(self._store, offset, line_at(self._store, offset), str(error))
            if reason is not None:
                raise LogDamagedError(self._store.where, offset, line_at(self._store, offset), reason)
            offset += len(line) + 1
        return None

    def _take_body(self, body: bytes) -> bool:
        try:
            return self._take(fields_of(b"{" + body)) is None
        except BadLineError:
            return False

    def _take(self, fields: dict[str, Any]) -> str | None:
        """Take in a record; why it may not stand where it does, or None. Raises `BadLineError`."""
        grammar = self._grammar
        record = Record(fields["seq"], fields["epoch"], fields["t"], event_of(fields))
        reason = refusal(grammar, record)
        if reason is not None:
            return reason
        event = record.event
        if self._light and isinstance(event, ModelDelta):
            grammar.seq = record.seq
            self._deltas.append(event)
            return None
        if self._deltas:
            self._before(event)
        grammar.apply(record)
        for apply in self._folds[event.type]:
            apply(record)
        return None

    def _mark(self, offset: int) -> None:
        """A line begins here."""
        seq = self._grammar.seq + 1
        if not self.marks or self.marks[-1][0] + MARK_EVERY <= seq:
            self.marks.append((seq, offset))

    def _take_deltas(self, bulk: Bulk, begin: int, end: int) -> bool:
        """Take in deltas without making them; False if one is not of the open step, or none may stand here."""
        grammar = self._grammar
        if grammar.turn is None or grammar.step is None:
            return False
        turn, step = grammar.turn.id, grammar.step.id
        try:
            # What may be said of one may be said of any number.
            grammar.check(ModelDelta(turn, step, 0, "text"))
        except GrammarError:
            return False
        epochs, heads = bulk.epochs[begin:end], bulk.heads[begin:end]
        if not epochs.count(b"%d" % grammar.epoch) == heads.count(delta_head(turn, step)) == end - begin:
            return False
        self._deltas += bulk.bodies[begin:end]
        grammar.seq += end - begin
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
            step.deltas += [_made(delta) for delta in self._deltas]
            self._deltas.clear()


def _made(delta: bytes | ModelDelta) -> ModelDelta:
    return cast("ModelDelta", event_of(fields_of(b"{" + delta))) if isinstance(delta, bytes) else delta
