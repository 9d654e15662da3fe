"""How the model server speaks Chat Completions. Pure; touches nothing.

Shapes as in recorded streams: a chunk with the role first, one with `finish_reason`, one with usage and no
choices where it was asked for, then `[DONE]`. Thinking goes as `reasoning_content`, DeepSeek's field.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from turnkernel.events import Delta, Stop
from turnkernel.testing.replies import Reply, model_events

from .server_wires import Asked, sse
from .strict import Refusal, listed, table, text_of
from .strict_openai_chat import check_openai_chat

__all__ = ["OpenAIChatWire"]

Json = Mapping[str, Any]

_FINISH: Mapping[Stop, str] = {
    "end_turn": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "refusal": "content_filter",
    "pause_turn": "stop",  # the wire knows no pause
}
_CREATED = 1_767_225_600
"""A fixed time, so that the same script gives the same bytes."""


def _says(deltas: Sequence[Delta]) -> Iterator[Json]:
    calls = -1
    for delta in deltas:
        if delta.part == "text":
            yield {"content": delta.text}
        elif delta.part == "thinking":
            yield {"reasoning_content": delta.text}
        elif delta.part == "call":
            calls += 1
            function = {"name": delta.name, "arguments": ""}
            yield {"tool_calls": [{"index": calls, "id": delta.call, "type": "function", "function": function}]}
        elif delta.part == "input":
            yield {"tool_calls": [{"index": calls, "function": {"arguments": delta.text}}]}


def _chunks(reply: Reply, asked: Asked) -> Iterator[Json]:
    deltas = [event for event in model_events(reply) if isinstance(event, Delta)]
    base = {
        "id": f"chatcmpl-{asked.number:024}",
        "object": "chat.completion.chunk",
        "created": _CREATED,
        "model": asked.model,
        "system_fingerprint": None,
    }
    no_usage: Json = {"usage": None} if asked.wants_usage else {}

    def chunk(delta: Json, finish: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**base, "choices": [choice], **no_usage}

    yield chunk({"role": "assistant", "content": None if reply.text is None else ""})
    for delta in _says(deltas):
        yield chunk(delta)
    yield chunk({}, _FINISH[reply.stops])
    if asked.wants_usage:
        told = sum(1 for delta in deltas if delta.text)
        usage = {"prompt_tokens": asked.input_tokens, "completion_tokens": told}
        yield {**base, "choices": [], "usage": {**usage, "total_tokens": asked.input_tokens + told}}


@attrs.frozen
class OpenAIChatWire:
    """Chat Completions."""

    path = "/v1/chat/completions"
    needs = ("model", "messages")

    def check(self, body: Json) -> Refusal | None:
        """Whether some vendor would refuse a request body."""
        return check_openai_chat(body)

    def asked(self, number: int, body: Json, size: int) -> Asked:
        """What of a request of `size` bytes shows in its answer; four bytes count as a token."""
        usage = bool(table(body.get("stream_options")).get("include_usage"))
        return Asked(number, text_of(body.get("model")), size // 4 + 1, usage)

    def events(self, reply: Reply, asked: Asked) -> list[bytes]:
        """A whole stream, one SSE event an item."""
        return [*(sse(chunk) for chunk in _chunks(reply, asked)), sse("[DONE]")]

    def is_terminal(self, data: str) -> bool:
        """Whether an event's data says how the message ended."""
        if data.strip() == "[DONE]":
            return True
        try:
            chunk = table(json.loads(data))
        except ValueError:
            return False
        return any(table(choice).get("finish_reason") for choice in listed(chunk.get("choices")))

    def overloaded(self, asked: Asked) -> bytes:
        """The chunk that says, in the middle of a stream, that the server can't go on."""
        return sse(self.error(503, "The server is overloaded or not ready yet.", asked.number))

    def given(self, asked: Asked, events: Sequence[bytes]) -> None:
        """Nothing to remember: the wire signs nothing."""

    def error(self, status: int, text: str, number: int) -> Json:
        """An error in the vendor's envelope."""
        kind = "invalid_request_error" if status < 500 else "server_error"
        code = {401: "invalid_api_key", 429: "rate_limit_exceeded"}.get(status)
        return {"error": {"message": text, "type": kind, "param": None, "code": code}}

    def headers(self, number: int) -> list[tuple[str, str]]:
        """Headers that every answer bears."""
        return [("x-request-id", f"req_{number:024}")]
