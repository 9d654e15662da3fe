"""Text for one line of a terminal. Pure; touches nothing.

Whatever a model, a tool or a file said goes through here before a person sees it: nothing in it can drive the
terminal, break the line or run over its end.
"""

import json
import re
from typing import Any

from rich.cells import get_character_cell_size

from turnkernel.text import printable

__all__ = ["as_json", "cell_width", "fit", "one_line", "quoted", "word"]

# `printable` leaves newlines and tabs, which a text may have and a line may not. The Arabic letter mark turns
# the reading direction like the marks that `printable` knows.
_MORE = str.maketrans({"\n": "\\n", "\t": "\\t", "\u061c": "\\u061c"})


def one_line(text: str) -> str:
    """The text with every control, line break and direction mark written as an escape."""
    return printable(text).translate(_MORE)


def quoted(text: str) -> str:
    """The text on one line, in double quotes."""
    return '"' + one_line(text).replace('"', '\\"') + '"'


def word(text: str) -> str:
    """A name or an id as it is, or in quotes where it could be taken for anything else."""
    return text if re.fullmatch(r"[A-Za-z0-9_.:/+-]+", text) else quoted(text)


def as_json(value: Any) -> str:
    """A JSON value on one line, safe to show. What JSON can't hold is shown as its `repr`."""
    return one_line(json.dumps(value, ensure_ascii=False, default=repr))


def cell_width(text: str) -> int:
    """How many columns a terminal gives to a text of one line; ambiguous characters count as rich counts them."""
    return sum(get_character_cell_size(char) for char in text)


def fit(text: str, width: int) -> str:
    """A text of one line, cut to at most `width` columns (1 or more) with an ellipsis at the end.

    Characters without a width of their own are bounded too (four for each column), so that a pile of combining
    marks costs no unbounded line.
    """
    if len(text) <= 4 * width and cell_width(text) <= width:
        return text
    used = 0
    for place, char in enumerate(text[: 4 * width]):
        used += get_character_cell_size(char)
        if used >= width:
            return text[:place] + "…"
    return text[: 4 * width] + "…"
