"""The tool calls of a Chat Completions stream, put together from their pieces. No I/O, no trio.

Servers of this wire agree on little: an index may be missing, the same for every call, shifted or start at 1; an
id may be missing, empty, null, late or repeated; a name may be split, repeated in every piece or late. The rule:
a piece belongs to the call of its id, else of its index, else to the last call; a new id at a known index, or new
arguments after a whole JSON object, begin a new call.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs

from turnkernel.codec import parse_object
from turnkernel.events import Delta

from .decoding import Fragments
from .wire_json import as_text, index_of, table, text_of

__all__ = ["Calls"]

_MOST_NAME = 256


@attrs.define(eq=False)
class _Call:
    id: str = ""
    name: str = ""
    joined: str = ""
    """All pieces of the name in a row, in case that was meant."""
    last: str = ""
    """The last piece of the name, in case that was meant."""
    arguments: list[str] = attrs.Factory(list)  # type: ignore[type-arg]
    shown: int = 0
    """How many pieces of the arguments have been given out."""
    number: int | None = None
    fragments: Fragments = attrs.Factory(Fragments)

    def add_name(self, piece: str) -> None:
        """A piece that repeats or goes on from the name is the whole of it; any other is its next part."""
        self.name = piece if piece.startswith(self.name) else self.name + piece
        self.joined = (self.joined + piece)[:_MOST_NAME]
        self.last = piece

    def called(self, tools: Collection[str]) -> str:
        """The name, decided against the tools that there are."""
        return next((name for name in (self.name, self.joined, self.last) if name in tools), self.name)

    def is_settled(self, tools: Collection[str]) -> bool:
        """Whether the name can't change any more: arguments have come and no other tool's name goes on from it."""
        if not self.name or not any(piece.strip() for piece in self.arguments):
            return False
        longer = any(tool != self.name and tool.startswith(self.name) for tool in tools)
        return not tools or (self.name in tools and not longer)

    @property
    def is_whole(self) -> bool:
        """Whether the arguments are a JSON object by now."""
        last = next((piece for piece in reversed(self.arguments) if piece.strip()), "")
        return last.rstrip().endswith("}") and parse_object("".join(self.arguments)) is not None


class Calls:
    """The calls of one response, in the order in which they began."""

    __slots__ = ("_by_id", "_by_index", "_calls", "_given", "_new_block", "_tools")

    def __init__(self, tools: Collection[str], new_block: Callable[[], int]) -> None:
        self._tools = tools
        self._new_block = new_block
        self._calls: list[_Call] = []
        self._by_id: dict[str, _Call] = {}
        self._by_index: dict[int, _Call] = {}
        self._given = 0

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def all_whole(self) -> bool:
        """Whether every call has a JSON object as its arguments; none at all is not enough here."""
        return all(call.is_whole for call in self._calls)

    def add(self, entry: Mapping[str, Any], *, first: bool) -> list[Delta]:
        """One entry of a chunk's `tool_calls`; `first` if it is the chunk's first. What can be shown now."""
        function = table(entry.get("function"))
        ident, index = text_of(entry.get("id")), index_of(entry.get("index"))
        name, arguments = text_of(function.get("name")), _arguments(function.get("arguments"))
        if not (ident or name or arguments):
            return []
        call = self._find(ident, index, name)
        bare = name and not ident and index is None and not first  # a second one in a chunk can't be the same
        if call is None or bare or (name and arguments.strip() and call.is_whole):
            call = _Call()
            self._calls.append(call)
        call.id = call.id or ident
        if ident:
            self._by_id[ident] = call
        if index is not None:
            self._by_index[index] = call
        if name:
            call.add_name(name)
        if arguments:
            call.arguments.append(arguments)
        return [*_input(call), *self._begin(everything=False)]

    def finish(self) -> list[Delta]:
        """The choice has ended: what was held back, and the ends."""
        deltas = self._begin(everything=True)
        for call in self._calls:
            if call.number is not None:
                if rest := call.fragments.end():
                    deltas.append(Delta(call.number, "input", rest))
                deltas.append(Delta(call.number, "end"))
        return deltas

    def _find(self, ident: str, index: int | None, name: str) -> _Call | None:
        last = self._calls[-1] if self._calls else None
        if ident in self._by_id:
            return self._by_id[ident]
        known = last if index is None else self._by_index.get(index)
        if ident:  # its id comes late, or it is another call
            return known if known is not None and not known.id else None
        if known is None and not name:  # arguments at an index that nothing began at
            return last
        return known

    def _begin(self, *, everything: bool) -> list[Delta]:
        """Give out the calls whose names are settled, in order: one that is not holds back those after it."""
        deltas: list[Delta] = []
        while self._given < len(self._calls):
            call = self._calls[self._given]
            if not (everything or call.is_settled(self._tools)):
                break
            call.number = self._new_block()
            deltas.append(Delta(call.number, "call", call=call.id, name=call.called(self._tools)))
            deltas += _input(call)
            self._given += 1
        return deltas


def _input(call: _Call) -> list[Delta]:
    """The pieces of the arguments that have not been given out; none before the call itself has."""
    deltas: list[Delta] = []
    if call.number is not None:
        for piece in call.arguments[call.shown :]:
            if shown := call.fragments.add(piece):
                deltas.append(Delta(call.number, "input", shown))
        call.shown = len(call.arguments)
    return deltas


def _arguments(value: object) -> str:
    """Arguments as text; some servers send the object itself."""
    given = table(value)
    return as_text(given) if given else text_of(value)
