"""Events to lines of the log and back. No trio, no I/O; pure.

A line is one JSON object, crc first:

    {"crc":"9ae0daaf","seq":7,"epoch":1,"t":1.204,"type":"tool/start", ...}

crc is crc32 in 8 hex digits of the line's bytes from the opening quote of the key `"seq"` to the closing brace,
both included. A field that has its default is left out.
"""

import json
import math
import re
import zlib
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any, Literal, cast, get_args, get_origin

import attrs
import orjson
from cattrs import transform_error
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn
from cattrs.preconf.orjson import make_converter
from cattrs.strategies import configure_tagged_union

from .events import EVENT_TYPES, Event, PassedOver, Record
from .messages import AssistantBlock, Opaque, Text, Thinking, ToolUse
from .text import scrub

__all__ = [
    "BadLineError",
    "block_to_json",
    "cleaned",
    "crc",
    "decode",
    "encode",
    "event_fields",
    "event_of",
    "fields_of",
    "parse",
    "parse_object",
    "passed_over",
]

_BLOCK_NAMES = {Text: "text", Thinking: "thinking", ToolUse: "tool_use", Opaque: "opaque"}


class BadLineError(ValueError):
    """A line is no record; the message says why."""


def _only(kind: type | tuple[type, ...]) -> Callable[[Any, Any], Any]:
    """A hook that takes a value as it is or not at all: `str(None)` would make a name of nothing."""

    def take(value: Any, _: Any) -> Any:
        # A bool is an int to Python, and JSON has no infinity: orjson writes null for it.
        if not isinstance(value, kind) or (value.__class__ is bool and kind is not bool):
            raise TypeError(f"{value!r:.40} is of type {type(value).__name__}")
        if value.__class__ is float and not math.isfinite(value):
            raise TypeError(f"{value} is no number")
        return value

    return take


def _make_converter() -> Any:
    converter = make_converter(omit_if_default=True)
    for plain in (str, int, bool):
        converter.register_structure_hook(plain, _only(plain))
    converter.register_structure_hook(float, _only((int, float)))
    configure_tagged_union(AssistantBlock, converter, tag_name="type", tag_generator=lambda cls: _BLOCK_NAMES[cls])
    return converter


_converter = _make_converter()
_unstructure: dict[type[Event], Callable[[Any], dict[str, Any]]] = {
    cls: make_dict_unstructure_fn(cls, _converter, _cattrs_omit_if_default=True) for cls in EVENT_TYPES.values()
}
_structure: dict[str, Callable[[Any, Any], Any]] = {
    name: make_dict_structure_fn(cls, _converter, _cattrs_detailed_validation=False)
    for name, cls in EVENT_TYPES.items()
}
_explain: dict[str, Callable[[Any, Any], Any]] = {
    name: make_dict_structure_fn(cls, _converter, _cattrs_detailed_validation=True)
    for name, cls in EVENT_TYPES.items()
}
"""The same, slower, with the name of the field that does not fit."""


def crc(data: bytes) -> str:
    """crc32 as the log writes it: 8 hex digits."""
    return f"{zlib.crc32(data):08x}"


def event_fields(event: Event) -> dict[str, Any]:
    """An event's own fields as JSON-able values, defaults left out; without its type. Raises TypeError."""
    try:
        return _unstructure[type(event)](event)
    except Exception as error:  # noqa: BLE001 - whatever a field of another type than it should be raises
        raise TypeError(f"{event.type}: its fields do not fit: {error}") from None


def block_to_json(block: AssistantBlock) -> dict[str, Any]:
    """A block of a message as the log writes it."""
    return _converter.unstructure(block, AssistantBlock)


def encode(record: Record) -> bytes:
    """The record's line, newline included. What it returns can be decoded.

    Raises TypeError where the event holds what JSON can't, or what its fields are not declared to hold: a line
    that can't be read again must never be written. `cleaned` mends lone surrogates; the rest is a fault of whoever
    made the event.
    """
    event = record.event
    fields = event_fields(event)
    body = orjson.dumps({"seq": record.seq, "epoch": record.epoch, "t": record.t, "type": event.type, **fields})
    fits = _fits[type(event)]
    if fits is None or not fits(event):
        _structured(event.type, fields)
    line = body[1:]
    return b'{"crc":"%08x",%b\n' % (zlib.crc32(line), line)


def _fits_of(cls: type[Event]) -> Callable[[Any], bool] | None:
    """A function that tells whether an event's fields hold what they are declared to, without making another.

    None for a class with fields that only structuring can tell of: objects, sequences, JSON values. Written as
    source, as attrs and cattrs do, because every append waits for it: a loop over the fields takes thrice as long.
    """
    conditions = [_condition(f"event.{field.name}", field.type) for field in attrs.fields(cls)]
    if None in conditions:
        return None
    source = " and ".join(map(str, conditions)) or "True"
    return eval(f"lambda event: {source}", {"isfinite": math.isfinite, "NoneType": NoneType})


def _condition(value: str, declared: Any) -> str | None:
    if get_origin(declared) is Literal:
        return f"{value} in {set(get_args(declared))!r}"
    choices = get_args(declared) or (declared,)
    if not set(choices) <= {str, int, float, bool, NoneType}:
        return None
    tests = [
        f"{value}.__class__ is {kind.__name__}" + (f" and isfinite({value})" if kind is float else "")
        for kind in choices
    ]
    return f"({' or '.join(tests)})"


def _maker_of(cls: type) -> Callable[[dict[str, Any]], Any]:
    """A function from JSON fields to an object, or to None where only structuring can tell whether they fit.

    Written as source as well: every record that is loaded goes through it, and structuring takes thrice as long.
    """
    takes: list[str] = []
    conditions: list[str] = []
    names: dict[str, Any] = {"cls": cls, "isfinite": math.isfinite, "NoneType": NoneType, "block": _make_block}
    for field in attrs.fields(cls):
        take = f"fields[{field.name!r}]"
        if field.default is not attrs.NOTHING:
            names[f"default_{field.name}"] = field.default
            take = f"fields.get({field.name!r}, default_{field.name})"
        if field.type == tuple[AssistantBlock, ...]:
            take = f"tuple([block(one) for one in {take}])"
        takes.append(f"    {field.name} = {take}")
        conditions.append(_json_condition(field.name, field.type))
    arguments = ", ".join(field.name for field in attrs.fields(cls))
    source = "\n".join(
        [
            "def make(fields):",
            *takes,
            f"    return cls({arguments}) if {' and '.join(filter(None, conditions)) or 'True'} else None",
        ]
    )
    exec(source, names)
    return names["make"]


def _json_condition(value: str, declared: Any) -> str:
    """Whether what JSON gave for a field is what the field holds as it is."""
    plain = _condition(value, declared)
    if plain is not None or declared is Any or declared == tuple[AssistantBlock, ...]:
        return plain or ""
    choices = get_args(declared) if NoneType in get_args(declared) else (declared,)
    empty = f"{value} is None or " * (NoneType in choices)
    kind = choices[0]
    if get_origin(kind) is Mapping and get_args(kind) == (str, Any):
        return f"({empty}{value}.__class__ is dict)"
    if get_origin(kind) is Mapping and get_args(kind) == (str, int):
        return f"({empty}({value}.__class__ is dict and all([one.__class__ is int for one in {value}.values()])))"
    return f"({empty}{value} == ())"


def _make_block(fields: dict[str, Any]) -> AssistantBlock:
    block = _make_blocks[fields["type"]](fields)
    if block is None:
        raise TypeError("structuring says what is wrong")
    return block


_make_blocks = {name: _maker_of(cls) for cls, name in _BLOCK_NAMES.items()}
_make = {name: _maker_of(cls) for name, cls in EVENT_TYPES.items()}
_fits = {cls: _fits_of(cls) for cls in EVENT_TYPES.values()}


def cleaned(event: Event) -> Event:
    """The event with no lone surrogate anywhere in it. Raises TypeError as `encode` does."""

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return scrub(value)
        if isinstance(value, dict):
            return {clean(key): clean(item) for key, item in value.items()}  # pyright: ignore
        if isinstance(value, list | tuple):
            return [clean(item) for item in value]  # pyright: ignore
        return value

    return _structured(event.type, clean(event_fields(event)))


def decode(line: bytes) -> Record:
    """The record of a line, given without its newline. Raises `BadLineError`."""
    fields = parse(line)
    return Record(fields["seq"], fields["epoch"], fields["t"], event_of(fields))


def parse(line: bytes) -> dict[str, Any]:
    """The fields of a line whose crc is right, with `seq`, `epoch`, `t` and a known `type` among them.

    Says nothing of the fields of the event, which `event_of` looks at. Raises `BadLineError`.
    """
    if line[:8] != b'{"crc":"' or line[16:18] != b'",' or line[-1:] != b"}":
        raise BadLineError("not a record")
    if line[8:16] != b"%08x" % zlib.crc32(line[18:]):
        raise BadLineError("its crc does not match")
    return fields_of(line)


def fields_of(data: bytes) -> dict[str, Any]:
    """The same of a JSON object, which may lack the crc: it was looked at already. Raises `BadLineError`."""
    try:
        fields: dict[str, Any] = orjson.loads(data)
        seq, epoch, t, name = fields["seq"], fields["epoch"], fields["t"], fields["type"]
    except (orjson.JSONDecodeError, KeyError) as error:
        raise BadLineError(f"crc right, but no record: {error}") from None
    if (
        seq.__class__ is not int
        or epoch.__class__ is not int
        or (t.__class__ is not float and t.__class__ is not int)
    ):
        raise BadLineError("crc right, but no record: seq, epoch and t must be numbers")
    if name.__class__ is not str or name not in _structure:
        raise BadLineError(f"unknown event type {name!r}")
    return fields


def event_of(fields: dict[str, Any]) -> Event:
    """The event of a line's fields. Raises `BadLineError`, which names the first field that does not fit."""
    name = fields["type"]
    try:
        event = _make[name](fields)
    except (KeyError, TypeError, AttributeError):
        event = None  # structuring says what is wrong, if anything is
    if event is not None:
        return event
    try:
        return _structured(name, fields)
    except TypeError as error:
        raise BadLineError(str(error)) from None


def _structured(name: str, fields: dict[str, Any]) -> Any:
    """An event from its fields. Raises TypeError, which names the first field that does not fit."""
    cls = EVENT_TYPES[name]
    try:
        return _structure[name](fields, cls)
    except Exception:  # noqa: BLE001 - cattrs raises what its hooks raise; every kind means a bad field
        pass
    try:
        return _explain[name](fields, cls)
    except Exception as error:  # noqa: BLE001 - as above
        reason = transform_error(error, name, format_exception=_reason)[0]
        raise TypeError(f"{name}: its fields do not fit: {reason}") from None


def _reason(error: BaseException, _: Any) -> str:
    return "missing" if isinstance(error, KeyError) else str(error)


def passed_over(offset: int, data: bytes) -> PassedOver:
    """The name of bytes that are no record."""
    return PassedOver(offset, len(data), crc(data))


def parse_object(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is, or None. Nothing at all means `{}`: a call without arguments.

    Strict: what it returns means what the text means, and can be written to the log and to a wire. So no NaN, no
    number that 64 bits don't hold exactly, no lone surrogate, nothing nested too deep, nothing after the object.
    Of a key that is there twice the last counts, as everywhere.
    """
    if not text.strip():
        return {}
    try:
        value = orjson.loads(text)
        orjson.dumps(_in_lists(value))
    except (orjson.JSONDecodeError, TypeError):
        return None
    if not isinstance(value, dict) or not _is_exact(cast("dict[str, Any]", value), text):
        return None
    return cast("dict[str, Any]", value)


_LEVELS_AROUND = 32
"""Levels that a record of the log or the request of a wire may put around an object; orjson writes 254 at most."""
_LONG_NUMBER = re.compile(r"[0-9]{19}")


def _in_lists(value: object) -> object:
    for _ in range(_LEVELS_AROUND):
        value = [value]
    return value


def _is_exact(value: dict[str, Any], text: str) -> bool:
    """Whether no whole number was rounded: orjson reads those beyond 64 bits as floats."""
    try:
        return _LONG_NUMBER.search(text) is None or json.loads(text) == value
    except ValueError:  # more digits than Python reads
        return False
