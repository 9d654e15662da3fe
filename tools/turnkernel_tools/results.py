"""What becomes of the value that a function returns. Pure; touches nothing."""

from typing import Any

import cattrs
import orjson

from turnkernel.tool import ToolOutput

__all__ = ["output_of"]


def output_of(value: Any) -> ToolOutput:
    """Text and `ToolOutput` as they are, all else as JSON. Raises TypeError for what JSON can't say."""
    if isinstance(value, ToolOutput):
        return value
    text = value if isinstance(value, str) else "" if value is None else _json(value)
    return ToolOutput(text if text.strip() else "(no output)")


def _json(value: Any) -> str:
    return orjson.dumps(cattrs.unstructure(value), option=orjson.OPT_NON_STR_KEYS).decode()
