"""A damaged log: refused with its place, or salvaged loudly and never silently shorter. Laws: L1, L7."""

import attrs
import pytest

from turnkernel import open_session
from turnkernel.codec import encode, passed_over
from turnkernel.errors import LogDamagedError
from turnkernel.events import Record, SessionOpen
from turnkernel.journal import Journal, read_records
from turnkernel.reading import LogReader
from turnkernel.store import FileStore, MemoryStore
from turnkernel.testing.laws import check_append_only, check_log
from turnkernel.testing.programs import PROGRAMS
from turnkernel.testing.replies import Reply
from turnkernel.testing.scripted import ScriptedProvider
from turnkernel.testing.sweep import play


@pytest.fixture(scope="module")
def lines():
    return [encode(record) for record in play(PROGRAMS[1]).box.records]


async def opened(store, *, salvage=False, prompt=None):
    provider = ScriptedProvider([Reply(text="Understood.")])
    async with open_session(store, provider=provider, durability="process", salvage=salvage) as session:
        if prompt is not None:
            await session.send(prompt)
            await session.rest()


def records(data):
    return [item for _, item in read_records(MemoryStore(data))]


def flipped(line):
    return line[:40] + bytes([line[40] ^ 1]) + line[41:]


def bytes_of(store):
    return store.read(0, 1 << 24)


DAMAGES = {
    "a flipped bit": lambda lines, at: [*lines[:at], flipped(lines[at]), *lines[at + 1 :]],
    "two bad lines": lambda lines, at: [*lines[:at], b"what\n", b"is this\n", *lines[at + 1 :]],
    "zeros over a newline": lambda lines, at: [*lines[:at], bytes(len(lines[at])), *lines[at + 1 :]],
    "a record is gone": lambda lines, at: [*lines[:at], *lines[at + 1 :]],
    "a record is there twice": lambda lines, at: [*lines[: at + 1], *lines[at:]],
    "an empty line": lambda lines, at: [*lines[:at], b"\n", *lines[at:]],
}


@pytest.mark.parametrize("what", DAMAGES)
@pytest.mark.parametrize("at", [0, 1, 7, 20])
@pytest.mark.law("L1", "L7")
async def test_damage_is_refused_with_its_place_and_salvaged_if_told_so(lines, what, at):
    before = b"".join(DAMAGES[what](lines, at))
    with pytest.raises(LogDamagedError) as caught:
        await opened(MemoryStore(before))
    good = at + (what == "a record is there twice")
    assert caught.value.offset == sum(map(len, lines[:good]))
    assert caught.value.line == good + 1

    store = MemoryStore(before)
    await opened(store, salvage=True, prompt="and now?")
    after = bytes_of(store)
    assert check_append_only(before, after) == []
    found = records(after)
    assert check_log(found, closed=True) == []
    assert [encode(one) for one in found[:good]] == lines[:good]
    opening = found[good].event
    assert isinstance(opening, SessionOpen)
    assert opening.salvaged is not None
    assert opening.salvaged.reason.startswith(f"line {good + 1}: ")
    [(name, rest)] = store.aside.items()
    assert name == opening.salvaged.file
    assert rest == before[caught.value.offset :]
    [gap] = opening.passed_over
    assert (gap.offset, gap.length) == (caught.value.offset, len(rest) - 1)
    assert opening.salvaged.records == sum(row in lines for row in rest.splitlines(keepends=True))

    # From now on it opens like any other; a reader that only looks finds the same.
    await opened(MemoryStore(after))
    reader = LogReader(MemoryStore(after))
    assert [one.seq for one in reader] == [one.seq for one in found]
    assert (reader.damage, reader.refused, reader.tail) == (None, None, None)
    assert len(reader.context.messages) == len(_context(found).messages)


def _context(found):
    from turnkernel.replay import Context

    context = Context()
    for record in found:
        context.apply(record)
    return context


async def test_a_log_may_be_salvaged_again_and_again(lines):
    data = b"".join([*lines[:20], flipped(lines[20]), *lines[21:]])
    for at in (15, 9, 4):
        store = MemoryStore(data)
        await opened(store, salvage=True)
        rows = bytes_of(store).splitlines(keepends=True)
        data = b"".join([*rows[:at], flipped(rows[at]), *rows[at + 1 :]])
        with pytest.raises(LogDamagedError):
            await opened(MemoryStore(data))
    store = MemoryStore(data)
    await opened(store, salvage=True)
    found = records(bytes_of(store))
    assert check_log(found, closed=True) == []
    assert [encode(one) for one in found[:4]] == lines[:4]


async def test_an_opening_that_salvages_a_log_that_is_whole_or_torn_does_as_any_other(lines):
    for data in (b"".join(lines), b"".join(lines)[:-10], b""):
        plain, salvaged = MemoryStore(data), MemoryStore(data)
        await opened(plain)
        await opened(salvaged, salvage=True)
        assert salvaged.aside == {}
        kinds = [[one.event.type for one in records(bytes_of(store))] for store in (plain, salvaged)]
        assert kinds[0] == kinds[1]


@pytest.mark.law("L7")
async def test_a_crash_at_any_byte_of_a_salvage_leaves_the_log_damaged_or_salvaged(lines):
    damaged = b"".join([*lines[:9], flipped(lines[9]), *lines[10:]])
    store = MemoryStore(damaged)
    await opened(store, salvage=True)
    after = bytes_of(store)
    opening = after.index(b"\n", len(damaged)) + 1
    for cut in range(len(damaged), len(after), 5):
        image = after[:cut]
        if cut < opening - 1:
            with pytest.raises(LogDamagedError):
                await opened(MemoryStore(image))
        again = MemoryStore(image)
        await opened(again, salvage=True)
        found = records(bytes_of(again))
        assert check_log(found, closed=True) == []
        assert [encode(one) for one in found[:9]] == lines[:9]


def test_a_cursor_does_not_see_what_was_passed_over(lines):
    damaged = b"".join([*lines[:9], *lines[12:]])
    journal = Journal(MemoryStore(damaged), durability="memory", clock=lambda: 0.0)
    with pytest.raises(LogDamagedError):
        journal.load()
    gap, salvaged = journal.salvage()
    journal.append(SessionOpen("s", "now", "memory", passed_over=(gap,), salvaged=salvaged))
    assert [one.seq for one in journal.records_from(1)] == list(range(1, 11))
    again = Journal(MemoryStore(bytes_of(journal._store)), durability="memory", clock=lambda: 0.0)
    again.load()
    assert [one.seq for one in again.records_from(1)] == list(range(1, 11))


async def test_the_rest_is_in_a_file_beside_the_log(lines, tmp_path):
    path = tmp_path / "session.log"
    path.write_bytes(b"".join([*lines[:9], *lines[10:]]))
    await opened(path, salvage=True)
    store = FileStore.open(path)
    store.close()
    opening = records(path.read_bytes())[9].event
    assert isinstance(opening, SessionOpen)
    assert opening.salvaged is not None
    assert (tmp_path / opening.salvaged.file).read_bytes() == b"".join(lines[10:])


def test_a_gap_counts_only_if_the_opening_right_behind_it_names_it_to_the_byte(lines):
    bad = b"nothing like a record"
    good = b"".join(lines[:9])
    right = passed_over(len(good), bad)
    for wrong in ({"offset": right.offset + 1}, {"length": right.length + 1}, {"crc": "00000000"}):
        named = attrs.evolve(right, **wrong)
        opening = encode(Record(10, 2, 0.0, SessionOpen("s", "now", "power", passed_over=(named,))))
        with pytest.raises(LogDamagedError, match="line 10"):
            records(good + bad + b"\n" + opening)
