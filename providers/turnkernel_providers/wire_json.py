"""JSON of the wires: reading what may be anything, writing what every server takes. Pure; touches nothing."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

from turnkernel.text import scrub

__all__ = ["as_text", "index_of", "listed", "loads", "scrubbed", "table", "text_of", "written"]

T = TypeVar("T")


def loads(text: str) -> Any:
    """Parse JSON. Unlike orjson it takes lone surrogates, which models do send.

    Raises:
        ValueError: it is no JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None


def table(value: object) -> Mapping[str, Any]:
    """The value if it is a JSON object, else an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def listed(value: object) -> Sequence[Any]:
    """The value if it is a JSON array, else an empty one."""
    return cast("Sequence[Any]", value) if isinstance(value, list) else ()


def text_of(value: object) -> str:
    """The value if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def index_of(value: object) -> int | None:
    """The value if it is a whole number that every JSON reader keeps exact, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53 else None


def as_text(value: object) -> str:
    """The text of a value that came as JSON. Never raises: what can't be JSON again becomes text that is none."""
    try:
        return scrub(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    except RecursionError:
        return "[nested too deeply"


def written(value: object) -> str:
    """Compact JSON with no lone surrogate in it, keys included (rule A26).

    Raises:
        ValueError: there is something in it that is no JSON (NaN, a set), or it is nested too deeply.
    """
    try:
        return scrub(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
    except (TypeError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None


def scrubbed(value: T) -> T:
    """The same JSON value without lone surrogates. Raises as `written`."""
    return cast("T", json.loads(written(value)))
