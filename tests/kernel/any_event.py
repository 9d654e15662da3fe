"""Events of every type with anything in their fields that they are declared to hold, for hypothesis."""

import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

import attrs
from hypothesis import strategies as st

from turnkernel.events import EVENT_TYPES, Event

SCRIPTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
"""NUL, controls and every script, but no surrogates."""
ANYTHING = st.text(st.characters(exclude_categories=[]), max_size=12)
"""That, and lone surrogates."""
WHOLE = st.integers(-(2**63), 2**64 - 1)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


def json_values(text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.none() | st.booleans() | WHOLE | NUMBERS | text,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
        max_leaves=8,
    )


def _of(hint: Any, text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    origin, inner = get_origin(hint), get_args(hint)
    if hint in (str, int, float, bool):
        return {str: text, int: WHOLE, float: NUMBERS, bool: st.booleans()}[hint]
    if hint is Any:
        return json_values(text)
    if hint is types.NoneType:
        return st.none()
    if origin is Literal:
        return st.sampled_from(inner)
    if origin is Mapping:
        return st.dictionaries(text, _of(inner[1], text), max_size=3)
    if origin is tuple:
        return st.lists(_of(inner[0], text), max_size=3).map(tuple)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([_of(one, text) for one in inner])
    return _class(hint, text)


def _class(cls: type, text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls)
    return st.builds(cls, **{field.name: _of(hints[field.name], text) for field in attrs.fields(cls)})


def events_of(name: str, text: st.SearchStrategy[str] = SCRIPTS) -> st.SearchStrategy[Event]:
    """Events of one type."""
    return _class(EVENT_TYPES[name], text)


def any_event(text: st.SearchStrategy[str] = SCRIPTS) -> st.SearchStrategy[Event]:
    """Events of all types."""
    return st.one_of([events_of(name, text) for name in EVENT_TYPES])
