"""HTTP to a model: one streaming POST and its response, as model events. Uses httpx and trio; knows no wire.

What can be decided without waiting is decided by the decoders and by `failures`; here is only the waiting. Two
traps of httpx shape it. A pool with a limit is wedged for good by cancels (measured: 0 of 10 requests pass after
3 s of random cancels), so there is no limit. And a body is read through five nested async generators: left
unfinished they would be finished by the garbage collector, whenever it comes, so they are run into their end.
"""

import math
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import TracebackType

import attrs
import httpx
import trio

from turnkernel.cancel import shield
from turnkernel.errors import ProviderError
from turnkernel.provider import ModelEvent

from .decoding import WireDecoder
from .failures import error_of_body, error_of_no_stream, hide, retry_after
from .http_traps import RequestBody, Sockets

__all__ = ["ModelClient", "ModelStream", "Patience", "never", "open_client"]

_MOST_ERROR_BYTES = 64 * 1024
_HEADERS = {
    "content-type": "application/json",
    "accept": "text/event-stream",
    "accept-encoding": "identity",  # a compressed stream comes late, a buffer at a time
    "user-agent": "turnkernel",
}


def never() -> float:
    """No outer deadline."""
    return math.inf


@attrs.frozen
class Patience:
    """How long a provider waits, in seconds."""

    connect_seconds: float = 30.0
    """For a connection."""
    silence_seconds: float = 300.0
    """For the model to do something: from the request to its first word, and between words. What the server
    sends to keep the connection alive is nothing; time that the caller takes between two events is not counted."""
    grace_seconds: float = 2.0
    """For the last words of the wire (usage, `[DONE]`) once the message is whole."""
    close_seconds: float = 2.0
    """For closing a response."""


@attrs.frozen(eq=False, repr=False)
class ModelClient:
    """Connections to one server."""

    http: httpx.AsyncClient
    url: httpx.URL
    patience: Patience
    outer_deadline: Callable[[], float]
    """The deadline (trio's clock) of what is around, when closing happens inside another bounded cleanup."""
    secrets: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<ModelClient of {self.url.host}, {'closed' if self.http.is_closed else 'open'}>"

    def stream(self, path: str, body: bytes, decoder: WireDecoder) -> "ModelStream":
        """A POST to `path` below the base URL. Nothing happens before the stream is entered."""
        url = self.url.copy_with(path=self.url.path.rstrip("/") + path)
        request = self.http.build_request("POST", url, content=body)
        request.stream = RequestBody(body)
        request.extensions["trace"] = Sockets()
        return ModelStream(self, request, decoder)


@asynccontextmanager
async def open_client(
    base_url: str,
    *,
    headers: Mapping[str, str],
    secrets: tuple[str, ...] = (),
    patience: Patience | None = None,
    outer_deadline: Callable[[], float] = never,
    transport: httpx.AsyncBaseTransport | None = None,
) -> AsyncGenerator[ModelClient]:
    """Connections to the server at `base_url`, closed at the end of the block.

    The proxies of the environment are used, except to this machine. `transport` replaces the network.

    Raises:
        ValueError: `base_url` is no http(s) URL, or has a user or password in it.
    """
    patience = patience or Patience()
    url = _url(base_url)
    here = url.host in ("localhost", "::1") or url.host.startswith("127.")
    http = httpx.AsyncClient(
        headers={**_HEADERS, **headers},
        timeout=httpx.Timeout(None, connect=patience.connect_seconds),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
        trust_env=not here,
        transport=transport,
    )
    async with http:
        yield ModelClient(http, url, patience, outer_deadline, secrets)


def _url(base_url: str) -> httpx.URL:
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL:
        raise ValueError("the base URL is no URL") from None
    if url.userinfo:
        raise ValueError("the base URL has a user or a password in it; give a key or a header instead")
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"the base URL {base_url!r} is no http or https URL")
    return url


class ModelStream(AsyncIterator[ModelEvent]):
    """One request while it runs: an async context manager that gives itself, an iterator of model events.

    Entering sends the request and waits for the answer to begin; leaving closes it, in bounded time, whatever
    the reason. A cancel at any point closes the connection. `ProviderError` is raised by entering (refused, not
    reachable, no stream) and by the iterator (the stream broke, the model is silent), after all events that came
    before.
    """

    def __init__(self, client: ModelClient, request: httpx.Request, decoder: WireDecoder) -> None:
        self._client = client
        self._request = request
        self._decoder = decoder
        self._response: httpx.Response | None = None
        self._body: AsyncIterator[bytes] | None = None
        self._ready: deque[ModelEvent] = deque()
        self._silent = 0.0
        """Seconds waited since the model last did something."""
        self._waited_whole = 0.0
        """Seconds waited since the message is whole."""

    def __repr__(self) -> str:
        state = "open" if self._response is not None else "closed"
        return f"<ModelStream to {self._request.url.host}, {state}: {self._decoder!r}>"

    async def __aenter__(self) -> "ModelStream":
        try:
            with trio.move_on_after(self._client.patience.silence_seconds):
                self._response = await self._client.http.send(self._request, stream=True)
        except httpx.HTTPError as error:
            raise self._broken(error) from None
        if self._response is None:
            raise self._too_silent()
        self._body = self._response.aiter_bytes()
        try:
            await self._check(self._response)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close()

    def __aiter__(self) -> "ModelStream":
        return self

    async def __anext__(self) -> ModelEvent:
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._ready:
            if self._decoder.failure is not None:
                raise self._hidden(self._decoder.failure)
            if self._decoder.finished:
                raise StopAsyncIteration
            self._ready.extend(await self._more())
        return self._ready.popleft()

    async def _check(self, response: httpx.Response) -> None:
        """Raise what the answer says, if it is not a stream."""
        content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if not response.is_success:
            body = await self._read_error()
            raise self._hidden(error_of_body(response.status_code, body, _wait_of(response)))
        if content_type.endswith(("json", "html")):
            raise self._hidden(error_of_no_stream(content_type, await self._read_error()))

    async def _read_error(self) -> str:
        """The body of an error, as much as there is any use for; what comes late is not waited for for ever."""
        data = b""
        with trio.move_on_after(min(self._client.patience.silence_seconds, 10.0)):
            try:
                while len(data) < _MOST_ERROR_BYTES:
                    data += await self._read()
            except (StopAsyncIteration, httpx.HTTPError):
                pass  # the status says enough
        return data.decode("utf-8", "replace")

    async def _read(self) -> bytes:
        if self._body is None:
            raise RuntimeError("a stream is read inside its block only")
        return await anext(self._body)

    async def _more(self) -> list[ModelEvent]:
        """Wait for bytes and decode them; the end and every failure are the decoder's in the end."""
        decoder, seen, whole = self._decoder, self._decoder.progress, self._decoder.whole
        began = trio.current_time()
        data: bytes | None = None
        with trio.move_on_after(self._time_left()):
            try:
                data = await self._read()
            except StopAsyncIteration:
                return decoder.eof()
            except httpx.HTTPError as error:
                if decoder.whole:  # nothing that is still to come would change the message
                    return decoder.eof()
                raise self._broken(error) from None
        if data is None:
            if decoder.whole:
                return decoder.eof()
            raise self._too_silent()
        events = decoder.feed(data)
        waited = trio.current_time() - began
        self._silent = 0.0 if decoder.progress != seen else self._silent + waited
        self._waited_whole += waited if whole else 0.0
        return events

    def _time_left(self) -> float:
        left = self._client.patience.silence_seconds - self._silent
        if self._decoder.whole:
            left = min(left, self._client.patience.grace_seconds - self._waited_whole)
        return max(left, 0.0)

    async def _close(self) -> None:
        response, self._response = self._response, None
        if response is None:
            return
        patience, outer = self._client.patience, self._client.outer_deadline()
        # Shielded, because a connection must be closed although the request was cancelled; nothing in it waits
        # for the other side, the deadline is there for the day that this is no longer true.
        with shield("closing a response", patience.close_seconds, outer_deadline=outer):
            await self._run_out()
            await response.aclose()
        self._body = None

    async def _run_out(self) -> None:
        """Run the body into its end without waiting for it.

        After a whole message one read takes what has already come: if that is the end of the body, the
        connection can be used again. Otherwise the read is cancelled, which ends all generators on its way out
        and closes the connection.
        """
        with trio.CancelScope() as scope:
            if self._decoder.finished:
                scope.deadline = trio.current_time()
            else:
                scope.cancel()
            try:
                while True:
                    await self._read()
            except (StopAsyncIteration, httpx.HTTPError):
                pass  # it had ended already

    def _too_silent(self) -> ProviderError:
        seconds = self._client.patience.silence_seconds
        return ProviderError(f"nothing came from the model for {seconds:g} s", retryable=True)

    def _broken(self, error: httpx.HTTPError) -> ProviderError:
        ours = isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError | httpx.TooManyRedirects)
        text = f"{type(error).__name__}: {error}".removesuffix(": ")
        return self._hidden(ProviderError(text, retryable=not ours))

    def _hidden(self, error: ProviderError) -> ProviderError:
        text = hide(error.text, *self._client.secrets)
        return ProviderError(
            text,
            retryable=error.retryable,
            retry_after=error.retry_after,
            status=error.status,
            kind=error.kind,
        )


def _wait_of(response: httpx.Response) -> float | None:
    value = response.headers.get("retry-after")
    return None if value is None else retry_after(value, datetime.now(UTC))
