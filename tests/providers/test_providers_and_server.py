"""The providers and the model server of this project talk to each other: both wires, every fault that needs no
clock."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from turnkernel.assemble import assemble
from turnkernel.errors import ProviderError
from turnkernel.events import Delta
from turnkernel.messages import Message, Text, Thinking, ToolResultBlock, ToolUse
from turnkernel.provider import Finish, ModelEvent, Provider, Request
from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel_providers import open_anthropic, open_openai_chat
from turnkernel_providers.server import ModelServer, open_model_server

WIRES = ("anthropic", "openai-chat")
USER = Message("user", (Text("hello"),))
REPLY = Reply(
    thinking="Hm, hm.",
    text="Let me see: é😀.",
    calls=(ReplyCall("call_1", "ls", {"p": "ü"}), ReplyCall("call_2", "cat")),
)


def hello(*more: Message) -> Request:
    return Request("Be kind.", [USER, *more], [], 1000)


@asynccontextmanager
async def talking(wire: str, *replies: Reply) -> AsyncGenerator[tuple[ModelServer, Provider]]:
    async with open_model_server(wire, replies) as server:
        if wire == "anthropic":
            async with open_anthropic("m", base_url=server.base_url) as provider:
                yield server, provider
        else:
            async with open_openai_chat("m", base_url=server.base_url + "/v1") as provider:
                yield server, provider


async def ask(provider: Provider, request: Request) -> tuple[list[ModelEvent], ProviderError | None]:
    events: list[ModelEvent] = []
    try:
        async with provider.stream(request) as stream:
            async for event in stream:
                events.append(event)
    except ProviderError as error:
        return events, error
    return events, None


def message_of(events: list[ModelEvent], wire: str, *, cut: bool = False) -> Message:
    deltas = [event for event in events if isinstance(event, Delta)]
    return Message("assistant", assemble(deltas, cut=cut, taken=()), wire, "m")


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("piece_bytes", [None, 1, 31])
async def test_what_the_server_says_is_what_the_provider_hears(wire: str, piece_bytes: int | None) -> None:
    reply = Reply(REPLY.thinking, REPLY.text, REPLY.calls, piece_bytes=piece_bytes)
    async with talking(wire, reply) as (_, provider):
        events, error = await ask(provider, hello())
        assert error is None
        assert isinstance(events[-1], Finish)
        assert events[-1].stop == "tool_use"
        thinking, *rest = message_of(events, wire).blocks
        assert isinstance(thinking, Thinking)
        assert thinking.text == "Hm, hm."
        assert rest == [
            Text("Let me see: é😀."),
            ToolUse("call_1", "ls", {"p": "ü"}),
            ToolUse("call_2", "cat", {}),
        ]


@pytest.mark.parametrize("wire", WIRES)
async def test_what_was_heard_goes_back_and_is_taken(wire: str) -> None:
    async with talking(wire, REPLY, Reply(text="Done.")) as (server, provider):
        said = message_of((await ask(provider, hello()))[0], wire)
        results = [ToolResultBlock(call.id, call.name, "out", is_error=False) for call in REPLY_CALLS]
        events, error = await ask(provider, hello(said, Message("user", tuple(results))))
        assert (error, server.violations) == (None, [])
        assert message_of(events, wire).blocks == (Text("Done."),)


REPLY_CALLS = (ToolUse("call_1", "ls", {}), ToolUse("call_2", "cat", {}))


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("fault", ["eof", "cut", "reset", "overloaded"])
@pytest.mark.parametrize("after_bytes", [None, 0, 200])
async def test_every_fault_is_a_failure_after_what_was_said(
    wire: str, fault: str, after_bytes: int | None
) -> None:
    reply = Reply(text="one two three", fault=fault, after_bytes=after_bytes)  # type: ignore[arg-type]
    async with talking(wire, reply) as (_, provider):
        events, error = await ask(provider, hello())
    assert error is not None
    assert error.retryable
    assert all(isinstance(event, Delta) for event in events)
    if after_bytes is None:
        assert message_of(events, wire, cut=True).blocks == (Text("one two three [interrupted]"),)


@pytest.mark.parametrize("wire", WIRES)
async def test_an_http_error_is_a_failure_with_its_status_and_its_wait(wire: str) -> None:
    replies = [Reply(status=429, headers={"retry-after": "3"}), Reply(status=400), Reply(status=529)]
    async with talking(wire, *replies) as (_, provider):
        errors = [(await ask(provider, hello()))[1] for _ in replies]
    assert [(e.status, e.retryable, e.retry_after) for e in errors if e is not None] == [
        (429, True, 3.0),
        (400, False, None),
        (529, True, None),
    ]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("stop", ["max_tokens", "refusal", "pause_turn", "end_turn"])
async def test_every_stop_of_the_server_is_heard(wire: str, stop: str) -> None:
    async with talking(wire, Reply(text="x", stop=stop)) as (_, provider):  # type: ignore[arg-type]
        events, _ = await ask(provider, hello())
    if (wire, stop) == ("openai-chat", "pause_turn"):
        stop = "end_turn"  # this wire has no such thing
    assert isinstance(events[-1], Finish)
    assert events[-1].stop == stop
