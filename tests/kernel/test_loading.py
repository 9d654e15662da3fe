"""Loading: what is not made into objects is checked all the same. Laws: L1, C6."""

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turnkernel import store
from turnkernel.bulk import delta_head, look_over
from turnkernel.codec import BadLineError, crc, decode, encode
from turnkernel.errors import LogDamagedError
from turnkernel.events import EVENT_TYPES, ModelDelta, Record, SessionOpen, StepStart, TurnStart
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


def with_crc(body):
    """A line around what its crc is of."""
    return b'{"crc":"' + crc(body).encode() + b'",' + body + b"\n"


@pytest.mark.parametrize("field", ODD)
def test_what_is_odd_about_a_delta_is_found_both_ways(field):
    rows = [encode(record) for record in play(PROGRAMS[1]).box.records]
    places = [place for place, row in enumerate(rows) if b'"model/delta"' in row]
    for place in places:
        fields = orjson.loads(rows[place])
        del fields["crc"]
        odd = with_crc(orjson.dumps({**fields, field: ODD[field]})[1:])
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


@pytest.mark.parametrize("stretch", [1, 300, 2000])
def test_it_does_not_matter_where_a_stretch_ends(monkeypatch, stretch):
    rows = [encode(record) for record in play(PROGRAMS[1]).box.records]
    for data in (b"".join(rows), b"".join(rows)[:-1], b"".join(rows)[:-9]):
        whole = loaded(data)
        with monkeypatch.context() as patch:
            patch.setattr(store, "_CHUNK", 2 * stretch)
            patch.setattr(store, "_STRETCH", stretch)
            assert loaded(data) == whole == loaded(data, Everything())


def reopened(data):
    """What the next opening makes of a log that a crash has cut."""
    log = MemoryStore(data)
    journal = Journal(log, durability="memory", folds=(), clock=lambda: 0.0)
    tail = journal.load()
    journal.append(SessionOpen("s1", "", "memory", passed_over=() if tail is None else (tail,)))
    journal.append(*closers(journal.grammar, DEFAULT, INTERRUPTION))
    return log.read(0, log.size)


def test_what_comes_after_a_gap_is_loaded_as_what_comes_before_it():
    rows = [encode(record) for record in play(PROGRAMS[1]).box.records]
    for count in range(2, len(rows), 3):
        data = reopened(b"".join(rows[:count]) + rows[count][:40])
        assert loaded(data) == loaded(data, Everything())
        assert loaded(data)[0] is None
        twice = reopened(data + b'{"crc":"to')
        assert loaded(twice) == loaded(twice, Everything())
        worse = twice + rows[0]
        assert f"line {twice.count(10) + 1} " in loaded(worse)[0]
        assert loaded(worse) == loaded(worse, Everything())


DELTAS = [
    ModelDelta("t1", "t1.s1", 0, "text", "plain"),
    ModelDelta("t1", "t1.s1", 0, "thinking", 'a "word"\n and \\ more, 测试'),
    ModelDelta("t1", "t1.s1", 3, "end"),
    ModelDelta("t1", "t1.s1", 12, "call", call="call_1", name="bash"),
    ModelDelta("t1", "t1.s1", 12, "input", '{"a":'),
]


def test_deltas_as_they_are_written_are_not_parsed():
    rows = b"".join(encode(Record(seq, 1, seq / 7, delta)) for seq, delta in enumerate(DELTAS, 1))
    bulk = look_over(rows)
    assert bulk is not None
    assert (bulk.first, bulk.others) == (1, [])
    assert set(bulk.heads) == {delta_head("t1", "t1.s1")}


@pytest.mark.law("L1")
@given(delta=st.sampled_from(DELTAS), seq=st.integers(1, 10**12), data=st.data())
@example(delta=DELTAS[0], seq=7, data=None)
def test_what_is_taken_for_a_delta_unparsed_is_one(delta, seq, data):
    """Of a line that somebody has changed, with a crc that fits."""
    body = bytearray(encode(Record(seq, 1, 1.25, delta))[18:-1])
    for _ in range(data.draw(st.integers(1, 3)) if data else 0):
        at = data.draw(st.integers(0, len(body) - 1))
        instead = data.draw(
            st.sampled_from([b"", b'"', b"0", b"\\", b"}", b",", b"e", b".", b"-", b"\x80", b" ", b"1"])
        )
        body[at : at + data.draw(st.integers(0, 1))] = instead
    line = with_crc(bytes(body))
    bulk = look_over(line)
    if bulk is not None and not bulk.others:
        record = decode(line[:-1])
        assert isinstance(record.event, ModelDelta)
        assert (record.seq, b"%d" % record.epoch) == (bulk.first, bulk.epochs[0])
        assert delta_head(record.event.turn, record.event.step) == bulk.heads[0]
    assert data is not None or bulk.others == []


@pytest.mark.parametrize("bad", [b"\xff", b"\xed\xa0\x80", b"\x01", b"\\x", b"\\ud800"])
def test_bytes_that_no_text_may_hold_are_found_both_ways(bad):
    opening = [SessionOpen("s1", "", "memory"), TurnStart("t1"), StepStart("t1", "t1.s1", "w", "m"), DELTAS[0]]
    rows = [encode(Record(seq, 1, 0.0, event)) for seq, event in enumerate(opening, 1)]
    odd = with_crc(rows[3][18:-1].replace(b"plain", b"pl" + bad + b"in"))
    with pytest.raises(BadLineError):
        decode(odd[:-1])
    data = b"".join([*rows[:3], odd, encode(Record(5, 1, 0.0, DELTAS[0]))])
    assert loaded(data) == loaded(data, Everything())
    assert "line 4 " in loaded(data)[0]
