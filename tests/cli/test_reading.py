"""A log as it stands: the reader says for every cut what an opening for writing would find. Laws: L7, C2, C6."""

import io
from pathlib import Path

import pytest

from turnkernel.errors import LogDamagedError
from turnkernel.journal import Journal
from turnkernel.reading import LogReader, is_log
from turnkernel.store import MemoryStore, ReadOnlyStore
from turnkernel.testing.laws import check_messages

from .conftest import log_of, records_of


def read(data: bytes) -> tuple[LogReader, int]:
    reader = LogReader(MemoryStore(data))
    return reader, sum(1 for _ in reader)


def opened_for_writing(data: bytes) -> Journal | LogDamagedError:
    journal = Journal(MemoryStore(data), durability="memory", clock=lambda: 0.0)
    try:
        journal.load()
    except LogDamagedError as error:
        return error
    return journal


def test_at_every_byte_it_finds_what_an_opening_finds(closed_bytes: bytes) -> None:
    for end in range(1, len(closed_bytes) + 1, 7):
        reader, count = read(closed_bytes[:end])
        journal = opened_for_writing(closed_bytes[:end])
        assert isinstance(journal, Journal)
        assert (reader.damage, reader.refused) == (None, None)
        assert count == reader.grammar.seq == journal.seq
        whole = (closed_bytes[:end].removesuffix(b"\n") + b"\n") in (closed_bytes[: end + 1], closed_bytes[:end])
        assert (reader.tail is None) == whole


@pytest.mark.law("C1", "C2", "C3")
def test_the_closed_context_keeps_the_laws_at_every_record(closed_bytes: bytes) -> None:
    lines = closed_bytes.splitlines(keepends=True)
    for count in range(1, len(lines) + 1):
        reader, _ = read(b"".join(lines[:count]))
        before = reader.context.messages
        assert check_messages(reader.closed_context().messages) == []
        assert reader.context.messages == before, "closing in memory has changed what was read"


def test_what_an_opening_refuses_is_given_to_the_end(closed_bytes: bytes) -> None:
    events = [record.event for record in records_of(closed_bytes)]
    events[2], events[3] = events[3], events[2]
    reader, count = read(log_of(events))
    refusal = opened_for_writing(log_of(events))
    assert isinstance(refusal, LogDamagedError)
    assert reader.refused is not None
    assert str(reader.refused) == str(refusal)
    assert count == len(events)
    assert reader.grammar.seq == 2


def test_after_damage_nothing_more_is_given(closed_bytes: bytes) -> None:
    data = closed_bytes.replace(b'"turn/start"', b'"turn/stort"', 1)
    reader, count = read(data)
    assert reader.damage is not None
    assert str(reader.damage) == str(opened_for_writing(data))
    assert count == reader.damage.line - 1


@pytest.mark.parametrize("data", [b"", b"\n", b"Dear Sir,\n", bytes(100), b'{"seq":1}\n'])
def test_what_has_no_record_is_no_log(data: bytes) -> None:
    assert not is_log(MemoryStore(data))


def test_a_log_is_known_by_its_beginning_or_by_a_record(closed_bytes: bytes) -> None:
    assert is_log(MemoryStore(closed_bytes[:3]))
    assert is_log(MemoryStore(b"overwritten" + closed_bytes))


def test_a_store_for_reading_ends_where_the_file_ended(closed_log: Path) -> None:
    store = ReadOnlyStore.open(closed_log)
    size = store.size
    with closed_log.open("ab") as file:
        file.write(b"more")
    try:
        assert len(store.read(0, size + 4)) == size
        assert store.read(size, 4) == b""
        with pytest.raises(io.UnsupportedOperation):
            store.write(b"x")
        with pytest.raises(io.UnsupportedOperation):
            store.sync()
    finally:
        store.close()
