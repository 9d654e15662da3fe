"""The tools `agent` and `send_to_task`: work that a child session does. Open sessions; touch nothing else.

A child is a session of its own, with a log of its own, inside the call or the task that opened it: a cancel of
that work closes all that is below it, and nothing beside it.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import attrs
import trio

from turnkernel import Gate, Provider, Session, Settings, ToolOutput, open_session
from turnkernel.events import TaskStarted, ToolResult
from turnkernel.messages import Text
from turnkernel.text import is_blank
from turnkernel.tool import Tasks, Tool, ToolContext, WorkContext

from .function import FunctionTool, tool

__all__ = ["agent_tools"]

_NAMES = ("agent", "send_to_task")


@attrs.frozen
class _OpeningTool(FunctionTool):
    opens_session: Literal[True] = True
    """See `turnkernel.tool.OpensSession`."""


def agent_tools(
    *,
    provider: Provider | Callable[[str], Provider],
    gate: Callable[[], Gate],
    settings: Settings | None = None,
    tools: Iterable[Tool] | None = None,
    depth: int = 1,
    max_background: int = 8,
    open_child: Callable[..., AbstractAsyncContextManager[Session]] = open_session,
) -> list[Tool]:
    """The tools `agent {prompt, background?}` and `send_to_task {task, text}`.

    `provider` is every child's, or gives one for the id of the `agent` call. `gate` makes a fresh one for each
    child, and has no default: what a session asks approval for, its children must ask for too. `tools` are the
    children's; None for those of the session that calls, shared connections included. `depth` says how many
    generations there may be: children at the last have neither of these tools. Of a session's children in the
    background at most `max_background` run. `open_child` is called as `open_session` is, for a host that wants to
    see each child as it begins.

    A child ends when its turn has and no task of lifetime *session* runs in it. Its last words are the result. A
    turn of it that did not complete is an error result that says how it ended; where somebody stopped only the
    child's turn, it is *stopped*. Under cancellation the child's turn is cancelled, cause `parent`, and its log
    closed before the call or task ends.

    Raises ValueError for a `depth` or `max_background` below 1.
    """
    if depth < 1 or max_background < 1:
        raise ValueError(f"depth and max_background must be at least 1, not {depth} and {max_background}")
    given = None if tools is None else tuple(tools)
    return _Agents(provider, gate, settings, given, depth, max_background, open_child).tools()


@attrs.frozen
class _Agents:
    """What is the same for all children of one generation."""

    provider: Provider | Callable[[str], Provider]
    gate: Callable[[], Gate]
    settings: Settings | None
    given: tuple[Tool, ...] | None
    depth: int
    max_background: int
    open_child: Callable[..., AbstractAsyncContextManager[Session]]

    def tools(self) -> list[Tool]:
        """Those of the session that these children are of."""

        @tool(name="agent", concurrency="shared")
        async def agent(
            ctx: ToolContext,
            prompt: Annotated[str, "What it is to do, with all that it needs to know: it does not see this talk."],
            background: Annotated[
                bool, "Go on at once; its last words come as a message when it has ended."
            ] = False,
        ) -> ToolOutput:
            """Give a piece of work to another agent, which has a conversation of its own.

            You get its last words. Several in one message work side by side.
            """
            return await self._agent(ctx, prompt, background=background)

        @tool(name="send_to_task", concurrency="shared")
        async def send_to_task(
            ctx: ToolContext,
            task: Annotated[str, "The id of the task that the agent is, or was."],
            text: Annotated[str, "What to say to it."],
        ) -> ToolOutput:
            """Say something to an agent that was begun in the background.

            One that has ended goes on where it was, as a new task.
            """
            return await self._send(ctx, task, text)

        return [_OpeningTool(**attrs.asdict(agent, recurse=False)), send_to_task]

    # ------------------------------------------------------------------------------------------ the tools

    async def _agent(self, ctx: ToolContext, prompt: str, *, background: bool) -> ToolOutput:
        assert ctx.log is not None
        if is_blank(prompt):
            return ToolOutput("The prompt is empty. Nobody was given anything to do.", is_error=True)
        work = partial(self._work, tools=self._childrens(ctx), name=ctx.call_id, prompt=prompt)
        if not background:
            return await work(ctx, ctx.log, shown_by=ctx)
        return await self._begin(ctx.tasks, work, ctx.log, prompt, "The agent works as task {}.")

    async def _send(self, ctx: ToolContext, task: str, text: str) -> ToolOutput:
        known = ctx.tasks.known(task)
        if known is None:
            return ToolOutput(f"There is no task {task!r}.", is_error=True)
        if known.log is None:
            return ToolOutput(f"Task {task} is no agent; it takes no words.", is_error=True)
        if is_blank(text):
            return ToolOutput("The text is empty. Nothing was said.", is_error=True)
        # A later task may be the same agent: it goes on over the same log.
        running = next((one for one in ctx.tasks.running() if one.log == known.log), None)
        if running is None:
            return await self._revive(ctx, known, text)
        if ctx.tasks.say(running.task, text):
            return ToolOutput(f"Said to task {running.task}, which runs.")
        text = f"Task {running.task} takes no words now: it is just beginning, or ending. Nothing was said."
        return ToolOutput(text, is_error=True)

    async def _revive(self, ctx: ToolContext, known: TaskStarted, text: str) -> ToolOutput:
        """A new task over the log of one that has ended."""
        assert known.log is not None
        if not await _is_there(ctx.log_at(known.log)):
            text = f"The log of task {known.task} is not there, so it can't go on. Begin a new agent instead."
            return ToolOutput(text, is_error=True)
        # Looked at again: another call of this step may have begun it meanwhile.
        if any(one.log == known.log for one in ctx.tasks.running()):
            return ToolOutput(f"The agent of task {known.task} is just going on. Nothing was said.", is_error=True)
        first = next(one for one in ctx.tasks.begun() if one.log == known.log)
        work = partial(self._work, tools=self._childrens(ctx), name=first.call, prompt=text)
        said = f"Task {known.task} had ended. The agent goes on with that as task {{}}."
        return await self._begin(ctx.tasks, work, known.log, text, said)

    async def _begin(self, tasks: Tasks, work: Any, log: str, what: str, said: str) -> ToolOutput:
        running = sum(one.log is not None for one in tasks.running())
        if running >= self.max_background:
            text = f"{running} agents run in the background, which is the most that may. Wait until one has ended."
            return ToolOutput(text, is_error=True)
        task = await tasks.start("agent", partial(work, log=log), detail={"what": what}, log=log)
        return ToolOutput(f"{said.format(task)} You will be told when it has ended.")

    # ----------------------------------------------------------------------------------------- the children

    def _childrens(self, ctx: ToolContext) -> list[Tool]:
        """The tools of a child of the session that calls."""
        own = ctx.tools.values() if self.given is None else self.given
        below = attrs.evolve(self, depth=self.depth - 1).tools() if self.depth > 1 else []
        return [*(one for one in own if one.name not in _NAMES), *below]

    async def _work(
        self,
        ctx: WorkContext,
        log: str,
        *,
        tools: Sequence[Tool],
        name: str,
        prompt: str,
        shown_by: ToolContext | None = None,
    ) -> ToolOutput:
        """One child from its opening to the closing of its log, inside the work whose context that is."""
        provider = self.provider
        gate = self.gate()
        if shown_by is not None:
            gate.after = (*gate.after, partial(_show, shown_by))
        async with self.open_child(
            ctx.log_at(log),
            provider=provider(name) if callable(provider) else provider,
            tools=tools,
            settings=self.settings,
            gate=gate,
            within=ctx,
        ) as child:
            before = len(child.context)
            await child.send(prompt)
            await child.rest(tasks=True)
            return _result(child, before)


async def _show(ctx: ToolContext, result: ToolResult) -> None:
    """An after-hook: shows a call of the child as output of the call that the child is."""
    ctx.emit(f"{result.name}: {result.status.replace('_', ' ')}\n")


async def _is_there(place: Any) -> bool:
    """Whether there is a log at what `ctx.log_at` gave: an opening would make a new one where there is none."""
    if not isinstance(place, Path):
        return place.size > 0
    try:
        return (await trio.Path(place).stat()).st_size > 0
    except FileNotFoundError:
        return False


def _result(child: Session, before: int) -> ToolOutput:
    """What a child that is at rest has come to; `before` messages were there when it began."""
    status = child.status()
    words = _last_words(child, before)
    if status.outcome == "completed":
        return ToolOutput(words or "The agent ended without a word.")
    errors = "".join(f" {error.type}: {error.text}." for error in status.errors)
    how = f"The agent did not complete its work: its turn ended as {status.outcome}.{errors}"
    text = f"{how}\nIts last words: {words}" if words else how
    return ToolOutput(text, is_error=True, status="stopped" if status.outcome == "aborted" else None)


def _last_words(child: Session, before: int) -> str:
    for message in reversed(child.context[before:]):
        words = "\n".join(block.text for block in message.blocks if isinstance(block, Text))
        if message.role == "assistant" and not is_blank(words):
            return words
    return ""
