"""What a crash or a fault of the disk leaves of a log's bytes: torn tails, damage, and letters to somebody."""

import json
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernel.histories import everything, folded, histories, numbered, opening

from turnkernel.codec import encode
from turnkernel.errors import LogDamagedError
from turnkernel.events import (
    Event,
    InboxConsumed,
    InboxQueued,
    ModelDelta,
    ModelMessage,
    PassedOver,
    Record,
    SessionOpen,
    StepStart,
    ToolCall,
    ToolStart,
    TurnStart,
)
from turnkernel.journal import Journal
from turnkernel.messages import Text, ToolUse
from turnkernel.reading import LogReader
from turnkernel.repair import INTERRUPTION, closers
from turnkernel.replay import Context
from turnkernel.store import MemoryStore
from turnkernel.testing.laws import check_append_only, check_log
from turnkernel.wording import DEFAULT

EVENTS: list[Event] = [
    opening(),
    InboxQueued("i1", "prompt", "Run the tests, 测试."),
    TurnStart("t1"),
    InboxConsumed("i1", "t1", "t1.s1"),
    StepStart("t1", "t1.s1", "anthropic", "m"),
    ModelDelta("t1", "t1.s1", 0, "text", "Let me"),
    ModelDelta("t1", "t1.s1", 1, "call", call="c1", name="bash"),
    ModelDelta("t1", "t1.s1", 1, "input", '{"a":{}}'),
    ModelMessage("t1", "t1.s1", "anthropic", "m", (Text("Let me"), ToolUse("c1", "bash", {"a": {}})), "tool_use"),
    ToolCall("t1", "c1", "bash"),
    ToolStart("t1", "c1", "bash", {"a": {"b": {}}}, "effect"),
]
LINES = [encode(record) for record in numbered(EVENTS)]
LOG = b"".join(LINES)


class Log:
    """A log opened for writing over bytes, and recovered as a session does it."""

    def __init__(self, data: bytes, *more_folds) -> None:
        self.context = Context()
        self.store = MemoryStore(data)
        self.journal = Journal(
            self.store, durability="memory", folds=(self.context, *more_folds), clock=lambda: 0.0
        )
        self.tail = self.journal.load()

    def recover(self) -> bytes:
        named = () if self.tail is None else (self.tail,)
        self.journal.append(opening(passed_over=named))
        self.journal.append(*closers(self.journal.grammar, DEFAULT, INTERRUPTION))
        return self.bytes

    @property
    def bytes(self) -> bytes:
        return self.store.read(0, self.store.size)


def records_of(data: bytes) -> list[Record]:
    reader = LogReader(MemoryStore(data))
    records = list(reader)
    assert reader.damage is reader.refused is reader.tail is None
    return records


def damage(data: bytes) -> tuple[int, int]:
    """The line and the offset at which a log is refused."""
    with pytest.raises(LogDamagedError) as refused:
        Log(data)
    reader = LogReader(MemoryStore(data))
    list(reader)
    found = reader.damage or reader.refused
    assert found is not None, "who only reads is told of it too"
    assert (found.line, found.offset) == (refused.value.line, refused.value.offset)
    assert str(refused.value).startswith(f"memory: line {refused.value.line} (byte {refused.value.offset}): ")
    return refused.value.line, refused.value.offset


def flipped(line: bytes, at: int = 40) -> bytes:
    return line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :]


def start_of(number: int) -> int:
    """Where line `number` begins, from 1."""
    return sum(map(len, LINES[: number - 1]))


# ------------------------------------------------------------------------------------------- cut at every byte


@pytest.mark.law("L3", "L6", "L7", "C1", "C2")
@pytest.mark.parametrize("rest", [b"", b"\0" * 30, b"\n"], ids=["nothing", "zeros", "newline"])
def test_a_log_that_is_cut_at_any_byte_is_recovered_by_appending(rest):
    for cut in range(len(LOG) + 1):
        before = LOG[:cut] + rest
        log = Log(before)
        after = log.recover()
        assert check_append_only(before, after) == []
        records = records_of(after)
        whole = len(LOG[: cut + 1].split(b"}\n")) - 1 if rest == b"\n" else LOG[:cut].count(b"\n")
        assert [record.event for record in records[:whole]] == EVENTS[:whole]
        assert check_log(records, closed=True, every_prefix=False) == []
        opened = records[whole + (records[whole].event in EVENTS[1:])].event
        assert isinstance(opened, SessionOpen)
        for name in opened.passed_over:
            bad = before[name.offset : name.offset + name.length]
            assert (f"{zlib.crc32(bad):08x}", b"\n" in bad) == (name.crc, False)
            assert name.offset == LOG[:cut].rfind(b"\n") + 1


def test_a_whole_record_that_lacks_only_its_newline_is_kept():
    log = Log(LOG[:-1])
    assert log.tail is None
    assert log.journal.seq == len(EVENTS)
    assert log.bytes == LOG


@pytest.mark.law("L7", "C6")
@pytest.mark.parametrize("torn", [7, 30, 111, len(LINES[-1]) - 3], ids=["few", "head", "most", "in a brace"])
def test_a_crash_at_any_byte_of_the_recovery_from_a_torn_log_is_recovered_from(torn):
    first = LOG[: len(LOG) - len(LINES[-1]) + torn]
    whole = Log(first)
    end = whole.recover()
    for cut in range(len(first), len(end) + 1):
        for rest in (b"", b"\0" * 9):
            again = Log(end[:cut] + rest)
            after = again.recover()
            assert check_append_only(end[:cut] + rest, after) == []
            assert check_log(records_of(after), closed=True, every_prefix=False) == []
            assert again.context.messages == whole.context.messages


def test_recoveries_may_crash_again_and_again():
    data, end = LOG[:-5], b""
    for cut in (3, 20, 9, 70, 33, 55):
        end = Log(data).recover()
        data = end[: len(data) + 1 + cut]
    log = Log(data)
    assert log.tail is not None
    assert data[log.tail.offset :].count(b"\n") == 6, "all of them are one torn tail"
    after = log.recover()
    assert [record.event for record in records_of(after)][: len(EVENTS) - 1] == EVENTS[:-1]
    assert Log(after).tail is None


@pytest.mark.parametrize("cuts", [(5,), (5, 5), (40, 60, 70)])
def test_a_first_opening_that_crashed_is_a_torn_log(cuts):
    data = b""
    for cut in cuts:
        data = Log(data).recover()[: len(data) + 1 + cut]
    records = records_of(Log(data).recover())
    assert [record.event.type for record in records] == ["session/open"]
    assert records[0].event.passed_over


# -------------------------------------------------------------------------------------------------- damage


@pytest.mark.law("L7")
def test_a_flipped_bit_before_the_last_line_is_damage_with_its_place():
    for number in range(1, len(LINES)):
        data = LOG.replace(LINES[number - 1], flipped(LINES[number - 1]))
        assert damage(data) == (number, start_of(number))


def test_a_last_line_that_fails_is_passed_over_by_name():
    log = Log(LOG[: -len(LINES[-1])] + flipped(LINES[-1]))
    bad = flipped(LINES[-1])[:-1]
    assert log.tail == PassedOver(start_of(len(LINES)), len(bad), f"{zlib.crc32(bad):08x}")


def test_two_last_lines_that_fail_are_damage_and_so_is_one_before_a_torn_tail():
    place = (len(LINES) - 1, start_of(len(LINES) - 1))
    before = LOG[: start_of(len(LINES) - 1)]
    assert damage(before + flipped(LINES[-2]) + flipped(LINES[-1])) == place
    assert damage(before + flipped(LINES[-2]) + LINES[-1][:60]) == place
    assert damage(before + b"garbage\n" + b"garbage\n") == place
    assert damage(before + b"garbage\n" + b"{}") == place


def test_lines_that_are_lost_or_doubled_are_damage():
    for number in range(2, len(LINES)):
        lost = b"".join([*LINES[: number - 1], *LINES[number:]])
        assert damage(lost) == (number, start_of(number))
        doubled = b"".join([*LINES[:number], *LINES[number - 1 :]])
        assert damage(doubled) == (number + 1, start_of(number + 1))


def test_an_empty_line_is_damage():
    assert damage(LINES[0] + b"\n" + LINES[1]) == (2, start_of(2))


@pytest.mark.law("L1")
@pytest.mark.parametrize(
    "change",
    [{"seq": 8}, {"seq": 10}, {"seq": 0}, {"seq": -9}, {"epoch": 2}, {"epoch": 0}],
    ids=str,
)
def test_a_record_with_a_wrong_number_or_epoch_is_damage_though_its_crc_is_right(change):
    fields = json.loads(LINES[8])
    del fields["crc"]
    body = json.dumps({**fields, **change}, separators=(",", ":"), ensure_ascii=False).encode()[1:]
    line = b'{"crc":"%08x",%s\n' % (zlib.crc32(body), body)
    for rest in (b"", LINES[9]):
        assert damage(b"".join(LINES[:8]) + line + rest) == (9, start_of(9))


@pytest.mark.law("L1")
def test_an_opening_of_a_later_epoch_or_of_the_same_one_is_damage():
    for epoch in (1, 3, 0):
        line = encode(Record(len(LINES) + 1, epoch, 0.0, opening()))
        assert damage(LOG + line) == (len(LINES) + 1, len(LOG))
    assert Log(LOG + encode(Record(len(LINES) + 1, 2, 0.0, opening()))).journal.grammar.epoch == 2


@pytest.mark.law("L2")
def test_a_record_that_may_not_stand_there_is_damage_with_its_line_and_not_its_number():
    """A torn tail that was passed over is a line and no record."""
    data = Log(LOG[:-9]).recover()
    lines = data.count(b"\n")
    records = records_of(data)
    assert lines == len(records) + 1
    illegal = encode(Record(len(records) + 1, 2, 0.0, TurnStart("t1")))
    assert damage(data + illegal) == (lines + 1, len(data))


def test_a_log_of_a_later_format_is_refused_and_not_written_to():
    later = LOG.replace(LINES[0], encode(Record(1, 1, 0.0, opening(format=2))))
    assert damage(later) == (1, 0)


@pytest.mark.parametrize(
    "text",
    [
        b"Dear Bob",
        b"Dear Bob\n",
        b"Dear Bob,\n\nhow are you?\n",
        b"{}\n",
        b'{"crc":"12345678","seq":1,"type":',
    ],
)
def test_a_file_that_does_not_begin_as_a_log_is_refused(text):
    store = MemoryStore(text)
    with pytest.raises(LogDamagedError):
        Journal(store, durability="memory", clock=lambda: 0.0).load()
    assert store.read(0, 100) == text, "nothing is written to it"


def test_an_empty_file_is_a_log_in_which_nothing_has_happened():
    log = Log(b"")
    assert (log.tail, log.journal.seq, log.bytes) == (None, 0, b"")


@pytest.mark.law("L7")
@pytest.mark.parametrize(
    "name",
    [
        lambda name: PassedOver(name.offset + 1, name.length - 1, name.crc),
        lambda name: PassedOver(name.offset, name.length - 1, name.crc),
        lambda name: PassedOver(name.offset, name.length, "00000000"),
    ],
    ids=["offset", "length", "crc"],
)
def test_bytes_that_are_not_named_exactly_are_damage(name):
    log = Log(LOG[:-9])
    assert log.tail is not None
    bad = encode(Record(log.journal.seq + 1, 2, 0.0, opening(passed_over=(name(log.tail),))))
    assert damage(log.bytes + bad) == (len(LINES), start_of(len(LINES)))


# ------------------------------------------------------------------------------------------------- loading


class Deltas:
    """A fold that wants to see deltas, so that they must be made."""

    types = frozenset(("model/delta", "model/message"))

    def __init__(self) -> None:
        self.seen: list[Event] = []

    def apply(self, record: Record) -> None:
        self.seen.append(record.event)


@pytest.mark.law("C6", "D2")
@settings(max_examples=60, deadline=None)
@given(histories())
def test_a_log_that_is_loaded_is_the_log_that_was_written(records):
    data = b"".join(map(encode, records))
    grammar, context = folded(records)
    deltas = Deltas()
    for log in (Log(data), Log(data, deltas)):
        assert everything(log.journal.grammar) == everything(grammar)
        assert log.context.messages == context.messages
        assert log.bytes == data
    assert deltas.seen == [record.event for record in records if record.event.type in Deltas.types]


@pytest.mark.law("L7")
@settings(max_examples=60, deadline=None)
@given(histories(), st.data())
def test_any_history_cut_anywhere_is_recovered(records, data):
    log = b"".join(map(encode, records))
    cut = data.draw(st.integers(0, len(log)))
    first = Log(log[:cut])
    after = first.recover()
    assert check_append_only(log[:cut], after) == []
    found = records_of(after)
    assert check_log(found, closed=True, every_prefix=False) == [] or [
        task for task in first.journal.grammar.tasks.values() if task.lifetime == "detached"
    ]
    again = Log(after)
    assert again.tail is None
    assert again.context.messages == first.context.messages
    assert closers(again.journal.grammar, DEFAULT, INTERRUPTION) == []
    # Reading on from the store gives the same records as reading it through.
    assert [one for batch in batches(again.journal) for one in batch] == found


def batches(journal: Journal):
    seq = 1
    while batch := journal.records_from(seq):
        yield batch
        seq = batch[-1].seq + 1


def recrced(line: bytes, change: dict[str, object]) -> bytes:
    """The line with other fields and the right crc over them."""
    fields = {**json.loads(line), **change}
    del fields["crc"]
    body = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()[1:]
    return b'{"crc":"%08x",%s\n' % (zlib.crc32(body), body)


ODD = st.sampled_from(
    [None, 0, 1, 2, 7, -1, 1.5, True, "", "t1", "t1.s1", "t2", "text", "model/delta", "turn/end", [], {}, ["t1"]]
)
KEYS = st.sampled_from(
    ["seq", "epoch", "t", "type", "turn", "step", "block", "part", "text", "call", "name", "more"]
)


def meddled(data: st.DataObject, lines: list[bytes]) -> bytes:
    """The bytes of a log after something has happened to it."""
    place = data.draw(st.integers(0, len(lines) - 1))
    line, rest = lines[place], lines[place + 1 :]
    match data.draw(st.sampled_from(["change", "change", "flip", "lose", "double", "cut", "insert"])):
        case "change":
            new = [recrced(line, {data.draw(KEYS): data.draw(ODD)})]
        case "flip":
            new = [flipped(line, data.draw(st.integers(0, len(line) - 2)))]
        case "lose":
            new = []
        case "double":
            new = [line, line]
        case "cut":
            new, rest = [line[: data.draw(st.integers(0, len(line)))]], []
        case _:
            new = [line, data.draw(st.sampled_from([b"\n", b"garbage\n", b"\0\0\n", b'{"crc":"\n']))]
    return b"".join([*lines[:place], *new, *rest])


@pytest.mark.law("L7", "D2")
@settings(max_examples=150, deadline=None)
@given(histories(30), st.data())
def test_who_writes_and_who_only_reads_agree_on_what_a_log_says_whatever_has_happened_to_it(records, data):
    log = meddled(data, [encode(record) for record in records])
    reader = LogReader(MemoryStore(log))
    for _ in reader:
        pass
    found = reader.damage or reader.refused
    try:
        written = Log(log)
    except LogDamagedError as refused:
        assert found is not None
        assert (refused.line, refused.offset, refused.reason) == (found.line, found.offset, found.reason)
        return
    assert found is None
    assert written.tail == reader.tail
    assert everything(written.journal.grammar) == everything(reader.grammar)
    assert written.context.messages == reader.context.messages
