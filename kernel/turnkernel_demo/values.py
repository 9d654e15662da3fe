"""What one value of a scenario file may be: hooks for the converter in `load`. Pure; touches nothing.

TOML has types, and they are taken at their word: `true` is no number, `"5"` is none either.
"""

import builtins
import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from .plain import fit, one_line, quoted
from .scenario import LONGEST, Action, AtLeast

__all__ = [
    "ACTIONS",
    "Problem",
    "action",
    "body",
    "boolean",
    "bounded",
    "did_you_mean",
    "exception_of",
    "json_value",
    "known_ones",
    "number",
    "one_of",
    "shown",
    "table",
    "text",
    "whole",
]

Hook = Callable[[Any, Any], Any]

_SHOWN_WIDTH = 40


class Problem(Exception):
    """What is wrong with a value, in words that fit after its place. `path`: where it is inside that place."""

    def __init__(self, reason: str, *path: str | int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint in brackets for a word that is close to a known one, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {quoted(close[0])}?)" if close else ""


def known_ones(word: str, known: Iterable[str]) -> str:
    """The same hint, or where no word is close all that there are."""
    known = list(known)
    return did_you_mean(word, known) or f"; there are {', '.join(known)}"


def shown(value: Any) -> str:
    """A value of the file, short, for an error."""
    if isinstance(value, str):
        return fit(quoted(value), _SHOWN_WIDTH)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value) if abs(value) < 1e15 or isinstance(value, float) else "a number that large"
    if isinstance(value, dict):
        return "a table"
    return "an array" if isinstance(value, list) else "a date or time"


def text(value: Any, _: Any = None) -> str:
    """A text."""
    if not isinstance(value, str):
        raise Problem(f"must be a text, not {shown(value)}")
    return value


def boolean(value: Any, _: Any = None) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise Problem(f"must be true or false, not {shown(value)}")
    return value


def whole(value: Any, _: Any = None) -> int:
    """A whole number."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise Problem(f"must be a whole number, not {shown(value)}")
    return value


def number(value: Any, _: Any = None) -> float:
    """A finite number, whole or not."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Problem(f"must be a number, not {shown(value)}")
    try:
        made = float(value)
    except OverflowError:
        made = math.inf
    if not math.isfinite(made):
        raise Problem(f"must be a finite number, not {shown(value)}")
    return made


def bounded(hook: Hook, bound: AtLeast) -> Hook:
    """A number within a bound."""

    def check(value: Any, kind: Any = None) -> Any:
        made = hook(value, kind)
        if made < bound.least:
            raise Problem(f"must be at least {bound.least}, not {shown(value)}")
        if made > bound.most:
            raise Problem(f"must be at most {bound.most}, not {shown(value)}")
        return made

    return check


def one_of(names: tuple[str, ...]) -> Hook:
    """One of these words."""

    def choose(value: Any, _: Any = None) -> str:
        if not isinstance(value, str) or value not in names:
            hint = did_you_mean(value, names) if isinstance(value, str) else ""
            raise Problem(f"must be one of {', '.join(names)}, not {shown(value)}{hint}")
        return value

    return choose


def json_value(value: Any, _: Any = None) -> Any:
    """What JSON can hold: no dates, and finite numbers only."""
    if isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            _inside(key, item)
    elif isinstance(value, list):
        for place, item in enumerate(cast("list[Any]", value)):
            _inside(place, item)
    elif isinstance(value, float):
        return number(value)
    elif not isinstance(value, str | int):
        raise Problem("must be what JSON can hold, not a date or time")
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise Problem(f"must fit in 64 bits, not {shown(value)}")
    return cast("Any", value)


def _inside(key: str | int, item: Any) -> None:
    try:
        json_value(item)
    except Problem as problem:
        raise Problem(problem.reason, key, *problem.path) from None


def table(value: Any, _: Any = None) -> dict[str, Any]:
    """A table."""
    if not isinstance(value, dict):
        raise Problem(f"must be a table, not {shown(value)}")
    return cast("dict[str, Any]", value)


def body(value: Any, _: Any = None) -> str | dict[str, Any]:
    """The body of an HTTP error: a text, or a table to send as JSON."""
    if not isinstance(value, str | dict):
        raise Problem(f"must be a text or a table, not {shown(value)}")
    return json_value(cast("str | dict[str, Any]", value))


def exception_of(said: str) -> Exception:
    """The exception that `raise = "ValueError: x"` means: a built-in one, made from the text after the colon."""
    name, _, words = said.partition(":")
    kind = getattr(builtins, name.strip(), None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        raise Problem(
            f"must be a built-in exception and its text, like {quoted('ValueError: x')}, not {shown(said)}"
        )
    try:
        return kind(words.strip())
    except TypeError:
        raise Problem(f"must be an exception that can be made from one text, not {one_line(name)}") from None


def _raise(value: Any, _: Any = None) -> str:
    exception_of(text(value))
    return value


def _true(value: Any, _: Any = None) -> bool:
    if value is not True:
        raise Problem(f"must be true, not {shown(value)}")
    return value


_seconds = bounded(number, AtLeast(0, LONGEST))

ACTIONS: Mapping[str, Hook] = {
    "emit": text,
    "sleep": _seconds,
    "checkpoint": json_value,
    "ask": text,
    "touch": text,
    "critical": _seconds,
    "spawn": one_of(("call", "turn", "session", "detached")),
    "result": text,
    "block": _seconds,
    "swallow": _true,
    "shield": _seconds,
    "raise": _raise,
}
"""What a scripted tool can do, and what each takes."""


def action(value: Any, _: Any = None) -> Action:
    """One action: a table of one key."""
    said = table(value)
    if len(said) != 1:
        raise Problem(f"must be a table of one key, not of {len(said)}")
    [(verb, what)] = said.items()
    if verb not in ACTIONS:
        raise Problem(f"unknown action {quoted(verb)}{known_ones(verb, ACTIONS)}")
    try:
        return Action(cast("Any", verb), ACTIONS[verb](what, None))
    except Problem as problem:
        raise Problem(problem.reason, verb, *problem.path) from None
