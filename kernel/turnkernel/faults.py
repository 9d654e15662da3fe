"""What went wrong, taken apart: groups to their leaves, exceptions to what the log says. Pure but for one look."""

from typing import cast

import trio

from .errors import GrammarError
from .events import Error
from .journal import Journal
from .text import clip, safe

__all__ = ["apart", "errors_of", "in_words", "is_ours", "leaves", "qualified_name"]


def leaves(error: BaseException) -> list[BaseException]:
    """The exceptions of a group, however deep; of a single one, itself."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return [leaf for one in group.exceptions for leaf in leaves(one)]
    return [error]


def errors_of(error: BaseException, place: str) -> list[Error]:
    """What `turn/end` says of an exception: its leaves but the cancels."""
    return [
        Error(qualified_name(type(leaf)), clip(safe(str(leaf)), 4096), place)
        for leaf in leaves(error)
        if not isinstance(leaf, trio.Cancelled)
    ]


def in_words(error: BaseException) -> str:
    """The same in one text: `ValueError: no such thing`, or the type alone where it has nothing to say."""
    return "; ".join(f"{one.type}: {one.text}".removesuffix(": ") for one in errors_of(error, ""))


def qualified_name(cls: type) -> str:
    """A class's name, with its module unless it is built in."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def is_ours(error: BaseException, journal: Journal) -> bool:
    """Whether an exception that came through somebody else's code is the kernel's own: this log's failure, met by
    a tool's use of its context, or an illegal append. Another session's failure is not.
    """
    own = (journal.failure, journal.full)
    return any(isinstance(leaf, GrammarError) or leaf in own for leaf in leaves(error))


def apart(group: BaseExceptionGroup[BaseException]) -> tuple[BaseException | None, Exception | None]:
    """The cancels of a group and its failures. Both None where it holds what is neither: KeyboardInterrupt."""
    cancelled, rest = group.split(trio.Cancelled)
    if rest is not None and not isinstance(rest, Exception):
        return None, None
    return cancelled, rest
