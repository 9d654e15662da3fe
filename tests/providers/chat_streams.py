"""Minimal streams of Chat Completions, and what comes out of them. Imported by the tests beside it."""

import json
from typing import Any

from turnkernel.errors import ProviderError
from turnkernel.events import Delta
from turnkernel.provider import Finish, ModelEvent
from turnkernel_providers.openai_chat_stream import OpenAIChatDecoder

Json = dict[str, Any]
DONE = b"data: [DONE]\n\n"


def sse(*chunks: Json) -> bytes:
    return b"".join(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks)


def chunk(finish: str | None = None, usage: Json | None = None, **delta: Any) -> Json:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"choices": [choice]} if usage is None else {"choices": [choice], "usage": usage}


def call(index: int | None = 0, ident: Any = None, name: Any = None, arguments: Any = None) -> Json:
    """A piece of a call; what is None is left out."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    entry = {"index": index, "id": ident, "function": function}
    return {key: value for key, value in entry.items() if value is not None}


def calls(*entries: Json, finish: str | None = None) -> Json:
    return chunk(finish, tool_calls=list(entries))


HI = chunk(content="Hi")
END = chunk("stop")
COUNTED: Json = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}}
USAGE = {"input_tokens": 3, "output_tokens": 5}
HI_SAID = [Delta(0, "text", "Hi"), Delta(0, "end")]


def decode(data: bytes, tools: tuple[str, ...] = ()) -> tuple[list[ModelEvent], ProviderError | None]:
    """Decode in one piece; assert that byte by byte gives the same."""
    outcomes: list[tuple[list[ModelEvent], ProviderError | None]] = []
    for size in (1, len(data) or 1):
        decoder = OpenAIChatDecoder(tools)
        events = [event for at in range(0, len(data), size) for event in decoder.feed(data[at : at + size])]
        outcomes.append((events + decoder.eof(), decoder.failure))
    assert outcomes[0][0] == outcomes[1][0]
    assert str(outcomes[0][1]) == str(outcomes[1][1])
    return outcomes[0]


def called(data: bytes, tools: tuple[str, ...] = ()) -> list[tuple[str, str, str]]:
    """The calls of a stream that ends well: id, name and arguments."""
    events, failure = decode(data, tools)
    assert failure is None
    assert isinstance(events[-1], Finish)
    found: dict[int, list[str]] = {}
    ended: set[int] = set()
    for event in events:
        if isinstance(event, Delta):
            if event.part == "call":
                found[event.block] = [event.call or "", event.name or "", ""]
            elif event.part == "input":
                found[event.block][2] += event.text
            elif event.part == "end":
                ended.add(event.block)
    assert set(found) <= ended
    return [(ident, name, arguments) for ident, name, arguments in found.values()]


ONE = ("a", "ls", '{"p": 1}')
TWO = ("b", "cat", '{"q": 2}')


def whole(index: int | None, one: tuple[str, str, str], ident: Any = ...) -> Json:
    return call(index, one[0] if ident is ... else ident, one[1], one[2])
