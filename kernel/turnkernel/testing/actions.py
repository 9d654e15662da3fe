"""What a scripted tool can be told to do, and whether it was told so. Pure; touches nothing.

A script that is wrong is refused where it is made: a tool that raised at the misspelled action would be an error
result for the model, no law broken, and every sweep of it green.
"""

import builtins
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from ..checks import nearest, number, one_of

__all__ = ["VERBS", "Action", "check_actions", "scripted_error"]

Action = Mapping[str, Any]
"""One entry of a tool's `does` or `on_cancel`: a mapping of one key, its verb (docs/scenarios.md)."""

LIFETIMES = ("call", "turn", "session", "detached")

_OF_CALLS = ("emit", "checkpoint", "ask", "block")
"""What a task can't do."""


class ScriptedError(Exception):
    """What `raise` in a script raises where it names no built-in exception."""


def scripted_error(text: str) -> Exception:
    """The exception that `Name: words` means."""
    name, _, words = text.partition(":")
    kind: object = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        return kind(words.strip())
    return ScriptedError(text)


def _text(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {value!r}")


def _raise(what: str, value: object) -> None:
    _text(what, value)
    try:
        scripted_error(cast("str", value))
    except TypeError:
        raise ValueError(f"{what} must name an exception that is made from one text, not {value!r}") from None


def _lifetime(what: str, value: object) -> None:
    one_of(what, value, LIFETIMES)


def _anything(what: str, value: object) -> None:
    """Whatever JSON can say."""


def _true(what: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{what} must be true or false, not {value!r}")


VERBS: Mapping[str, Callable[[str, object], None]] = {
    "emit": _text,
    "sleep": number,
    "checkpoint": _anything,
    "ask": _text,
    "touch": _text,
    "critical": number,
    "spawn": _lifetime,
    "result": _text,
    "block": number,
    "swallow": _true,
    "shield": number,
    "raise": _raise,
}
"""Every verb, with the check of what it takes."""


def check_actions(tool: str, key: str, actions: object) -> None:
    """Raises TypeError or ValueError that names the tool, the place (from 0) and the verb."""
    if isinstance(actions, str | Mapping) or not isinstance(actions, Sequence):
        raise TypeError(f"tool {tool!r}: {key} must be a list of actions, not {actions!r}")
    task = False
    for place, action in enumerate(cast("Sequence[object]", actions)):
        what = f"tool {tool!r}: {key}[{place}]"
        if not isinstance(action, Mapping) or len(cast("Action", action)) != 1:
            raise TypeError(f"{what} must be a mapping of one key, not {action!r}")
        ((verb, value),) = cast("Action", action).items()
        if verb not in VERBS:
            raise ValueError(f"{what}: there is no action {verb!r}{nearest(verb, VERBS)}")
        if task and verb in _OF_CALLS:
            raise ValueError(f"{what}: {verb!r} is for calls, and what follows a spawn is a task")
        VERBS[verb](f"{what}: {verb}", value)
        task = task or (verb == "spawn" and value in ("session", "detached"))
