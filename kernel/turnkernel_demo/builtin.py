"""The scenarios that come with the package. Reads the package's own files; touches nothing else."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import attrs

from .load import ScenarioError, load, loads
from .plain import one_line
from .scenario import Scenario
from .values import did_you_mean

__all__ = ["TOUR", "Listed", "find", "load_builtin", "names", "scenarios"]

TOUR = ("esc-in-a-long-tool", "kill-in-a-tool", "kill-in-a-tool-truncated")
"""The three classic accidents, in the order in which the tour plays them."""

_FOLDER = files(__package__ or "turnkernel_demo") / "scenarios"
_ENDING = ".toml"


@attrs.frozen
class Listed:
    """A line of `list`."""

    name: str
    title: str


def names() -> Sequence[str]:
    """The names of all built-in scenarios, sorted."""
    return sorted(item.name.removesuffix(_ENDING) for item in _FOLDER.iterdir() if item.name.endswith(_ENDING))


def load_builtin(name: str) -> Scenario:
    """The built-in scenario of that name. Raises `ScenarioError` if there is none."""
    if name not in names():
        raise ScenarioError(f"{one_line(name)}: there is no such built-in scenario{did_you_mean(name, names())}")
    return loads((_FOLDER / f"{name}{_ENDING}").read_text("utf-8"), f"{name}{_ENDING}")


def scenarios() -> Sequence[Listed]:
    """What `list` shows: the tour first, then the others by name."""
    ordered = sorted(names(), key=lambda name: (TOUR.index(name) if name in TOUR else len(TOUR), name))
    return [Listed(name, load_builtin(name).title) for name in ordered]


def find(word: str) -> Scenario:
    """The scenario that a word of the command line means: a built-in one's name, or else a file's path.

    Raises `ScenarioError`.
    """
    if word in names():
        return load_builtin(word)
    path = Path(word)
    if path.suffix == _ENDING or path.exists():
        return load(path)
    hint = did_you_mean(word, names()) or "; `kernel-demo list` shows those"
    raise ScenarioError(f"{one_line(word)}: no such file, and no built-in scenario of that name{hint}")
