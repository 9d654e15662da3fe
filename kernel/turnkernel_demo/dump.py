"""Scenarios to the text of a scenario file. Pure; touches nothing.

A minimal writer for the shapes that a scenario has. `loads(dumps(scenario)) == scenario`.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, cast

import attrs
from cattrs import Converter
from cattrs.gen import make_dict_unstructure_fn, override

from turnkernel.testing.replies import ReplyCall

from .convert import FILE_KEYS
from .scenario import (
    Act,
    Action,
    Expect,
    Scenario,
    ScenarioReply,
    SessionTable,
    ToolScript,
    ToolsTable,
    User,
)

__all__ = ["dumps", "toml"]


def dumps(scenario: Scenario) -> str:
    """The text of a file that says this scenario; what has its default is left out.

    Recordings are named by their absolute paths. Raises ValueError for one that came from no file, and for texts
    with lone surrogates, which TOML can't hold.
    """
    if any(reply.raw is not None and reply.raw_file is None for reply in scenario.replies):
        raise ValueError("a recorded reply can be written only if it was read from a file")
    return toml(cast("dict[str, Any]", _converter.unstructure(scenario, Scenario)))


def toml(said: Mapping[str, Any]) -> str:
    """The TOML text of a table: plain values, then tables, then arrays of tables; what is deeper stands inline.

    Raises UnicodeEncodeError for lone surrogates.
    """
    lines = [_pair(key, value) for key, value in said.items() if not _is_table(value) and not _is_tables(value)]
    for key, value in said.items():
        if _is_table(value):
            lines += ["", f"[{_key(key)}]", *_pairs(value)]
    for key, value in said.items():
        if _is_tables(value):
            for item in value:
                lines += ["", f"[[{_key(key)}]]", *_pairs(item)]
    text = "\n".join(lines).lstrip("\n") + "\n"
    text.encode("utf-8")
    return text


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_tables(value: Any) -> bool:
    if not isinstance(value, list | tuple):
        return False
    items = cast("list[Any]", value)
    return bool(items) and all(map(_is_table, items))


def _pairs(table: Mapping[str, Any]) -> list[str]:
    return [_pair(key, value) for key, value in table.items()]


def _pair(key: str, value: Any) -> str:
    return f"{_key(key)} = {_value(value)}"


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _string(key)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        inner = ", ".join(_pairs(cast("Mapping[str, Any]", value)))
        return f"{{ {inner} }}" if inner else "{}"
    return f"[{', '.join(_value(item) for item in cast('list[Any]', value))}]"


def _string(text: str) -> str:
    # JSON's escapes are TOML's; only DEL must be escaped in TOML and not in JSON.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _action(action: Action) -> dict[str, Any]:
    return {action.verb: action.value}


def _make_converter() -> Any:
    converter: Any = Converter()
    converter.register_unstructure_hook(Action, _action)
    for cls in (ReplyCall, ScenarioReply, SessionTable, User, ToolScript, Act, ToolsTable, Expect, Scenario):
        fields = [field.name for field in attrs.fields(cast("Any", cls))]
        overrides: dict[str, Any] = {
            name: override(rename=FILE_KEYS[name]) for name in fields if name in FILE_KEYS
        }
        if cls is ScenarioReply:
            overrides["raw"] = override(omit=True)
        hook = make_dict_unstructure_fn(cls, converter, _cattrs_omit_if_default=True, **overrides)
        converter.register_unstructure_hook(cls, hook)
    return converter


_converter = _make_converter()
