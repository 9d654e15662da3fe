"""Starts processes: the one place that does. Nothing that a call started is alive when the call has ended.

How its processes are held is up to a containment tier: `namespace`, `tree` or `group`.
"""

import math
import os
import re
import secrets
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import attrs
import trio

from turnkernel.keys import KEY_VARIABLES
from turnkernel.tool import WorkContext

from . import hold
from .containment import Tier
from .group import start_grouped
from .hold import Hold, NotStartedError, Task
from .output import OnOutput, Pipe
from .probe import missing_for_namespace_soon
from .supervision import refused
from .tree import start_kept

__all__ = [
    "HIDDEN",
    "MARK",
    "NotStartedError",
    "OnOutput",
    "ProcessEnd",
    "child_environment",
    "new_mark",
    "run_process",
    "signal_name",
]

HIDDEN = frozenset(KEY_VARIABLES)
"""Environment variables that no tool ever sees. A caller can add to them, not take away."""

MARK = "TURNKERNEL_CALL"
"""The environment variable that every process of a call bears: the ids of the calls it is part of, outermost
first (a kernel can run in another one's tool), each with a random part that makes it unique on the machine. For
work that is no call it is the id of that work."""

DRAIN_SECONDS = 0.2
"""How long output is waited for that others than the call's own process may still write."""


@attrs.frozen
class ProcessEnd:
    """How a process ended that no cancel cut short."""

    exit_code: int | None
    """As a shell tells it: 128 + the number of the signal that killed it. None when it could not be stopped, or
    nobody is left who saw it exit."""
    signal: str | None
    """The signal that killed the process, `SIGKILL` for one."""
    seconds: float
    timed_out: bool
    """It was told to end at its timeout. Whatever it exits with then is not its own word."""
    drained: bool
    """All that was written was read: False when something that outlives the call still holds the output."""
    ended_too: Sequence[str]
    """What the process had left running and was ended with the call, `pid 12 sleep 60` for one."""
    survivors: Sequence[str]
    """What could not be stopped."""
    stopped: str | None = None
    """Why it was ended, if neither it nor the caller wanted that: its keeper was killed, for one."""


def new_mark(work_id: str) -> str:
    """The word of `MARK` for one process. A wire's ids may hold anything; what makes it unique is ours."""
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', work_id)[:64]}.{secrets.token_hex(8)}"


def child_environment(mark: str, *, env: Mapping[str, str] | None, hidden: Collection[str]) -> dict[str, str]:
    """The environment of a call's process: `env` (None: ours) without the hidden variables, with the mark."""
    base = os.environ if env is None else env
    kept = {name: value for name, value in base.items() if name not in HIDDEN and name not in hidden}
    return kept | {MARK: f"{kept.get(MARK, '')} {mark}".strip()}


async def run_process(
    argv: Sequence[str],
    *,
    ctx: WorkContext,
    cwd: Path,
    on_output: OnOutput,
    env: Mapping[str, str] | None = None,
    hidden: Collection[str] = (),
    timeout_seconds: float | None = None,
    grace_seconds: float = 2.0,
    tier: Tier = "tree",
    given: int | None = None,
    farewell: Callable[[], None] | None = None,
) -> ProcessEnd:
    """Run a process to its end, and with it everything that it started. For a call or any other work of a session.

    It has no controlling terminal, none of our keys, and as its input the descriptor `given`, or /dev/null. The
    process itself is waited for, then for `DRAIN_SECONDS` what others may still write; what is left running then
    is ended too. Output comes in UTF-8, with U+FFFD where it is not, a character cut over two reads put together
    again; it is not kept here. `tier` is the containment that is wanted; where it can't be had, the next one is in
    force.

    Under cancellation, and at its timeout, everything gets SIGTERM and SIGCONT, after `grace_seconds` or at
    urgency *now* SIGKILL, and is confirmed to be gone; what it still says meanwhile is passed on. Then
    `trio.Cancelled` passes. What could not be stopped is named with `ctx.survivor`.

    `farewell` asks it to end by other means than a signal, such as the end of its input. It is called first, must
    not wait nor raise, and the process has `grace_seconds` to exit before SIGTERM and as long after it, also at
    urgency *now*: that is how a session is left.

    Raises `NotStartedError` when it can't be started; what `on_output` raises, after everything is gone.
    """
    mark = new_mark(ctx.work_id)
    environment = child_environment(mark, env=env, hidden=hidden)
    try:
        child = await _start(argv, cwd, environment, mark, on_output, tier, given)
    except NotStartedError as error:
        for name in error.left:
            ctx.survivor("process", name)
        raise
    with ctx.holding("process", child.name):
        try:
            timed_out = await child.watch(timeout_seconds)
        finally:
            await child.end(ctx, grace_seconds, farewell)
    return child.report(timed_out)


async def _start(
    argv: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    mark: str,
    on_output: OnOutput,
    tier: Tier,
    given: int | None,
) -> "_Child":
    """Start it. No checkpoint between its birth and the return, so that a cancel can't lose it."""
    inside = tier == "namespace" and await missing_for_namespace_soon() is None
    started = trio.current_time()
    with ExitStack() as undo, ExitStack() as soon:
        try:
            if given is None:
                given = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
                soon.callback(os.close, given)
            pipes = [undo.enter_context(Pipe(stream, on_output)) for stream in ("stdout", "stderr")]
        except OSError as error:
            raise NotStartedError(str(error)) from error
        task = Task(argv, cwd, env, mark, (given, pipes[0].write_end, pipes[1].write_end), inside)
        held: Hold | None = None if tier == "group" else await start_kept(task)
        # Where less holds it than the session's log says, each call sets that right.
        if held is not None and held.weaker:
            on_output(f"[Held without a PID namespace: {held.weaker}]\n", "note")
        if held is None and tier != "group" and (why := refused()):
            on_output(f"[Held by its process group and mark only: {why}]\n", "note")
        held = held or await start_grouped(task)
        undo.pop_all()
    for pipe in pipes:
        pipe.close_write_end()
    return _Child(held, pipes, on_output, started)


class _Child:
    """A running process and what comes of it."""

    def __init__(self, held: Hold, pipes: Sequence[Pipe], on_output: OnOutput, started: float) -> None:
        self.name = held.name
        self._held = held
        self._pipes = pipes
        self._on_output = on_output
        self._started = started
        self._exit_seen = False
        self._exit_code: int | None = None

    def __repr__(self) -> str:
        return f"<_Child {self.name}>"

    async def watch(self, seconds: float | None) -> bool:
        """Wait for its exit, then for what is still written; whether the time ran out first. Cancellable."""
        async with trio.open_nursery() as nursery:
            for pipe in self._pipes:
                nursery.start_soon(pipe.pump)
            with trio.move_on_after(math.inf if seconds is None else seconds) as limit:
                await self._held.exited()
                self._exit_seen = True
            # Never an unbounded wait for the end of the stream: a background child can hold it open for ever.
            nursery.cancel_scope.deadline = trio.current_time() + (DRAIN_SECONDS if self._exit_seen else 0)
        return limit.cancelled_caught

    async def end(self, ctx: WorkContext, grace_seconds: float, farewell: Callable[[], None] | None) -> None:
        """End all that is left, confirm it, name what is not, close. Bounded; at urgency *now* without grace."""
        seconds, now_seconds = (grace_seconds, 0.0) if farewell is None else (2 * grace_seconds,) * 2
        try:
            if not self._held.is_over():
                with ctx.critical(f"ending {self.name}", seconds + hold.KILL_SECONDS, now_seconds=now_seconds):
                    try:
                        await self._terminate(grace_seconds, farewell)
                    finally:
                        await self._held.kill()
        finally:
            self._settle(ctx)

    async def _terminate(self, grace_seconds: float, farewell: Callable[[], None] | None) -> None:
        """End it politely as long as the grace lasts, reading on."""
        async with trio.open_nursery() as nursery:
            for pipe in self._pipes:
                nursery.start_soon(pipe.pump)
            if farewell is not None:
                farewell()
                with trio.move_on_after(grace_seconds):
                    await self._held.exited()
            with trio.move_on_after(grace_seconds):
                await self._held.terminate()
            nursery.cancel_scope.cancel()

    def _settle(self, ctx: WorkContext) -> None:
        """Pass on the last output, close, reap, say what is left. Whatever of it fails, the rest is done."""
        with ExitStack() as last_first:
            if self._held.killed:
                last_first.callback(
                    self._on_output, f"\n[Killed by SIGKILL: {_some(self._held.killed)}]\n", "note"
                )
            for name in self._held.left:
                last_first.callback(ctx.survivor, "process", name)
            for pipe in reversed(self._pipes):
                last_first.callback(pipe.finish)
            self._exit_code = self._held.close()

    def report(self, timed_out: bool) -> ProcessEnd:
        """How it ended, for one that was not cancelled."""
        code = self._exit_code
        killed_by = -code if code is not None and code < 0 else None
        return ProcessEnd(
            exit_code=code if killed_by is None else 128 + killed_by,
            signal=None if killed_by is None else signal_name(killed_by),
            seconds=trio.current_time() - self._started,
            timed_out=timed_out,
            drained=all(pipe.ended for pipe in self._pipes),
            ended_too=self._held.told if self._exit_seen else (),
            survivors=self._held.left,
            stopped=self._held.why,
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join([*names[:5], f"{len(names) - 5} more"] if len(names) > 5 else names)


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; `signal 35` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
