"""Tools and providers of a sweep, watched: what really began and ended, beside what the log says. Delegates."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Literal, Protocol

import attrs

from ..provider import ModelEvent, Provider, Request
from ..tool import Concurrency, Effect, Tool, ToolContext, ToolOutput, resume_key

__all__ = ["WatchedProvider", "WatchedTool", "Witness", "watched"]


class Witness(Tool, Protocol):
    """A tool that knows what became of its calls: a `ScriptedTool`, or any other in a `WatchedTool`."""

    @property
    def began(self) -> list[str]:
        """Call ids whose body began."""
        ...

    @property
    def ended(self) -> list[str]:
        """Call ids whose body returned a result."""
        ...

    @property
    def late(self) -> list[str]:
        """Call ids whose body began although the call was to end."""
        ...

    @property
    def running(self) -> set[str]:
        """Call ids whose body runs now."""
        ...


@attrs.frozen(eq=False)
class WatchedTool:
    """Somebody's own tool, as it is, with the account that the laws need."""

    tool: Tool
    began: list[str] = attrs.field(factory=list[str], init=False)
    ended: list[str] = attrs.field(factory=list[str], init=False)
    late: list[str] = attrs.field(factory=list[str], init=False)
    running: set[str] = attrs.field(factory=set[str], init=False)

    @property
    def name(self) -> str:
        """The tool's."""
        return self.tool.name

    @property
    def description(self) -> str:
        """The tool's."""
        return self.tool.description

    @property
    def schema(self) -> Mapping[str, Any]:
        """The tool's."""
        return self.tool.schema

    @property
    def effect(self) -> Effect:
        """The tool's."""
        return self.tool.effect

    @property
    def concurrency(self) -> Concurrency:
        """The tool's."""
        return self.tool.concurrency

    @property
    def timeout(self) -> float | None:
        """The tool's."""
        return self.tool.timeout

    def resume_key(self, input: Mapping[str, Any]) -> str:
        """The tool's, or the one that it has without."""
        return resume_key(self.tool, input)

    async def run(self, ctx: ToolContext, input: Mapping[str, Any]) -> ToolOutput:
        """The tool's."""
        self.began.append(ctx.call_id)
        if ctx.urgency is not None:
            self.late.append(ctx.call_id)
        self.running.add(ctx.call_id)
        try:
            output = await self.tool.run(ctx, input)
            self.ended.append(ctx.call_id)
            return output
        finally:
            self.running.discard(ctx.call_id)


@attrs.frozen(eq=False)
class _OpeningTool(WatchedTool):
    opens_session: Literal[True] = attrs.field(default=True, init=False)


def watched(tool: Any) -> Witness:
    """The tool itself where it keeps an account, else the tool watched."""
    if all(hasattr(tool, name) for name in ("began", "ended", "late", "running")):
        return tool
    return _OpeningTool(tool) if hasattr(tool, "opens_session") else WatchedTool(tool)


class WatchedProvider:
    """Somebody's own provider, as it is, with its open streams counted."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self.open_streams = 0
        """None after a turn (law R1)."""

    def __repr__(self) -> str:
        return f"<WatchedProvider of {self.provider!r} open_streams={self.open_streams}>"

    @property
    def wire(self) -> str:
        """The provider's."""
        return self.provider.wire

    @property
    def model(self) -> str:
        """The provider's."""
        return self.provider.model

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """The provider's."""
        return _Counted(self, self.provider.stream(request))


class _Counted:
    def __init__(
        self, provider: WatchedProvider, inner: AbstractAsyncContextManager[AsyncIterator[ModelEvent]]
    ) -> None:
        self._provider = provider
        self._inner = inner

    async def __aenter__(self) -> AsyncIterator[ModelEvent]:
        self._provider.open_streams += 1
        try:
            return await self._inner.__aenter__()
        except BaseException:
            self._provider.open_streams -= 1
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            return await self._inner.__aexit__(kind, error, trace)
        finally:
            self._provider.open_streams -= 1
