"""Loading: what is not made into objects is checked all the same. Laws: L1, C6."""

import orjson
import pytest

from turnkernel.codec import crc, encode
from turnkernel.errors import LogDamagedError
from turnkernel.events import EVENT_TYPES
from turnkernel.journal import Journal
from turnkernel.repair import INTERRUPTION, closers
from turnkernel.replay import Context
from turnkernel.store import MemoryStore
from turnkernel.testing.programs import PROGRAMS
from turnkernel.testing.sweep import cancel, play
from turnkernel.wording import DEFAULT


class Everything:
    """A fold that wants every event: with it, every record is made into an object."""

    types = frozenset(EVENT_TYPES)

    def apply(self, record):
        pass


def loaded(data, *folds):
    """What an opening finds, by the slow way if a fold wants everything: state, context, closers or damage."""
    context = Context()
    journal = Journal(MemoryStore(data), durability="memory", folds=(context, *folds), clock=lambda: 0.0)
    try:
        tail = journal.load()
    except LogDamagedError as damage:
        return str(damage), journal.grammar.seq, closers(journal.grammar, DEFAULT, INTERRUPTION)
    step = journal.grammar.step
    deltas = step.deltas if step is not None else None
    events = closers(journal.grammar, DEFAULT, INTERRUPTION)
    return tail, repr(journal.grammar), deltas, events, context.messages


@pytest.fixture(scope="module", params=PROGRAMS, ids=lambda program: program.title)
def rows(request):
    plan = {30: cancel} if request.param.title == "two steps" else {}
    return [encode(record) for record in play(request.param, plan).box.records]


@pytest.mark.law("L1", "C6")
def test_at_every_record_both_ways_find_the_same(rows):
    for count in range(len(rows) + 1):
        data = b"".join(rows[:count])
        assert loaded(data) == loaded(data, Everything())
        assert loaded(data + b'{"crc":"to') == loaded(data + b'{"crc":"to', Everything())


ODD = {
    "seq": 1.0,
    "epoch": 2,
    "t": "soon",
    "turn": "t9",
    "step": "t1.s9",
    "block": "0",
    "part": "nothing",
    "text": None,
    "call": 7,
    "name": [],
    "unknown": "field",
}


@pytest.mark.parametrize("field", ODD)
def test_what_is_odd_about_a_delta_is_found_both_ways(field):
    rows = [encode(record) for record in play(PROGRAMS[1]).box.records]
    places = [place for place, row in enumerate(rows) if b'"model/delta"' in row]
    for place in places:
        fields = orjson.loads(rows[place])
        del fields["crc"]
        body = orjson.dumps({**fields, field: ODD[field]})[1:]
        odd = b'{"crc":"' + crc(body).encode() + b'",' + body + b"\n"
        data = b"".join([*rows[:place], odd, *rows[place + 1 :]])
        light, full = loaded(data), loaded(data, Everything())
        assert light == full
        if field != "unknown":
            assert f"line {place + 1} " in light[0]


def test_a_wrong_crc_and_bytes_around_a_record_are_found_both_ways():
    rows = [encode(record) for record in play(PROGRAMS[0]).box.records]
    for place in range(len(rows)):
        row = rows[place]
        for odd in (row[:8] + b"00000000" + row[16:], row[:-1] + b" \n", b" " + row, row.upper(), b"[]\n", b"\n"):
            data = b"".join([*rows[:place], odd, *rows[place + 1 :]])
            assert loaded(data) == loaded(data, Everything())
