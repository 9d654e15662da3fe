"""What the strict checkers of request bodies share. Pure; touches nothing.

A checker takes a request body as parsed JSON and gives the first `Refusal` it finds, or None. It never raises,
whatever the JSON. The rules have ids: A.. for Anthropic Messages, C.. for Chat Completions. Where real APIs
disagree with each other the checkers refuse what any of them is known to refuse, so a history that passes here
is one that passes everywhere.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

__all__ = ["Refusal", "blank", "listed", "lone_surrogates", "table", "text_of"]

_SURROGATE = re.compile("[\ud800-\udfff]")


class Refusal(str):
    """Why a body is refused: the vendor's own text, filled in, and the id of the rule."""

    rule: str

    def __new__(cls, rule: str, text: str) -> "Refusal":
        """Join a rule and its text."""
        made = super().__new__(cls, text)
        made.rule = rule
        return made

    def __repr__(self) -> str:
        return f"<Refusal {self.rule}: {self}>"


def table(value: object) -> Mapping[str, Any]:
    """The value if it is a JSON object, else an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def listed(value: object) -> Sequence[Any]:
    """The value if it is a JSON array, else an empty one."""
    return cast("Sequence[Any]", value) if isinstance(value, list) else ()


def text_of(value: object) -> str:
    """The value if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def blank(value: object) -> bool:
    """Whether a text has nothing in it but white space; anything that is no text is blank too."""
    return not text_of(value).strip()


def lone_surrogates(body: Mapping[str, Any]) -> Iterator[Refusal]:
    """A26: half an emoji anywhere in the body, keys included. The column is that of the compact JSON."""
    written = json.dumps(body, ensure_ascii=False, separators=(",", ":"), default=str)
    if found := _SURROGATE.search(written):
        at = found.start()
        why = f"no low surrogate in string: line 1 column {at + 1} (char {at})"
        yield Refusal("A26", f"The request body is not valid JSON: {why}")
