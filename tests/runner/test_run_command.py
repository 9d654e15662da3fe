"""`kernel-demo run`: its output, its exit codes, its options, and that nothing of it is left, whatever happens."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from turnkernel.reading import LogReader
from turnkernel.store import ReadOnlyStore
from turnkernel_demo.cli import cli
from turnkernel_demo.processes import RUN

GOOD = """
title = "Good"
virtual = true
[[user]]
text = "One?"
[[reply]]
text = "One."
[expect]
outcomes = ["completed"]
"""
BAD = GOOD.replace('"completed"', '"aborted"').replace("Good", "Bad")
REAL = """
[[user]]
text = "Run it."
[[reply]]
calls = [{ id = "c1", name = "bash", input = { command = "pwd > where; echo begun; sleep 300" } }]
[[user]]
text = "And?"
[[reply]]
text = "Well."
"""
CUT = REAL + '[[act]]\non = "tool/output"\ndo = "cancel"\n'


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, text in {"good": GOOD, "bad": BAD, "real": REAL, "cut": CUT}.items():
        (tmp_path / f"{name}.toml").write_text(text)
    return tmp_path


def invoke(*words: str | Path):
    return CliRunner().invoke(cli, ["run", *map(str, words)])


# -------------------------------------------------------------------------------------------------- exit codes


def test_0_when_everything_came_out(files):
    done = invoke(files / "good.toml")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("ok")
    assert "Good" in done.stdout


def test_replies_that_nobody_asked_for_are_no_failure_and_are_told(files):
    (files / "more.toml").write_text(GOOD.replace("[expect]", '[[reply]]\ntext = "Two."\n[expect]'))
    done = invoke(files / "more.toml")
    assert (done.exit_code, done.stdout.splitlines()[1].strip()) == (
        0, "note: replies: 1 of 2 were not asked for",
    )  # fmt: skip
    assert json.loads(invoke(files / "more.toml", "--json").stdout)["unmet"] == []


def test_1_when_something_is_unmet_with_a_line_for_each(files):
    done = invoke(files / "bad.toml")
    assert done.exit_code == 1
    head, line = done.stdout.splitlines()
    assert head.startswith("FAILED")
    assert line.strip() == 'outcomes: expected ["aborted"], found ["completed"]'


def test_1_when_one_of_several_fails(files):
    done = invoke(files / "good.toml", files / "bad.toml", files / "good.toml")
    assert done.exit_code == 1
    assert [line.split()[0] for line in done.stdout.splitlines() if not line.startswith(" ")] == [
        "ok", "FAILED", "ok", "2",
    ]  # fmt: skip
    assert done.stdout.splitlines()[-1] == "2 of 3 as they must be"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nothing-of-that-name"], "no such file"),
        (["missing.toml"], "missing.toml: No such file or directory"),
        (["esc-in-a-long-tool", "--virtual"], "is a real tool; a virtual run has scripted ones only"),
        (
            ["stale-cancel", "--wire", "openai-responses"],
            "the wire openai-responses is not available for running yet; there are anthropic and openai-chat",
        ),
        (["stale-cancel", "--design", "naive"], "there is no design naive in this version"),
        (["stale-cancel", "--limit", "0"], "'--limit': must be at least 0.1, not 0.0"),
        (["stale-cancel", "--limit", "0.0001"], "'--limit': must be at least 0.1, not 0.0001"),
        (["stale-cancel", "--limit", "-1"], "'--limit': must be at least 0.1, not -1.0"),
        (["stale-cancel", "--limit", "inf"], "'--limit': must be a finite number, not inf"),
        (["stale-cancel", "--limit", "nan"], "'--limit': must be a finite number, not nan"),
        (["stale-cancel", "--limit", "1e300"], "'--limit': must be at most 604800, not 1e+300"),
        (["stale-cancel", "--limit", "soon"], "'--limit': 'soon' is not a valid float"),
        (["good.toml", "--seed", "-1"], "'--seed': -1 is not in the range x>=0"),
        (["esc-in-a-long-tool", "--seed", "3"], "--seed is for virtual runs, and this is played for real"),
        (["stale-cancel", "--log", "no/such/folder/x.log"], "there is no folder for it"),
        (["stale-cancel", "--log", "good.toml/x.log"], "there is no folder for it"),
        (["good.toml", "--log", "x" * 255], "no log can be written there: File name too long"),
        (["stale-cancel", "--keep", "good.toml"], "'--keep': Directory 'good.toml' is a file"),
    ],
)
def test_2_with_one_line_when_it_can_not_be_played(files, words, reason, monkeypatch):
    monkeypatch.chdir(files)
    done = subprocess.run(
        [Path(sys.executable).parent / "kernel-demo", "run", *words], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert reason in line


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc here, where nothing can be made")
@pytest.mark.parametrize("name", ["good.toml", "real.toml"])
def test_2_with_one_line_where_no_log_and_no_scratch_root_can_be_made(files, name):
    for words, place in (
        (["--log", "/proc/x"], "/proc/x: no log can be written there"),
        (["--keep", "/proc/x"], "/proc/x: no files can be made there"),
        (["--keep", "/proc"], "/proc: no files can be made there"),
    ):
        done = invoke(files / name, *words)
        assert (done.exit_code, done.stdout) == (2, ""), words
        [line] = done.stderr.splitlines()
        assert line.startswith(f"kernel-demo: {place}: ")


def test_2_when_a_scenario_names_another_design(files):
    (files / "naive.toml").write_text('design = "naive"\n' + GOOD)
    assert invoke(files / "naive.toml").exit_code == 2


def test_nothing_is_run_when_one_of_several_can_not_be_played(files):
    done = invoke(files / "good.toml", "nothing-of-that-name", "--log", files / "logs")
    assert (done.exit_code, done.stdout) == (2, "")
    assert not (files / "logs").exists()


# ------------------------------------------------------------------------------------------------------ output


def test_json_is_one_object_a_line_and_nothing_else(files):
    done = invoke(files / "good.toml", files / "bad.toml", "--json")
    assert (done.exit_code, done.stderr) == (1, "")
    assert [json.loads(line)["title"] for line in done.stdout.splitlines()] == ["Good", "Bad"]


def test_what_a_scenario_says_can_not_drive_the_terminal(files):
    (files / "evil.toml").write_text(BAD.replace("Bad", "\\u001b[31mred\\nnext"))
    done = invoke(files / "evil.toml")
    assert "\x1b" not in done.stdout
    assert len(done.stdout.splitlines()) == 2


# ----------------------------------------------------------------------------------------------------- options


def test_the_log_is_kept_where_it_was_asked_for(files):
    done = invoke(files / "good.toml", "--log", files / "my.log", "--json")
    assert json.loads(done.stdout)["log"] == str(files / "my.log")
    assert (files / "my.log").stat().st_mode & 0o777 == 0o600
    reader = LogReader(ReadOnlyStore.open(files / "my.log"))
    assert [record.event.type for record in reader][-1] == "session/close"
    assert reader.damage is None


def test_several_logs_go_into_a_folder(files):
    invoke(files / "good.toml", files / "bad.toml", files / "good.toml", "--log", files / "logs")
    assert sorted(path.name for path in (files / "logs").iterdir()) == ["bad.log", "good-2.log", "good.log"]


@pytest.mark.parametrize("several", [False, True])
def test_a_log_that_exists_is_refused(files, several):
    (files / "my.log").write_text("precious")
    done = invoke(files / "good.toml", *([files / "bad.toml"] if several else []), "--log", files / "my.log")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "there already" in done.stderr
    assert (files / "my.log").read_text() == "precious"


def test_the_context_is_what_the_command_context_prints(files):
    done = invoke(files / "good.toml", "--log", files / "my.log", "--wire", "openai-chat", "--json")
    printed = CliRunner().invoke(cli, ["context", str(files / "my.log"), "--wire", "openai-chat"])
    assert json.loads(printed.stdout) == json.loads(done.stdout)["context"]


def test_virtual_and_seed_choose_how_it_is_played(files):
    (files / "plain.toml").write_text(GOOD.replace("virtual = true\n", ""))
    logs = [files / f"{number}.log" for number in range(2)]
    for log in logs:
        assert invoke(files / "plain.toml", "--virtual", "--seed", "3", "--log", log).exit_code == 0
    first, second = (log.read_bytes().splitlines()[1:] for log in logs)
    assert first == second


def test_limit_comes_before_the_scenario_s_own(files):
    (files / "stall.toml").write_text('[[user]]\ntext = "x"\n[[reply]]\ntext = "a b"\nfault = "stall"\n')
    done = invoke(files / "stall.toml", "--limit", "0.5")
    assert done.exit_code == 1
    assert "given up: it took longer than its limit (0.5 s)" in done.stdout


def test_keep_is_the_scratch_root_and_is_left_there(files):
    done = invoke(files / "cut.toml", "--keep", files / "kept")
    assert done.exit_code == 0, done.stdout
    assert (files / "kept/where").read_text().strip() == str((files / "kept").resolve())


# ----------------------------------------------------------------------------------------------- what is left


@pytest.fixture
def places(files: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files of its own, so that what is left can be told."""
    place = files / "tmp"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return place


def test_a_run_leaves_no_temporary_files_and_runs_from_any_directory(files, places, monkeypatch):
    """Also from one in which there are files that are called like what is imported."""
    here = files / "elsewhere"
    here.mkdir()
    for name in ("trio.py", "turnkernel_demo.py", "json.py"):
        (here / name).write_text("raise RuntimeError('not this one')\n")
    monkeypatch.chdir(here)
    (here / "relative.toml").write_text(CUT)
    done = invoke("relative.toml", "--log", "relative.log", "--json")
    assert done.exit_code == 0, done.stdout
    assert json.loads(done.stdout)["log"] == "relative.log"
    assert (here / "relative.log").exists()
    assert list(places.iterdir()) == []


def alive_with(mark: str) -> list[int]:
    """Processes that were started in an environment with this variable."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue  # gone, or not ours
    return found


def until(condition) -> None:
    """Wait for what another process does, of which nobody tells; give up after a long time."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it has not come"
        time.sleep(0.01)


def started(scenario: Path, log: Path, mark: str) -> "subprocess.Popen[bytes]":
    """`kernel-demo run`, with a variable in the environment of all that it starts."""
    name, _, value = mark.partition("=")
    return subprocess.Popen(
        [Path(sys.executable).parent / "kernel-demo", "run", scenario, "--log", log],
        env={**os.environ, name: value},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="what is alive is read in /proc")
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        (signal.SIGTERM, 143),
        (signal.SIGHUP, 143),
        (signal.SIGKILL, -9),
    ],
)
@pytest.mark.law("R1")
def test_a_run_that_is_told_to_end_leaves_nothing_alive(files, places, number, code):
    mark = f"{RUN}_TEST={os.urandom(8).hex()}"
    log = files / "real.log"
    run = started(files / "real.toml", log, mark)
    try:
        until(lambda: log.exists() and b'"type":"tool/output"' in log.read_bytes())
        run.send_signal(number)
        _, told = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == code
    assert told == b""
    if number == signal.SIGKILL:
        until(lambda: not alive_with(mark))  # nobody waits for the orphans, which end by themselves
    else:
        assert list(places.iterdir()) == []
    assert alive_with(mark) == []
    last = log.read_bytes().splitlines()[-1]
    assert b'"type":"session/close"' in last, "the session was left in order"


DEAF = """
[[user]]
text = "x"
[[reply]]
calls = [{ id = "c1", name = "bash", input = { command = "trap '' TERM; echo deaf; sleep 300" } }]
[tools]
grace_seconds = 3600
"""

KEPT_ALIVE = """
[[user]]
text = "x"
[[reply]]
calls = [{ id = "c1", name = "bash", input = { command = "touch up; sleep 300", background = true } },
    { id = "c2", name = "bash", input = { command = "until [ -e up ]; do sleep 1; done; echo up; sleep 9" } }]
[tools]
background = "detached"
"""


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="what is alive is read in /proc")
@pytest.mark.parametrize(("first", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.law("R1")
def test_a_second_signal_skips_the_graces(files, places, first, code):
    """The first grants them: an hour, in which the command that is deaf to SIGTERM would live on."""
    (files / "deaf.toml").write_text(DEAF)
    mark, log = f"{RUN}_TEST={os.urandom(8).hex()}", files / "deaf.log"
    run = started(files / "deaf.toml", log, mark)
    try:
        until(lambda: log.exists() and b'"text":"deaf' in log.read_bytes())
        run.send_signal(first)
        until(lambda: b'"type":"turn/cancel"' in log.read_bytes())
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == code
    assert alive_with(mark) == []
    lines = log.read_bytes().splitlines()
    assert b'"status":"stopped"' in lines[-4]
    assert b'"type":"session/close"' in lines[-1], "also without graces it is left in order"


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="what is alive is read in /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.law("R1")
def test_a_run_that_is_told_to_end_leaves_no_detached_task(files, places, number):
    (files / "kept.toml").write_text(KEPT_ALIVE)
    mark, log = f"{RUN}_TEST={os.urandom(8).hex()}", files / "kept.log"
    run = started(files / "kept.toml", log, mark)
    try:
        until(lambda: log.exists() and b'"text":"up' in log.read_bytes())
        run.send_signal(number)
        run.communicate(timeout=60)
        if number == signal.SIGKILL:
            until(lambda: not alive_with(mark))
    finally:
        run.kill()
    assert alive_with(mark) == []
    assert b'"type":"task/ended"' not in log.read_bytes(), "it was let go of, and ended by the run"


def test_children_of_another_log_are_not_written_over(files):
    (files / "x.log.d").mkdir()
    done = invoke(files / "good.toml", "--log", files / "x.log")
    assert done.exit_code == 2
    assert done.stderr == f"kernel-demo: {files}/x.log.d: it is there already; a log is never written over\n"
    assert not (files / "x.log").exists()
