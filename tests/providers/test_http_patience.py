"""How long a provider waits, on a virtual clock: a fake network that says its pieces at given times."""

import json
import math
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import trio

from turnkernel.errors import ProviderError
from turnkernel.events import Delta
from turnkernel.messages import Message, Text
from turnkernel.provider import Finish, ModelEvent, Request
from turnkernel_providers import Patience, open_anthropic, open_openai_chat

HELLO = Request("", [Message("user", (Text("hello"),))], [], 100)
PATIENCE = Patience(silence_seconds=100, grace_seconds=5, close_seconds=3)


def chunk(finish: str | None = None, **delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return f"data: {json.dumps({'choices': [choice]})}\n\n".encode()


HI, END, PING = chunk(content="Hi"), chunk("stop"), b": ping\n\n"
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 3}}\n\n'
SAID = [Delta(0, "text", "Hi"), Delta(0, "end"), Finish("end_turn")]


class Body(httpx.AsyncByteStream, AsyncIterator[bytes]):
    """Pieces, each after so many seconds; then silence for ever."""

    def __init__(self, pieces: list[tuple[float, bytes]], closing_seconds: float = 0.0) -> None:
        self.pieces = iter(pieces)
        self.closing_seconds = closing_seconds
        self.closed = False

    def __aiter__(self) -> "Body":
        return self

    async def __anext__(self) -> bytes:
        seconds, piece = next(self.pieces, (math.inf, b""))
        await trio.sleep(seconds)
        return piece

    async def aclose(self) -> None:
        await trio.sleep(self.closing_seconds)
        self.closed = True


class Network(httpx.AsyncBaseTransport):
    def __init__(self, body: Body, headers_after: float = 0.0) -> None:
        self.body = body
        self.headers_after = headers_after

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await trio.sleep(self.headers_after)
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=self.body)


async def run(network: Network, pause: float = 0.0) -> tuple[list[ModelEvent], ProviderError | None, float]:
    """What a stream gives, how it fails, and when it was over. `pause`: what the caller does with each event."""
    began = trio.current_time()
    events: list[ModelEvent] = []
    async with open_openai_chat("m", base_url="http://x", patience=PATIENCE, transport=network) as provider:
        try:
            async with provider.stream(HELLO) as stream:
                async for event in stream:
                    events.append(event)
                    await trio.sleep(pause)
        except ProviderError as error:
            return events, error, trio.current_time() - began
    return events, None, trio.current_time() - began


def is_silence(error: ProviderError | None) -> bool:
    return error is not None and error.retryable and "100 s" in error.text


async def test_a_server_that_does_not_begin_to_answer_is_silent(autojump_clock: trio.testing.MockClock) -> None:
    events, error, seconds = await run(Network(Body([]), headers_after=math.inf))
    assert (events, is_silence(error), seconds) == ([], True, 100)


async def test_a_model_that_says_nothing_is_silent(autojump_clock: trio.testing.MockClock) -> None:
    events, error, seconds = await run(Network(Body([(0, HI)])))
    assert (events, is_silence(error), seconds) == (SAID[:1], True, 100)


async def test_pings_and_empty_deltas_do_not_break_a_silence(autojump_clock: trio.testing.MockClock) -> None:
    pings = [(30.0, PING), (30.0, chunk(content="")), (30.0, PING), (30.0, HI)]
    events, error, seconds = await run(Network(Body([(0, HI), *pings])))
    assert (events, is_silence(error), seconds) == (SAID[:1], True, 100)


async def test_every_word_breaks_it(autojump_clock: trio.testing.MockClock) -> None:
    events, error, seconds = await run(
        Network(Body([(99, HI), (99, HI), (60, PING), (39, END + b"data: [DONE]\n\n")]))
    )
    assert (len(events), error, seconds) == (4, None, 297)


async def test_time_that_the_caller_takes_is_no_silence(autojump_clock: trio.testing.MockClock) -> None:
    network = Network(Body([(60, HI), (60, HI), (60, END), (0, b"data: [DONE]\n\n")]))
    events, error, _ = await run(network, pause=1000)
    assert (len(events), error) == (4, None)


async def test_a_whole_message_is_given_after_a_short_grace(autojump_clock: trio.testing.MockClock) -> None:
    events, error, seconds = await run(Network(Body([(0, HI), (0, END)])))
    assert (events, error, seconds) == (SAID, None, 5)


async def test_heartbeats_do_not_prolong_the_grace(autojump_clock: trio.testing.MockClock) -> None:
    events, error, seconds = await run(Network(Body([(0, HI), (0, END), *[(1.0, PING)] * 60])))
    assert (events, error, seconds) == (SAID, None, 5)


async def test_usage_that_comes_within_the_grace_is_taken(autojump_clock: trio.testing.MockClock) -> None:
    events, error, seconds = await run(Network(Body([(0, HI), (0, END), (4, USAGE)])))
    assert (events[-1], error, seconds) == (Finish("end_turn", {"input_tokens": 3}), None, 5)


@pytest.mark.parametrize(("outer", "seconds"), [(math.inf, 3.0), (2.0, 2.0)])
async def test_closing_takes_a_bounded_time_and_keeps_an_outer_bound(
    autojump_clock: trio.testing.MockClock, outer: float, seconds: float
) -> None:
    body = Body([(0, HI)], closing_seconds=math.inf)
    began = trio.current_time()
    async with (
        open_anthropic(
            "m",
            base_url="http://x",
            patience=PATIENCE,
            outer_deadline=lambda: began + outer,
            transport=Network(body),
        ) as provider,
        provider.stream(HELLO),
    ):
        pass
    assert trio.current_time() - began == seconds


async def test_closing_is_done_although_everything_is_cancelled(autojump_clock: trio.testing.MockClock) -> None:
    body = Body([], closing_seconds=1)
    with trio.CancelScope() as scope:
        async with (
            open_openai_chat("m", base_url="http://x", patience=PATIENCE, transport=Network(body)) as provider,
            provider.stream(HELLO) as stream,
        ):
            scope.cancel()
            await anext(stream)
    assert scope.cancelled_caught
    assert body.closed
