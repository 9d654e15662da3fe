"""What httpx and httpcore leave to the garbage collector, taken care of. Uses httpx; waits for nothing.

A cancelled request must close its connection at once, not when a collector comes by. Two places do not (httpx
0.28, httpcore 1.0): the body of a request is an async generator that stays unfinished when the sending is
cancelled, and the socket of a TLS handshake that is cancelled is just dropped.
"""

from collections.abc import AsyncIterator
from typing import Any

import httpx

__all__ = ["RequestBody", "Sockets"]


class RequestBody(httpx.AsyncByteStream):
    """The body of a request, with nothing to finish."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _Once(self._data)


class _Once(AsyncIterator[bytes]):
    def __init__(self, data: bytes) -> None:
        self._data = data

    async def __anext__(self) -> bytes:
        if not self._data:
            raise StopAsyncIteration
        data, self._data = self._data, b""
        return data


class Sockets:
    """httpcore's `trace` extension for one request: closes the socket whose TLS handshake did not succeed."""

    def __init__(self) -> None:
        self._stream: Any = None

    async def __call__(self, event: str, info: dict[str, Any]) -> None:
        """What httpcore calls with all that it does."""
        if event.endswith("connect_tcp.complete"):
            self._stream = info["return_value"]
        elif event.endswith("start_tls.failed") and self._stream is not None:
            self._stream.get_extra_info("socket").close()
