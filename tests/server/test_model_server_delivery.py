"""How the model server delivers a reply: chunk by chunk, cut up, paced, and broken in every way."""

import json
from typing import Any

import pytest
import trio
import trio.testing

from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel_providers.server import open_model_server

SAYING = Reply(
    thinking="let me see", text="hello there, wörld", calls=[ReplyCall("c1", "bash", {"command": "ls"})]
)


def terminal_at(wire: str, body: bytes) -> int:
    """Where the first event begins that says how the message ended, found by looking at the text alone."""
    return body.index(b"event: message_delta" if wire == "anthropic" else b'"finish_reason":"')


async def whole(dial: Any, wire: str, path: str, body: Any, **more: Any) -> list[bytes]:
    """The chunks of the answer to one request for `SAYING`."""
    reply = Reply(SAYING.thinking, SAYING.text, SAYING.calls, **more)
    async with open_model_server(wire, [reply]) as server:
        client = await dial(server)
        await client.ask(path, body)
        head = await client.head()
        assert head is not None
        assert head[0] == 200
        assert head[1]["content-type"] == "text/event-stream; charset=utf-8"
        assert head[1]["transfer-encoding"] == "chunked"
        return await client.chunks()


async def test_each_event_is_a_chunk_of_its_own(dial: Any, wire: str, path: str, hello: Any) -> None:
    chunks = await whole(dial, wire, path, hello)
    assert len(chunks) > 10
    assert all(chunk.endswith(b"\n\n") and chunk.count(b"\n\n") == 1 for chunk in chunks)


@pytest.mark.parametrize("size", [1, 7, 31])
async def test_the_body_can_be_cut_every_n_bytes(dial: Any, wire: str, path: str, hello: Any, size: int) -> None:
    plain = b"".join(await whole(dial, wire, path, hello))
    chunks = await whole(dial, wire, path, hello, piece_bytes=size)
    assert b"".join(chunks) == plain
    assert {len(chunk) for chunk in chunks[:-1]} == {size}
    assert len(chunks[-1]) <= size


async def test_there_is_a_pause_between_pieces(
    dial: Any, wire: str, path: str, hello: Any, mock_clock: trio.testing.MockClock
) -> None:
    async with open_model_server(wire, [Reply(text="one two", pace=60.0)]) as server:
        client = await dial(server)
        await client.ask(path, hello)
        await client.head()
        assert await client.chunk()
        chunks = 1
        await trio.testing.wait_all_tasks_blocked()
        while not server.requests[0].finished:
            assert client.silent()
            mock_clock.jump(60.0)
            assert await client.chunk()
            chunks += 1
            await trio.testing.wait_all_tasks_blocked()
        assert await client.chunk() == b""
        assert trio.current_time() == 60.0 * (chunks - 1)
        assert chunks > 3


@pytest.mark.parametrize("after_bytes", [None, 1, 40])
async def test_eof_ends_the_body_cleanly_without_a_terminal_event(
    dial: Any, wire: str, path: str, hello: Any, after_bytes: int | None
) -> None:
    plain = b"".join(await whole(dial, wire, path, hello))
    async with open_model_server(wire, [Reply(**says(fault="eof", after_bytes=after_bytes)), SAYING]) as server:
        client = await dial(server)
        await client.ask(path, hello)
        _, body = await client.answer()
        assert not client.ended
        assert body == plain[: after_bytes or body_end(wire, plain)]
        await client.ask(path, hello)
        assert (await client.answer())[0] == 200
        assert [record.connection for record in server.requests] == [1, 1]
        assert server.requests[0].finished


def says(**more: Any) -> dict[str, Any]:
    """What `SAYING` says, delivered otherwise."""
    return {"thinking": SAYING.thinking, "text": SAYING.text, "calls": SAYING.calls, **more}


def body_end(wire: str, plain: bytes) -> int:
    """Where the event begins that the terminal mark is in."""
    return plain.rindex(b"\n\n", 0, terminal_at(wire, plain)) + 2


@pytest.mark.parametrize("after_bytes", [None, 1, 100])
async def test_cut_closes_inside_a_chunk(
    dial: Any, wire: str, path: str, hello: Any, after_bytes: int | None
) -> None:
    plain = b"".join(await whole(dial, wire, path, hello))
    async with open_model_server(wire, [Reply(**says(fault="cut", after_bytes=after_bytes))]) as server:
        client = await dial(server)
        await client.ask(path, hello)
        assert await client.head()
        chunks = await client.chunks()
        assert client.ended == "fin"
        assert client.buffer, "the last chunk brought less than it announced"
        assert b"".join([*chunks, client.buffer]) == plain[: after_bytes or body_end(wire, plain)]
        assert server.requests[0].client_gone_at is None


@pytest.mark.parametrize("after_bytes", [None, 1, 100])
async def test_reset_is_seen_as_a_reset(
    dial: Any, wire: str, path: str, hello: Any, after_bytes: int | None, mock_clock: trio.testing.MockClock
) -> None:
    plain = b"".join(await whole(dial, wire, path, hello))
    wanted = plain[: after_bytes or body_end(wire, plain)]
    async with open_model_server(
        wire, [Reply(**says(fault="reset", after_bytes=after_bytes, pace=5.0))]
    ) as server:
        client = await dial(server)
        await client.ask(path, hello)
        assert await client.head()
        got = b""
        while len(got) < len(wanted):
            got += await client.chunk() or b""
            await trio.testing.wait_all_tasks_blocked()
            assert client.silent()
            mock_clock.jump(5.0)
        assert got == wanted
        assert await client.chunk() is None
        assert client.ended == "reset"
        assert server.requests[0].client_gone_at is None


@pytest.mark.parametrize(("fault", "seen"), [("reset", "reset"), ("cut", "fin")])
async def test_after_no_bytes_the_head_is_missing_too(
    dial: Any, wire: str, path: str, hello: Any, fault: Any, seen: str
) -> None:
    async with open_model_server(wire, [Reply(**says(fault=fault, after_bytes=0))]) as server:
        client = await dial(server)
        await client.ask(path, hello)
        assert await client.head() is None
        assert client.ended == seen
        assert client.buffer == b""


async def test_overloaded_is_the_wires_own_error_event_and_then_a_clean_end(
    dial: Any, wire: str, path: str, hello: Any
) -> None:
    plain = b"".join(await whole(dial, wire, path, hello))
    async with open_model_server(wire, [Reply(**says(fault="overloaded"))]) as server:
        client = await dial(server)
        await client.ask(path, hello)
        _, body = await client.answer()
        assert not client.ended
        before, error = body[: body_end(wire, plain)], body[body_end(wire, plain) :]
        assert plain.startswith(before)
        name, _, data = error.decode().rstrip("\n").rpartition("data: ")
        said = json.loads(data)
        if wire == "anthropic":
            assert name == "event: error\n"
            assert said["type"] == "error"
            assert said["error"] == {"type": "overloaded_error", "message": "Overloaded"}
        else:
            assert name == ""
            assert said["error"]["type"] == "server_error"


async def test_an_error_event_never_begins_inside_another(dial: Any, wire: str, path: str, hello: Any) -> None:
    for after_bytes in (1, 150, 333, 10**6):
        async with open_model_server(wire, [Reply(**says(fault="overloaded", after_bytes=after_bytes))]) as server:
            client = await dial(server)
            await client.ask(path, hello)
            _, body = await client.answer()
            events = body.decode().removesuffix("\n\n").split("\n\n")
            assert [
                bool(json.loads(e.rpartition("data: ")[2]).get("error")) for e in events[-2:] if "[DONE]" not in e
            ][-1]
            assert sum('"error"' in event for event in events) == 1
            assert len(body) >= min(after_bytes, 100)


async def test_a_stall_says_nothing_more_and_stays_open(
    dial: Any, wire: str, path: str, hello: Any, mock_clock: trio.testing.MockClock
) -> None:
    async with open_model_server(wire, [Reply(**says(fault="stall", after_bytes=30))]) as server:
        client = await dial(server)
        await client.ask(path, hello)
        assert await client.head()
        got = b""
        while len(got) < 30:
            got += await client.chunk() or b""
        mock_clock.jump(10_000_000.0)
        await trio.testing.wait_all_tasks_blocked()
        assert client.silent()
        assert server.open_connections == 1
        assert not server.requests[0].finished


async def test_raw_bytes_replace_what_is_said_but_not_how_it_is_delivered(dial: Any, path: str, wire: str) -> None:
    hello = {"model": "m", "max_tokens": 1, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    raw = (
        b'data: {"a":1}\r\n\r\n: ping\n\n\xff\xfe'
        + b"data: [DONE]\n\n"
        + b"event: message_stop\ndata: {}\n\n"
        + b"rest"
    )
    async with open_model_server(
        wire, [Reply(raw=raw), Reply(raw=raw, piece_bytes=3, fault="cut", after_bytes=8)]
    ) as s:
        client = await dial(s)
        await client.ask(path, hello)
        await client.head()
        chunks = await client.chunks()
        assert b"".join(chunks) == raw
        assert len(chunks) == 5
        await client.ask(path, hello)
        await client.head()
        assert await client.chunks() == [raw[0:3], raw[3:6]]
        assert (client.buffer, client.ended) == (raw[6:8], "fin")


@pytest.mark.parametrize(
    ("wire", "path", "said", "end"),
    [
        (
            "anthropic",
            "/v1/messages",
            b'event: message_start\ndata: {"type":"message_start"}\n\n',
            b'event: message_delta\ndata: {"type":"message_delta"}\n\n',
        ),
        ("openai-chat", "/v1/chat/completions", b'data: {"choices":[]}\r\n\r\n', b"data: [DONE]\r\n\r\n"),
        ("openai-chat", "/v1/chat/completions", b": hi\n\n", b'data:{"choices":[{"finish_reason":"stop"}]}\n\n'),
        ("openai-chat", "/v1/chat/completions", b"data: {broken\n\n", b""),
    ],
)
async def test_a_fault_in_raw_bytes_stands_before_their_terminal_event(
    dial: Any, hello: Any, wire: str, path: str, said: bytes, end: bytes
) -> None:
    async with open_model_server(wire, [Reply(raw=said + end, fault="eof")]) as server:
        client = await dial(server)
        await client.ask(path, hello)
        assert (await client.answer())[1] == said


async def test_an_http_error_has_the_vendors_shape_or_the_scripts_own_body(
    dial: Any, wire: str, path: str, hello: Any
) -> None:
    replies = [
        Reply(status=529, headers={"Retry-After": "7"}),
        Reply(status=429, body={"error": {"message": "slow"}}),
        Reply(status=502, body="<html>bad gateway</html>", headers={"Content-Type": "text/html"}),
    ]
    async with open_model_server(wire, replies) as server:
        client = await dial(server)
        await client.ask(path, hello)
        head = await client.head()
        assert head is not None
        assert head[0] == 529
        assert head[1]["retry-after"] == "7"
        error = json.loads(await client.exactly(int(head[1]["content-length"])))
        assert error["error"]["message"] == "Overloaded"
        if wire == "anthropic":
            assert error["type"] == "error"
            assert error["error"]["type"] == "overloaded_error"
            assert error["request_id"].startswith("req_")
        else:
            assert error["error"].keys() == {"message", "type", "param", "code"}
        await client.ask(path, hello)
        status, body = await client.answer()
        assert (status, json.loads(body)) == (429, {"error": {"message": "slow"}})
        await client.ask(path, hello)
        head = await client.head()
        assert head is not None
        assert (head[0], head[1]["content-type"]) == (502, "text/html")
        assert [record.status for record in server.requests] == [529, 429, 502]
        assert [record.reply for record in server.requests] == [0, 1, 2]


@pytest.mark.parametrize("reply", [Reply(stop="cut"), Reply(status=500, fault="stall"), Reply(status=302)])
async def test_a_reply_that_cannot_be_served_is_refused_at_the_start(reply: Reply) -> None:
    with pytest.raises(ValueError, match="reply 1: "):
        async with open_model_server("anthropic", [SAYING, reply]):
            pytest.fail("the block must not be entered")


async def test_a_wire_that_does_not_exist_is_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match="no such wire"):
        async with open_model_server("telepathy", []):
            pytest.fail("the block must not be entered")
