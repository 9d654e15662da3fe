"""A client that sees bytes, chunks, FIN and RST, and bodies for it to send."""

import json
import os
import select
import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from turnkernel_providers.server import ModelServer

PATHS = {"anthropic": "/v1/messages", "openai-chat": "/v1/chat/completions"}


class RawClient:
    """HTTP by hand, so that what the server sends is judged by nobody's library."""

    def __init__(self, stream: trio.SocketStream, port: int) -> None:
        self.stream = stream
        self.buffer = b""
        self.ended = ""
        """How reading ended: `fin`, `reset`, or `` while it has not."""

    async def _more(self) -> bool:
        try:
            data = await self.stream.receive_some(65536)
        except trio.BrokenResourceError:
            self.ended = "reset"
            return False
        if not data:
            self.ended = "fin"
        self.buffer += data
        return bool(data)

    async def until(self, mark: bytes) -> bytes | None:
        """The bytes before `mark`, or None where the stream ends without it."""
        while mark not in self.buffer:
            if not await self._more():
                return None
        found, self.buffer = self.buffer.split(mark, 1)
        return found

    async def exactly(self, size: int) -> bytes:
        """So many bytes, fewer where the stream ends."""
        while len(self.buffer) < size and await self._more():
            pass
        found, self.buffer = self.buffer[:size], self.buffer[size:]
        return found

    def request_bytes(self, path: str, body: Any, *headers: str, method: str = "POST") -> bytes:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"content-length: {len(data)}", *headers]
        return "\r\n".join([*lines, "", ""]).encode() + data

    async def ask(self, path: str, body: Any, *headers: str, method: str = "POST") -> None:
        await self.stream.send_all(self.request_bytes(path, body, *headers, method=method))

    async def head(self) -> tuple[int, dict[str, str]] | None:
        """Status and headers, or None where the stream ends before they are whole."""
        found = await self.until(b"\r\n\r\n")
        if found is None:
            return None
        first, *lines = found.decode().split("\r\n")
        pairs = (line.split(": ", 1) for line in lines)
        return int(first.split()[1]), {name.lower(): value for name, value in pairs}

    async def chunk(self) -> bytes | None:
        """The next chunk; b"" at the end of the body; None where the stream ends before it."""
        size = await self.until(b"\r\n")
        if size is None:
            return None
        data = await self.exactly(int(size, 16))
        if len(data) < int(size, 16):
            self.buffer = data
            return None
        assert await self.exactly(2) == b"\r\n"
        return data

    async def chunks(self) -> list[bytes]:
        """Every whole chunk up to the end of the body, or of the stream: `ended` tells which."""
        found: list[bytes] = []
        while data := await self.chunk():
            found.append(data)
        return found

    async def answer(self) -> tuple[int, bytes]:
        """Status and body, of either framing."""
        head = await self.head()
        assert head is not None
        status, headers = head
        if "content-length" in headers:
            return status, await self.exactly(int(headers["content-length"]))
        return status, b"".join(await self.chunks())

    def silent(self) -> bool:
        """Whether nothing has come that was not read: no byte, no FIN, no RST."""
        return not self.buffer and not select.select([self.stream.socket.fileno()], [], [], 0)[0]

    def reset(self) -> None:
        """Close with RST."""
        self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.stream.socket.close()

    def close(self) -> None:
        """Close with FIN."""
        self.stream.socket.close()


Dial = Callable[[ModelServer], Awaitable[RawClient]]


@pytest.fixture
async def dial() -> AsyncGenerator[Dial]:
    """Opens raw clients; they are closed after the test."""
    clients: list[RawClient] = []

    async def open_client(server: ModelServer) -> RawClient:
        port = int(server.base_url.rpartition(":")[2])
        clients.append(RawClient(await trio.open_tcp_stream("127.0.0.1", port), port))
        return clients[-1]

    yield open_client
    for client in clients:
        client.close()


@pytest.fixture(params=sorted(PATHS))
def wire(request: pytest.FixtureRequest) -> str:
    """Every wire in turn."""
    return request.param


@pytest.fixture
def path(wire: str) -> str:
    """Where the wire's requests go."""
    return PATHS[wire]


@pytest.fixture
def hello() -> dict[str, Any]:
    """The shortest request that both wires take."""
    return {"model": "m", "max_tokens": 10, "stream": True, "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="session")
def recorded() -> Path:
    """The folder of recorded exchanges."""
    root = Path(__file__).resolve().parents[2]
    found = Path(os.environ.get("TURNKERNEL_SHARED", root.parent / "shared")) / "wire"
    if not found.is_dir():
        pytest.skip("no recorded exchanges here; set TURNKERNEL_SHARED to the folder that holds them")
    return found
