"""What the model server says is what the real APIs say: judged by a parser of its own and by recordings."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkernel.testing.replies import Reply, ReplyCall, fragments, words
from turnkernel_providers.server import open_model_server
from turnkernel_providers.server_anthropic import AnthropicWire
from turnkernel_providers.server_openai_chat import OpenAIChatWire
from turnkernel_providers.server_wires import Asked, script, sse

CALLS = [
    ReplyCall("c1", "bash", {"command": "sleep 300", "n": [1, 2]}),
    ReplyCall("c2", "broken", raw_input='{"cut'),
]
FULL = Reply(thinking="let me  see", text="hello there,\nwörld 🚀", calls=CALLS)
ASKED = Asked(7, "m", 12, wants_usage=True)


def parsed(body: bytes) -> list[tuple[str, Any]]:
    """(event name, data) of a stream, by the plainest reading of it."""
    events: list[tuple[str, Any]] = []
    assert body.endswith(b"\n\n")
    for event in body.decode().removesuffix("\n\n").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in event.split("\n"))
        data = fields["data"]
        events.append((fields.get("event", ""), data if data == "[DONE]" else json.loads(data)))
    return events


def anthropic_message(body: bytes) -> dict[str, Any]:
    """A message put together from its stream, every step of the protocol checked."""
    events = parsed(body)
    assert all(name == data["type"] for name, data in events)
    assert events[0][0] == "message_start"
    assert [name for name, _ in events[-2:]] == ["message_delta", "message_stop"]
    message = dict(events[0][1]["message"])
    content: list[dict[str, Any]] = []
    is_open = False
    for name, data in events[1:-2]:
        if name == "content_block_start":
            assert (is_open, data["index"]) == (False, len(content))
            content.append({**data["content_block"], "json": ""})
            is_open = True
        elif name == "content_block_stop":
            assert (is_open, data["index"]) == (True, len(content) - 1)
            is_open = False
        elif name == "content_block_delta":
            assert (is_open, data["index"]) == (True, len(content) - 1)
            kind, field = next(iter(data["delta"].values())), list(data["delta"])[1]
            assert kind in ("text_delta", "thinking_delta", "signature_delta", "input_json_delta")
            content[-1]["json" if field == "partial_json" else field] += data["delta"][field]
        else:
            assert name == "ping"
    assert not is_open
    return {**message, "content": content, **events[-2][1]["delta"], "usage": events[-2][1]["usage"]}


def chat_message(body: bytes) -> dict[str, Any]:
    """A message put together from its chunks."""
    events = parsed(body)
    assert events[-1] == ("", "[DONE]")
    assert len({(data["id"], data["object"]) for _, data in events[:-1]}) == 1
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "calls": [], "finish": None, "usage": None}
    for _, data in events[:-1]:
        assert not message["usage"], "usage comes last"
        message["usage"] = data["usage"]
        for choice in data["choices"]:
            assert message["finish"] is None, "nothing is said after the finish reason"
            message["finish"] = choice["finish_reason"]
            delta = choice["delta"]
            for field in ("content", "reasoning_content"):
                message[field] += delta.get(field) or ""
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    assert call["index"] == len(message["calls"])
                    message["calls"].append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
                message["calls"][call["index"]]["arguments"] += call["function"]["arguments"]
    return message


def body_of(wire: Any, reply: Reply) -> bytes:
    return b"".join(script(wire, reply, ASKED).pieces)


def test_a_reply_is_a_whole_anthropic_message() -> None:
    message = anthropic_message(body_of(AnthropicWire(), FULL))
    assert (message["id"], message["model"], message["role"]) == (f"msg_{7:024}", "m", "assistant")
    assert message["stop_reason"] == "tool_use"
    thinking, text, first, second = message["content"]
    assert (thinking["type"], thinking["thinking"], bool(thinking["signature"])) == (
        "thinking",
        FULL.thinking,
        True,
    )
    assert (text["type"], text["text"]) == ("text", FULL.text)
    assert (first["id"], first["name"], json.loads(first["json"])) == ("c1", "bash", CALLS[0].input)
    assert (second["id"], second["json"]) == ("c2", '{"cut')


def test_a_reply_is_a_whole_chat_message() -> None:
    message = chat_message(body_of(OpenAIChatWire(), FULL))
    assert (message["content"], message["reasoning_content"]) == (FULL.text, FULL.thinking)
    assert message["finish"] == "tool_calls"
    assert [call["name"] for call in message["calls"]] == ["bash", "broken"]
    assert json.loads(message["calls"][0]["arguments"]) == CALLS[0].input
    assert message["calls"][1]["arguments"] == '{"cut'
    assert (
        message["usage"]["total_tokens"]
        == message["usage"]["prompt_tokens"] + message["usage"]["completion_tokens"]
    )


def test_a_delta_is_a_word_or_eight_bytes_of_input() -> None:
    deltas = [
        data["delta"] for name, data in parsed(body_of(AnthropicWire(), FULL)) if name == "content_block_delta"
    ]
    assert [delta["text"] for delta in deltas if "text" in delta] == words(FULL.text or "")
    told = [delta["partial_json"] for delta in deltas if delta.get("partial_json")]
    assert told == fragments(CALLS[0].arguments) + fragments(CALLS[1].arguments)
    assert max(len(piece.encode()) for piece in told) == 8


@pytest.mark.parametrize(
    ("stop", "finish"),
    [
        ("end_turn", "stop"),
        ("tool_use", "tool_calls"),
        ("max_tokens", "length"),
        ("refusal", "content_filter"),
        ("pause_turn", "stop"),
    ],
)
def test_the_stop_reason_is_in_the_wires_words(stop: Any, finish: str) -> None:
    reply = Reply(text="x", stop=stop)
    assert anthropic_message(body_of(AnthropicWire(), reply))["stop_reason"] == stop
    assert chat_message(body_of(OpenAIChatWire(), reply))["finish"] == finish


@pytest.mark.parametrize("reply", [Reply(), Reply(text=""), Reply(thinking=""), Reply(thinking="", text="")])
def test_a_reply_that_says_nothing_is_whole_all_the_same(reply: Reply) -> None:
    assert anthropic_message(body_of(AnthropicWire(), reply))["stop_reason"] == "end_turn"
    assert chat_message(body_of(OpenAIChatWire(), reply))["finish"] == "stop"


def test_usage_is_told_on_chat_only_when_asked_for() -> None:
    wire = OpenAIChatWire()
    plain = b"".join(script(wire, FULL, Asked(1, "m", 12)).pieces)
    assert b"usage" not in plain
    assert b"finish_reason" in plain


def test_the_same_script_gives_the_same_bytes() -> None:
    for wire in (AnthropicWire, OpenAIChatWire):
        assert body_of(wire(), FULL) == body_of(wire(), FULL)


def test_a_lone_surrogate_streams_as_an_escape() -> None:
    assert sse({"a": "\ud83d"}) == b'data: {"a":"\\ud83d"}\n\n'
    assert sse({"a": "ö"}) == 'data: {"a":"ö"}\n\n'.encode()


@given(
    text=st.text(st.characters(codec="utf-8"), max_size=60),
    piece_bytes=st.none() | st.integers(1, 50),
    after_bytes=st.none() | st.integers(0, 3000),
    fault=st.sampled_from([None, "eof", "cut", "reset", "stall"]),
)
def test_delivery_never_changes_what_is_said(
    text: str, piece_bytes: int | None, after_bytes: int | None, fault: Any
) -> None:
    for wire in (AnthropicWire(), OpenAIChatWire()):
        whole = body_of(wire, Reply(text=text))
        made = script(wire, Reply(text=text, piece_bytes=piece_bytes, after_bytes=after_bytes, fault=fault), ASKED)
        got = b"".join(made.pieces)
        assert whole.startswith(got)
        assert all(made.pieces)
        if fault is None:
            assert got == whole
        elif after_bytes is not None:
            assert len(got) == min(after_bytes, len(whole))
        else:
            assert b"message_delta" not in got
            assert b'"finish_reason":"' not in got


# --------------------------------------------------------------------------------- measured against recordings


def fields(value: Any, at: str = "") -> Iterator[str]:
    """Every field of some JSON, by its path, list places left out."""
    if isinstance(value, dict):
        for key, inner in value.items():  # pyright: ignore[reportUnknownVariableType]
            yield f"{at}.{key}"
            yield from fields(inner, f"{at}.{key}")
    elif isinstance(value, list):
        for inner in value:  # pyright: ignore[reportUnknownVariableType]
            yield from fields(inner, at)


def recorded_fields(folder: Path, prefixes: tuple[str, ...]) -> set[str]:
    known: set[str] = set()
    files = [file for prefix in prefixes for file in folder.glob(f"{prefix}__*.sse")]
    assert len(files) > 10, "the recordings are there"
    for file in files:
        for line in file.read_text("utf-8", "replace").splitlines():
            if line.startswith("data:") and "[DONE]" not in line:
                data = json.loads(line[5:])
                known.update(fields(data, data.get("type", "")))
    return known


@pytest.mark.parametrize(
    ("wire", "folder", "prefixes"),
    [
        (AnthropicWire(), "anthropic", ("anthropic",)),
        (OpenAIChatWire(), "openai-chat", ("openai", "azure", "deepseek")),
    ],
)
def test_every_field_we_send_stands_in_a_recorded_stream(
    recorded: Path, wire: Any, folder: str, prefixes: tuple[str, ...]
) -> None:
    known = recorded_fields(recorded / folder, prefixes)
    for _, data in parsed(body_of(wire, FULL).replace(b"data: [DONE]\n\n", b"")):
        told = {path for path in fields(data, data.get("type", "")) if ".input." not in path}
        assert told <= known


async def test_a_recorded_stream_is_played_byte_for_byte(dial: Any, hello: Any, recorded: Path) -> None:
    for folder, path in (("anthropic", "/v1/messages"), ("openai-chat", "/v1/chat/completions")):
        files = sorted((recorded / folder).glob("*.sse"))[::8]
        replies = [Reply(raw=file.read_bytes()) for file in files]
        async with open_model_server(folder, replies) as server:
            client = await dial(server)
            for file in files:
                await client.ask(path, hello)
                assert (await client.answer())[1] == file.read_bytes()
            assert len({record.connection for record in server.requests}) == 1
