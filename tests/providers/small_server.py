"""A server of a few lines of sockets, so that what it sees of a client is judged by nobody's library."""

import gc
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio
import trio.testing

from turnkernel.events import Delta
from turnkernel.messages import Message, Text
from turnkernel.provider import Finish, ModelEvent, Provider, Request
from turnkernel_providers import open_anthropic

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
