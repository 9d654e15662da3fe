"""The two pipes of an MCP server, as the streams that the SDK's session reads and writes. Touches only those.

Messages are JSON-RPC, a line each (MCP specification 2025-11-25, basic/transports, stdio). Sending does not wait
for the server: a message goes into the pipe in the same instant, so a cancelled call's notification is on its way
before the call has unwound, and the SDK's shield around it has nothing to wait for.
"""

import json
import os
from contextlib import suppress
from types import TracebackType
from typing import Any, cast

import anyio
import trio
from mcp.shared.message import SessionMessage
from mcp_types import (
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from turnkernel.text import Clip, scrub

__all__ = ["BadServerError", "ServerInput", "ServerOutput", "read_message", "written"]

MOST_WAITING = 16 << 20
"""Bytes for a server that does not read."""

MOST_UNREAD = 4096
"""Messages of a server that says more than it is asked."""

MOST_LINE = 64 << 20
"""Characters of one message."""

SAID_BYTES = 4096
"""Kept of what a server says besides messages: the beginning and the end."""


class BadServerError(Exception):
    """The server's: it breaks the protocol in a way that can't be lived with."""


def written(message: JSONRPCMessage) -> bytes:
    """A message as its line. In ASCII, so that a lone surrogate in a model's input breaks no encoder."""
    return json.dumps(message.model_dump(by_alias=True, exclude_unset=True)).encode() + b"\n"


def read_message(line: str) -> JSONRPCMessage | None:
    """The message in a line; None where it is something else. Never raises.

    A response that is malformed is made an error: whoever waits for it would wait for ever.
    """
    try:
        value: Any = json.loads(line)
        if "\\ud" in line.lower():  # perhaps a lone surrogate, which no model of a message takes
            value = json.loads(scrub(json.dumps(value, ensure_ascii=False)))
    except (ValueError, RecursionError):
        return None
    try:
        return jsonrpc_message_adapter.validate_python(value, by_name=False)
    except ValidationError:
        pass
    if not isinstance(value, dict) or "method" in value:
        return None
    request = cast("dict[str, Any]", value).get("id")
    if not isinstance(request, int | str) or isinstance(request, bool):
        return None
    why = ErrorData(code=PARSE_ERROR, message="the server's answer is not a JSON-RPC response")
    return JSONRPCError(jsonrpc="2.0", id=request, error=why)


class ServerInput:
    """The server's standard input; the SDK's write stream. Its methods don't wait, `pump` does."""

    def __init__(self) -> None:
        self.read_end, self._fd = os.pipe()
        """The read end is the server's."""
        os.set_blocking(self._fd, False)
        self._waiting = bytearray()
        self._more = trio.Event()
        self._open = True

    def __repr__(self) -> str:
        return f"<ServerInput {'open' if self._open else 'closed'}, {len(self._waiting)} bytes wait>"

    async def send(self, item: SessionMessage, /) -> None:
        """Write a message; what the pipe has no room for waits. No checkpoint.

        Raises `anyio.BrokenResourceError` where too much waits already, `anyio.ClosedResourceError` once closed.
        """
        if not self._open:
            raise anyio.ClosedResourceError
        line = written(item.message)
        if len(self._waiting) + len(line) > MOST_WAITING:
            raise anyio.BrokenResourceError
        self._waiting += line
        self._write()
        if self._waiting:
            self._more.set()

    def _write(self) -> None:
        try:
            while self._waiting:
                del self._waiting[: os.write(self._fd, self._waiting)]
        except BlockingIOError:
            pass
        except BrokenPipeError:  # nobody will read it
            self._waiting.clear()

    async def pump(self) -> None:
        """Write what waits when there is room for it, until it is closed. Cancellable."""
        while self._open:
            await self._more.wait()
            if self._open:  # else the descriptor's number may be another's by now
                with suppress(trio.ClosedResourceError):
                    await trio.lowlevel.wait_writable(self._fd)
            if self._open:
                self._write()
                if not self._waiting:
                    self._more = trio.Event()

    def close(self) -> None:
        """The end of the server's input, after what there is room for. Synchronous; once is enough."""
        if self._open:
            self._open = False
            self._write()
            trio.lowlevel.notify_closing(self._fd)
            os.close(self._fd)
            self._more.set()

    async def aclose(self) -> None:
        """`close`, for the SDK."""
        self.close()

    async def __aenter__(self) -> "ServerInput":
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        self.close()


class ServerOutput:
    """What the server says: messages for the SDK's read stream, and words for a person."""

    def __init__(self) -> None:
        self._messages, self.stream = anyio.create_memory_object_stream[SessionMessage | Exception](MOST_UNREAD)
        self._said = Clip(SAID_BYTES)
        self._line: list[str] = []
        self._length = 0

    def __repr__(self) -> str:
        return f"<ServerOutput {self._messages.statistics().current_buffer_used} unread>"

    @property
    def said(self) -> str:
        """Its standard error, and what is no message on its standard output: a few KiB of it."""
        return self._said.text()

    def hear(self, text: str, stream: str) -> None:
        """Take in what it says; see `output.OnOutput`. Raises `BadServerError` where it says too much."""
        if stream != "stdout":
            self._said.add(text)
            return
        first, *more = text.split("\n")
        self._add(first)
        for piece in more:
            self._take("".join(self._line))
            self._line.clear()
            self._length = 0
            self._add(piece)

    def _add(self, piece: str) -> None:
        self._line.append(piece)
        self._length += len(piece)
        if self._length > MOST_LINE:
            raise BadServerError(f"it sent a message of more than {MOST_LINE} characters")

    def _take(self, line: str) -> None:
        message = read_message(line)
        if message is None:
            self._said.add(line + "\n" if line.strip() else "")
            return
        notice = isinstance(message, JSONRPCNotification)
        if notice and message.method != "notifications/progress":
            return  # nothing here listens to it, and the SDK would tell Python's log of those that are malformed
        try:
            self._messages.send_nowait(SessionMessage(message))
        except anyio.WouldBlock:
            if not notice:
                raise BadServerError(f"it sent {MOST_UNREAD} messages that could not be read in time") from None
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the connection is being left

    def close(self) -> None:
        """No more will come. Synchronous; once is enough."""
        self._messages.close()
