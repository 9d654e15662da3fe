"""A measurement held against a recorded one."""

import json
from pathlib import Path

import pytest
from benchmarks.compare import changes, main
from benchmarks.results import markdown

FOLDER = Path(__file__).parents[2] / "benchmarks"
RECORDED = sorted(FOLDER.glob("recorded/*.json"))


def a_measurement(**ratios: float) -> dict:
    return {"machine": {}, "figures": [{"key": key, "ratio": ratio} for key, ratio in ratios.items()]}


def test_a_ratio_that_has_grown_by_more_than_a_quarter_is_worse() -> None:
    found = changes(a_measurement(a=2.0, b=2.0, gone=1.0), a_measurement(b=2.6, a=2.4, new=9.0))
    assert [(one.key, one.worse) for one in found] == [("b", True), ("a", False)]


@pytest.mark.parametrize(("now", "code"), [(2.0, 0), (3.0, 1)])
def test_the_exit_code_says_whether_anything_is_worse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], now: float, code: int
) -> None:
    for name, ratio in (("then", 2.0), ("now", now)):
        (tmp_path / name).write_text(json.dumps(a_measurement(load=ratio)))
    assert main([str(tmp_path / "then"), str(tmp_path / "now")]) == code
    assert ("WORSE" in capsys.readouterr().out) == bool(code)


def test_without_a_recorded_measurement_it_says_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "compare.py RECORDED" in capsys.readouterr().err


def test_the_results_page_is_written_from_a_recorded_measurement() -> None:
    page = (FOLDER / "RESULTS.md").read_text()
    assert page in [markdown(json.loads(path.read_text())) for path in RECORDED]


def test_every_recorded_measurement_can_be_compared() -> None:
    assert RECORDED
    for path in RECORDED:
        recorded = json.loads(path.read_text())
        assert all(one.factor == 1.0 for one in changes(recorded, recorded))
        assert recorded["machine"]["processor"]
