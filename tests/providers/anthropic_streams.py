"""Minimal streams of Anthropic's wire, and what comes out of them. Imported by the tests beside it."""

import json
from typing import Any

from turnkernel.errors import ProviderError
from turnkernel.events import Delta
from turnkernel.provider import ModelEvent
from turnkernel_providers.anthropic_stream import AnthropicDecoder

Json = dict[str, Any]


def sse(*events: Json) -> bytes:
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


def start(ident: str = "msg_1", **message: Any) -> Json:
    return {"type": "message_start", "message": {"id": ident, "usage": {"input_tokens": 3}, **message}}


def opened(index: int | None, kind: str, **fields: Any) -> Json:
    place = {} if index is None else {"index": index}
    return {"type": "content_block_start", "content_block": {"type": kind, **fields}, **place}


def delta(index: int | None, kind: str, **fields: Any) -> Json:
    place = {} if index is None else {"index": index}
    return {"type": "content_block_delta", "delta": {"type": kind, **fields}, **place}


def said(index: int | None, text: str) -> Json:
    return delta(index, "text_delta", text=text)


def closed(index: int | None) -> Json:
    return {"type": "content_block_stop"} if index is None else {"type": "content_block_stop", "index": index}


def stopped(reason: str | None = "end_turn") -> Json:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 5}}


STOP: Json = {"type": "message_stop"}
PING: Json = {"type": "ping"}
HI = (opened(0, "text", text=""), said(0, "Hi"), closed(0))
CALL = (
    opened(1, "tool_use", id="t1", name="ls", input={}),
    delta(1, "input_json_delta", partial_json=""),
    delta(1, "input_json_delta", partial_json='{"a"'),
    delta(1, "input_json_delta", partial_json=": 1}"),
    closed(1),
)
HI_SAID = [Delta(0, "text", "Hi"), Delta(0, "end")]
CALL_SAID = [
    Delta(1, "call", call="t1", name="ls"),
    Delta(1, "input", '{"a"'),
    Delta(1, "input", ": 1}"),
    Delta(1, "end"),
]
USAGE = {"input_tokens": 3, "output_tokens": 5}


def decode(data: bytes, *, ended: bool = True) -> tuple[list[ModelEvent], ProviderError | None]:
    """Decode in one piece; assert that byte by byte gives the same."""
    outcomes: list[tuple[list[ModelEvent], ProviderError | None]] = []
    for size in (1, len(data) or 1):
        decoder = AnthropicDecoder()
        events = [event for at in range(0, len(data), size) for event in decoder.feed(data[at : at + size])]
        outcomes.append((events + (decoder.eof() if ended else []), decoder.failure))
    assert outcomes[0][0] == outcomes[1][0]
    assert str(outcomes[0][1]) == str(outcomes[1][1])
    return outcomes[0]
