"""A log that is there to the state that follows from it, in bounded memory. Reads a store; waits for nothing.

Opening costs what reading costs. Nine records of ten are deltas of messages that are closed further on; those
are checked like every record, and not made into objects. Those of a message that a crash cut are.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from .codec import BadLineError, event_of, parse, parse_all
from .errors import LogDamagedError
from .events import ModelDelta, ModelMessage, ModelRetry, PassedOver, Record, SessionOpen, StepEnd
from .grammar import Grammar
from .records import Rest, lines_outside, named_gaps, refusal, tail_at
from .store import Source, line_batches

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
        if not self.gaps:
            return self._load_batches()
        for at, line, number in lines_outside(store, self.gaps):
            tail = self._load_line(at, line, number)
            if tail is not None:
                return tail
        return None

    def _load_batches(self) -> PassedOver | None:
        """As line by line, with what is the same for every line done for many at once."""
        number = 0
        for offset, batch in line_batches(self._store):
            parsed = parse_all(batch)
            place = 0
            while place < len(batch):
                taken = self._take_run(offset, parsed, place) if parsed is not None else 0
                if not taken:
                    fields = parsed[place] if parsed is not None else None
                    tail = self._load_line(offset, batch[place], number + 1, fields)
                    if tail is not None:
                        return tail
                    taken = 1
                offset += sum(map(len, batch[place : place + taken])) + taken
                place += taken
                number += taken
        return None

    def _load_line(
        self, at: int, line: bytes, number: int, fields: dict[str, Any] | None = None
    ) -> PassedOver | None:
        """Take in a line; the torn tail, if it is where that begins."""
        try:
            reason = self._take(at, fields or parse(line))
        except BadLineError as error:
            tail = tail_at(self._store, at, number, str(error))
            self.gaps[tail.offset] = tail.offset + tail.length + 1
            return tail
        if reason is not None:
            raise LogDamagedError(self._store.where, at, number, reason)
        return None

    def _take(self, offset: int, fields: dict[str, Any]) -> str | None:
        """Take in a record; why it may not stand where it does, or None. Raises `BadLineError`."""
        grammar = self._grammar
        record = Record(fields["seq"], fields["epoch"], fields["t"], event_of(fields))
        reason = refusal(grammar, record)
        if reason is not None:
            return reason
        event = record.event
        if self._deltas:
            self._before(event)
        grammar.apply(record)
        for apply in self._folds[event.type]:
            apply(record)
        self._mark(record.seq, offset)
        return None

    def _mark(self, seq: int, offset: int) -> None:
        if not self.marks or self.marks[-1][0] + MARK_EVERY <= seq:
            self.marks.append((seq, offset))

    def _take_run(self, offset: int, parsed: Sequence[dict[str, Any]], place: int) -> int:
        """Take in the deltas of the open step that begin at a place, without making them; how many.

        0 where there are none, or where anything about them is odd: they are then taken one by one, which says
        what. Every check that is made of one is made here of all.
        """
        grammar = self._grammar
        turn, step = grammar.turn, grammar.step
        if parsed[place]["type"] != "model/delta" or not self._light:
            return 0
        if turn is None or step is None or step.message is not None or turn.state == "cut":
            return 0
        end = place + 1
        while end < len(parsed) and parsed[end]["type"] == "model/delta":
            end += 1
        run = parsed[place:end]
        first, last = grammar.seq + 1, grammar.seq + len(run)
        try:
            right = (
                list(map(_seq_of, run)) == list(range(first, last + 1))
                and set(map(_place_of, run)) == {(grammar.epoch, turn.id, step.id)}
                and all(map(_fits, run))
            )
        except (KeyError, TypeError):
            return 0
        if not right:
            return 0
        self._mark(first, offset)
        self._deltas += run
        grammar.seq = last
        return len(run)

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


_seq_of = itemgetter("seq")
_place_of = itemgetter("epoch", "turn", "step")


def _fits(fields: dict[str, Any]) -> bool:
    """Whether the fields of a delta hold what they should. KeyError and TypeError mean that they do not."""
    return (
        fields["block"].__class__ is int
        and fields["part"] in _PARTS
        and fields.get("text", "").__class__ is str
        and ("call" not in fields or fields["call"].__class__ in _TEXTS)
        and ("name" not in fields or fields["name"].__class__ in _TEXTS)
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
