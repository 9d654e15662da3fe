"""Who is on the other end: clients that go away, come back, pipeline, or talk nonsense."""

import json
import time
from typing import Any

import httpx
import pytest
import trio
import trio.testing

from turnkernel.testing.replies import Reply
from turnkernel_providers.server import open_model_server
from turnkernel_providers.server_connection import Connection

FOREVER = 1_000_000.0


async def test_a_client_that_leaves_before_it_has_an_answer_is_seen(
    dial: Any, wire: str, path: str, hello: Any
) -> None:
    async with open_model_server(wire, [Reply(text="x", fault="stall", after_bytes=0)]) as server:
        client = await dial(server)
        await client.ask(path, hello)
        record = await server.wait_request(1)
        assert record.client_gone_at is None
        client.close()
        await server.wait_client_gone(1)
        assert not record.finished
        await server.wait_closed()


async def test_a_client_that_leaves_between_two_pieces_is_seen_at_once(
    dial: Any, wire: str, path: str, hello: Any, mock_clock: trio.testing.MockClock
) -> None:
    mock_clock.jump(3.0)
    async with open_model_server(wire, [Reply(text="one two three", pace=FOREVER)]) as server:
        client = await dial(server)
        await client.ask(path, hello)
        await client.head()
        assert await client.chunk()
        client.close()
        record = await server.wait_client_gone(1)
        assert record.received_at == record.client_gone_at == 3.0
        assert not record.finished


async def test_a_client_that_leaves_during_a_stall_is_seen(dial: Any, wire: str, path: str, hello: Any) -> None:
    async with open_model_server(wire, [Reply(text="one two three", fault="stall")]) as server:
        client = await dial(server)
        await client.ask(path, hello)
        await client.head()
        assert await client.chunk()
        client.reset()
        assert not (await server.wait_client_gone(1)).finished


async def test_a_client_that_leaves_without_reading_is_seen(dial: Any, wire: str, path: str, hello: Any) -> None:
    async with open_model_server(wire, [Reply(raw=bytes(50_000_000))]) as server:
        client = await dial(server)
        await client.ask(path, hello)
        await client.head()
        await trio.testing.wait_all_tasks_blocked()
        assert not server.requests[0].finished, "the server waits for room in the socket"
        client.close()
        await server.wait_client_gone(1)


async def test_a_request_that_comes_with_its_own_end_is_still_recorded(
    dial: Any, wire: str, path: str, hello: Any
) -> None:
    async with open_model_server(wire, [Reply(text="x", pace=FOREVER)]) as server:
        client = await dial(server)
        await client.ask(path, hello)
        client.close()
        assert (await server.wait_client_gone(1)).reply == 0


async def test_half_a_request_is_no_request(dial: Any, wire: str, path: str, hello: Any) -> None:
    async with open_model_server(wire, [Reply(text="x")]) as server:
        client = await dial(server)
        data = client.request_bytes(path, hello)
        await client.stream.send_all(data[:-1])
        await trio.testing.wait_all_tasks_blocked()
        client.close()
        await server.wait_closed()
        assert server.requests == []


async def test_bytes_of_a_next_request_are_neither_an_end_nor_lost(
    dial: Any, wire: str, path: str, hello: Any, mock_clock: trio.testing.MockClock
) -> None:
    async with open_model_server(wire, [Reply(text="one", pace=1.0), Reply(text="two")]) as server:
        client = await dial(server)
        both = client.request_bytes(path, hello) + client.request_bytes(path, hello)
        await client.stream.send_all(both[:-5])
        await client.head()
        body = await client.chunk()
        await client.stream.send_all(both[-5:])
        await trio.testing.wait_all_tasks_blocked()
        assert len(server.requests) == 1
        assert server.requests[0].client_gone_at is None
        mock_clock.autojump_threshold = 0.01
        body += b"".join(await client.chunks())
        _, second = await client.answer()
        assert b"one" in body
        assert b"two" in second
        assert [record.client_gone_at for record in server.requests] == [None, None]
        assert [record.connection for record in server.requests] == [1, 1]


async def test_a_client_that_leaves_with_a_request_in_the_pipe_is_gone_for_the_first_only(
    dial: Any, wire: str, path: str, hello: Any
) -> None:
    async with open_model_server(wire, [Reply(text="one", pace=FOREVER), Reply(text="two")]) as server:
        client = await dial(server)
        await client.stream.send_all(client.request_bytes(path, hello) * 2)
        await client.head()
        client.close()
        await server.wait_client_gone(1)
        await server.wait_closed()
        assert len(server.requests) == 1


async def test_a_client_that_has_its_answer_and_leaves_is_not_gone(
    dial: Any, wire: str, path: str, hello: Any
) -> None:
    async with open_model_server(wire, [Reply(text="one two")]) as server:
        client = await dial(server)
        await client.ask(path, hello)
        await client.answer()
        client.close()
        await server.wait_closed()
        assert server.requests[0].finished
        assert server.requests[0].client_gone_at is None


class LeavesWithTheLastByte:
    """A stream whose other end is gone before the server hears that its last write went through."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.last_byte_out = trio.Event()

    async def receive_some(self, max_bytes: int) -> bytes:
        if self.request:
            await trio.lowlevel.checkpoint()
            data, self.request = self.request, b""
            return data
        await self.last_byte_out.wait()
        return b""

    async def send_all(self, data: bytes) -> None:
        if data.endswith(b"\r\n0\r\n\r\n"):
            self.last_byte_out.set()
        await trio.testing.wait_all_tasks_blocked()


async def test_a_client_that_leaves_with_the_last_byte_is_not_gone(
    dial: Any, wire: str, path: str, hello: Any
) -> None:
    async with open_model_server(wire, [Reply(text="one two"), Reply(text="three")]) as server:
        request = (await dial(server)).request_bytes(path, hello)
        await Connection(server, LeavesWithTheLastByte(request * 2), 99).run()  # type: ignore[arg-type]
        assert [(record.finished, record.client_gone_at) for record in server.requests] == [(True, None)]


async def test_a_pooled_client_keeps_its_connection_and_several_work_at_once(
    wire: str, path: str, hello: Any
) -> None:
    async with open_model_server(wire, [Reply(text="hello there")] * 42) as server:
        async with httpx.AsyncClient(base_url=server.base_url) as client:
            for _ in range(2):
                assert (await client.post(path, json=hello)).status_code == 200

            async def ask() -> None:
                assert b"there" in (await client.post(path, json=hello)).content

            async with trio.open_nursery() as nursery:
                for _ in range(40):
                    nursery.start_soon(ask)
        await server.wait_closed()
    assert [record.connection for record in server.requests[:2]] == [1, 1]
    assert [record.number for record in server.requests] == list(range(1, 43))
    assert all(record.finished and record.client_gone_at is None for record in server.requests)


async def test_the_base_url_fits_the_clients_of_both_vendors(hello: Any) -> None:
    async with (
        open_model_server("anthropic", [Reply(text="a")]) as anthropic,
        open_model_server("openai-chat", [Reply(text="b")]) as openai,
        httpx.AsyncClient() as client,
    ):
        assert (await client.post(f"{anthropic.base_url}/v1/messages?beta=true", json=hello)).status_code == 200
        assert (await client.post(f"{openai.base_url}/v1/chat/completions", json=hello)).status_code == 200
        assert (await client.post(f"{openai.base_url}/v1/messages", json=hello)).status_code == 404
        assert (await client.post(f"{anthropic.base_url}/v1/chat/completions", json=hello)).status_code == 404
        assert (await client.get(f"{anthropic.base_url}/v1/messages")).status_code == 405
        assert (await client.head(f"{anthropic.base_url}/v1/messages")).status_code == 405
        assert anthropic.requests[0].path == "/v1/messages"
        assert [record.reply for record in anthropic.requests] == [0, None, None, None]


async def test_a_request_too_many_is_unmet(dial: Any, wire: str, path: str, hello: Any) -> None:
    async with open_model_server(wire, [Reply(status=503), Reply(text="x")]) as server:
        client = await dial(server)
        answers: list[tuple[int, bytes]] = []
        for _ in range(3):
            await client.ask(path, hello)
            answers.append(await client.answer())
        assert [status for status, _ in answers] == [503, 200, 500]
        assert "unmet: no reply is left for request 3" in json.loads(answers[2][1])["error"]["message"]
        assert server.unmet == [server.requests[2]]


async def test_secrets_are_not_kept(dial: Any, wire: str, path: str, hello: Any) -> None:
    async with open_model_server(wire, [Reply(text="x")]) as server:
        client = await dial(server)
        secrets = ("Authorization: Bearer hunter2", "X-Api-Key: hunter2", "api-key: hunter2", "cookie: s=hunter2")
        await client.ask(f"{path}?key=hunter2", hello, *secrets, "anthropic-version: 2023-06-01")
        assert (await client.answer())[0] == 200
        record = server.requests[0]
        assert "hunter2" not in repr(record)
        assert record.headers["authorization"] == record.headers["x-api-key"] == "[redacted]"
        assert record.headers["anthropic-version"] == "2023-06-01"
        assert record.body == hello


@pytest.mark.parametrize("body", [b"{", b'{"a": NaN}', b"\xff", b"[]", b"[" * 100_000])
async def test_what_is_no_json_object_is_refused(dial: Any, wire: str, path: str, body: bytes) -> None:
    async with open_model_server(wire, [Reply(text="x")], strict=False) as server:
        client = await dial(server)
        await client.ask(path, body)
        assert (await client.answer())[0] == 400
        assert server.violations[0].rule == "shape"
        assert server.requests[0].reply is None


@pytest.mark.parametrize("change", [{"stream": False}, {"model": ...}, {"messages": ...}])
async def test_a_request_lacks_what_every_request_needs(
    dial: Any, wire: str, path: str, hello: Any, change: dict[str, Any]
) -> None:
    body = {key: value for key, value in {**hello, **change}.items() if value is not ...}
    async with open_model_server(wire, [Reply(text="x")]) as server:
        client = await dial(server)
        await client.ask(path, body)
        assert (await client.answer())[0] == 400
        assert next(iter(change)) in server.violations[0].text


async def test_nonsense_is_answered_400_and_hung_up_on(dial: Any, wire: str) -> None:
    async with open_model_server(wire, []) as server:
        client = await dial(server)
        await client.stream.send_all(b"what do you want from me\r\n\r\n")
        head = await client.head()
        assert head is not None
        assert head[0] == 400
        assert await client.until(b"never") is None
        await server.wait_closed()
        assert server.requests == []


async def test_nonsense_after_a_request_does_not_spoil_its_answer(
    dial: Any, wire: str, path: str, hello: Any
) -> None:
    async with open_model_server(wire, [Reply(text="one")]) as server:
        client = await dial(server)
        await client.stream.send_all(client.request_bytes(path, hello) + b"\0\0 nonsense\r\n\r\n")
        status, body = await client.answer()
        assert (status, b"one" in body) == (200, True)
        await server.wait_closed()
        assert server.requests[0].finished


async def test_leaving_the_block_closes_everything_and_leaves_no_task(
    dial: Any, wire: str, path: str, hello: Any
) -> None:
    before = trio.lowlevel.current_statistics().tasks_living
    async with open_model_server(wire, [Reply(text="x", pace=FOREVER)] * 3) as server:
        clients = [await dial(server) for _ in range(4)]
        for client in clients[:3]:
            await client.ask(path, hello)
        await server.wait_request(3)
        assert server.open_connections == 4
    assert trio.lowlevel.current_statistics().tasks_living == before
    assert server.open_connections == 0
    for client in clients:
        await client.until(b"never")
        assert client.ended in ("fin", "reset")
    with pytest.raises(OSError, match="connect"):
        await dial(server)


async def test_a_cancel_around_the_block_leaves_no_task_either(wire: str) -> None:
    before = trio.lowlevel.current_statistics().tasks_living
    with trio.CancelScope() as scope:
        async with open_model_server(wire, []):
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert trio.lowlevel.current_statistics().tasks_living == before


async def test_an_exception_of_the_block_comes_out_as_it_is(wire: str) -> None:
    with pytest.raises(LookupError, match="mine"):
        async with open_model_server(wire, []):
            raise LookupError("mine")


async def test_a_cancel_hides_no_failure_of_the_block(wire: str) -> None:
    with pytest.raises(ExceptionGroup) as caught, trio.CancelScope() as scope:
        async with open_model_server(wire, []):
            scope.cancel()
            raise LookupError("mine")
    assert caught.group_contains(LookupError, match="mine")


async def test_the_clock_of_the_records_can_be_one_that_other_processes_have(
    dial: Any, wire: str, path: str, hello: Any
) -> None:
    start = time.monotonic()
    async with open_model_server(wire, [Reply(text="x")], clock=time.monotonic) as server:
        client = await dial(server)
        await client.ask(path, hello)
        await client.answer()
        assert start <= server.requests[0].received_at <= time.monotonic()


async def test_each_client_has_replies_of_its_own(dial: Any, wire: str, path: str, hello: Any) -> None:
    apart = {"call_1": [Reply(text="first")], "../a b/%2f": [Reply(text="second")]}
    async with open_model_server(wire, [Reply(text="root")], apart=apart) as server:
        urls = [server.base_url, *map(server.url_of, (*apart, "nobody"))]
        answers: list[bytes] = []
        for url in reversed(urls):
            client = await dial(server)
            await client.ask(url.removeprefix(server.base_url) + path, hello)
            answers.append(repr(await client.answer()).encode())
        said = [b"no reply is left", b"second", b"first", b"root"]
        assert [part in answer for part, answer in zip(said, answers, strict=True)] == [True] * 4
        assert [request.reply for request in server.requests] == [None, 0, 0, 0]
        assert len(server.unmet) == 1
