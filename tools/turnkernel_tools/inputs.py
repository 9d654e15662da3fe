"""What a typed function takes, as JSON Schema and as a check of what a model sent. Pure; touches nothing.

Strict: an unknown key or a wrong type is told with the name of the key, nothing is converted silently, and `true`
is no number. The schema says exactly what the check accepts.
"""

import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

import attrs
import cattrs
from cattrs.cols import list_structure_factory, mapping_structure_factory  # pyright: ignore[reportUnknownVariableType]
from cattrs.gen import make_dict_structure_fn, typeddicts

from turnkernel.tool import ToolContext

__all__ = ["BadInputError", "Inputs", "json_schema"]

Schema = dict[str, Any]

_SCALARS: Mapping[Any, tuple[str, str]] = {
    str: ("string", "a string"),
    int: ("integer", "an integer"),
    float: ("number", "a number"),
    bool: ("boolean", "true or false"),
    type(None): ("null", "null"),
}
_LISTS = (list, Sequence)
_OBJECTS = (dict, Mapping)


class BadInputError(Exception):
    """The model's: an input is not what the tool takes. Its text is for the model, a line for each fault."""


class _WrongError(TypeError):
    """One value is not what was expected; its text says both."""


def _seen(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 80 else f"{text[:77]}..."


# ------------------------------------------------------------------------------------------------- types


def _options(tp: Any) -> tuple[Any, ...] | None:
    """The values of a Literal or an Enum; None for any other type."""
    if get_origin(tp) is Literal:
        return get_args(tp)
    return tuple(member.value for member in tp) if _is_enum(tp) else None


def _is_enum(tp: Any) -> bool:
    return isinstance(tp, type) and issubclass(tp, Enum)


def _is_union(tp: Any) -> bool:
    return get_origin(tp) in (Union, types.UnionType)


def _is_list(tp: Any) -> bool:
    return (get_origin(tp) or tp) in _LISTS


def _is_object(tp: Any) -> bool:
    return (get_origin(tp) or tp) in _OBJECTS


def _is_record(tp: Any) -> bool:
    return typing.is_typeddict(tp) or (isinstance(tp, type) and attrs.has(tp))


# ------------------------------------------------------------------------------------------------- schema


def json_schema(tp: Any, _inside: tuple[Any, ...] = ()) -> Schema:
    """The JSON Schema of an annotation. `Annotated[T, "words"]` gives it a description.

    Raises TypeError for what JSON or this module has no words for, a class that holds itself included.
    """
    if get_origin(tp) is Annotated:
        words = [extra for extra in tp.__metadata__ if isinstance(extra, str)]
        return json_schema(tp.__origin__, _inside) | ({"description": words[0]} if words else {})
    if tp is None:
        tp = type(None)
    if tp is Any:
        return {}
    if tp in _SCALARS:
        return {"type": _SCALARS[tp][0]}
    if (options := _options(tp)) is not None:
        return {"enum": list(options)}
    if _is_union(tp):
        return {"anyOf": [json_schema(arm, _inside) for arm in get_args(tp)]}
    if _is_list(tp):
        return {"type": "array", "items": json_schema((*get_args(tp), Any)[0], _inside)}
    if _is_object(tp):
        key, value = get_args(tp) or (str, Any)
        if key is not str:
            raise TypeError(f"the keys of a JSON object are strings, not {key!r}")
        return {"type": "object", "additionalProperties": json_schema(value, _inside)}
    if _is_record(tp) and tp not in _inside:
        return _record_schema(tp, (*_inside, tp))
    raise TypeError(f"no JSON Schema for {tp!r}")


def _record_schema(tp: Any, inside: tuple[Any, ...]) -> Schema:
    hints = typing.get_type_hints(tp, include_extras=True)
    if typing.is_typeddict(tp):
        required: Sequence[str] = [name for name in hints if name in tp.__required_keys__]
    else:
        fields = [field for field in attrs.fields(tp) if field.init]
        hints = {field.name: hints[field.name] for field in fields}
        required = [field.name for field in fields if field.default is attrs.NOTHING]
    return _object({name: json_schema(_bare(hint), inside) for name, hint in hints.items()}, required)


def _bare(hint: Any) -> Any:
    """A TypedDict's field without Required and NotRequired, which its class has counted already."""
    return hint.__args__[0] if get_origin(hint) in (typing.Required, typing.NotRequired) else hint


def _object(properties: Schema, required: Sequence[str]) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


# -------------------------------------------------------------------------------------------------- check


def _scalar(value: Any, tp: Any) -> Any:
    if tp is float and type(value) is int:
        return float(value)
    if tp is int and isinstance(value, float) and value.is_integer():
        return int(value)  # JSON Schema's integers: 3.0 is one
    if type(value) is not tp:
        raise _WrongError(f"expected {_SCALARS[tp][1]}, got {_seen(value)}")
    return value


def _choice(tp: Any, _: cattrs.Converter) -> Callable[[Any, Any], Any]:
    options = _options(tp) or ()

    def structure(value: Any, _: Any) -> Any:
        for option in options:
            if type(option) is type(value) and option == value:
                return tp(value) if _is_enum(tp) else value
        raise _WrongError(f"expected one of {', '.join(map(_seen, options))}, got {_seen(value)}")

    return structure


def _union(tp: Any, converter: cattrs.Converter) -> Callable[[Any, Any], Any]:
    arms = get_args(tp)

    def structure(value: Any, _: Any) -> Any:
        told: list[str] = []
        for arm in arms:
            try:
                return converter.structure(value, arm)
            except (cattrs.BaseValidationError, _WrongError) as error:
                told += [line for line in _lines(error, "it") if line not in told]
        raise _WrongError("; or ".join(told))

    return structure


def _checked(
    kinds: type | tuple[type, ...], words: str, factory: Callable[[Any, cattrs.Converter], Callable[..., Any]]
) -> Callable[[Any, cattrs.Converter], Callable[[Any, Any], Any]]:
    """A structure hook that asks for the JSON kind first: cattrs takes a string for a list of characters."""

    def make(tp: Any, converter: cattrs.Converter) -> Callable[[Any, Any], Any]:
        inner = factory(tp, converter)

        def structure(value: Any, _: Any) -> Any:
            if not isinstance(value, kinds):
                raise _WrongError(f"expected {words}, got {_seen(value)}")
            return inner(value, tp)

        return structure

    return make


def _list_factory(tp: Any, converter: cattrs.Converter) -> Callable[..., Any]:
    return list_structure_factory(list[(*get_args(tp), Any)[0]], converter)  # type: ignore[misc]


def _object_factory(tp: Any, converter: cattrs.Converter) -> Callable[..., Any]:
    value = (*get_args(tp), Any, Any)[1]
    return mapping_structure_factory(dict[str, value], converter, structure_to=dict)  # type: ignore[valid-type]


def _record_factory(tp: Any, converter: cattrs.Converter) -> Callable[..., Any]:
    make: Callable[..., Any] = make_dict_structure_fn
    if typing.is_typeddict(tp):
        make = cast("Any", typeddicts).make_dict_structure_fn
    return make(tp, converter, _cattrs_forbid_extra_keys=True, _cattrs_detailed_validation=True)


def _make_converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=True)
    for scalar in _SCALARS:
        converter.register_structure_hook(scalar, _scalar)
    factories: Sequence[tuple[Callable[[Any], bool], Any]] = (
        (_is_record, _checked((dict, Mapping), "an object", _record_factory)),
        (_is_object, _checked((dict, Mapping), "an object", _object_factory)),
        (_is_list, _checked(list, "a list", _list_factory)),
        (_is_union, _union),
        (lambda tp: _options(tp) is not None, _choice),
    )
    for predicate, factory in factories:
        converter.register_structure_hook_factory(predicate, factory)
    return converter


_CONVERTER = _make_converter()


def _lines(error: BaseException, path: str) -> list[str]:
    """What is wrong, a line for each fault, with the place."""

    def say(fault: BaseException, expected: type | None) -> str:
        return str(fault) if isinstance(fault, _WrongError) else cattrs.v.format_exception(fault, expected)

    if isinstance(error, _WrongError):
        return [str(error)]
    return cattrs.transform_error(error, path=path, format_exception=say)  # type: ignore[arg-type]


class Inputs:
    """The parameters of one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """Raises TypeError, naming the parameter, for a function that no JSON object can call."""
        self.takes_context = False
        """Whether the first parameter is a ToolContext, which is no part of the input."""
        hints = typing.get_type_hints(function, include_extras=True)
        properties: Schema = {}
        required: list[str] = []
        fields: dict[str, Any] = {}
        for place, parameter in enumerate(inspect.signature(function).parameters.values()):
            hint = hints.get(parameter.name, Any)
            if place == 0 and hint is ToolContext:
                self.takes_context = True
                continue
            properties[parameter.name] = _parameter_schema(function, parameter, hint)
            needed = parameter.default is parameter.empty
            required += [parameter.name] if needed else []
            fields[parameter.name] = attrs.field(
                type=hint, alias=parameter.name, kw_only=True, default=attrs.NOTHING if needed else None
            )
        self.schema = _object(properties, required)
        self._class = attrs.make_class("Input", fields)
        self._structure = _checked((dict, Mapping), "an object", _record_factory)(self._class, _CONVERTER)

    def __repr__(self) -> str:
        return f"<Inputs {', '.join(self.schema['properties'])}>"

    def check(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments for the function, only those that were given. Raises `BadInputError`."""
        try:
            made = self._structure(given, self._class)
        except (cattrs.BaseValidationError, _WrongError) as error:
            raise BadInputError("\n".join(_lines(error, "input"))) from error
        return {name: getattr(made, name) for name in given}


def _parameter_schema(function: Callable[..., Any], parameter: inspect.Parameter, hint: Any) -> Schema:
    where = f"{function.__qualname__}: parameter {parameter.name!r}"
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise TypeError(f"{where}: {parameter.kind.description} parameters have no name in JSON")
    try:
        schema = json_schema(hint)
    except TypeError as error:
        raise TypeError(f"{where}: {error}") from error
    if isinstance(parameter.default, str | int | float):  # bool is an int
        schema["default"] = parameter.default
    return schema
