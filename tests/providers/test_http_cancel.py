"""A cancel at every place of a request, over real sockets: the server sees it closed, and nothing is left."""

import gc
import random
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing
from tests.providers.small_server import (
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
from turnkernel.messages import Message, Text
from turnkernel.provider import Provider, Request
from turnkernel_providers import open_anthropic

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


async def test_a_cancelled_tls_handshake_closes_the_connection() -> None:
    gc.disable()  # it would close it too, some time
    try:
        async with (
            serving(Caller.until_closed) as server,
            open_anthropic("m", base_url=server.url.replace("http:", "https:"), api_key="k") as provider,
        ):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(collect, provider)
                    await server.called.wait()
                    await trio.testing.wait_all_tasks_blocked()
                    scope.cancel()
            assert scope.cancelled_caught
            with trio.fail_after(30):
                await server.callers[0].closed.wait()
    finally:
        gc.enable()


async def test_a_tls_handshake_that_fails_is_a_failure() -> None:
    async def answer(caller: Caller) -> None:
        await caller.send(b"I speak no TLS")
        await caller.until_closed()

    async with serving(answer) as server:
        url = server.url.replace("http:", "https:")
        async with open_anthropic("m", base_url=url, api_key="k") as provider:
            with pytest.raises(ProviderError):
                await collect(provider)
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
