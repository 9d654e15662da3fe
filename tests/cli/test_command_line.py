"""How the command line ends: exit codes, one line on standard error, pipes, signals, and no traceback."""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from turnkernel_demo import cli as command_line
from turnkernel_demo.builtin import TOUR, names

from .conftest import PROGRAM

Invoke = Callable[..., Result]
Execute = Callable[..., "subprocess.CompletedProcess[str]"]


# -------------------------------------------------------------------------------------- what can't be read


def a_folder(path: Path) -> str:
    path.mkdir()
    return "a directory"


def nothing(path: Path) -> str:
    return "No such file or directory"


def an_empty_file(path: Path) -> str:
    path.touch()
    return "an empty file"


def a_letter(path: Path) -> str:
    path.write_text("Dear Sir,\n")
    return "no log"


def zeros(path: Path) -> str:
    path.write_bytes(bytes(4096))
    return "no log"


def a_pipe(path: Path) -> str:
    os.mkfifo(path)
    return "not a regular file"


def a_link_to_itself(path: Path) -> str:
    path.symlink_to(path)
    return "Too many levels of symbolic links"


def below_a_file(path: Path) -> str:
    path.parent.touch()
    return "Not a directory"


@pytest.mark.parametrize(
    "make", [a_folder, nothing, an_empty_file, a_letter, zeros, a_pipe, a_link_to_itself, below_a_file]
)
@pytest.mark.parametrize(
    "command", [["show"], ["verify"], ["repair"], ["repair", "--dry-run"], ["context", "--wire", "anthropic"]]
)
def test_what_is_no_log_is_named_in_one_line(
    invoke: Invoke, tmp_path: Path, make: Callable[[Path], str], command: list[str]
) -> None:
    path = tmp_path / ("file/x.log" if make is below_a_file else "x.log")
    reason = make(path)
    result = invoke(*command, path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"kernel-demo: {path}: ")
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1
    if path.is_file():
        assert list(tmp_path.iterdir()) == [path], "a file that is no log has been touched"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything; run as another user")
def test_a_file_that_may_not_be_read_is_named(invoke: Invoke, closed_log: Path) -> None:
    closed_log.chmod(0)
    result = invoke("show", closed_log)
    assert result.exit_code == 2
    assert "Permission denied" in result.stderr


def test_a_name_can_not_drive_the_terminal(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("show", tmp_path / "a\x1b[2Jb\nc.log")
    assert result.exit_code == 2
    assert "\x1b" not in result.stderr
    assert result.stderr.count("\n") == 1


# ------------------------------------------------------------------------------------------- list and help


def test_list_begins_with_the_tour(invoke: Invoke) -> None:
    lines = invoke("list").stdout.splitlines()
    assert tuple(line.split()[0] for line in lines[:3]) == TOUR
    assert len(lines) == len(names())


def test_list_as_json_is_an_object_per_line(invoke: Invoke) -> None:
    listed = [json.loads(line) for line in invoke("list", "--json").stdout.splitlines()]
    assert sorted(one["name"] for one in listed) == sorted(names())
    assert all(set(one) == {"name", "title"} and one["title"] for one in listed)


@pytest.mark.parametrize("name", list(command_line.COMMANDS))
def test_the_help_of_a_command_has_an_example_and_its_exit_codes(invoke: Invoke, name: str) -> None:
    text = invoke(name, "--help").stdout
    assert f"kernel-demo {name}" in text
    assert "Exit code" in text


def test_the_help_names_every_command_and_the_exit_codes(invoke: Invoke) -> None:
    text = invoke("--help").stdout
    assert all(f"\n  {name} " in text for name in command_line.COMMANDS)
    assert "Exit codes of all commands" in text


@pytest.mark.parametrize("name", [None, *command_line.COMMANDS])
def test_the_help_advertises_no_command_that_there_is_not(invoke: Invoke, name: str | None) -> None:
    text = invoke(*([name] if name else []), "--help").stdout
    named = set(re.findall(r"kernel-demo ([a-z]+)", text))
    assert named <= set(command_line.COMMANDS)


OPTIONS = {
    "list": {"json"},
    "run": {"json", "log", "wire", "virtual", "seed", "design", "keep", "limit"},
    "show": {"json"},
    "verify": {"closed", "json"},
    "repair": {"dry-run", "salvage"},
    "context": {"wire", "model"},
    "bench": {"json"},
}


@pytest.mark.parametrize("name", list(OPTIONS))
def test_every_option_is_there_and_is_explained(invoke: Invoke, name: str) -> None:
    lines = invoke(name, "--help").stdout.partition("Options:")[2].splitlines()
    found = {re.match(r"  --([a-z-]+) ", line)[1]: line for line in lines if line.startswith("  --")}  # type: ignore[index]
    assert set(found) == OPTIONS[name]
    assert set(OPTIONS) == set(command_line.COMMANDS)


def test_the_version_is_the_package_s(invoke: Invoke) -> None:
    project = Path(__file__).parents[2] / "pyproject.toml"
    version = tomllib.loads(project.read_text())["project"]["version"]
    assert invoke("--version").stdout == f"kernel-demo {version}\n"


# ------------------------------------------------------------------------------------------ as a process


def test_it_works_from_any_folder_and_exits_with_the_code(execute: Execute, closed_log: Path) -> None:
    good = execute("verify", closed_log)
    assert (good.returncode, good.stderr) == (0, "")
    closed_log.write_bytes(closed_log.read_bytes().replace(b"scripted-1", b"scripted-2", 1))
    assert execute("verify", closed_log).returncode == 1
    assert execute("show", "nowhere.log").returncode == 2


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["shwo"], "there is no command 'shwo' (did you mean \"show\"?)"),
        (["show"], "Missing argument 'LOG'"),
        (["show", "--colour", "x"], "No such option"),
        (["context", "x.log", "--wire", "morse"], "'morse' is not one of"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_told_in_one_line(
    execute: Execute, args: list[str], said: str
) -> None:
    result = execute(*args)
    assert (result.returncode, result.stdout) == (2, "")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_reader_that_goes_away_is_no_error() -> None:
    with subprocess.Popen([*PROGRAM, "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == command_line.BROKEN_PIPE


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here; Linux has it")
def test_an_output_that_is_full_is_told_in_one_line() -> None:
    with open("/dev/full", "wb") as full:
        result = subprocess.run([*PROGRAM, "list"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert result.returncode == 1
    assert result.stderr == "kernel-demo: the output can't be written: No space left on device\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here; Linux has it")
def test_an_error_that_can_not_be_told_keeps_its_exit_code() -> None:
    with open("/dev/full", "wb") as full:
        for words in (["shwo"], ["show", "nowhere.log"]):
            assert subprocess.run([*PROGRAM, *words], stderr=full, timeout=60).returncode == 2


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_was_closed_is_nothing_to_speak_of(tmp_path: Path, closed: str) -> None:
    """And no file, socket or process of ours gets its number: what is real here would break or write into it."""
    (tmp_path / "it.toml").write_text(
        '[[user]]\ntext = "x"\n'
        '[[reply]]\ncalls = [{ id = "c", name = "bash", input = { command = "echo y; echo z >&2" } }]\n'
        '[[reply]]\ntext = "Done."\n[expect]\nresults = { c = "ok" }\n'
    )
    script = f'"$0" -m turnkernel_demo run it.toml --log it.log {closed}'
    done = subprocess.run(["sh", "-c", script, sys.executable], cwd=tmp_path, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"" if ">&-" in closed and closed != "2>&-" else b"ok  ")
    assert b"session/close" in (tmp_path / "it.log").read_bytes().splitlines()[-1]


def test_a_terminal_without_the_characters_gets_escapes(execute: Execute, closed_log: Path) -> None:
    result = execute("show", closed_log, PYTHONIOENCODING="latin-1")
    assert result.returncode == 0
    assert "\\u6d4b" in result.stdout


# ----------------------------------------------------------------------------------------- the last resort


def broken(*_: object) -> None:
    raise RuntimeError("a fault\nof ours")


def test_a_fault_of_ours_is_one_line_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TURNKERNEL_DEBUG", raising=False)
    monkeypatch.setattr("turnkernel_demo.list_command.scenarios", broken)
    assert command_line.run(["list"]) == 1
    told = "internal error: RuntimeError: a fault\\nof ours; run with TURNKERNEL_DEBUG=1 for the traceback"
    assert capsys.readouterr().err == f"kernel-demo: {told}\n"


def test_a_fault_of_ours_has_its_traceback_when_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TURNKERNEL_DEBUG", "1")
    monkeypatch.setattr("turnkernel_demo.list_command.scenarios", broken)
    assert command_line.run(["list"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_is_told_by_the_exit_code_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise BaseExceptionGroup("trio's", [KeyboardInterrupt()])

    monkeypatch.setattr("turnkernel_demo.list_command.scenarios", interrupted)
    assert command_line.run(["list"]) == 130
    assert capsys.readouterr().err == ""


HANG_UP = """
import os, signal, sys
from turnkernel_demo import cli
{ignore}
cli.run = lambda args: os.kill(os.getpid(), signal.SIGHUP) or 7
cli.main()
"""


def test_a_hangup_counts_as_terminate() -> None:
    plain = subprocess.run([sys.executable, "-c", HANG_UP.format(ignore="")], timeout=60, check=False)
    assert plain.returncode == -signal.SIGTERM
    nohup = HANG_UP.format(ignore="signal.signal(signal.SIGHUP, signal.SIG_IGN)")
    assert subprocess.run([sys.executable, "-c", nohup], timeout=60, check=False).returncode == 7
