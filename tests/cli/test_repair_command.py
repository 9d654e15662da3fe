"""`repair`: it appends what closes a log, and nothing else. Laws: L6, L7."""

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from click.testing import Result

from turnkernel.codec import encode
from turnkernel.events import SessionOpen
from turnkernel.store import FileStore
from turnkernel.testing.laws import check_append_only, check_log

from .conftest import cut_after, records_of

Invoke = Callable[..., Result]

PLACES = [("turn/start", 0), ("model/delta", 30), ("model/message", 0), ("tool/start", 1), ("step/end", 0)]


@pytest.mark.parametrize(("after", "more"), PLACES)
@pytest.mark.law("L6", "L7")
def test_repair_appends_the_closers_and_a_second_one_appends_nothing(
    invoke: Invoke, tmp_path: Path, closed_bytes: bytes, after: str, more: int
) -> None:
    log = tmp_path / "open.log"
    before = cut_after(closed_bytes, after, more)
    log.write_bytes(before)
    result = invoke("repair", log)
    assert result.exit_code == 0, result.output
    repaired = log.read_bytes()
    records = records_of(repaired)
    assert not check_append_only(before, repaired)
    assert not check_log(records, closed=True)
    assert records[-1].event.type == "session/close"
    new = [record for record in records if record.epoch == 2]
    assert len(result.stdout.splitlines()) == len(new) + 1
    turn = before.rindex(b'"type":"turn/start"')
    kept, results = 1 + before[turn:].count(b"\n{"), before[turn:].count(b'"type":"tool/result"')
    kept -= not before.endswith(b"\n")
    assert result.stdout.splitlines()[-1] == (
        f"appended: {len(new)} records; kept: {kept} of the unfinished turn t1, {results} of them results of calls"
    )

    again = invoke("repair", log)
    assert again.exit_code == 0
    assert "nothing to append" in again.stdout
    assert log.read_bytes() == repaired


def test_a_dry_run_prints_what_repair_appends_and_appends_nothing(
    invoke: Invoke, tmp_path: Path, closed_bytes: bytes
) -> None:
    log = tmp_path / "open.log"
    before = cut_after(closed_bytes, "tool/start", 17)
    log.write_bytes(before)
    dry = invoke("repair", "--dry-run", log)
    assert dry.exit_code == 0
    assert log.read_bytes() == before
    assert list(tmp_path.iterdir()) == [log], "no lock either"
    real = invoke("repair", log)

    def types(result: Result) -> list[list[str]]:
        return [[words[0], *words[2:5]] for words in map(str.split, result.stdout.splitlines()[:-1])]

    def without_the_wall_clock(lines: list[list[str]]) -> list[list[str]]:
        return [words for words in lines if words[1] != "session/open"]

    assert without_the_wall_clock(types(dry)) == without_the_wall_clock(types(real))
    assert types(dry)[0][1] == "session/open"


@pytest.mark.law("L7")
def test_repair_of_a_closed_log_leaves_every_byte(invoke: Invoke, closed_log: Path, closed_bytes: bytes) -> None:
    for more in ([], ["--dry-run"]):
        result = invoke("repair", *more, closed_log)
        assert (result.exit_code, result.stderr) == (0, "")
        assert closed_log.read_bytes() == closed_bytes


@pytest.mark.law("L7")
def test_a_torn_end_of_a_log_with_nothing_open_is_named(
    invoke: Invoke, tmp_path: Path, closed_bytes: bytes
) -> None:
    log = tmp_path / "torn.log"
    before = cut_after(closed_bytes, "turn/end", 9)
    log.write_bytes(before)
    assert "passed over 9 bytes" in invoke("repair", log).stdout
    assert not check_append_only(before, log.read_bytes())
    assert "nothing to append" in invoke("repair", log).stdout


def test_a_log_that_was_torn_in_its_first_record_is_repaired(
    invoke: Invoke, tmp_path: Path, closed_bytes: bytes
) -> None:
    for length in (1, 5, 8, 60):
        log = tmp_path / f"{length}.log"
        log.write_bytes(closed_bytes[:length])
        assert invoke("show", log).exit_code == 0
        result = invoke("repair", log)
        assert result.exit_code == 0, result.output
        assert [record.event.type for record in records_of(log.read_bytes())] == ["session/open", "session/close"]


def test_a_damaged_log_is_not_repaired(invoke: Invoke, tmp_path: Path, closed_bytes: bytes) -> None:
    log = tmp_path / "damaged.log"
    lines = closed_bytes.splitlines(keepends=True)
    bad = b"".join([*lines[:3], lines[3][:-20] + b"\n", *lines[4:9]])
    log.write_bytes(bad)
    for more in ([], ["--dry-run"]):
        result = invoke("repair", *more, log)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "line 4 (byte" in result.stderr
        assert log.read_bytes() == bad


def test_of_a_live_log_nothing_is_planned_and_nothing_appended(
    invoke: Invoke, tmp_path: Path, closed_bytes: bytes
) -> None:
    log = tmp_path / "live.log"
    log.write_bytes(cut_after(closed_bytes, "tool/start"))
    store = FileStore.open(log)
    for more in ([], ["--dry-run"], ["--salvage"], ["--dry-run", "--salvage"]):
        result = invoke("repair", *more, log)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "the session is live" in result.stderr
    for command in (["show"], ["verify"], ["context", "--wire", "anthropic"]):
        assert invoke(*command, log).exit_code == 0
    store.close()
    assert invoke("repair", log).exit_code == 0


def test_a_repair_says_of_the_containment_what_the_log_has_said(
    invoke: Invoke, tmp_path: Path, closed_bytes: bytes
) -> None:
    log = tmp_path / "open.log"
    rows = cut_after(closed_bytes, "tool/start").splitlines(keepends=True)
    first = records_of(rows[0])[0]
    assert isinstance(first.event, SessionOpen)
    rows[0] = encode(attrs.evolve(first, event=attrs.evolve(first.event, containment="tree")))
    log.write_bytes(b"".join(rows))
    assert invoke("repair", log).exit_code == 0
    openings = [record.event for record in records_of(log.read_bytes()) if isinstance(record.event, SessionOpen)]
    assert [one.containment for one in openings] == ["tree", "tree"]


def test_repair_makes_no_file_where_there_is_none(invoke: Invoke, tmp_path: Path) -> None:
    assert invoke("repair", tmp_path / "none.log").exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_log_of_a_kernel_that_was_killed_at_rest_has_nothing_to_close(
    invoke: Invoke, tmp_path: Path, closed_bytes: bytes
) -> None:
    log = tmp_path / "at-rest.log"
    before = cut_after(closed_bytes, "turn/end")
    log.write_bytes(before)
    assert invoke("verify", "--closed", log).exit_code == 0
    assert "nothing to append" in invoke("repair", log).stdout
    assert log.read_bytes() == before


def test_whole_records_in_an_illegal_order_are_shown_and_not_repaired(
    invoke: Invoke, tmp_path: Path, closed_bytes: bytes
) -> None:
    lines = closed_bytes.splitlines(keepends=True)
    log = tmp_path / "illegal.log"
    bad = b"".join(lines[:6] + lines[7:])
    log.write_bytes(bad)
    shown = invoke("show", "--json", log)
    assert (shown.exit_code, len(shown.stdout.splitlines())) == (1, len(lines) - 1)
    assert "line 7 (byte" in shown.stderr
    context = invoke("context", log, "--wire", "anthropic")
    assert (context.exit_code, context.stdout.count('"role"')) == (1, 1)
    repaired = invoke("repair", log)
    assert (repaired.exit_code, repaired.stdout) == (1, "")
    assert "not repaired" in repaired.stderr
    assert log.read_bytes() == bad


@pytest.mark.law("L7")
@pytest.mark.parametrize("illegal", [False, True])
def test_a_damaged_log_is_salvaged_only_if_told_so_and_says_it(
    invoke: Invoke, tmp_path: Path, closed_bytes: bytes, illegal: bool
) -> None:
    log = tmp_path / "damaged.log"
    rows = closed_bytes.splitlines(keepends=True)
    rows[6] = rows[7] if illegal else rows[6].replace(b'"t":', b'"x":')
    before = b"".join(rows)
    log.write_bytes(before)
    assert invoke("repair", log).exit_code == 1
    dry = invoke("repair", "--dry-run", "--salvage", log)
    assert dry.exit_code == 0
    assert "salvaged: damage in line 7: " in dry.stdout
    assert log.read_bytes() == before

    result = invoke("repair", "--salvage", log)
    assert result.exit_code == 0, result.output
    after = log.read_bytes()
    assert not check_append_only(before, after)
    records = records_of(after)
    assert not check_log(records, closed=True)
    assert [encode(record) for record in records[:6]] == rows[:6]
    assert f"; {len(rows) - 7 + illegal} records passed over; copy in damaged.log.salvaged-" in result.stdout
    [beside] = tmp_path.glob("*.salvaged-*")
    assert beside.read_bytes() == b"".join(rows[6:])
    for command in (["show"], ["verify", "--closed"], ["context", "--wire", "anthropic"]):
        looked = invoke(*command, log)
        assert looked.exit_code == 0, looked.output
    assert "salvaged: " in invoke("show", log).stdout
    assert "nothing to append" in invoke("repair", "--salvage", log).stdout
