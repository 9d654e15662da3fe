"""What a program hands to the library, looked at before anything is made of it. Pure; touches nothing.

Each check raises TypeError or ValueError, one line that names the argument and what it was. So a mistake is told
where it was made, not by the first turn that meets it, and before there is a log.
"""

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast, get_args

from .causes import Cause
from .tool import Concurrency, Effect, Tool

__all__ = [
    "check_provider",
    "check_settings",
    "check_tool",
    "check_tools",
    "nearest",
    "number",
    "one_of",
    "whole",
]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def nearest(word: object, known: Iterable[str]) -> str:
    """A hint in brackets for a word that is close to a known one, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5) if isinstance(word, str) else []
    return f" (did you mean {close[0]!r}?)" if close else ""


def number(name: str, value: object, *, least: float = 0.0, above: bool = False, optional: bool = False) -> None:
    """A finite number, at least `least`, or `above` it; None too where that is an `optional` one."""
    if value is None and optional:
        return
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number{' or None' if optional else ''}, not {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite{', or None' if optional else ''}, not {value}")
    if value < least or (above and value == least):
        raise ValueError(f"{name} must be {'more than' if above else 'at least'} {least:g}, not {value}")


def whole(name: str, value: object, *, least: int = 0, optional: bool = False) -> None:
    """A whole number, at least `least`."""
    if value is None and optional:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number{' or None' if optional else ''}, not {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")


def one_of(name: str, value: object, words: Iterable[str | None]) -> None:
    """One of these words, or None where it is among them."""
    words = tuple(words)
    if value not in words:
        known = [word for word in words if word is not None]
        raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}{nearest(value, known)}")


def _text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {value!r}")


# -------------------------------------------------------------------------------------------------- settings


def check_settings(settings: Any) -> None:
    """The fields of a `Settings`."""
    _text("system", settings.system)
    for name in ("max_tokens", "max_steps", "max_parallel"):
        whole(name, getattr(settings, name), least=1)
    whole("context_tokens", settings.context_tokens, least=1, optional=True)
    number("turn_seconds", settings.turn_seconds, above=True, optional=True)
    number("thread_grace_seconds", settings.thread_grace_seconds, optional=True)
    number("stuck_after_seconds", settings.stuck_after_seconds)
    number("closing_seconds", settings.closing_seconds)
    one_of("steer_policy", settings.steer_policy, ("after_batch", "skip_unstarted"))
    if not isinstance(settings.host_cause, Cause):
        raise TypeError(f"host_cause must be a Cause, not {settings.host_cause!r}")


# ----------------------------------------------------------------------------------------------------- ports


def check_provider(provider: object) -> None:
    """What keeps the shape of the port `Provider`."""
    lacks = [name for name in ("wire", "model", "stream") if not hasattr(provider, name)]
    if lacks:
        hint = "; open_anthropic() makes one, for example" if isinstance(provider, str) else ""
        raise TypeError(
            f"provider must be a Provider, with wire, model and stream(), not {provider!r}{hint}"
            if len(lacks) == 3
            else f"provider {provider!r} is no Provider: it has no {' and no '.join(lacks)}"
        )
    if isinstance(provider, type):
        raise TypeError(f"provider must be an object, not the class {provider.__qualname__}")
    for name in ("wire", "model"):
        _text(f"provider.{name}", getattr(provider, name))
    if not callable(getattr(provider, "stream")):  # noqa: B009 - it was only asked whether it is there
        raise TypeError("provider.stream must be a method")


def check_tools(tools: object) -> tuple[Tool, ...]:
    """The tools, each as `check_tool` wants it, no two of one name."""
    if isinstance(tools, str | Mapping) or not isinstance(tools, Iterable):
        raise TypeError(f"tools must be a list of tools, not {tools!r}")
    names: set[str] = set()
    found = tuple(cast("Iterable[Any]", tools))
    for place, tool in enumerate(found):
        check_tool(tool, f"tools[{place}]")
        if tool.name in names:
            raise ValueError(f"two tools are named {tool.name!r}")
        names.add(tool.name)
    return found


def check_tool(tool: Any, what: str = "tool") -> None:
    """What keeps the shape of the port `Tool`; `what` is how it is called in the error."""
    members = ("name", "description", "schema", "effect", "concurrency", "timeout", "run")
    lacks = [name for name in members if not hasattr(tool, name)]
    if lacks:
        hint = "; @tool makes one of a function" if callable(tool) and not isinstance(tool, type) else ""
        raise TypeError(f"{what} must be a Tool, not {tool!r}: it has no {', '.join(lacks)}{hint}")
    if isinstance(tool, type):
        raise TypeError(f"{what} must be an object, not the class {tool.__qualname__}")
    name = tool.name
    if not isinstance(name, str):
        raise TypeError(f"{what}: name must be a str, not {name!r}")
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{what}: name must be 1 to 64 letters, digits, _ and -, not {name!r}")
    what = f"tool {name!r}"
    _text(f"{what}: description", tool.description)
    if not isinstance(tool.schema, Mapping):
        raise TypeError(f"{what}: schema must be a JSON Schema of an object, a mapping, not {tool.schema!r}")
    one_of(f"{what}: effect", tool.effect, get_args(Effect))
    one_of(f"{what}: concurrency", tool.concurrency, get_args(Concurrency))
    number(f"{what}: timeout", tool.timeout, above=True, optional=True)
    if not callable(tool.run):
        raise TypeError(f"{what}: run must be an async method")
