"""What `kernel-demo bench` prints and leaves. Nothing here says how long anything may take."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from turnkernel.reading import LogReader
from turnkernel.store import MemoryStore
from turnkernel_demo.bench import commands, processes
from turnkernel_demo.bench.commands import measured
from turnkernel_demo.bench.figures import Figure, Limit, Share, figure_to_json
from turnkernel_demo.bench.machine import machine
from turnkernel_demo.bench.plan import Runs
from turnkernel_demo.bench.sample import log_of_lines, log_of_turns
from turnkernel_demo.bench.table import table
from turnkernel_demo.bench.timing import Samples
from turnkernel_demo.cli import cli

FEW = Runs(
    calls=((1, 2), (3, 1)),
    streams=2,
    processes=1,
    appends=6,
    short_turns=1,
    long_turns=2,
    steps=2,
    log_lines=100,
    loads=1,
)
SLEEP = f"sleep 3599.{os.getpid()}"
"""What the measured processes do, told apart from everybody else's."""
KEYS = [
    "stream_server",
    "stream_ended",
    "stream_durable",
    "calls_1_ended",
    "calls_1_durable",
    "calls_3_ended",
    "calls_3_durable",
    "bash_start",
    "bash_gone",
    "bash_ended",
    "bash_durable",
    "append",
    "step",
    "load",
]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(scope="module")
def printed(scratch: Path) -> str:
    """One real measurement, as small as it can be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(scratch))
        patch.setattr(processes, "_COMMAND", f"echo ready; exec {SLEEP}")
        return measured(FEW, as_json=True)


def test_the_json_is_one_object_with_every_figure_beside_its_floor(printed: str) -> None:
    assert "\n" not in printed
    result = json.loads(printed)
    assert set(result) == {"machine", "figures"}
    assert [figure["key"] for figure in result["figures"]] == KEYS
    for figure in result["figures"]:
        assert set(figure) == set(figure_to_json(a_figure(1.0, 1.0)))
        for times in (figure, figure["floor"]):
            assert 0 < times["best"] <= times["median"] <= times["p95"]
        assert figure["met"] is None or figure["shares"]


def test_only_what_the_design_limits_is_judged(printed: str) -> None:
    limited = {figure["key"] for figure in json.loads(printed)["figures"] if figure["limit"] is not None}
    assert limited == {"stream_server", "calls_1_ended", "bash_start", "bash_gone", "append", "load"}
    judged = {figure["key"] for figure in json.loads(printed)["figures"] if figure["met"] is not None}
    assert judged == limited


def test_the_runs_are_as_many_as_were_asked_for(printed: str) -> None:
    runs = {figure["key"]: figure["runs"] for figure in json.loads(printed)["figures"]}
    assert runs["calls_1_ended"] == 2
    assert runs["append"] == 6
    assert runs["load"] == 1


def test_the_shares_add_up_to_what_was_measured(printed: str) -> None:
    by_key = {figure["key"]: figure for figure in json.loads(printed)["figures"]}
    shares = by_key["calls_3_ended"]["shares"]
    assert len(shares) == 5
    assert shares[0]["median"] == by_key["calls_3_ended"]["floor"]["median"]


def test_nothing_is_left_of_a_measurement(printed: str, scratch: Path) -> None:
    assert list(scratch.iterdir()) == []
    running = subprocess.run(["ps", "-A", "-o", "args="], capture_output=True, text=True, check=True).stdout
    assert "python" in running
    assert SLEEP not in running


def test_the_command_prints_the_object_and_nothing_else(monkeypatch: pytest.MonkeyPatch, printed: str) -> None:
    monkeypatch.setattr(commands, "measured", lambda runs, as_json: printed if as_json else "a table")
    result = CliRunner().invoke(cli, ["bench", "--json"])
    assert (result.exit_code, result.stdout, result.stderr) == (0, printed + "\n", "")
    assert CliRunner().invoke(cli, ["bench"]).stdout == "a table\n"


# -------------------------------------------------------------------------------------------------- pure parts


def a_figure(floor: float, subject: float, limit: Limit | None = None, title: str = "x: y") -> Figure:
    shares = [Share("the waiting", 0.25)]
    return Figure("x", title, "a floor", Samples([floor]), Samples([subject]), limit, shares=shares)


def test_median_and_p95_are_of_the_samples() -> None:
    samples = Samples([float(number) for number in range(1, 101)])
    assert (samples.best, samples.median) == (1.0, 50.5)
    assert samples.p95 == 95.0
    assert Samples([3.0]).p95 == 3.0


@pytest.mark.parametrize(
    ("limit", "text", "most"),
    [
        (Limit(1.5), "1.5 x", 3.0),
        (Limit(1.0, 0.5e-3), "+0.5 ms", 2.0005),
        (Limit(1.5, 2e-3), "1.5 x +2 ms", 3.002),
        (Limit(plus=10e-6), "10 us", 10e-6),
    ],
)
def test_a_limit_is_a_factor_a_distance_or_both(limit: Limit, text: str, most: float) -> None:
    assert str(limit) == text
    assert limit.most(2.0) == pytest.approx(most)


def test_a_limit_is_met_up_to_its_bound() -> None:
    assert a_figure(1.0, 1.5, Limit(1.5)).met is True
    assert a_figure(1.0, 1.51, Limit(1.5)).met is False
    assert a_figure(1.0, 9.0).met is None


def test_the_table_says_where_the_time_goes_that_is_over_a_limit_and_only_then() -> None:
    over, within = a_figure(1.0, 9.0, Limit(1.5), "late: y"), a_figure(1.0, 1.0, Limit(1.5), "fine: y")
    text = table([over, within], machine())
    assert "Over its limit: late: y." in text
    assert "the waiting" in text
    assert "Over its limit: fine: y." not in text
    assert "\x1b" not in text


def test_the_sample_logs_are_legal_and_as_long_as_they_should_be() -> None:
    whole = LogReader(MemoryStore(log_of_turns(3)))
    assert [record.seq for record in whole] == list(range(1, whole.grammar.seq + 1))
    assert (whole.damage, whole.refused, whole.grammar.turn, whole.grammar.turns) == (None, None, None, 3)
    cut = LogReader(MemoryStore(log_of_lines(100)))
    assert len(list(cut)) == 100
    assert (cut.damage, cut.refused, cut.tail) == (None, None, None)
    assert cut.grammar.turn is not None
