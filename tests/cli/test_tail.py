"""Following a log's file: every record once, torn ends left out, and what was removed is told. Law L7."""

import os
from pathlib import Path

import pytest

from turnkernel.store import FileStore
from turnkernel_demo.tail import Change, Tail, writer_of

from .conftest import records_of


def test_every_record_is_given_once_however_the_bytes_come(tmp_path: Path, closed_bytes: bytes) -> None:
    log = tmp_path / "growing.log"
    tail = Tail(log)
    assert tail.look() == Change()
    seen = []
    for end in range(0, len(closed_bytes) + 50, 50):
        log.write_bytes(closed_bytes[:end])
        change = tail.look()
        assert change.removed == 0
        seen += change.records
    assert seen == tail.records == records_of(closed_bytes)
    assert tail.look() == Change([])


def test_a_torn_end_is_left_out_and_what_comes_after_it_is_not(tmp_path: Path, closed_bytes: bytes) -> None:
    lines = closed_bytes.splitlines(keepends=True)
    log = tmp_path / "torn.log"
    log.write_bytes(b"".join(lines[:5]) + lines[5][:20])
    tail = Tail(log)
    assert len(tail.look().records) == 5
    log.write_bytes(b"".join(lines[:5]) + lines[5][:20] + b"\n" + b"".join(lines[5:8]))
    assert [record.seq for record in tail.look().records] == [6, 7, 8]


@pytest.mark.law("L7")
def test_records_that_were_removed_are_told(tmp_path: Path, closed_bytes: bytes) -> None:
    lines = closed_bytes.splitlines(keepends=True)
    log = tmp_path / "cut.log"
    log.write_bytes(b"".join(lines[:12]))
    tail = Tail(log)
    tail.look()
    log.write_bytes(b"".join(lines[:4]))
    assert tail.look() == Change([], removed=8)
    log.write_bytes(b"".join(lines[:20]))
    assert [record.seq for record in tail.look().records] == list(range(5, 21))


def test_records_that_were_replaced_are_told_though_the_log_has_grown(tmp_path: Path, closed_bytes: bytes) -> None:
    lines = closed_bytes.splitlines(keepends=True)
    log = tmp_path / "cut.log"
    log.write_bytes(b"".join(lines[:12]))
    tail = Tail(log)
    tail.look()
    log.write_bytes(b"".join(lines[:10]) + b"".join(lines[20:30]))
    change = tail.look()
    assert change.removed == 2
    assert [record.seq for record in change.records] == list(range(21, 31))
    assert len(tail.records) == 20


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the system lists no locks; Linux does")
def test_the_writer_of_a_log_is_known_as_long_as_it_has_it_open(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    assert writer_of(log) is None
    store = FileStore.open(log)
    assert writer_of(log) == os.getpid()
    store.close()
    assert writer_of(log) is None
