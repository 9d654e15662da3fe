"""Logs of every kind, made by a session with a scripted model, and two ways to run a command line."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner, Result

from turnkernel import open_session
from turnkernel.codec import encode
from turnkernel.events import Event, Record
from turnkernel.reading import LogReader
from turnkernel.store import MemoryStore
from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel.testing.scripted import ScriptedProvider, ScriptedTool
from turnkernel_demo.cli import cli

TWO_TURNS = [
    Reply(
        thinking="hm",
        text="Let me \x1b[31mrun \u202ethem.",
        calls=[ReplyCall("call_1", "slow", {"path": "\x9b2J 测试"}), ReplyCall("call_2", "slow")],
    ),
    Reply(text="All passed."),
    Reply(text="Nothing more."),
]


async def write_two_turns(store: MemoryStore) -> None:
    """Two prompts, one of them with two calls, and the session closed in order."""
    provider = ScriptedProvider(TWO_TURNS, wire="anthropic", model="scripted-1")
    tool = ScriptedTool(
        "slow", [{"emit": "\x1b]0;title\x07line\n"}, {"result": "it is done"}], concurrency="exclusive"
    )
    async with open_session(store, provider=provider, tools=[tool]) as session:
        for text in ("Run the tests.", "And now?"):
            await session.send(text)
            await session.rest()


@pytest.fixture(scope="session")
def closed_bytes() -> bytes:
    """The bytes of a closed log."""
    store = MemoryStore()
    trio.run(write_two_turns, store)
    return store.read(0, store.size)


@pytest.fixture
def closed_log(tmp_path: Path, closed_bytes: bytes) -> Path:
    path = tmp_path / "closed.log"
    path.write_bytes(closed_bytes)
    return path


def records_of(data: bytes) -> list[Record]:
    """The records of a log that has no fault."""
    reader = LogReader(MemoryStore(data))
    records = list(reader)
    assert reader.damage is None
    return records


def cut_after(data: bytes, event_type: str, more: int = 0) -> bytes:
    """The log as a crash leaves it right after the first event of a type, and so many bytes later."""
    assert f'"type":"{event_type}"'.encode() in data
    end = 0
    for line in data.splitlines(keepends=True):
        end += len(line)
        if f'"type":"{event_type}"'.encode() in line:
            break
    return data[: end + more]


def log_of(events: Sequence[Event]) -> bytes:
    """A log of these events, whatever they are; one epoch."""
    return b"".join(encode(Record(seq, 1, 0.0, event)) for seq, event in enumerate(events, 1))


@pytest.fixture
def invoke() -> Callable[..., Result]:
    """Run a command line in this process. What it raises is raised."""

    def run(*args: object) -> Result:
        result = CliRunner().invoke(cli, [str(arg) for arg in args])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


PROGRAM = [sys.executable, "-m", "turnkernel_demo"]


@pytest.fixture
def execute(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command line as a process, from another folder than the project's."""

    def run(*args: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PROGRAM, *map(str, args)],
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=60,
            cwd=tmp_path,
            env={**os.environ, **environment},
        )

    return run
