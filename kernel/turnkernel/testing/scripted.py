"""A scripted model and scripted tools, for virtual runs: no network, no process, the clock is trio's.

The provider plays `Reply`s straight as model events; the tools do what a list of actions says.
"""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import attrs
import trio

from ..errors import ProviderError
from ..events import ResultStatus, TaskStarted
from ..provider import ModelEvent, Request
from ..tool import Concurrency, Effect, ToolContext, ToolOutput, WorkContext
from .actions import Action, check_actions, scripted_error
from .replies import Reply, model_events

__all__ = ["Action", "ScriptedProvider", "ScriptedTool", "imagined_thread", "scripted_error"]


class ScriptedProvider:
    """Plays replies in order, one per request; remembers every request.

    One too many gets `spare`, or is refused as HTTP 500 where there is none.
    """

    def __init__(
        self,
        replies: Sequence[Reply],
        *,
        wire: str = "scripted",
        model: str = "scripted-1",
        spare: Reply | None = None,
        events: Callable[[Reply], Sequence[ModelEvent | ProviderError]] = model_events,
    ) -> None:
        for place, reply in enumerate(replies):
            if not isinstance(reply, Reply):  # pyright: ignore[reportUnnecessaryIsInstance] - of untyped programs
                raise TypeError(f"replies[{place}] must be a Reply, not {reply!r}")
        self._spare = spare
        self.events = events
        """What a reply says: events, and an error where its stream breaks."""
        self.wire = wire
        self.model = model
        self.requests: list[Request] = []
        self.open_streams = 0
        """Streams that are open now: none after a turn (law R1)."""
        self.unmet = 0
        """Requests for which there was no reply."""
        self._left = deque(replies)

    def replace(self, replies: Sequence[Reply]) -> None:
        """Play these from the next request on."""
        self._left = deque(replies)

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """The next reply."""
        self.requests.append(request)
        if self._left:
            return _Stream(self, self._left.popleft())
        self.unmet += 1
        if self._spare is not None:
            return _Stream(self, self._spare)
        return _Stream(self, Reply(status=500, body="no reply is left in the script"))


def _refuse(reply: Reply) -> None:
    if reply.status != 200:
        retryable = reply.status in (429, 500, 503, 529)
        raise ProviderError(f"HTTP {reply.status}: {reply.body}", retryable=retryable, status=reply.status)


class _Stream:
    def __init__(self, provider: ScriptedProvider, reply: Reply) -> None:
        self._provider = provider
        self._reply = reply
        self._events: Sequence[ModelEvent | ProviderError] = ()
        self._played = 0

    async def __aenter__(self) -> AsyncIterator[ModelEvent]:
        self._provider.open_streams += 1
        try:
            await trio.lowlevel.checkpoint()
            _refuse(self._reply)
        except BaseException:
            self._provider.open_streams -= 1
            raise
        self._events = self._provider.events(self._reply)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._provider.open_streams -= 1
        await trio.lowlevel.checkpoint()

    def __aiter__(self) -> AsyncIterator[ModelEvent]:
        return self

    async def __anext__(self) -> ModelEvent:
        reply = self._reply
        if reply.pace:
            await trio.sleep(reply.pace)
        else:
            await trio.lowlevel.checkpoint()
        fault_at = len(self._events) - 1
        if reply.after_bytes is not None:
            # There are no bytes here: a delta counts as one piece of eight.
            fault_at = min(fault_at, reply.after_bytes // 8)
        if reply.fault is not None and self._played >= fault_at:
            if reply.fault == "stall":
                await trio.sleep_forever()
            raise ProviderError(f"the stream broke: {reply.fault}", retryable=True)
        event = self._events[self._played]
        self._played += 1
        if isinstance(event, ProviderError):
            raise event
        return event


@attrs.frozen(eq=False)
class ScriptedTool:
    """A tool that does what a list of actions says, and `on_cancel` when a cancel cuts it."""

    name: str
    does: Sequence[Action] = ()
    on_cancel: Sequence[Action] = ()
    effect: Effect = "effect"
    concurrency: Concurrency = "shared"
    timeout: float | None = None
    description: str = "A scripted tool."
    schema: Mapping[str, Any] = attrs.field(factory=lambda: {"type": "object"})
    began: list[str] = attrs.field(factory=list[str])
    """Call ids whose body began: the ground truth of laws L4 and R5."""
    ended: list[str] = attrs.field(factory=list[str])
    """Call ids whose body came to its end with a result."""

    late: list[str] = attrs.field(factory=list[str])
    """Call ids whose body began although the call was to end: law R5 is broken."""
    running: set[str] = attrs.field(factory=set[str])
    """Call ids whose body runs now."""
    touch: Callable[[str], None] | None = None
    """Makes the file that `touch` names. None: there are no files."""
    block: "Callable[[ToolContext, float], Awaitable[None]]" = attrs.field(factory=lambda: imagined_thread)
    """Waits for a thread that does not return for so many seconds."""

    def __attrs_post_init__(self) -> None:
        """Raises TypeError or ValueError for what no scripted tool can do."""
        check_actions(self.name, "does", self.does)
        check_actions(self.name, "on_cancel", self.on_cancel)
        if self.touch is None and any("touch" in action for action in (*self.does, *self.on_cancel)):
            raise ValueError(f"tool {self.name!r}: 'touch' needs a function that makes files: touch=")

    async def run(self, ctx: ToolContext, input: Mapping[str, Any]) -> ToolOutput:
        """Do the actions in order."""
        self.began.append(ctx.call_id)
        if ctx.urgency is not None:
            self.late.append(ctx.call_id)
        self.running.add(ctx.call_id)
        try:
            return await self._play(ctx)
        finally:
            self.running.discard(ctx.call_id)

    def find(self, task: TaskStarted, folder: Path | None) -> None:
        """None: a task of a script, detached or not, is gone with the program that played it (`FindsTasks`)."""

    async def _play(self, ctx: ToolContext) -> ToolOutput:
        spawn = next((number for number, action in enumerate(self.does) if _spawns(action)), len(self.does))
        output = await self._act(ctx, ctx, self.does[:spawn])
        if spawn < len(self.does):
            rest = partial(self._act, call=None, does=self.does[spawn + 1 :])
            task = await ctx.tasks.start(self.name, rest, lifetime=self.does[spawn]["spawn"])
            output = ToolOutput(f"Task {task} has begun.")
        self.ended.append(ctx.call_id)
        return output

    async def _act(self, ctx: WorkContext, call: ToolContext | None, does: Sequence[Action]) -> ToolOutput:
        playing = _Playing(self, ctx, call)
        for action in does:
            try:
                await playing.do(action)
            except trio.Cancelled:
                if playing.swallow:
                    continue
                with ctx.critical("scripted cleanup", 60):
                    for undo in self.on_cancel:
                        await playing.do(undo)
                raise
        return ToolOutput(playing.result, status=playing.status)


def _spawns(action: Action) -> bool:
    """Whether the actions after this one are a task."""
    return action.get("spawn") in ("session", "detached")


async def imagined_thread(ctx: ToolContext, seconds: float) -> None:
    """What a call does that waits for a thread which does not listen; without the thread, on trio's clock.

    Cancelled, it waits on. At urgency *now* the thread would be left behind, so it is named as a survivor.
    """
    await trio.lowlevel.checkpoint_if_cancelled()  # a cancel that came first finds no thread
    name = f"imagined {ctx.call_id}"
    end = trio.current_time() + seconds
    with ctx.holding("thread", name):
        try:
            await trio.sleep_until(end)
        except trio.Cancelled:
            with ctx.critical("waiting for an imagined thread", min(seconds + 1, ctx.thread_grace_seconds)):
                await trio.sleep_until(end)
                return
            ctx.survivor("thread", name)
            raise


class _Playing:
    def __init__(self, tool: ScriptedTool, work: WorkContext, call: ToolContext | None) -> None:
        self.tool = tool
        self.work = work
        self._call = call
        self.result = "done"
        self.status: ResultStatus | None = None
        self.swallow = False

    @property
    def call(self) -> ToolContext:
        """What only a call can do."""
        assert self._call is not None, "a script in which a task shows output, asks or blocks is refused"
        return self._call

    async def do(self, action: Action) -> None:
        ((verb, value),) = action.items()
        match verb:
            case "emit":
                self.call.emit(value)
            case "sleep":
                await trio.sleep(value)
            case "checkpoint":
                self.call.checkpoint(value)
            case "ask":
                said = await self.call.ask(value)
                self.result = said.text
                self.status = "dismissed" if said.answer == "dismissed" else None
            case "critical":
                with self.work.critical("scripted", value + 60):
                    await trio.sleep(value)
            case "swallow":
                self.swallow = bool(value)
            case "shield":
                with trio.CancelScope(shield=True):  # unlisted on purpose: law R9 must catch it
                    await trio.sleep(value)
            case "raise":
                raise scripted_error(value)
            case "result":
                self.result, self.status = value, None
            case "block":
                await self.tool.block(self.call, value)
            case "touch":
                assert self.tool.touch is not None
                self.tool.touch(value)
            case _:
                pass  # a spawn of lifetime call or turn: what follows is the call's own
