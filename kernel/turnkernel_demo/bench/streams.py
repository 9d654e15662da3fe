"""From the cancel of a text stream to its end, here and at the server. Uses the local model server over HTTP."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import trio

from turnkernel import Provider, open_session
from turnkernel.events import ModelDelta
from turnkernel.testing.replies import Reply
from turnkernel_providers.anthropic import open_anthropic
from turnkernel_providers.server import ModelServer, open_model_server

from .figures import Figure, Limit, Share
from .timing import Series, Tick, interleaved, quiet

__all__ = ["measure_streams"]

_WORDS = 20
_STREAM = Reply(text="word " * _WORDS, fault="stall")
"""Says its words and then nothing, so that a cancel always finds the same stream."""
_MODEL = "model-of-the-bench"
_BODY = {
    "model": _MODEL,
    "max_tokens": 8192,
    "stream": True,
    "messages": [{"role": "user", "content": "Talk."}],
}


async def _bare(server: ModelServer, client: httpx.AsyncClient) -> Mapping[str, float]:
    """httpx in a nursery: from its cancel until it has closed, and until the server saw it."""
    began = returned = 0.0
    words = trio.Event()
    with ExitStack() as stack:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_read, client, server, words)
            await words.wait()
            stack.enter_context(quiet())
            began = trio.current_time()
            nursery.cancel_scope.cancel()
            returned = trio.current_time()
        ended = trio.current_time()
        gone = await _gone(server)
    return {"returned": returned - began, "ended": ended - began, "server": gone - began}


async def _read(client: httpx.AsyncClient, server: ModelServer, words: trio.Event) -> None:
    seen = b""
    async with client.stream("POST", f"{server.base_url}/v1/messages", json=_BODY) as response:
        async for data in response.aiter_bytes():
            seen += data
            if seen.count(b"word ") == _WORDS:
                words.set()


async def _gone(server: ModelServer) -> float:
    """When the server saw the client of the last request go, by trio's clock."""
    gone = (await server.wait_client_gone(len(server.requests))).client_gone_at
    assert gone is not None
    return gone


async def _kernel(server: ModelServer, provider: Provider, scratch: Path) -> Mapping[str, float]:
    """A session with its log on the disk: from the cancel until each milestone, and until the server saw it."""
    log = scratch / "stream.log"
    async with open_session(log, provider=provider) as session:
        await session.send("Talk.")
        words = 0
        async for event in session.events():
            words += isinstance(event, ModelDelta) and event.text == "word "
            if words == _WORDS:
                break
        with quiet():
            began = trio.current_time()
            receipt = session.cancel()
            returned = trio.current_time() - began
            reached = (await receipt.settled()).milestones
            gone = await _gone(server)
    log.unlink()
    return {**reached, "returned": returned, "server": gone - began}


def _shares(bare: Series, ours: Series) -> Sequence[Share]:
    """Where the time goes until the server sees the stream closed."""
    returning = ours.median("returned") - bare.median("returned")
    rest = ours.median("server") - bare.median("server") - returning
    return [
        Share("httpx and trio, as much as the bare stream takes", bare.median("server")),
        Share("cancel() itself, over the bare one: turn/cancel is written before it returns", returning),
        Share("the rest: scopes and frames of provider and step, trio tasks that wake beside them", rest),
    ]


async def measure_streams(runs: int, scratch: Path, tick: Tick) -> list[Figure]:
    """The figures of a text stream over Anthropic's wire."""
    client = httpx.AsyncClient(
        timeout=None, limits=httpx.Limits(max_connections=None, max_keepalive_connections=20), trust_env=False
    )
    async with (
        open_model_server("anthropic", [_STREAM] * (2 * runs + 2)) as server,
        open_anthropic(_MODEL, base_url=server.base_url, api_key="none") as provider,
        client,
    ):
        bare, ours = await interleaved(
            runs, tick, partial(_bare, server, client), partial(_kernel, server, provider, scratch)
        )
    floor = "bare httpx in a nursery"
    return [
        Figure(
            "stream_server",
            "text stream: server sees it closed",
            floor,
            bare["server"],
            ours["server"],
            Limit(1.3),
            shares=_shares(bare, ours),
        ),
        Figure("stream_ended", "text stream: turn ended", floor, bare["ended"], ours["ended"]),
        Figure("stream_durable", "text stream: durable", floor, bare["ended"], ours["durable"]),
    ]
