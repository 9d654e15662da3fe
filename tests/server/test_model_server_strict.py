"""What the model server does with a history that a real API would refuse, and with thinking that comes back."""

import json
from typing import Any

import httpx
import pytest

from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel_providers.server import ModelServer, open_model_server

Json = dict[str, Any]

BAD = {"model": "m", "max_tokens": 9, "stream": True, "messages": [{"role": "assistant", "content": "me first"}]}


async def test_a_refused_request_is_answered_400_and_takes_no_reply(
    dial: Any, wire: str, path: str, hello: Any
) -> None:
    async with open_model_server(wire, [Reply(text="x")]) as server:
        client = await dial(server)
        await client.ask(path, BAD)
        status, answer = await client.answer()
        error = json.loads(answer)["error"]
        assert (status, error["type"]) == (400, "invalid_request_error")
        violation = server.violations[0]
        assert (violation.number, violation.status, violation.rule) == (1, 400, "A13")
        assert violation.text == error["message"] == server.requests[0].error
        assert server.requests[0].reply is None
        await client.ask(path, hello)
        assert (await client.answer())[0] == 200
        assert server.requests[1].reply == 0


async def test_without_strictness_any_history_goes(dial: Any, wire: str, path: str) -> None:
    async with open_model_server(wire, [Reply(text="x")], strict=False) as server:
        client = await dial(server)
        await client.ask(path, BAD)
        assert (await client.answer())[0] == 200
        assert server.violations == []


async def test_half_an_emoji_is_refused_however_it_is_written(dial: Any, wire: str, path: str, hello: Any) -> None:
    escaped = json.dumps(hello).replace("hello", "\\ud83d").encode()
    plain = json.dumps(hello).encode().replace(b"hello", b"\xed\xa0\xbd")
    async with open_model_server(wire, [Reply(text="x")]) as server:
        client = await dial(server)
        for body in (escaped, plain):
            await client.ask(path, body)
            assert (await client.answer())[0] == 400
        assert [violation.rule for violation in server.violations] == ["A26", "A26"]


def spoken(stream: str) -> list[Json]:
    """The blocks that a stream gives, as a client would send them back."""
    blocks: list[Json] = []
    for event in stream.removesuffix("\n\n").split("\n\n"):
        data = json.loads(event.partition("data: ")[2])
        if data["type"] == "content_block_start":
            blocks.append(dict(data["content_block"]))
        elif data["type"] == "content_block_delta" and "partial_json" not in data["delta"]:
            field = list(data["delta"])[1]
            blocks[-1][field] += data["delta"][field]
    return blocks


async def ask(client: httpx.AsyncClient, server: ModelServer, model: str, *blocks: Json) -> tuple[int, str]:
    """Ask with a history in which the assistant said these blocks, the last of which is a call."""
    messages: list[Json] = [{"role": "user", "content": "go"}]
    if blocks:
        messages.append({"role": "assistant", "content": list(blocks)})
        messages.append(
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "ok"}]}
        )
    thinks = {"type": "enabled", "budget_tokens": 1024}
    body = {"model": model, "max_tokens": 9, "stream": True, "messages": messages, "thinking": thinks}
    answer = await client.post(f"{server.base_url}/v1/messages", json=body)
    return answer.status_code, answer.text


def sse(**data: Any) -> bytes:
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()


RECORDED = b"".join(
    [
        sse(
            type="content_block_start",
            index=0,
            content_block={"type": "thinking", "thinking": "", "signature": ""},
        ),
        sse(type="content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "I should "}),
        sse(type="content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "look"}),
        sse(type="content_block_delta", index=0, delta={"type": "signature_delta", "signature": "RXRZREN="}),
        sse(type="content_block_stop", index=0),
    ]
)
REDACTED = (
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":'
    b'{"type":"redacted_thinking","data":"QQ=="}}\n\n'
    b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
)


@pytest.fixture
def thinking_replies() -> list[Reply]:
    return [
        Reply(thinking="I should look", calls=[ReplyCall("c1", "bash")]),
        Reply(thinking="I should wait", calls=[ReplyCall("c1", "bash")]),
        Reply(raw=REDACTED),
        *[Reply(text="x")] * 3,
    ]


async def test_thinking_goes_back_as_it_was_given(thinking_replies: list[Reply]) -> None:
    async with open_model_server("anthropic", thinking_replies) as server, httpx.AsyncClient() as client:
        thought, call = spoken((await ask(client, server, "m"))[1])
        other, _ = spoken((await ask(client, server, "m"))[1])
        assert await ask(client, server, "m")
        assert (await ask(client, server, "m", thought, call))[0] == 200
        assert (await ask(client, server, "m", {"type": "redacted_thinking", "data": "QQ=="}, call))[0] == 200
        refused = [
            ("m", [{**thought, "thinking": "I should hide"}, call]),
            ("m", [{**thought, "signature": other["signature"]}, call]),
            ("m", [{"type": "redacted_thinking", "data": "Qg=="}, call]),
            ("another model", [thought, call]),
            ("m", [thought, other, call]),
            ("m", [call]),
        ]
        for model, blocks in refused:
            assert (await ask(client, server, model, *blocks))[0] == 400
        assert [violation.rule for violation in server.violations] == ["A19", "A19", "A19", "A19", "A18", "A16"]


async def test_thinking_of_a_recorded_stream_is_known_again_once_it_was_played() -> None:
    thought = {"type": "thinking", "thinking": "I should look", "signature": "RXRZREN="}
    call = {"type": "tool_use", "id": "c1", "name": "bash", "input": {}}
    replies = [Reply(raw=RECORDED), Reply(text="x")]
    async with open_model_server("anthropic", replies) as server, httpx.AsyncClient() as client:
        assert (await ask(client, server, "m", thought, call))[0] == 400
        assert spoken((await ask(client, server, "m"))[1]) == [thought]
        assert (await ask(client, server, "m", thought, call))[0] == 200


async def test_another_server_knows_scripted_thinking_again(thinking_replies: list[Reply]) -> None:
    async with httpx.AsyncClient() as client:
        async with open_model_server("anthropic", thinking_replies) as server:
            thought, call = spoken((await ask(client, server, "m"))[1])
        async with open_model_server("anthropic", thinking_replies) as server:
            assert (await ask(client, server, "m", thought, call))[0] == 200
