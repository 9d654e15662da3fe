"""Starts processes: the one place that does. Nothing that a call started is alive when the call has ended.

This is the containment tier `group`: each call's process leads a session of its own; what left the session is
swept by a mark in the environment (`family`). When the kernel itself is killed nobody is left to do so: that is
what the tiers with a keeper are for, behind the same interface.
"""

import codecs
import math
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import attrs
import trio

from turnkernel.text import printable
from turnkernel.tool import ToolContext

from .family import Family, Member, family_of

__all__ = [
    "HIDDEN",
    "MARK",
    "NotStartedError",
    "OnOutput",
    "ProcessEnd",
    "child_environment",
    "run_process",
    "signal_name",
]

HIDDEN = frozenset({"ANTHROPIC_API_KEY", "OPENAI_API_KEY"})
"""Environment variables that no tool ever sees. A caller can add to them, not take away."""

MARK = "TURNKERNEL_CALL"
"""The environment variable that every process of a call bears: the ids of the calls it is part of, outermost
first (a kernel can run in another one's tool), each with a random part that makes it unique on the machine."""

DRAIN_SECONDS = 0.2
"""How long output is waited for that others than the call's own process may still write."""

KILL_SECONDS = 2.0
"""How long the system may take to end processes after SIGKILL before they are named as survivors."""

_READ_BYTES = 65536
_REST_BYTES = 1 << 20  # the most that a pipe holds, by default (pipe(7), pipe-max-size)
_LONGEST_PAUSE = 0.05

OnOutput = Callable[[str, str], None]
"""Called with text and stream (`stdout`, `stderr`, or `note` for what this module has to say), without a
checkpoint around it. What it raises ends the process and passes."""


class NotStartedError(Exception):
    """The caller's, or the system's: there is no such program or directory, an argument can't be passed on ..."""


@attrs.frozen
class ProcessEnd:
    """How a process ended that no cancel cut short."""

    exit_code: int | None
    """As a shell tells it: 128 + the number of the signal that killed it. None when it could not be stopped."""
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


def child_environment(mark: str, *, env: Mapping[str, str] | None, hidden: Collection[str]) -> dict[str, str]:
    """The environment of a call's process: `env` (None: ours) without the hidden variables, with the mark."""
    base = os.environ if env is None else env
    kept = {name: value for name, value in base.items() if name not in HIDDEN and name not in hidden}
    return kept | {MARK: f"{kept.get(MARK, '')} {mark}".strip()}


async def run_process(
    argv: Sequence[str],
    *,
    ctx: ToolContext,
    cwd: Path,
    on_output: OnOutput,
    env: Mapping[str, str] | None = None,
    hidden: Collection[str] = (),
    timeout_seconds: float | None = None,
    grace_seconds: float = 2.0,
) -> ProcessEnd:
    """Run a process to its end, and with it everything that it started.

    It has no controlling terminal, /dev/null as its input, and none of our keys. The process itself is waited
    for, then for `DRAIN_SECONDS` what others may still write; what is left running then is ended too. Output
    comes in UTF-8, with U+FFFD where it is not, a character cut over two reads put together again; it is not
    kept here.

    Under cancellation, and at its timeout, everything gets SIGTERM and SIGCONT, after `grace_seconds` or at
    urgency *now* SIGKILL, and is confirmed to be gone; what it still says meanwhile is passed on. Then
    `trio.Cancelled` passes. What could not be stopped is named with `ctx.survivor`.

    Raises `NotStartedError` when it can't be started; what `on_output` raises, after everything is gone.
    """
    # A wire's ids may hold anything; what makes it unique is ours.
    mark = f"{re.sub(r'[^A-Za-z0-9_.-]', '_', ctx.call_id)[:64]}.{secrets.token_hex(8)}"
    child = await _start(argv, cwd, child_environment(mark, env=env, hidden=hidden), mark, on_output)
    with ctx.holding("process", child.name):
        try:
            timed_out = await child.watch(timeout_seconds)
        finally:
            await child.end(ctx, grace_seconds)
    return child.report(timed_out)


async def _start(
    argv: Sequence[str], cwd: Path, env: Mapping[str, str], mark: str, on_output: OnOutput
) -> "_Child":
    """Start it. No checkpoint between its birth and the return, so that a cancel can't lose it."""
    with ExitStack() as undo:
        pipes = [undo.enter_context(_Pipe(stream, on_output)) for stream in ("stdout", "stderr")]
        started = trio.current_time()
        start = partial(
            subprocess.Popen[bytes],
            argv,
            stdin=subprocess.DEVNULL,
            stdout=pipes[0].write_end,
            stderr=pipes[1].write_end,
            cwd=cwd,
            env=env,
            # Not a process group only: reading /dev/tty would stop it with SIGTTIN. Never preexec_fn: 13 ms.
            start_new_session=True,
        )
        try:
            # The shared limiter may be full of tools that are stuck.
            popen = await trio.to_thread.run_sync(start, limiter=trio.CapacityLimiter(1))
        except (OSError, ValueError) as error:  # the second: a NUL byte or a lone surrogate in an argument
            raise NotStartedError(str(error)) from error
        undo.pop_all()
    for pipe in pipes:
        pipe.close_write_end()
    name = f"pid {popen.pid} {printable(' '.join(argv))[:200]}"
    return _Child(popen, name, pipes, family_of(popen.pid, mark, popen.poll), on_output, started)


class _Pipe:
    """One stream of output, from the system to text."""

    def __init__(self, stream: str, on_output: OnOutput) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self.ended = False
        self._stream = stream
        self._on_output = on_output
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def __repr__(self) -> str:
        return f"<_Pipe {self._stream} {'ended' if self.ended else 'open'}>"

    def __enter__(self) -> "_Pipe":
        return self

    def __exit__(self, *_: object) -> None:
        self.close_write_end()
        os.close(self.read_end)

    def close_write_end(self) -> None:
        os.close(self.write_end)

    async def pump(self) -> None:
        """Pass on what comes, until the end. Waits for the selector each time, so a flood lets others run."""
        while not self.ended:
            await trio.lowlevel.wait_readable(self.read_end)
            self._read()

    def finish(self) -> None:
        """Pass on what is there already, at most a pipe full, and close."""
        try:
            most = _REST_BYTES
            while not self.ended and most > 0 and (got := self._read()):
                most -= got
            self._show(self._decoder.decode(b"", final=True))
        finally:
            os.close(self.read_end)

    def _read(self) -> int:
        try:
            data = os.read(self.read_end, _READ_BYTES)
        except BlockingIOError:
            return 0
        self.ended = not data
        self._show(self._decoder.decode(data))
        return len(data)

    def _show(self, text: str) -> None:
        if text:
            self._on_output(text, self._stream)


class _Child:
    """A running process and what comes of it."""

    def __init__(
        self,
        popen: subprocess.Popen[bytes],
        name: str,
        pipes: Sequence[_Pipe],
        family: Family,
        on_output: OnOutput,
        started: float,
    ) -> None:
        self.name = name
        self._popen = popen
        self._pipes = pipes
        self._family = family
        self._on_output = on_output
        self._started = started
        self._exit_seen = False
        self._ended_too: list[Member] = []
        self._killed: list[Member] = []
        self._left: list[Member] = []
        self._pidfd = _pidfd(popen.pid)

    def __repr__(self) -> str:
        return f"<_Child {self.name}>"

    async def watch(self, seconds: float | None) -> bool:
        """Wait for its exit, then for what is still written; whether the time ran out first. Cancellable."""
        async with trio.open_nursery() as nursery:
            for pipe in self._pipes:
                nursery.start_soon(pipe.pump)
            with trio.move_on_after(math.inf if seconds is None else seconds) as limit:
                await self._exited()
                self._exit_seen = True
            # Never an unbounded wait for the end of the stream: a background child can hold it open for ever.
            nursery.cancel_scope.deadline = trio.current_time() + (DRAIN_SECONDS if self._exit_seen else 0)
        return limit.cancelled_caught

    async def _exited(self) -> None:
        """Wait until the process itself has exited. With a pidfd it is left unreaped.

        While it is a zombie its number, which is its group's too, can't be another's, so signals hit nobody else.
        """
        if self._pidfd is not None:
            await trio.lowlevel.wait_readable(self._pidfd)
            return
        while self._popen.poll() is None:  # noqa: ASYNC110 - no event to wait for here
            await trio.sleep(_LONGEST_PAUSE)

    async def end(self, ctx: ToolContext, grace_seconds: float) -> None:
        """End all that is left, confirm it, name what is not, close. Bounded; at urgency *now* without grace."""
        try:
            self._left = self._family.scan()
            if self._exit_seen:
                self._ended_too = self._left
            if self._left:
                with ctx.critical(f"ending {self.name}", grace_seconds + KILL_SECONDS):
                    try:
                        await self._terminate(grace_seconds)
                    finally:
                        await self._kill()
        finally:
            self._settle(ctx)

    async def _terminate(self, grace_seconds: float) -> None:
        """SIGTERM, and as long as the grace lasts wait for the end, reading on."""
        told = [*self._left]
        self._tell(told)
        with trio.move_on_after(grace_seconds):
            async with trio.open_nursery() as nursery:
                for pipe in self._pipes:
                    nursery.start_soon(pipe.pump)
                await self._exited()
                pause = 0.001
                self._left = self._family.left()
                while self._left:
                    newborn = [member for member in self._left if member not in told]
                    told += newborn
                    self._tell(newborn)
                    await trio.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
                    self._left = self._family.left()
                nursery.cancel_scope.cancel()

    def _tell(self, members: Sequence[Member]) -> None:
        self._family.send(signal.SIGTERM, members)
        self._family.send(signal.SIGCONT, members)  # a stopped process would keep the SIGTERM pending

    async def _kill(self) -> None:
        """SIGKILL until none is left, for a bounded time.

        At urgency *now* the section around it is over and any wait would be cut, but R1 wants the confirmation.
        So it does not wait: it yields, with an absolute bound. The system takes about a millisecond.
        """
        bound = time.monotonic() + KILL_SECONDS  # the real clock, as the processes are
        if self._left:  # when the grace was cut
            self._left = self._family.scan()
        self._killed = self._left
        while self._left and time.monotonic() < bound:
            self._family.send(signal.SIGKILL, self._left)
            while self._family.left() == self._left and time.monotonic() < bound:
                await trio.lowlevel.cancel_shielded_checkpoint()
            self._left = self._family.scan()

    def _settle(self, ctx: ToolContext) -> None:
        """Pass on the last output, close, reap, say what is left. Whatever of it fails, the rest is done."""
        with ExitStack() as last_first:
            killed = [str(member) for member in self._killed if member not in self._left]
            if killed:
                last_first.callback(self._on_output, f"\n[Killed by SIGKILL: {_some(killed)}]\n", "note")
            for member in self._left:
                last_first.callback(ctx.survivor, "process", str(member))
            if self._pidfd is not None:
                last_first.callback(os.close, self._pidfd)
            for pipe in reversed(self._pipes):
                last_first.callback(pipe.finish)
            self._popen.poll()  # reaped now and not before: see _exited

    def report(self, timed_out: bool) -> ProcessEnd:
        """How it ended, for one that was not cancelled."""
        code: int | None = self._popen.returncode
        killed_by = -code if code is not None and code < 0 else None
        return ProcessEnd(
            exit_code=code if killed_by is None else 128 + killed_by,
            signal=None if killed_by is None else signal_name(killed_by),
            seconds=trio.current_time() - self._started,
            timed_out=timed_out,
            drained=all(pipe.ended for pipe in self._pipes),
            ended_too=[str(member) for member in self._ended_too],
            survivors=[str(member) for member in self._left],
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join([*names[:5], f"{len(names) - 5} more"] if len(names) > 5 else names)


def _pidfd(pid: int) -> int | None:
    """A descriptor that is readable once the process has exited; None where there are none."""
    if sys.platform == "linux":
        with suppress(OSError):
            return os.pidfd_open(pid)
    return None


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; `signal 35` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
