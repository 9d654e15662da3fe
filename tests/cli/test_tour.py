"""The tour, played for real: three accidents, a verdict each, and nothing left of it, however it ends."""

import fcntl
import os
import secrets
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Generator, Mapping
from pathlib import Path

import attrs
import pytest

from turnkernel_demo.cli import BROKEN_PIPE, INTERRUPTED

from .conftest import PROGRAM

MARK = "TURNKERNEL_TOUR_TEST"


@attrs.frozen
class Place:
    """Where a tour is played: what it starts bears a mark, what it writes is in one folder."""

    environment: Mapping[str, str]
    folder: Path

    def processes(self) -> list[str]:
        """Everything that bears the mark and is alive."""
        mark = f"{MARK}={self.environment[MARK]}".encode()
        found: list[str] = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark in process.joinpath("environ").read_bytes():
                    found.append(process.joinpath("cmdline").read_text("utf-8", "replace").replace("\0", " "))
            except OSError:
                continue  # gone, or not ours
        return found


@pytest.fixture
def place(tmp_path: Path) -> Generator[Place]:
    folder = tmp_path / "temporary"
    folder.mkdir()
    here = Place({**os.environ, MARK: secrets.token_hex(8), "TMPDIR": str(folder), "TERM": "xterm"}, folder)
    yield here
    assert here.processes() == [], "the tour has left a process"
    assert list(folder.iterdir()) == [], "the tour has left a file"


@pytest.mark.law("R1", "L7")
def test_the_tour_keeps_its_promises_and_leaves_nothing(place: Place, tmp_path: Path) -> None:
    result = subprocess.run(
        PROGRAM, capture_output=True, text=True, timeout=120, env=place.environment, cwd=tmp_path, check=False
    )
    assert (result.returncode, result.stderr) == (0, ""), result.stdout
    assert result.stdout.count("=> As promised.") == 3
    assert "\x1b" not in result.stdout
    assert "\r" not in result.stdout
    lines = result.stdout.splitlines()
    headings = [line for line in lines if line.startswith("===")]
    assert [heading.split()[1] for heading in headings] == ["1", "2", "3"]
    assert any("call_1 bash stopped" in line for line in lines)
    assert any("(closer) call_2 bash unknown" in line for line in lines)
    assert any("records cut out of the log" in line for line in lines)
    assert max(map(len, lines)) <= 110


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, 143), (signal.SIGHUP, 143)]
)
def test_a_signal_ends_the_tour_at_once_and_leaves_nothing(place: Place, number: int, code: int) -> None:
    with subprocess.Popen(
        PROGRAM, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=place.environment
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        seen = ""
        while "tool/start" not in seen:
            line = process.stdout.readline()
            assert line, seen
            seen += line
        process.send_signal(number)
        seen += process.stdout.read()
        assert process.stderr.read() == ""
    assert process.returncode == code
    assert "3 of 3" not in seen
    assert "kernel-demo list" not in seen


def test_a_reader_who_leaves_ends_the_tour(place: Place) -> None:
    with subprocess.Popen(
        PROGRAM, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=place.environment
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == BROKEN_PIPE


ON_A_TERMINAL = """
import fcntl, sys, termios
from turnkernel_demo import cli, tour
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
played = tour.tour
tour.tour = lambda: played(pace={pace})
cli.main()
"""


class Terminal:
    """The tour on a terminal of its own, which its Ctrl-C and its hangup come from."""

    def __init__(self, place: Place, columns: int, rows: int, pace: float) -> None:
        self.screen = b""
        self._ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", ON_A_TERMINAL.format(pace=pace)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=place.environment,
            start_new_session=True,
        )
        os.close(theirs)

    def read(self) -> bool:
        """Read on; False when everybody has left the terminal."""
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # EIO: how Linux tells the end of it
            return False
        self.screen += data
        return bool(data)

    def read_until(self, text: bytes) -> None:
        while text not in self.screen:
            assert self.read(), self.screen[-2000:]

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def close(self) -> None:
        os.close(self._ours)

    def finish(self) -> int:
        while self.read():
            pass
        self.close()
        return self.process.wait()


def is_given_back(screen: bytes) -> bool:
    """The cursor is visible again, and the screen is the one from before."""
    shown = screen.rindex(b"\x1b[?25h") > screen.rindex(b"\x1b[?25l")
    return shown and screen.rindex(b"\x1b[?1049l") > screen.rindex(b"\x1b[?1049h")


def test_on_a_terminal_it_is_shown_live_and_the_terminal_is_given_back(place: Place) -> None:
    terminal = Terminal(place, 80, 24, pace=0.02)
    assert terminal.finish() == 0, terminal.screen[-2000:]
    assert is_given_back(terminal.screen)
    for words in ("the running program", "Esc in a long tool", "killed", "records cut out of the log"):
        assert words.encode() in terminal.screen
    after = terminal.screen.rpartition(b"\x1b[?1049l")[2].decode()
    assert after.count("As promised.") == 3
    assert "\x1b" not in after


def test_ctrl_c_gives_the_terminal_back(place: Place) -> None:
    terminal = Terminal(place, 100, 30, pace=1.0)
    terminal.read_until(b"collected 120 items")
    terminal.type(b"\x03")
    assert terminal.finish() == INTERRUPTED, terminal.screen[-2000:]
    assert is_given_back(terminal.screen)


def test_a_terminal_that_is_closed_ends_the_tour(place: Place) -> None:
    terminal = Terminal(place, 100, 30, pace=1.0)
    terminal.read_until(b"collected 120 items")
    terminal.close()
    # A hangup, or an output that can't be written any more: whichever is seen first.
    assert terminal.process.wait() in (143, 1, BROKEN_PIPE)
