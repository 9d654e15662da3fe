"""Sessions with background commands for tests: a model that calls what the test says, gates, a look into /proc."""

import itertools
import os
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from turnkernel.events import Record, TaskEnded, TaskStarted, ToolResult
from turnkernel.reading import LogReader
from turnkernel.session import Session, open_session
from turnkernel.store import MemoryStore
from turnkernel.testing.laws import check_log
from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel.testing.scripted import ScriptedProvider
from turnkernel_tools import standard_tools

# A guard against hanging only; no test depends on how long anything takes.
GUARD = 30.0
_calls = itertools.count(1)


def alive(mark: str) -> list[str]:
    """The pids of processes other than this one that have this in their environment."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
                if mark.encode() in (entry / "environ").read_bytes() and state not in "ZX":
                    found.append(entry.name)
            except OSError:
                continue
    return found


class Gate:
    """A FIFO that a command waits at, or through which it tells the test that it has come so far."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def open(self) -> None:
        os.write(self.fd, b"go\n")

    async def passed(self) -> None:
        with trio.fail_after(GUARD):
            await trio.lowlevel.wait_readable(self.fd)
        os.read(self.fd, 100)


class Host:
    """A session with a model that calls what the test says."""

    def __init__(self, session: Session, provider: ScriptedProvider, log: Path | None) -> None:
        self.session = session
        self.provider = provider
        self._log = log

    def records(self) -> list[Record]:
        """Also once the session has been left."""
        if self._log is None:
            return [*self.session._kernel.journal.records_from(1)]
        return [*LogReader(MemoryStore(self._log.read_bytes()))]

    def events(self) -> list:
        return [record.event for record in self.records()]

    def ask_for(self, name: str, **input: object) -> str:
        """Have the model call a tool in its next request; the call's id."""
        call = f"call_{os.getpid()}_{next(_calls)}"
        self.provider.replace([Reply(calls=[ReplyCall(call, name, input)])])
        return call

    async def call(self, name: str, **input: object) -> ToolResult:
        call = self.ask_for(name, **input)
        await self.session.send("go")
        async for event in self.session.events():
            if isinstance(event, ToolResult) and event.call == call:
                return event
        raise AssertionError("the session has ended")

    async def begin(self, command: str, **input: object) -> str:
        """Begin a task; its id."""
        result = await self.call("bash", command=command, background=True, **input)
        assert not result.is_error
        started = [event for event in self.events() if isinstance(event, TaskStarted)][-1]
        assert started.call == result.call
        assert f"Task {started.task} " in result.text
        return started.task

    async def end_of(self, task: str) -> TaskEnded:
        async for event in self.session.events():
            if isinstance(event, TaskEnded) and event.task == task:
                return event
        raise AssertionError("the session has ended")

    async def output_with(self, task: str, words: str) -> str:
        """What `task_output` tells once these words have been read."""
        while words not in (result := await self.call("task_output", task=task)).text:
            pass
        return result.text

    def started(self, task: str) -> TaskStarted:
        (found,) = [event for event in self.events() if isinstance(event, TaskStarted) and event.task == task]
        return found


@asynccontextmanager
async def hosted(root: Path, log: Path | None = None, *more_tools, guard: float = GUARD, **options):
    options = {"grace_seconds": 5.0} | options
    provider = ScriptedProvider([], spare=Reply(text="I see."))
    with trio.fail_after(guard):
        async with open_session(
            log, provider=provider, tools=[*standard_tools(root, **options), *more_tools], durability="process"
        ) as session:
            host = Host(session, provider, log)
            yield host
    assert check_log(host.records()) == []
