"""How the command line ends and speaks besides its output: exit codes, the one line on standard error, JSON lines.

Writes to standard output and standard error only. Exit codes: 0; 1 for a violation, damage or an unmet
expectation; 2 for what can't be read or is live.
"""

import json
import re
import sys
from typing import IO, Any

import click

from .plain import one_line

__all__ = ["PROGRAM", "Failed", "Unreadable", "json_line", "json_text", "note", "on_terminal", "reason_of"]

PROGRAM = "kernel-demo"

_SUSPECT = re.compile("[\x7f-\U0010ffff]")
"""What JSON lets pass; control characters below it has escaped already."""


class Failed(click.ClickException):
    """The command did not come to a good end. Its text, made one line, goes to standard error; exit code 1."""

    exit_code = 1

    def show(self, file: IO[Any] | None = None) -> None:
        """The one line."""
        note(self.message)


class Unreadable(Failed):
    """What was named can't be read, or is live: the file, the place where there is one, and why. Exit code 2."""

    exit_code = 2


def on_terminal() -> bool:
    """Whether standard output goes to a terminal."""
    return sys.stdout.isatty()


def note(text: str, who: str = PROGRAM) -> None:
    """Say something on standard error, in one line that can't drive the terminal."""
    try:
        click.echo(f"{who}: {one_line(text)}", err=True)
    except OSError:
        pass  # the terminal is gone, and with it whom to tell


def reason_of(error: OSError) -> str:
    """What the system says of a failed call."""
    return error.strerror or type(error).__name__


def json_line(value: Any) -> str:
    """A JSON value on one line. It stays JSON, and shown on a terminal it can't drive it."""
    return json_text(value)


def json_text(value: Any, indent: int | None = None) -> str:
    """The same over several lines, where an indent is given."""
    # Beyond ASCII there can only be characters of strings, so an escape is right wherever one stands.
    return _SUSPECT.sub(_harmless, json.dumps(value, ensure_ascii=False, indent=indent))


def _harmless(found: re.Match[str]) -> str:
    char = found.group()
    return char if one_line(char) == char else f"\\u{ord(char):04x}"
