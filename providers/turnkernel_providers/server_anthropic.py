"""How the model server speaks Anthropic's Messages. Pure; touches nothing.

Shapes as in recorded streams: `message_start` ... `message_stop`, a ping after the first block has begun, an
empty `input_json_delta` at the start of a call, usage in `message_start` and `message_delta`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from turnkernel.events import Delta
from turnkernel.provider import Finish
from turnkernel.testing.replies import Reply, model_events

from .server_wires import Asked, data_of, sse
from .strict import Refusal, table, text_of
from .strict_anthropic import check_anthropic
from .strict_thinking import Thoughts, is_thinking, sign

__all__ = ["AnthropicWire"]

Json = Mapping[str, Any]

_ERROR_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""https://platform.claude.com/docs/en/api/errors; other 4xx are `invalid_request_error`, other 5xx `api_error`."""
_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "input": ("input_json_delta", "partial_json"),
}
_PING: Json = {"type": "ping"}


def _request_id(number: int) -> str:
    return f"req_{number:024}"


def _delta(index: int, kind: str, field: str, text: str) -> Json:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, field: text}}


def _block(delta: Delta) -> Json:
    if delta.part == "call":
        return {"type": "tool_use", "id": delta.call, "name": delta.name, "input": {}}
    if delta.part in ("thinking", "signature"):
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _content(deltas: Sequence[Delta], signature: str) -> Iterator[Json]:
    begun = -1
    for delta in deltas:
        if delta.block != begun:
            yield {"type": "content_block_start", "index": delta.block, "content_block": _block(delta)}
            if begun < 0:
                yield _PING
            begun = delta.block
        if delta.part == "end":
            yield {"type": "content_block_stop", "index": delta.block}
        elif delta.part == "call":
            yield _delta(delta.block, "input_json_delta", "partial_json", "")
        elif delta.part == "signature":
            yield _delta(delta.block, "signature_delta", "signature", signature)
        else:
            yield _delta(delta.block, *_DELTAS[delta.part], delta.text)


def _message(reply: Reply, asked: Asked) -> Iterator[Json]:
    said = model_events(reply)
    deltas = [event for event in said if isinstance(event, Delta)]
    usage = {"input_tokens": asked.input_tokens, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    yield {
        "type": "message_start",
        "message": {
            "model": asked.model,
            "id": f"msg_{asked.number:024}",
            "type": "message",
            "role": "assistant",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**usage, "output_tokens": 1},
        },
    }
    if not deltas:
        yield _PING
    yield from _content(deltas, sign(asked.model, reply.thinking or ""))
    stop = next(event.stop for event in said if isinstance(event, Finish))
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": stop, "stop_sequence": None},
        "usage": {**usage, "output_tokens": 1 + sum(1 for delta in deltas if delta.text)},
    }
    yield {"type": "message_stop"}


def _thinking_in(events: Sequence[bytes]) -> list[Json]:
    """The whole thinking blocks that a stream gives, in order."""
    open_blocks: dict[object, dict[str, str]] = {}
    whole: list[Json] = []
    for event in events if any(b"thinking" in event for event in events) else ():
        data = _parsed(data_of(event))
        index, delta = data.get("index"), table(data.get("delta"))
        block = table(data.get("content_block"))
        if data.get("type") == "content_block_start" and is_thinking(block):
            open_blocks[index] = {key: text_of(value) for key, value in block.items()}
        elif data.get("type") == "content_block_stop" and index in open_blocks:
            whole.append(open_blocks.pop(index))
        elif index in open_blocks:
            for field in ("thinking", "signature"):
                open_blocks[index][field] = open_blocks[index].get(field, "") + text_of(delta.get(field))
    return whole


def _parsed(data: str) -> Json:
    try:
        return table(json.loads(data))
    except ValueError:
        return {}


@attrs.frozen
class AnthropicWire:
    """Anthropic's Messages, with a memory of the thinking it has given."""

    path = "/v1/messages"
    needs = ("model", "max_tokens", "messages")
    thoughts: Thoughts = attrs.field(factory=Thoughts)

    def check(self, body: Json) -> Refusal | None:
        """Whether the vendor would refuse a request body; thinking must be what this wire has given."""
        return check_anthropic(body, thoughts=self.thoughts)

    def asked(self, number: int, body: Json, size: int) -> Asked:
        """What of a request of `size` bytes shows in its answer; four bytes count as a token."""
        return Asked(number, text_of(body.get("model")), size // 4 + 1)

    def events(self, reply: Reply, asked: Asked) -> list[bytes]:
        """A whole stream, one SSE event an item."""
        return [sse(event, text_of(event["type"])) for event in _message(reply, asked)]

    def is_terminal(self, data: str) -> bool:
        """Whether an event's data says how the message ended."""
        return _parsed(data).get("type") in ("message_delta", "message_stop")

    def overloaded(self, asked: Asked) -> bytes:
        """The event that says, in the middle of a stream, that the server can't go on."""
        return sse(self.error(529, "Overloaded", asked.number), "error")

    def given(self, asked: Asked, events: Sequence[bytes]) -> None:
        """Remember the thinking of a stream, before any of it can come back."""
        self.thoughts.remember(asked.model, _thinking_in(events))

    def error(self, status: int, text: str, number: int) -> Json:
        """An error in the vendor's envelope."""
        kind = _ERROR_TYPES.get(status) or ("invalid_request_error" if status < 500 else "api_error")
        error = {"type": kind, "message": text}
        return {"type": "error", "error": error, "request_id": _request_id(number)}

    def headers(self, number: int) -> list[tuple[str, str]]:
        """Headers that every answer bears."""
        return [("request-id", _request_id(number))]
