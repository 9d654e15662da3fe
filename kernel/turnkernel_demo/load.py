"""Scenario files to scenarios. Reads the file and the recordings that it names; touches nothing else.

Nothing in a file is passed over: whatever is unknown, of a wrong type or without meaning where it stands raises
`ScenarioError`, one line that names file, table and key.
"""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import attrs
from cattrs import BaseValidationError
from cattrs.errors import AttributeValidationNote, IterableValidationNote

from .checks import check_scenario, check_speaks
from .convert import FILE_KEYS, converter
from .plain import one_line, quoted
from .scenario import Scenario, ScenarioReply, Wire
from .values import Problem

__all__ = ["ScenarioError", "load", "loads", "with_options"]

_TABLES = ("session", "tools", "expect")
_ARRAYS = ("user", "reply", "tool", "act")


class ScenarioError(Exception):
    """The file's: it can't be read, or it does not say what a scenario can say. Its text is one line."""


def load(path: Path) -> Scenario:
    """The scenario of a file. Raises `ScenarioError`."""
    name = one_line(str(path))
    try:
        content = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ScenarioError(f"{name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{name}: byte {error.start}: not UTF-8") from None
    return loads(content, name, path.parent)


def loads(content: str, name: str = "scenario", folder: Path | None = None) -> Scenario:
    """The scenario that a text says. `name` stands in the errors; `raw` paths are relative to `folder`.

    Raises `ScenarioError`.
    """
    try:
        said = tomllib.loads(content)
        scenario = cast("Scenario", converter.structure(said, Scenario))
        scenario = attrs.evolve(scenario, replies=_with_recordings(scenario.replies, folder or Path()))
        check_scenario(scenario)
    except (Problem, BaseValidationError) as error:
        raise _one_line_of(error, name) from None
    except RecursionError:
        raise ScenarioError(f"{one_line(name)}: nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError, or a number with more digits than Python reads
        raise ScenarioError(f"{one_line(name)}: {_toml_reason(str(error), content)}") from None
    return scenario


def with_options(scenario: Scenario, name: str, *, wire: Wire | None = None, virtual: bool = False) -> Scenario:
    """The scenario as the command line's `--wire` and `--virtual` want it.

    Raises `ScenarioError` where it can't be played so.
    """
    changed = attrs.evolve(scenario, wire=wire or scenario.wire, virtual=virtual or scenario.virtual)
    try:
        check_scenario(changed)
        check_speaks(changed)
    except Problem as problem:
        raise _one_line_of(problem, name) from None
    return changed


def _with_recordings(replies: Sequence[ScenarioReply], folder: Path) -> tuple[ScenarioReply, ...]:
    return tuple(
        reply if reply.raw_file is None else _with_recording(reply, reply.raw_file, folder, place)
        for place, reply in enumerate(replies)
    )


def _with_recording(reply: ScenarioReply, said: str, folder: Path, place: int) -> ScenarioReply:
    path = (folder / said).absolute()
    try:
        return attrs.evolve(reply, raw=path.read_bytes(), raw_file=str(path))
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise Problem(f"{quoted(said)}: {reason}", "reply", place, "raw") from None


# ------------------------------------------------------------------------------------------ errors to one line


def _toml_reason(reason: str, content: str) -> str:
    found = re.fullmatch(r"(.*) \(at (?:(line \d+, column \d+)|end of document)\)", reason, re.DOTALL)
    if found is None:
        return one_line(reason)
    last = content.count("\n", 0, len(content.rstrip())) + 1
    return f"{found[2] or f'line {last}, at its end'}: {one_line(found[1])}"


def _one_line_of(error: BaseException, name: str) -> ScenarioError:
    path, reason = _first(error)
    return ScenarioError(": ".join([one_line(name), *_place(path), reason]))


def _first(error: BaseException) -> tuple[tuple[str | int, ...], str]:
    """Where the first fault is, and what it is."""
    if isinstance(error, BaseValidationError):
        inner = cast("ExceptionGroup[Exception]", error).exceptions[0]
        path, reason = _first(inner)
        return (*_step(inner), *path), reason
    if isinstance(error, Problem):
        return error.path, error.reason
    assert isinstance(error, KeyError), "the hooks raise Problem, cattrs itself KeyError"
    return (), f"the key {quoted(str(error.args[0]))} is missing"


def _step(error: BaseException) -> tuple[str | int, ...]:
    """The key or place by which cattrs came to a value; a missing key's is its table's."""
    for note in getattr(error, "__notes__", ()):
        if isinstance(note, AttributeValidationNote):
            return () if isinstance(error, KeyError) else (FILE_KEYS.get(note.name, note.name),)
        if isinstance(note, IterableValidationNote):
            return (note.index,)
    return ()


def _place(path: tuple[str | int, ...]) -> list[str]:
    """The table and the key, as they read in the file: `[[act]] 2`, `where`."""
    words: list[str] = []
    for step in path:
        if isinstance(step, int):
            words[-1] += f" {step + 1}"
        elif not words and step in _TABLES:
            words.append(f"[{step}]")
        elif not words and step in _ARRAYS:
            words.append(f"[[{step}]]")
        else:
            words.append(one_line(step))
    return words
