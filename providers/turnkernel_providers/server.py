"""A local model server: scripted replies over real HTTP on 127.0.0.1. Touches that socket and nothing else.

For tests, scenarios and benchmarks of everything that talks to a model: it streams as the real APIs do, breaks
as they break, refuses the histories that they refuse, and sees at once when a client goes away.
"""

import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NoReturn, cast
from urllib.parse import quote, unquote

import attrs
import h11
import trio

from turnkernel.testing.replies import Reply

from .server_anthropic import AnthropicWire
from .server_connection import Connection, ModelRequest, redacted
from .server_openai_chat import OpenAIChatWire
from .server_wires import Script, Wire, error_script, script
from .strict import Refusal

__all__ = ["ModelRequest", "ModelServer", "Violation", "open_model_server"]

_APART = "/apart/"
"""Where the base URLs of further clients begin, each with its name."""

_WIRES: Mapping[str, Callable[[], Wire]] = {"anthropic": AnthropicWire, "openai-chat": OpenAIChatWire}


@attrs.define
class _Queue:
    """The replies of one client, and how many were taken."""

    replies: Sequence[Reply]
    taken: int = 0


@attrs.frozen
class Violation:
    """A request that a real API would have refused."""

    number: int
    """Of the request."""
    rule: str
    status: int
    text: str
    """The vendor's error text that it was answered with."""


class ModelServer:
    """What a client asked of the server and how it went; see `open_model_server`."""

    def __init__(
        self,
        wire: Wire,
        base_url: str,
        replies: Sequence[Reply],
        apart: Mapping[str, Sequence[Reply]],
        strict: bool,
        clock: Callable[[], float],
    ) -> None:
        self.base_url = base_url
        """For clients of Anthropic's wire; those of OpenAI's add `/v1`."""
        self.requests: list[ModelRequest] = []
        """Every request, in the order in which they were whole."""
        self.violations: list[Violation] = []
        """Those that were refused as the vendor would refuse them. They took no reply."""
        self.unmet: list[ModelRequest] = []
        """Those for which no reply was left. They were answered 500."""
        self.open_connections = 0
        self.changed = trio.lowlevel.ParkingLot()
        """Everybody parked here is woken when anything above has changed."""
        self._wire = wire
        self._queues = {"": _Queue(replies), **{name: _Queue(said) for name, said in apart.items()}}
        self._strict = strict
        self._clock = clock
        self._connections = 0

    def __repr__(self) -> str:
        left = sum(len(queue.replies) - queue.taken for queue in self._queues.values())
        return f"<ModelServer {self.base_url}: {len(self.requests)} requests, {left} replies left>"

    def url_of(self, name: str) -> str:
        """The base URL of a client that has replies of its own; of one that has none all requests are unmet."""
        return f"{self.base_url}{_APART}{quote(name, safe='')}"

    # ------------------------------------------------------------------------------------------- waiting

    async def wait_request(self, number: int) -> ModelRequest:
        """Wait until the n-th request (from 1) is whole. Always a checkpoint; cancelled, nothing has changed."""
        await self._until(lambda: len(self.requests) >= number)
        return self.requests[number - 1]

    async def wait_finished(self, number: int) -> ModelRequest:
        """Wait until the n-th request has its whole answer, with its fault if it has one. As `wait_request`."""
        record = await self.wait_request(number)
        await self._until(lambda: record.finished)
        return record

    async def wait_client_gone(self, number: int) -> ModelRequest:
        """Wait until the client of the n-th request has gone away before its whole answer. As `wait_request`."""
        record = await self.wait_request(number)
        await self._until(lambda: record.client_gone_at is not None)
        return record

    async def wait_closed(self) -> None:
        """Wait until no connection is open. As `wait_request`."""
        await self._until(lambda: not self.open_connections)

    async def _until(self, done: Callable[[], bool]) -> None:
        await trio.lowlevel.checkpoint()
        while not done():
            await self.changed.park()

    # ------------------------------------------------------------------- what the connections do; see Desk

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one connection."""
        self._connections += 1
        self.open_connections += 1
        try:
            await Connection(self, stream, self._connections).run()
        finally:
            # Closing a socket doesn't wait, so nobody is told of the end before it is the end.
            stream.socket.close()
            self.open_connections -= 1
            self.changed.unpark_all()

    def take(self, request: h11.Request, body: bytes, connection: int) -> tuple[ModelRequest, Script]:
        """Record a request and say how it is answered."""
        record = ModelRequest(
            number=len(self.requests) + 1,
            connection=connection,
            method=request.method.decode("ascii"),
            path=request.target.decode("ascii").partition("?")[0],
            headers=redacted(list(request.headers)),
            body=None,
            received_at=self._clock(),
            status=200,
        )
        answer = self._decide(record, body)
        if record.method == "HEAD":
            answer = attrs.evolve(answer, pieces=())
        record.status = answer.status
        self.requests.append(record)
        self.changed.unpark_all()
        return record, answer

    def finish(self, record: ModelRequest) -> None:
        """The answer is out."""
        record.finished = True
        self.changed.unpark_all()

    def lose(self, record: ModelRequest) -> None:
        """The client went away before the answer was out."""
        record.client_gone_at = self._clock()
        self.changed.unpark_all()

    def _decide(self, record: ModelRequest, body: bytes) -> Script:
        name, path = _split(record.path)
        if path != self._wire.path:
            return self._error(record, 404, f"Not found: {record.path}")
        if record.method != "POST":
            return self._error(record, 405, "Method Not Allowed")
        try:
            record.body = json.loads(body, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            return self._refuse(record, Refusal("shape", f"The request body is not valid JSON: {error}"))
        if refusal := self._refusal(record.body):
            return self._refuse(record, refusal)
        queue = self._queues.get(name) or _Queue(())
        if queue.taken == len(queue.replies):
            self.unmet.append(record)
            told = f"unmet: no reply is left for request {record.number}; the script has {len(queue.replies)}"
            return self._error(record, 500, told)
        record.reply = queue.taken
        queue.taken += 1
        asked = self._wire.asked(record.number, record.body, len(body))
        return script(self._wire, queue.replies[record.reply], asked)

    def _refusal(self, body: object) -> Refusal | None:
        if not isinstance(body, dict):
            return Refusal("shape", "The request body is not a JSON object")
        table = cast("Mapping[str, Any]", body)
        if table.get("stream") is not True:
            return Refusal("shape", "stream: this server only streams")
        for field in self._wire.needs:
            if field not in table:
                return Refusal("shape", f"{field}: Field required")
        return self._wire.check(table) if self._strict else None

    def _refuse(self, record: ModelRequest, refusal: Refusal) -> Script:
        self.violations.append(Violation(record.number, refusal.rule, 400, str(refusal)))
        return self._error(record, 400, str(refusal))

    def _error(self, record: ModelRequest, status: int, text: str) -> Script:
        record.error = text
        return error_script(self._wire, status, text, record.number)


def _split(path: str) -> tuple[str, str]:
    """Whose request it is, and the path as its wire has it."""
    if not path.startswith(_APART):
        return "", path
    name, _, rest = path.removeprefix(_APART).partition("/")
    return unquote(name), f"/{rest}"


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _check_reply(index: int, reply: Reply) -> None:
    why = None
    if reply.stop == "cut":
        why = "`cut` is no stop reason of a wire"
    elif reply.status != 200 and reply.status < 400:
        why = "a status other than 200 must be an HTTP error"
    elif reply.fault is not None and reply.status != 200:
        why = "an HTTP error has no stream that could break"
    if why:
        raise ValueError(f"reply {index}: {why}")


@asynccontextmanager
async def open_model_server(
    wire: str,
    replies: Sequence[Reply],
    *,
    apart: Mapping[str, Sequence[Reply]] | None = None,
    strict: bool = True,
    clock: Callable[[], float] = trio.current_time,
) -> AsyncGenerator[ModelServer]:
    """Serve `replies` over a wire (`anthropic`, `openai-chat`) on a free port of 127.0.0.1.

    Every HTTP request to the wire's path takes one reply, in order, retries included; one too many is answered
    500. Replies in `apart` are for further clients, each with `url_of` its name. With `strict`, a request that a
    real API would refuse is answered 400 in the vendor's words and takes none. `clock` gives the times in the
    records; take `time.monotonic` to compare with another process.

    Leaving the block closes every connection and the port, whatever they are doing; nothing is left of the
    server. An exception of the block comes out as it is, not in a group. Raises ValueError for a wire or reply
    that can't be served.
    """
    if wire not in _WIRES:
        raise ValueError(f"no such wire: {wire!r}; there are {', '.join(_WIRES)}")
    apart = apart or {}
    for said in (replies, *apart.values()):
        for index, reply in enumerate(said):
            _check_reply(index, reply)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    server = ModelServer(_WIRES[wire](), f"http://127.0.0.1:{port}", replies, apart, strict, clock)
    failed: Exception | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, server.serve, listeners)
            try:
                yield server
            except Exception as error:  # noqa: BLE001  # raised below, where the nursery can't wrap it
                failed = error
            nursery.cancel_scope.cancel()
    except BaseException as closing:
        if failed is not None:
            raise BaseExceptionGroup(
                "the block failed, and so did closing the server", [failed, closing]
            ) from None
        raise
    if failed is not None:
        raise failed
