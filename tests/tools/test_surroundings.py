"""Kernels where something around them matters: as process 1, in a terminal that is closed or sends Ctrl-C."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from turnkernel_tools import supervision

pytestmark = pytest.mark.skipif(
    supervision.missing() is not None, reason=f"{supervision.missing()}; Linux with a usual Python would run it"
)

# A guard against hanging only; no test depends on how long anything takes.
GUARD = 30.0
HERE = Path(__file__).parent
DEMO = Path(sys.executable).parent / "kernel-demo"


# ---------------------------------------------------------------------------------------------------- process 1


def as_process_1() -> list[str] | None:
    """A command that makes its arguments process 1 of a PID namespace of their own, with a /proc; None without."""
    rights = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *rights, "--pid", "--fork", "--mount-proc", "--kill-child"]
    try:
        works = subprocess.run([*command, "true"], capture_output=True, timeout=GUARD, check=False).returncode == 0
    except OSError:
        return None
    return command if works else None


@pytest.mark.skipif(
    as_process_1() is None, reason="unshare can't make a PID namespace; a machine where it can runs it"
)
def test_a_kernel_that_is_process_1_leaves_no_zombies_and_tells_every_exit_code(tmp_path):
    command = as_process_1()
    assert command is not None
    done = subprocess.run(
        [*command, sys.executable, HERE / "pid_one_program.py"],
        cwd=tmp_path,
        env=with_sources(),
        capture_output=True,
        text=True,
        timeout=2 * GUARD,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["pid"], said["zombies"], len(said["results"])) == (1, 0, 50)
    for number, text in enumerate(said["results"]):
        code = re.findall(r"\[Exit code (\d+)", text)
        assert code == ([str(number % 3)] if number % 3 else [])


# --------------------------------------------------------------------------------------------------- a terminal


class Terminal:
    """A program in a terminal of its own; all that descends from it bears a token."""

    def __init__(self) -> None:
        self.token = f"TURNKERNEL_TEST={uuid.uuid4().hex}"
        self.said = b""
        self._ours: int | None = None
        self._child: subprocess.Popen[bytes] | None = None

    def start(self, *command: str | Path, cwd: Path) -> subprocess.Popen[bytes]:
        self._ours, theirs = os.openpty()
        name, _, value = self.token.partition("=")
        self._child = subprocess.Popen(
            [sys.executable, "-S", "-c", TAKES_IT, *command],
            cwd=cwd,
            env={**with_sources(), name: value},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        return self._child

    def says(self, words: str) -> None:
        assert self._ours is not None
        while words.encode() not in self.said:
            piece = os.read(self._ours, 4096)
            assert piece
            self.said += piece

    def type(self, keys: bytes) -> None:
        assert self._ours is not None
        os.write(self._ours, keys)

    def close(self) -> None:
        """Hang up."""
        if self._ours is not None:
            os.close(self._ours)
            self._ours = None

    def alive(self) -> dict[int, str]:
        """Who bears the token, zombies not being counted, and what it runs."""
        found: dict[int, str] = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if self.token.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "comm").read_text().strip()
            except OSError:
                continue
        return found

    def end(self) -> None:
        self.close()
        for pid in self.alive():
            with suppress(ProcessLookupError):  # it has just gone by itself
                os.kill(pid, signal.SIGKILL)
        if self._child is not None:
            self._child.wait()


TAKES_IT = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])"""


def with_sources() -> dict[str, str]:
    root = HERE.parents[1]
    path = os.pathsep.join(str(root / name) for name in ("kernel", "tools", "providers"))
    return {**os.environ, "PYTHONPATH": path}


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    one = Terminal()
    yield one
    one.end()


def until(condition) -> None:
    end = time.monotonic() + GUARD
    while not condition():
        assert time.monotonic() < end, "it has not come"
        time.sleep(0.01)


SCENARIO = """
title = "{title}"
[[user]]
text = "go"
[[reply]]
calls = [{{ id = "{call}", name = "bash", input = {{ command = '''{command}''' }} }}]
[[reply]]
text = "I see."
"""


@pytest.mark.law("R1")
def test_nothing_is_left_when_the_terminal_is_closed_and_the_log_ends_in_order(terminal, tmp_path):
    inner = "touch inner; setsid sleep 600 & sleep 600"
    (tmp_path / "inner.toml").write_text(SCENARIO.format(title="inner", call="call_inner", command=inner))
    outer = (
        f"cd '{tmp_path}'; sleep 600 & (setsid sleep 600 &);"
        f" '{DEMO}' run inner.toml --log inner.log & touch outer; wait"
    )
    (tmp_path / "outer.toml").write_text(SCENARIO.format(title="outer", call="call_outer", command=outer))
    log = tmp_path / "outer.log"
    kernel = terminal.start(DEMO, "run", "outer.toml", "--log", log, cwd=tmp_path)
    until(lambda: list(terminal.alive().values()).count("sleep") == 4)
    terminal.close()
    assert kernel.wait(GUARD) == 143
    until(lambda: not terminal.alive())
    last = json.loads(log.read_bytes().splitlines()[-1])
    assert last["type"] == "session/close"
    ends = [json.loads(line) for line in log.read_bytes().splitlines() if b'"turn/end"' in line]
    assert [end["outcome"] for end in ends] == ["aborted"]


def test_ctrl_c_does_not_reach_what_a_kernel_has_started(terminal, tmp_path):
    command = "trap 'echo hit' INT; echo ready; until [ -e go ]; do sleep 0.01; done; echo ended"
    terminal.start(sys.executable, HERE / "kernel_process.py", "hears", command, "tree", cwd=tmp_path)
    terminal.says("ready")
    before = terminal.alive()
    assert {"tk-supervisor", "tk-keeper", "bash"} <= set(before.values())
    for _ in range(3):
        terminal.said = b""
        terminal.type(b"\x03")
        terminal.says("heard")
    kept = {(pid, name) for pid, name in before.items() if name in ("tk-supervisor", "tk-keeper")}
    assert kept <= set(terminal.alive().items())
    (tmp_path / "go").touch()
    terminal.says("ended")
    assert b"hit" not in terminal.said
