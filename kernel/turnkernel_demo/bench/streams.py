"""From the cancel of a text stream to its end, here and at the server. Uses the local model server over HTTP."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import attrs
import httpx
import trio

from turnkernel import Provider, open_session
from turnkernel.events import ModelDelta
from turnkernel.testing.replies import Reply
from turnkernel_providers.anthropic import open_anthropic
from turnkernel_providers.server import ModelServer, open_model_server

from .figures import Figure, Limit, Share
from .timing import Samples, Tick, interleaved, median_of, quiet

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


@attrs.frozen
class _Closed:
    """Seconds from the cancel."""

    server: float
    """Until the server saw the client go."""
    ended: float
    """Until the nursery had closed, or the turn had ended."""
    stream: float = 0.0
    """Until our provider had closed the response."""
    tasks_gone: float = 0.0
    durable: float = 0.0


async def _bare(server: ModelServer, client: httpx.AsyncClient) -> _Closed:
    """httpx in a nursery that is cancelled."""
    began = 0.0
    words = trio.Event()
    with ExitStack() as stack:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_read, client, server, words)
            await words.wait()
            stack.enter_context(quiet())
            began = trio.current_time()
            nursery.cancel_scope.cancel()
        ended = trio.current_time()
        gone = await _gone(server)
    return _Closed(gone - began, ended - began)


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


async def _kernel(server: ModelServer, provider: Provider, scratch: Path) -> _Closed:
    """A session with its log on the disk."""
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
            reached = (await receipt.settled()).milestones
            gone = await _gone(server)
    log.unlink()
    return _Closed(
        gone - began, reached["ended"], reached["stream_closed"], reached["tasks_gone"], reached["durable"]
    )


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
            runs, partial(_bare, server, client), partial(_kernel, server, provider, scratch), tick
        )
    floor = "bare httpx in a nursery"
    ended = Samples([one.ended for one in bare])
    return [
        Figure(
            "stream_server",
            "text stream: server sees it closed",
            floor,
            Samples([one.server for one in bare]),
            Samples([one.server for one in ours]),
            Limit(1.3),
            shares=[Share("until our provider has closed the response", median_of(one.stream for one in ours))],
        ),
        Figure("stream_ended", "text stream: turn ended", floor, ended, Samples([one.ended for one in ours])),
        Figure("stream_durable", "text stream: durable", floor, ended, Samples([one.durable for one in ours])),
    ]
