"""MCP servers on this machine, each a process that a session holds. Starts processes through `process` only.

Needs the extra `mcp`: the SDK of the protocol, which runs on trio through anyio. See `docs/mcp.md`.
"""

import importlib.metadata
import os
import re
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

try:
    import mcp_types as types
    from mcp.client.session import ClientSession
    from mcp.client.stdio import get_default_environment
    from mcp.shared.dispatcher import ProgressFnT
    from mcp.shared.exceptions import MCPError
    from pydantic import ValidationError
except ImportError as missing:
    raise ImportError("MCP servers need the SDK, 2.1.1 or later: pip install 'turnkernel[mcp]'") from missing

from turnkernel.errors import LogFailedError
from turnkernel.faults import leaves
from turnkernel.text import printable
from turnkernel.tool import Resource, Tool, ToolContext, ToolOutput, WorkContext

from .containment import Tier
from .mcp_pipes import BadServerError, ServerInput, ServerOutput
from .mcp_tools import mcp_tools, output
from .process import MARK, NotStartedError, ProcessEnd, run_process

__all__ = ["McpServerError", "mcp_server"]

MOST_PAGES = 100
"""Of a list of tools, which a server may go on with for ever."""


class McpServerError(Exception):
    """The server's, or of how it was set up: it could not be started, or it does not speak the protocol."""


def mcp_server(
    name: str,
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    hidden: Collection[str] = (),
    timeout: float | None = None,
    start_seconds: float = 30.0,
    grace_seconds: float = 1.0,
    trust_hints: bool = False,
    tier: Tier = "tree",
) -> Resource:
    """An MCP server that speaks over its standard input and output, for `open_session(resources=[...])`.

    The session that is opened with it starts it, has its tools as `name_tool`, and ends it when it is left: its
    input ends, after `grace_seconds` SIGTERM, after as many again SIGKILL, and all that it started goes with it.
    Child sessions that are given its tools share it. It is started once: when it ends, calls say so.

    Its environment is `env` and the few variables that programs need to run (`HOME`, `LOGNAME`, `PATH`, `SHELL`,
    `TERM`, `USER`), never a provider's key or one of `hidden`. It starts in `cwd`. `tier` is the containment that
    is wanted.

    `timeout` is how long a call may take, in seconds. With `trust_hints` a tool is read-only or idempotent where
    the server says so; without, every tool may have effects, and runs alone.

    Entering raises `McpServerError` when it does not come up within `start_seconds`; nothing is left of it then.
    Under cancellation it is ended as above. A cancelled call sends `notifications/cancelled`, and its answer is
    dropped.

    Raises ValueError for a `name` that no tool's name can begin with.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,32}", name):
        raise ValueError(f"the name of an MCP server is 1 to 32 letters, digits, _ and -: {name!r} is not")

    @asynccontextmanager
    async def opened(work: WorkContext) -> AsyncGenerator[Iterable[Tool]]:
        server = _Server(name, argv)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.input.pump)
                nursery.start_soon(
                    server.run, work, Path(cwd or "."), _environment(env or {}), hidden, grace_seconds, tier
                )
                async with ClientSession(server.output.stream, server.input, client_info=_us()) as session:
                    offered = await server.come_up(session, start_seconds)
                    yield mcp_tools(name, offered, call=server.call, trust_hints=trust_hints, timeout=timeout)
                nursery.cancel_scope.cancel(reason="the session that opened it is left")
        finally:
            server.close()

    return opened


def _us() -> types.Implementation:
    return types.Implementation(name="turnkernel", version=importlib.metadata.version("turnkernel"))


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    mark = {MARK: os.environ[MARK]} if MARK in os.environ else {}  # an outer kernel finds its processes by it
    return get_default_environment() | mark | dict(env)


class _Server:
    """One running server and the connection to it."""

    def __init__(self, name: str, argv: Sequence[str]) -> None:
        self.input = ServerInput()
        self.output = ServerOutput()
        self._name = name
        self._argv = argv
        self._session: ClientSession | None = None
        self._gone: str | None = None
        """Why it is not there any more."""

    def __repr__(self) -> str:
        return f"<_Server {self._name} {self._gone or 'running'}>"

    async def run(
        self,
        work: WorkContext,
        cwd: Path,
        env: Mapping[str, str],
        hidden: Collection[str],
        grace_seconds: float,
        tier: Tier,
    ) -> None:
        """Its process, from its start to its end. Under cancellation it is ended."""
        gone = "the session that opened it was left"
        try:
            end = await run_process(
                self._argv,
                ctx=work,
                cwd=cwd,
                on_output=self.output.hear,
                env=env,
                hidden=hidden,
                grace_seconds=grace_seconds,
                tier=tier,
                given=self.input.read_end,
                farewell=self.input.close,
            )
            gone = _ended(end)
        except* NotStartedError as group:
            gone = f"it could not be started: {leaves(group)[0]}"
        except* BadServerError as group:
            gone = f"it was ended: {leaves(group)[0]}"
        finally:
            self._gone = gone  # before those who wait are woken
            self.output.close()

    def close(self) -> None:
        """Let the descriptors go. Synchronous."""
        self.input.close()
        os.close(self.input.read_end)
        self.output.close()
        self.output.stream.close()

    async def come_up(self, session: ClientSession, seconds: float) -> list[types.Tool]:
        """The handshake, and what it offers. Raises `McpServerError`."""
        offered: list[types.Tool] = []
        try:
            with trio.move_on_after(seconds) as limit:
                opened = await session.initialize()
                if opened.capabilities.tools is not None:
                    offered = await _offered(session)
        except (MCPError, ValidationError, RuntimeError) as error:  # the last: a version that nobody here speaks
            raise self._failed(self._gone or str(error)) from error
        if limit.cancelled_caught:
            raise self._failed(f"it has not answered within {seconds:g} s")
        self._session = session
        return offered

    def _failed(self, why: str) -> McpServerError:
        # Not the whole command line: people put keys in there.
        program = self._argv[0] if self._argv else "an empty command"
        return McpServerError(
            f"MCP server {self._name!r} ({program}) did not come up: {printable(why)}{self._said()}"
        )

    def _said(self) -> str:
        said = printable(self.output.said).strip()
        return f"\nIt said:\n{said}" if said else ""

    async def call(self, ctx: ToolContext, tool: str, input: Mapping[str, Any]) -> ToolOutput:
        """One call from its request to its answer; what it raises besides `trio.Cancelled` is our fault."""
        assert self._session is not None
        if self._gone is not None:
            why = f"{self._gone}. It is not started again in this session"
            return self._error(
                f"The MCP server {self._name} is not running, nothing was done: {why}.{self._said()}"
            )
        request = types.CallToolRequest(params=types.CallToolRequestParams(name=tool, arguments=dict(input)))
        progress = _Progress(ctx)
        try:
            # Not `call_tool`, which keeps a result back that does not fit the tool's own output schema.
            result = await self._session.send_request(
                request, types.CallToolResult, progress_callback=progress.show
            )
        except MCPError as error:
            return self._error(self._lost() if error.code == types.CONNECTION_CLOSED else self._refused(error))
        except ValidationError as error:
            return self._error(f"The answer of the MCP server {self._name} is not what the protocol says: {error}")
        finally:
            progress.over = True
        return output(result)

    def _refused(self, error: MCPError) -> str:
        return f"The MCP server {self._name} answered with an error: {error.error.message} ({error.code})"

    def _lost(self) -> str:
        """Of a call whose answer can't come any more."""
        if self._gone is None:
            return f"The MCP server {self._name} does not read what it is sent. The call was not made."
        what = f"The MCP server {self._name} ended in the call, which may have had effects"
        return f"{what}: {self._gone}.{self._said()}"

    def _error(self, text: str) -> ToolOutput:
        return ToolOutput(text, is_error=True)


class _Progress:
    """Shows what a server says of the progress of a call, as long as that runs."""

    def __init__(self, ctx: ToolContext) -> None:
        self.over = False
        self.show: ProgressFnT = self._show
        self._ctx = ctx

    def __repr__(self) -> str:
        return f"<_Progress {'over' if self.over else 'running'}>"

    async def _show(self, progress: float, total: float | None, message: str | None) -> None:
        """Called from a trio task of the connection. No checkpoint."""
        if self.over:
            return
        reached = f"{progress:g}" if total is None else f"{progress:g}/{total:g}"
        try:
            self._ctx.emit(f"{message} ({reached})\n" if message else f"{reached}\n", "note")
        except LogFailedError:
            pass  # kept by the journal; the turn ends of it


async def _offered(session: ClientSession) -> list[types.Tool]:
    offered: list[types.Tool] = []
    page: types.PaginatedRequestParams | None = None
    for _ in range(MOST_PAGES):
        listed = await session.list_tools(params=page)
        offered += listed.tools
        if listed.next_cursor is None:
            return offered
        page = types.PaginatedRequestParams(cursor=listed.next_cursor)
    raise RuntimeError(f"its list of tools has more than {MOST_PAGES} pages")


def _ended(end: ProcessEnd) -> str:
    left = f". Of it is still running: {', '.join(end.survivors)}" if end.survivors else ""
    if end.stopped is not None:
        return f"it was ended: {end.stopped}{left}"
    if end.signal is not None:
        return f"it was killed by {end.signal}{left}"
    return f"it ended with exit code {end.exit_code}{left}"
