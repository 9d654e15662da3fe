"""A cancel at every place of a request, over real sockets: the server sees the connection closed, nothing is left.

The server is a few lines of sockets, so that what it sees is judged by nobody's library.
"""

import gc
import json
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from turnkernel.errors import ProviderError
from turnkernel.events import Delta
from turnkernel.messages import Message, Text
from turnkernel.provider import Finish, ModelEvent, Provider, Request
from turnkernel_providers import open_anthropic, open_openai_chat

HELLO = Request("", [Message("user", (Text("hello"),))], [], 100)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LENGTH = re.compile(rb"(?i)content-length: (\d+)")
END = b"0\r\n\r\n"


def event(**fields: Any) -> bytes:
    return f"event: {fields['type']}\ndata: {json.dumps(fields)}\n\n".encode()


HI = [
    event(type="message_start", message={"id": "msg_1"}),
    event(type="content_block_start", index=0, content_block={"type": "text", "text": ""}),
    event(type="content_block_delta", index=0, delta={"type": "text_delta", "text": "Hi"}),
]
REST = [
    event(type="content_block_stop", index=0),
    event(type="message_delta", delta={"stop_reason": "end_turn"}),
    event(type="message_stop"),
]
SAID = [Delta(0, "text", "Hi"), Delta(0, "end"), Finish("end_turn")]


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)


class Caller:
    """One connection, as the server sees it."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.buffer = b""
        self.requests: list[bytes] = []
        self.told = trio.Event()
        """The server has said all that it will say."""
        self.closed = trio.Event()
        """The client has closed; a half-sent request or nothing is all that came before."""

    async def request(self) -> bytes | None:
        """The next request, head and body; None when the client has closed instead."""
        while True:
            head, found, body = self.buffer.partition(b"\r\n\r\n")
            length = LENGTH.search(head)
            needed = int(length[1]) if length else 0
            if found and len(body) >= needed:
                self.buffer = body[needed:]
                self.requests.append(head + found + body[:needed])
                return self.requests[-1]
            if not await self._more():
                return None

    async def until_closed(self) -> None:
        self.told.set()
        while await self._more():
            pass

    async def _more(self) -> bool:
        try:
            data = await self.stream.receive_some(65536)
        except trio.BrokenResourceError:
            data = b""
        self.buffer += data
        if not data:
            self.closed.set()
        return bool(data)

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)


class Server:
    """Runs `answer` for every connection; keeps them all."""

    def __init__(self, answer: Callable[[Caller], Awaitable[None]]) -> None:
        self.answer = answer
        self.callers: list[Caller] = []
        self.called = trio.Event()
        self.url = ""

    async def serve(self, stream: trio.SocketStream) -> None:
        caller = Caller(stream)
        self.callers.append(caller)
        self.called.set()
        async with stream:
            await self.answer(caller)


@asynccontextmanager
async def serving(answer: Callable[[Caller], Awaitable[None]]) -> AsyncIterator[Server]:
    server = Server(answer)
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, server.serve, 0, host="127.0.0.1")
        listeners: list[trio.SocketListener] = await nursery.start(serve)
        server.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        yield server
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def calling(answer: Callable[[Caller], Awaitable[None]]) -> AsyncIterator[tuple[Server, Provider]]:
    async with serving(answer) as server, open_anthropic("m", base_url=server.url, api_key="k-123") as provider:
        yield server, provider
    gc.collect()  # what was left to the collector is told by a warning, which is an error here


async def collect(provider: Provider) -> list[ModelEvent]:
    async with provider.stream(HELLO) as stream:
        return [event async for event in stream]


async def whole_answer(caller: Caller) -> None:
    while await caller.request() is not None:
        await caller.send(HEAD + chunked(*HI, *REST) + END)


async def test_a_whole_answer_is_given_and_its_connection_used_again() -> None:
    async with calling(whole_answer) as (server, provider):
        for _ in range(3):
            assert await collect(provider) == SAID
        assert [len(caller.requests) for caller in server.callers] == [3]


async def test_a_connection_is_used_again_also_when_the_end_of_the_body_comes_after_the_last_event() -> None:
    async def answer(caller: Caller) -> None:
        while await caller.request() is not None:
            await caller.send(HEAD + chunked(*HI, *REST))
            await heard.wait()
            await caller.send(END)
            ended.set()

    heard, ended = trio.Event(), trio.Event()
    async with calling(answer) as (server, provider):
        async with provider.stream(HELLO) as stream:
            assert [event async for event in stream] == SAID
            heard.set()
            await ended.wait()
        assert await collect(provider) == SAID
        assert len(server.callers) == 1


async def test_a_request_says_what_it_must() -> None:
    async with calling(whole_answer) as (server, provider):
        await collect(provider)
        head, _, body = server.callers[0].requests[0].partition(b"\r\n\r\n")
        first, *headers = head.decode().lower().split("\r\n")
        assert first == "post /v1/messages http/1.1"
        assert {"x-api-key: k-123", "anthropic-version: 2023-06-01", "accept-encoding: identity"} <= set(headers)
        assert json.loads(body)["messages"][0]["content"][0]["text"] == "hello"


async def test_a_chat_request_says_what_it_must() -> None:
    async def answer(caller: Caller) -> None:
        await caller.request()
        data = b'data: {"choices": [{"delta": {"content": "Hi"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
        await caller.send(HEAD + chunked(data) + END)

    async with (
        serving(answer) as server,
        open_openai_chat("m", base_url=f"{server.url}/v1/", api_key="k") as provider,
    ):
        assert await collect(provider) == SAID
        head, _, body = server.callers[0].requests[0].partition(b"\r\n\r\n")
        assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
        assert b"authorization: bearer k\r\n" in head.lower() + b"\r\n"
        assert json.loads(body)["messages"] == [{"role": "user", "content": "hello"}]


async def test_a_server_that_stays_open_after_the_end_is_left_at_once() -> None:
    async def answer(caller: Caller) -> None:
        await caller.request()
        await caller.send(HEAD + chunked(*HI, *REST))
        await caller.until_closed()

    async with calling(answer) as (server, provider):
        assert await collect(provider) == SAID
        await server.callers[0].closed.wait()


# ------------------------------------------------------------------------------------------ where a cancel strikes


async def no_answer(caller: Caller) -> None:
    await caller.request()
    await caller.until_closed()


async def headers_only(caller: Caller) -> None:
    await caller.request()
    await caller.send(HEAD)
    await caller.until_closed()


async def half_an_event(caller: Caller) -> None:
    await caller.request()
    await caller.send(HEAD + chunked(*HI, REST[0][:11]))
    await caller.until_closed()


async def half_a_chunk(caller: Caller) -> None:
    await caller.request()
    await caller.send(HEAD + chunked(*HI) + b"fff\r\nevent: ")
    await caller.until_closed()


async def a_slow_error(caller: Caller) -> None:
    await caller.request()
    await caller.send(b"HTTP/1.1 500 Oh\r\ncontent-length: 100\r\n\r\nnot all of it")
    await caller.until_closed()


@pytest.mark.parametrize("answer", [no_answer, headers_only, half_an_event, half_a_chunk, a_slow_error])
async def test_a_cancelled_wait_closes_the_connection(answer: Callable[[Caller], Awaitable[None]]) -> None:
    async with calling(answer) as (server, provider):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(collect, provider)
                await server.called.wait()
                await server.callers[0].told.wait()
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        assert scope.cancelled_caught
        await server.callers[0].closed.wait()


async def test_a_cancel_between_two_events_closes_the_connection() -> None:
    async with calling(half_an_event) as (server, provider):
        with trio.CancelScope() as scope:
            async with provider.stream(HELLO) as stream:
                assert await anext(stream) == SAID[0]
                scope.cancel()
                await anext(stream)
        assert scope.cancelled_caught
        await server.callers[0].closed.wait()


async def test_a_cancel_comes_before_events_that_are_there_already() -> None:
    async with calling(whole_answer) as (_, provider):
        with trio.CancelScope() as scope:
            async with provider.stream(HELLO) as stream:
                assert await anext(stream) == SAID[0]
                scope.cancel()
                await anext(stream)
        assert scope.cancelled_caught


@pytest.mark.parametrize("answer", [headers_only, half_an_event, half_a_chunk])
async def test_leaving_early_closes_the_connection(answer: Callable[[Caller], Awaitable[None]]) -> None:
    async with calling(answer) as (server, provider):
        async with provider.stream(HELLO):
            pass
        await server.callers[0].closed.wait()


async def test_an_error_inside_the_block_closes_the_connection_and_is_not_hidden_by_a_cancel() -> None:
    async with calling(half_an_event) as (server, provider):
        with pytest.raises(KeyError), trio.CancelScope() as scope:
            async with provider.stream(HELLO) as stream:
                await anext(stream)
                scope.cancel()
                raise KeyError
        await server.callers[0].closed.wait()


async def test_a_request_in_a_cancelled_scope_sends_nothing() -> None:
    async with calling(whole_answer) as (server, provider):
        await collect(provider)
        with trio.CancelScope() as scope:
            scope.cancel()
            await collect(provider)
        assert scope.cancelled_caught
        assert len(server.callers[0].requests) == 1


async def test_a_cancel_while_the_request_is_being_sent_closes_the_connection() -> None:
    async def answer(caller: Caller) -> None:
        await began.wait()
        await caller.until_closed()

    began = trio.Event()
    big = Request("", [Message("user", (Text("x" * 20_000_000),))], [], 100)
    async with calling(answer) as (server, provider):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(provider.stream(big).__aenter__)
                await server.called.wait()
                await trio.testing.wait_all_tasks_blocked()  # the kernel's buffers are full
                scope.cancel()
        began.set()
        await server.callers[0].closed.wait()
        assert len(server.callers[0].buffer) < 20_000_000


async def test_the_client_serves_on_after_a_storm_of_cancels() -> None:
    """With a pool of ten this is where every later request fails with PoolTimeout."""
    fate = random.Random(7)

    async def one(provider: Provider) -> None:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(collect, provider)
                for _ in range(fate.randrange(12)):
                    await trio.lowlevel.checkpoint()
                scope.cancel()

    async def some(provider: Provider) -> None:
        for _ in range(12):
            await one(provider)

    async with calling(whole_answer) as (server, provider):
        async with trio.open_nursery() as nursery:
            for _ in range(25):
                nursery.start_soon(some, provider)
        with trio.fail_after(30):  # a wedged pool would wait for ever
            for _ in range(10):
                assert await collect(provider) == SAID
        open_now = [caller for caller in server.callers if not caller.closed.is_set()]
        assert len(open_now) <= 20  # what is kept for use


async def test_closing_the_provider_closes_its_connections() -> None:
    async with serving(whole_answer) as server:
        with trio.CancelScope() as scope:
            async with open_anthropic("m", base_url=server.url) as provider:
                await collect(provider)
                scope.cancel()
        await server.callers[0].closed.wait()


# ------------------------------------------------------------------------------------------------ broken transport


async def fails(answer: Callable[[Caller], Awaitable[None]]) -> tuple[list[ModelEvent], ProviderError]:
    events: list[ModelEvent] = []
    async with calling(answer) as (_, provider):
        with pytest.raises(ProviderError) as caught:
            async with provider.stream(HELLO) as stream:
                async for event in stream:
                    events.append(event)
    return events, caught.value


def reset(caller: Caller) -> None:
    caller.stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


@pytest.mark.parametrize("how", ["fin", "reset"])
async def test_a_body_that_breaks_off_is_a_failure_after_what_came(how: str) -> None:
    async def answer(caller: Caller) -> None:
        await caller.request()
        await caller.send(HEAD + chunked(*HI) + b"fff\r\nevent: ")
        await shown.wait()
        if how == "reset":
            reset(caller)

    shown = trio.Event()
    async with calling(answer) as (_, provider), provider.stream(HELLO) as stream:
        assert await anext(stream) == SAID[0]
        shown.set()
        with pytest.raises(ProviderError) as caught:
            await anext(stream)
    assert caught.value.retryable


async def test_a_body_that_ends_in_order_before_the_message_does_is_a_failure() -> None:
    async def answer(caller: Caller) -> None:
        await caller.request()
        await caller.send(HEAD + chunked(*HI) + END)

    events, failure = await fails(answer)
    assert events == SAID[:1]
    assert failure.retryable


async def test_a_body_that_breaks_off_after_the_stop_reason_is_whole() -> None:
    async def answer(caller: Caller) -> None:
        await caller.request()
        await caller.send(HEAD + chunked(*HI, *REST[:2]))

    async with calling(answer) as (_, provider):
        assert await collect(provider) == SAID


async def test_an_error_without_end_is_read_as_far_as_it_is_of_use_and_left() -> None:
    async def answer(caller: Caller) -> None:
        await caller.request()
        head = b"HTTP/1.1 529 Oh\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"
        await caller.send(head + chunked(*[b"x" * 50_000] * 4))
        await caller.until_closed()

    async with calling(answer) as (server, provider):
        with pytest.raises(ProviderError) as caught:
            await collect(provider)
        await server.callers[0].closed.wait()
    assert (caught.value.status, caught.value.retryable) == (529, True)
    assert len(caught.value.text) < 1000


async def test_a_connection_that_is_closed_instead_of_an_answer_is_a_failure() -> None:
    async def answer(caller: Caller) -> None:
        await caller.request()

    events, failure = await fails(answer)
    assert events == []
    assert failure.retryable


async def test_a_server_that_is_not_there_is_a_failure() -> None:
    with trio.socket.socket() as free:
        await free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with open_anthropic("m", base_url=f"http://127.0.0.1:{port}") as provider:
        with pytest.raises(ProviderError) as caught:
            await collect(provider)
    assert caught.value.retryable
