"""The tables of a scenario file to classes, as a cattrs converter. Pure; touches nothing.

Every table has the keys of its class and no other, in its class's types, and passes its class's check.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, cast, get_args, get_origin

import attrs
from cattrs import Converter
from cattrs.cols import (
    homogenous_tuple_structure_factory,
    mapping_structure_factory,  # pyright: ignore[reportUnknownVariableType]
)
from cattrs.gen import make_dict_structure_fn, override

from turnkernel.causes import Answer
from turnkernel.testing.replies import ReplyCall

from .checks import CHECKS
from .plain import quoted
from .scenario import (
    LONGEST,
    Act,
    Action,
    AtLeast,
    Expect,
    Scenario,
    ScenarioReply,
    SessionTable,
    ToolScript,
    ToolsTable,
    User,
)
from .values import (
    Hook,
    Problem,
    action,
    body,
    boolean,
    bounded,
    json_value,
    known_ones,
    number,
    one_of,
    shown,
    table,
    text,
    whole,
)

__all__ = ["FILE_KEYS", "converter"]

FILE_KEYS: Mapping[str, str] = {
    "users": "user",
    "replies": "reply",
    "scripts": "tool",
    "acts": "act",
    "raw_file": "raw",
}
"""Fields of the classes that are called otherwise in the file."""


def _teach_table(converter: Any, cls: type[Any], **overrides: Any) -> None:
    """Teach the converter a class: its tables have no key but its fields', and pass its check."""
    names = [field.name for field in attrs.fields(cls)]
    chosen: dict[str, Any] = {name: override(rename=FILE_KEYS[name]) for name in names if name in FILE_KEYS}
    chosen |= overrides
    known = [FILE_KEYS.get(name, name) for name in names if not (name in chosen and chosen[name].omit)]
    structure = make_dict_structure_fn(cls, converter, **chosen)
    check = CHECKS.get(cls)

    def hook(value: Any, _: Any) -> Any:
        said = table(value)
        for key in said:
            if key not in known:
                raise Problem(f"unknown key {quoted(key)}{known_ones(key, known)}")
        made = structure(said, cls)
        if check is not None:
            check(made, frozenset(said))
        return made

    converter.register_structure_hook(cls, hook)


def _array_factory(kind: Any, converter: Any) -> Hook:
    inner = homogenous_tuple_structure_factory(cast("Any", tuple[get_args(kind)[0], ...]), converter)

    def hook(value: Any, _: Any) -> Any:
        if not isinstance(value, list):
            raise Problem(f"must be an array, not {shown(value)}")
        return inner(cast("list[Any]", value), kind)

    return hook


def _mapping_factory(kind: Any, converter: Any) -> Hook:
    inner = mapping_structure_factory(kind, converter, dict)
    return lambda value, _: inner(table(value), kind)


def _make_converter() -> Any:
    converter: Any = Converter(detailed_validation=True)
    for kind, hook in (
        (str, text),
        (bool, boolean),
        (int, whole),
        (float, number),
        (Action, action),
        (Answer, _answer),
    ):
        converter.register_structure_hook(kind, hook)
    converter.register_structure_hook_func(_is_any, json_value)
    for decides, factory in _FACTORIES:
        converter.register_structure_hook_factory(decides, factory)
    for cls in (ReplyCall, SessionTable, User, ToolScript, Act, ToolsTable, Expect):
        _teach_table(converter, cls)
    _teach_table(converter, ScenarioReply, **_REPLY_OVERRIDES)
    _teach_table(converter, Scenario)
    return converter


def _bounded_factory(kind: Any, converter: Any) -> Hook:
    inner, bound = get_args(kind)
    return bounded(converter.get_structure_hook(inner), bound)


def _answer(value: Any, _: Any) -> Answer:
    return Answer(one_of(tuple(Answer))(value, None))


def _literal_factory(kind: Any, _: Any) -> Hook:
    return one_of(get_args(kind))


def _is_any(kind: Any) -> bool:
    return kind is Any


def _has_origin(*origins: Any) -> Callable[[Any], bool]:
    def decides(kind: Any) -> bool:
        return get_origin(kind) in origins

    return decides


_PLAIN: Sequence[tuple[Any, Hook]] = (
    (str, text),
    (bool, boolean),
    (int, whole),
    (float, number),
    (Action, action),
    (Answer, _answer),
)

_FACTORIES: Sequence[tuple[Callable[[Any], bool], Callable[[Any, Any], Hook]]] = (
    (_has_origin(Literal), _literal_factory),
    (_has_origin(Annotated), _bounded_factory),
    (_has_origin(tuple, Sequence), _array_factory),
    (_has_origin(Mapping), _mapping_factory),
)

_REPLY_OVERRIDES: Mapping[str, Any] = {
    "raw": override(omit=True),
    "raw_file": override(rename="raw"),
    "body": override(struct_hook=body),
    "stop": override(struct_hook=one_of(("end_turn", "tool_use", "max_tokens", "refusal", "pause_turn"))),
    "pace": override(struct_hook=bounded(number, AtLeast(0, LONGEST))),
    "piece_bytes": override(struct_hook=bounded(whole, AtLeast(1))),
    "after_bytes": override(struct_hook=bounded(whole, AtLeast(0))),
    "status": override(struct_hook=bounded(whole, AtLeast(200, 599))),
}
"""Bounds that `Reply` itself, which knows no file, does not say."""

converter = _make_converter()
"""Structures a whole file with `structure(table, Scenario)`; raises `Problem`s in groups of cattrs'."""
