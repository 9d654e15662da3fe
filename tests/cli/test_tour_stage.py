"""What the tour shows is a fold of the records that it has shown (D2), on a terminal and as plain lines."""

import io

import pytest
from rich.console import Console

from turnkernel.events import Record
from turnkernel.text import printable
from turnkernel_demo import tour_stage
from turnkernel_demo.tour_scene import Scene
from turnkernel_demo.tour_stage import PlainStage, TerminalStage, stage_for

from .conftest import records_of


def scene_of(records: list[Record]) -> Scene:
    scene = Scene(1, 3, "heading")
    for record in records:
        scene.show(record)
    return scene


def until(records: list[Record], event_type: str) -> list[Record]:
    place = next(place for place, record in enumerate(records) if record.event.type == event_type)
    return records[: place + 1]


@pytest.mark.law("D2")
def test_a_scene_tells_the_state_and_the_conversation(closed_bytes: bytes) -> None:
    scene = scene_of(until(records_of(closed_bytes), "tool/output"))
    assert scene.status.state == "calling"
    assert [(one.who, one.state) for one in scene.said] == [("user", ""), ("model", ""), ("slow", "running")]
    assert scene.said[2].text == "\\x1b]0;title\\x07line\n"
    assert scene.requests == 1
    scene.since = 1.5
    assert scene.now == pytest.approx(scene.shown[-1].t + 1.5)  # type: ignore[union-attr]
    scene.dead = True
    assert scene.now == scene.shown[-1].t, "time stands still for the dead"  # type: ignore[union-attr]


def test_records_that_are_removed_are_forgotten(closed_bytes: bytes) -> None:
    records = records_of(closed_bytes)
    whole = until(records, "tool/result")
    before = until(records, "turn/start")
    scene = scene_of(whole)
    scene.remove(len(whole) - len(before))
    assert scene.said == scene_of(before).said == []
    assert scene.status == scene_of(before).status
    assert scene.shown == [*before, f"{len(whole) - len(before)} records cut out of the log"]


def test_plain_lines_show_every_record_once(closed_bytes: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    records = records_of(closed_bytes)
    scene, stage = Scene(1, 3, "heading"), PlainStage(110)
    stage.begin(scene)
    for record in records:
        scene.show(record)
        scene.caption = "look at this" if record.event.type == "tool/start" else scene.caption
        stage.changed(scene)
    stage.end(scene, ["As promised."])
    out = capsys.readouterr().out
    assert printable(out) == out
    shown = [line.split()[2] for line in out.splitlines() if line[:4].strip().isdigit() and "." in line[:13]]
    others = [record.event.type for record in records if record.event.type != "model/delta"]
    assert [name for name in shown if name != "model/delta"] == others
    assert out.count("look at this") == 1
    assert out.rstrip().endswith("=> As promised.")


def test_plain_lines_tell_what_was_cut_out(closed_bytes: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    records = records_of(closed_bytes)
    scene, stage = Scene(1, 3, "heading"), PlainStage(110)
    for record in records[:9]:
        scene.show(record)
        stage.changed(scene)
    scene.remove(2)
    stage.changed(scene)
    scene.show(records[7])
    stage.end(scene, [])
    assert "-- 2 records cut out of the log --" in capsys.readouterr().out


@pytest.mark.parametrize(("columns", "rows"), [(60, 16), (80, 24), (200, 50)])
def test_the_picture_fits_the_terminal_and_can_not_drive_it(closed_bytes: bytes, columns: int, rows: int) -> None:
    records = records_of(closed_bytes)
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=columns, height=rows, color_system=None)
    with TerminalStage(console) as stage:
        scene = Scene(1, 3, "heading")
        scene.caption = "What to look at. " * 20
        stage.begin(scene)
        for record in records:
            scene.show(record)
        output.seek(0)
        output.truncate()
        stage.changed(scene)
        drawn = output.getvalue()
    assert "\x1b]0;" not in drawn
    assert "\x1b[31m" not in drawn
    assert "\u202e" not in drawn
    assert "\x9b" not in drawn
    lines = drawn.replace("\x1b[H", "").splitlines()
    assert len(lines) <= rows
    assert "session/close" in drawn, "the last record is not in the picture"


@pytest.mark.parametrize(
    ("columns", "rows", "term", "kind"),
    [
        (80, 24, "xterm", TerminalStage),
        (59, 24, "xterm", PlainStage),
        (80, 15, "xterm", PlainStage),
        (80, 24, "dumb", PlainStage),
    ],
)
def test_a_terminal_that_can_not_show_it_is_given_plain_lines(
    monkeypatch: pytest.MonkeyPatch, columns: int, rows: int, term: str, kind: type
) -> None:
    monkeypatch.setattr(tour_stage, "on_terminal", lambda: True)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", str(rows))
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert type(stage_for(110)) is kind


def test_what_is_no_terminal_is_given_plain_lines_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tour_stage, "on_terminal", lambda: False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert type(stage_for(110)) is PlainStage
