"""Requests over real sockets: what is sent, connections used again, and bodies that break off."""

import json
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing
from tests.providers.small_server import (
    END,
    HEAD,
    HELLO,
    HI,
    REST,
    SAID,
    Caller,
    calling,
    chunked,
    collect,
    serving,
    whole_answer,
)

from turnkernel.errors import ProviderError
from turnkernel.provider import ModelEvent
from turnkernel_providers import open_anthropic, open_openai_chat


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


async def test_a_server_on_this_machine_is_asked_without_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    async with calling(whole_answer) as (_, provider):
        assert await collect(provider) == SAID


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
