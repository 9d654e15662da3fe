"""Events to lines of the log and back. No trio, no I/O; pure.

A line is one JSON object, crc first:

    {"crc":"9ae0daaf","seq":7,"epoch":1,"t":1.204,"type":"tool/start", ...}

crc is crc32 in 8 hex digits of the line's bytes from the opening quote of the key `"seq"` to the closing brace,
both included. A field that has its default is left out.
"""

import zlib
from collections.abc import Callable
from typing import Any, cast

import orjson
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
    "parse_object",
    "passed_over",
]

_BLOCK_NAMES = {Text: "text", Thinking: "thinking", ToolUse: "tool_use", Opaque: "opaque"}


class BadLineError(ValueError):
    """A line is no record; the message says why."""


def _make_converter() -> Any:
    converter = make_converter(omit_if_default=True)
    configure_tagged_union(AssistantBlock, converter, tag_name="type", tag_generator=lambda cls: _BLOCK_NAMES[cls])
    return converter


_converter = _make_converter()
_unstructure: dict[type[Event], Callable[[Any], dict[str, Any]]] = {
    cls: make_dict_unstructure_fn(cls, _converter, _cattrs_omit_if_default=True) for cls in EVENT_TYPES.values()
}
_structure: dict[str, Callable[[Any, Any], Any]] = {
    name: make_dict_structure_fn(cls, _converter) for name, cls in EVENT_TYPES.items()
}


def crc(data: bytes) -> str:
    """crc32 as the log writes it: 8 hex digits."""
    return f"{zlib.crc32(data):08x}"


def event_fields(event: Event) -> dict[str, Any]:
    """An event's own fields as JSON-able values, defaults left out; without its type."""
    return _unstructure[type(event)](event)


def block_to_json(block: AssistantBlock) -> dict[str, Any]:
    """A block of a message as the log writes it."""
    return _converter.unstructure(block, AssistantBlock)


def encode(record: Record) -> bytes:
    """The record's line, newline included.

    Raises TypeError where the event holds what JSON can't (`cleaned` mends lone surrogates; the rest is a fault
    of whoever made the event).
    """
    event = record.event
    body = orjson.dumps(
        {
            "seq": record.seq,
            "epoch": record.epoch,
            "t": record.t,
            "type": event.type,
            **_unstructure[type(event)](event),
        }
    )
    return b'{"crc":"%08x",' % zlib.crc32(memoryview(body)[1:]) + body[1:] + b"\n"


def cleaned(event: Event) -> Event:
    """The event with no lone surrogate anywhere in it."""

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return scrub(value)
        if isinstance(value, dict):
            return {clean(key): clean(item) for key, item in value.items()}  # pyright: ignore
        if isinstance(value, list | tuple):
            return [clean(item) for item in value]  # pyright: ignore
        return value

    return _structure[event.type](clean(event_fields(event)), type(event))


def decode(line: bytes) -> Record:
    """The record of a line, given without its newline. Raises `BadLineError`."""
    if line[:8] != b'{"crc":"' or line[16:18] != b'",' or line[-1:] != b"}":
        raise BadLineError("not a record")
    body = line[18:]
    if line[8:16] != b"%08x" % zlib.crc32(body):
        raise BadLineError("its crc does not match")
    try:
        fields: dict[str, Any] = orjson.loads(b"{" + body)
        seq, epoch, t, name = fields["seq"], fields["epoch"], fields["t"], fields["type"]
    except (orjson.JSONDecodeError, KeyError) as error:
        raise BadLineError(f"crc right, but no record: {error}") from None
    structure = _structure.get(name)
    if structure is None:
        raise BadLineError(f"unknown event type {name!r}")
    try:
        return Record(seq, epoch, t, structure(fields, EVENT_TYPES[name]))
    except Exception as error:  # noqa: BLE001 - cattrs raises what its hooks raise; every kind means a bad field
        raise BadLineError(f"{name}: its fields do not fit: {_first_reason(error)}") from None


def _first_reason(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return _first_reason(cast("BaseExceptionGroup[BaseException]", error).exceptions[0])
    return f"{type(error).__name__}: {error}"


def passed_over(offset: int, data: bytes) -> PassedOver:
    """The name of bytes that are no record."""
    return PassedOver(offset, len(data), crc(data))


def parse_object(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is, or None. Nothing at all means `{}`: a call without arguments.

    Strict: no NaN, no duplicate meaning of a cut text, and nothing that could not be written to the log again
    (nesting too deep, lone surrogates).
    """
    if not text.strip():
        return {}
    try:
        value = orjson.loads(text)
        orjson.dumps(value)
    except (orjson.JSONDecodeError, TypeError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None
