"""A call's context for the tests of the tools, with the kernel's meaning of every word, and a look into /proc."""

import itertools
import math
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from tests.tools.task_sessions import Gate, alive

from turnkernel.causes import Urgency
from turnkernel.tool import Answered

_ids = itertools.count(1)


class FakeContext:
    """A `ToolContext` that keeps what it is told. `cut` is the scope that stands for the turn."""

    def __init__(self) -> None:
        # Unique on the machine, so that /proc can be asked for what this call has left.
        self.call_id = f"call_{os.getpid()}_{next(_ids)}"
        self.resumed_state = None
        self.urgency: Urgency | None = None
        self.cut = trio.CancelScope()
        self.said: list[tuple[str, str]] = []
        self.survivors: list[tuple[str, str]] = []
        self.held: list[tuple[str, str]] = []
        self.checkpoints: list[object] = []
        self.sections: list[tuple[str, float]] = []
        self.answer: Answered | None = None
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.over = False
        self._open_sections: dict[trio.CancelScope, float] = {}
        self.thread_grace_seconds = 24 * 3600.0
        self._urgent = trio.Event()
        self._news = trio.Event()

    @property
    def work_id(self) -> str:
        return self.call_id

    @property
    def output(self) -> str:
        return "".join(text for text, _ in self.said)

    def cancel(self, urgency: Urgency = Urgency.POLITE) -> None:
        self.urgency = max(self.urgency or urgency, urgency)
        self.cut.cancel()
        if self.urgency is Urgency.NOW:
            self._urgent.set()
            for scope in self._open_sections:
                self._hurry(scope)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is true that output, a section or a holding can make true."""
        while not condition():
            await self._news.wait()

    async def saw(self, text: str) -> None:
        await self.until(lambda: text in self.output)

    def _tell(self) -> None:
        self._news.set()
        self._news = trio.Event()

    async def urgent(self) -> None:
        await self._urgent.wait()

    def emit(self, text: str, stream: str = "stdout") -> None:
        assert not self.over
        self.said.append((text, stream))
        self._tell()

    def checkpoint(self, state: object) -> None:
        assert not self.over
        self.checkpoints.append(state)

    @contextmanager
    def critical(self, reason: str, seconds: float, *, now_seconds: float = 0.0) -> Iterator[object]:
        assert math.isfinite(seconds)
        scope = trio.CancelScope(shield=True, deadline=trio.current_time() + seconds)
        self.sections.append((reason, seconds))
        self._open_sections[scope] = now_seconds
        if self.urgency is Urgency.NOW:
            self._hurry(scope)
        self._tell()
        try:
            with scope:
                yield scope
        finally:
            del self._open_sections[scope]

    def _hurry(self, scope: trio.CancelScope) -> None:
        scope.deadline = min(scope.deadline, trio.current_time() + self._open_sections[scope])

    @contextmanager
    def holding(self, kind: str, name: str) -> Iterator[None]:
        self.held.append((kind, name))
        self._tell()
        try:
            yield
        finally:
            self.held.remove((kind, name))

    def survivor(self, kind: str, name: str) -> None:
        assert not self.over
        self.survivors.append((kind, name))

    async def ask(self, text: str, options: tuple[str, ...] = ()) -> Answered:
        await trio.lowlevel.checkpoint()
        self.asked.append((text, tuple(options)))
        assert self.answer is not None
        return self.answer

    def alive(self) -> list[int]:
        """Processes of this call that run, found by the mark in their environment."""
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                environment = (entry / "environ").read_bytes()
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if f"{self.call_id}.".encode() in environment and state not in "ZX":
                found.append(int(entry.name))
        return found


@pytest.fixture
def ctx() -> Iterator[FakeContext]:
    """The context of one call; whatever a failing test leaves alive of it is ended."""
    context = FakeContext()
    yield context
    for pid in context.alive():
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def new_ctx() -> type[FakeContext]:
    """For tests that need several."""
    return FakeContext


@pytest.fixture
def mark(monkeypatch) -> Iterator[str]:
    """What all processes of the test have in their environment; whatever a failing one leaves is ended."""
    unique = f"TASKS_TEST={os.getpid()}.{next(_ids)}"
    monkeypatch.setenv(*unique.split("="))
    yield unique
    for pid in alive(unique):
        os.kill(int(pid), signal.SIGKILL)


@pytest.fixture
def gate(tmp_path) -> Iterator[Gate]:
    """The command waits with `read x <gate`."""
    made = Gate(tmp_path / "gate")
    yield made
    os.close(made.fd)


@pytest.fixture
def up(tmp_path) -> Iterator[Gate]:
    """The command tells with `echo >up` that it is up."""
    made = Gate(tmp_path / "up")
    yield made
    os.close(made.fd)
