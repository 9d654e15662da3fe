"""One connection to the model server: h11 on a trio stream. Touches that stream and nothing else.

Two trio tasks: one reads all the time, so that a client that goes away is seen at once, whatever the server is
doing for it (a whole request is decided upon by the reader itself, in the step in which its last byte came in);
one writes, piece by piece. Bytes of a next request that arrive early wait in h11's buffer.
"""

import math
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import attrs
import h11
import trio

from .server_wires import Script

__all__ = ["Connection", "Desk", "ModelRequest"]

_MOST_HELD = 64 * 1024 * 1024
"""Bytes of one request with what follows it; a client that sends more is hung up on."""


@attrs.define(eq=False)
class ModelRequest:
    """A request that the server got, and what became of it. Changes until it is answered or the client is gone."""

    number: int
    """From 1, over all connections."""
    connection: int
    """Which connection it came on, from 1."""
    method: str
    path: str
    """Without the query."""
    headers: Mapping[str, str]
    """Names in lower case; what a secret could be in is `[redacted]`."""
    body: Any
    """Parsed JSON, or None."""
    received_at: float
    """When its last byte was in, by the server's clock."""
    status: int
    """What it is answered with."""
    reply: int | None = None
    """Index of the reply that it took, from 0, among those of its client; None if it took none."""
    error: str | None = None
    """Why it took none."""
    finished: bool = False
    """The last byte of the answer, with its fault if it has one, was handed to the socket."""
    client_gone_at: float | None = None
    """When the client was seen to have gone away before that, by the server's clock."""


class Desk(Protocol):
    """Where a connection brings its requests. Every method is synchronous and must not raise."""

    def take(self, request: h11.Request, body: bytes, connection: int) -> tuple[ModelRequest, Script]:
        """Record a request and say how it is answered."""
        ...

    def finish(self, record: ModelRequest) -> None:
        """The answer is out."""
        ...

    def lose(self, record: ModelRequest) -> None:
        """The client went away before the answer was out."""
        ...


class Connection:
    """Serves one client, request after request."""

    def __init__(self, desk: Desk, stream: trio.SocketStream, number: int) -> None:
        self._desk = desk
        self._stream = stream
        self._number = number
        self._http = h11.Connection(h11.SERVER)
        self._head: h11.Request | None = None
        self._body = bytearray()
        self._held = 0
        self._answering: ModelRequest | None = None
        self._last_write = False
        """The last bytes of an answer are being handed to the socket."""
        self._client_closed = False
        # At most one request is being answered, so one place is enough and sending never waits.
        self._todo, self._taken = trio.open_memory_channel[tuple[ModelRequest, Script] | None](1)

    def __repr__(self) -> str:
        return f"<Connection {self._number}: {self._answering or 'idle'}>"

    async def run(self) -> None:
        """Serve until one side closes. The caller closes the stream. Cancelled: stops wherever it is."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write_all, nursery.cancel_scope)
            await self._read_all()
            self._client_closed = True
            # A client that goes while the very last bytes are on their way to it has not gone early.
            if not self._last_write:
                self._lose()
                nursery.cancel_scope.cancel()

    # ------------------------------------------------------------------------------------------- reading

    async def _read_all(self) -> None:
        while self._held <= _MOST_HELD:
            try:
                data = await self._stream.receive_some(65536)
            except trio.BrokenResourceError:
                return
            if not data:
                return
            self._held += len(data)
            self._http.receive_data(data)
            if self._answering is None and self._http.their_state is not h11.ERROR:
                self._parse()

    def _parse(self) -> None:
        """Take what has come in as far as it goes, at most one whole request."""
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError:
                self._todo.send_nowait(None)
                return
            if isinstance(event, h11.Request):
                self._head = event
            elif isinstance(event, h11.Data):
                self._body += event.data
            elif isinstance(event, h11.EndOfMessage) and self._head is not None:
                body, self._body, self._held = bytes(self._body), bytearray(), len(self._http.trailing_data[0])
                taken = self._desk.take(self._head, body, self._number)
                self._answering = taken[0]
                self._todo.send_nowait(taken)
                return
            else:
                return

    # ------------------------------------------------------------------------------------------- writing

    async def _write_all(self, scope: trio.CancelScope) -> None:
        """Answer what is taken, one after the other; then stop the reader."""
        try:
            async for taken in self._taken:
                if taken is None:
                    await self._refuse_garbage()
                    break
                await self._play(taken[1])
                self._desk.finish(taken[0])
                self._answering = None
                self._last_write = False
                if self._client_closed or self._http.states != {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
                    break
                self._http.start_next_cycle()
                self._parse()
        except trio.BrokenResourceError:
            self._lose()
        scope.cancel()

    def _lose(self) -> None:
        if self._answering is not None:
            self._desk.lose(self._answering)
            self._answering = None

    async def _play(self, script: Script) -> None:
        head = h11.Response(status_code=script.status, headers=list(script.headers))
        if script.pieces or script.breaks is None:
            await self._send(self._http.send(head), last=False)
        for n, piece in enumerate(script.pieces):
            if n:
                await trio.sleep(script.pace)
            last = n == len(script.pieces) - 1
            if last and script.breaks == "cut":
                await self._send(_open_chunk(piece), last=True)
            elif last and script.breaks is None:
                await self._send_end(piece)
            else:
                await self._send(self._http.send(h11.Data(data=piece)), last=False)
        if not script.pieces and script.breaks is None:
            await self._send_end(b"")
        if script.breaks == "stall":
            await trio.sleep(math.inf)
        if script.breaks == "reset":
            await trio.sleep(script.pace)
            self._reset()

    async def _send_end(self, piece: bytes) -> None:
        """The last piece and the end of the body in one write, so that nobody can hang up between them."""
        data = self._http.send(h11.Data(data=piece)) or b""
        await self._send(data + (self._http.send(h11.EndOfMessage()) or b""), last=True)

    async def _send(self, data: bytes | None, *, last: bool) -> None:
        self._last_write = last
        await self._stream.send_all(data or b"")

    def _reset(self) -> None:
        # With a linger time of 0, closing sends RST instead of FIN.
        self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def _refuse_garbage(self) -> None:
        if self._http.our_state is h11.IDLE or self._http.our_state is h11.SEND_RESPONSE:
            head = h11.Response(status_code=400, headers=[("content-length", "0"), ("connection", "close")])
            await self._send(self._http.send(head), last=True)


def _open_chunk(piece: bytes) -> bytes:
    """A chunk that announces one byte more than it brings."""
    return f"{len(piece) + 1:x}\r\n".encode() + piece


def redacted(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers for the record: what a secret could be in is not kept."""
    secret = ("authorization", "key", "token", "cookie", "secret")
    named = ((name.decode("ascii").lower(), value.decode("latin-1")) for name, value in headers)
    return {name: "[redacted]" if any(word in name for word in secret) else value for name, value in named}
