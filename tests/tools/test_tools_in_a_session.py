"""The tools in the real kernel: what the log says of a call that a cancel cut."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trio

from turnkernel.events import ToolOutput, ToolResult, ToolStart, TurnEnd, TurnSurvivor
from turnkernel.session import Session, open_session
from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel.testing.scripted import ScriptedProvider
from turnkernel.tool import Tool, ToolContext
from turnkernel_tools import standard_tools, tool

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="what is left alive is counted in /proc; a Linux machine would run it"
)


def model_that_calls(name: str, **input: object) -> ScriptedProvider:
    call = f"call_{os.getpid()}_{name}"
    return ScriptedProvider([Reply(calls=[ReplyCall(call, name, input)]), Reply(text="I see.")])


def alive(name: str) -> list[str]:
    """Processes that bear the mark of the call of this test."""
    mark = f"call_{os.getpid()}_{name}.".encode()
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_text())
            except OSError:
                continue
    return found


async def wait_for(session: Session, kind: type, text: str = "") -> None:
    async for event in session.events():
        if isinstance(event, kind) and text in getattr(event, "text", ""):
            return


async def play(provider: ScriptedProvider, tools: list[Tool], until: type, text: str, *cancels: str) -> list:
    """Run one turn, cancel it when an event has come, as often as said; every event."""
    with trio.fail_after(20):
        async with open_session(None, provider=provider, tools=tools) as session:
            await session.send("go")
            await wait_for(session, until, text)
            for _ in cancels:
                receipt = session.cancel()
            await receipt.settled()
            return [record.event async for record in _so_far(session)]


async def _so_far(session: Session):
    async for record in session.records():
        yield record
        if isinstance(record.event, TurnEnd):
            return


def only(events: list, kind: type):
    (found,) = [event for event in events if isinstance(event, kind)]
    return found


async def test_a_stopped_command_has_its_output_in_its_result_and_nothing_alive(tmp_path):
    provider = model_that_calls("bash", command="trap 'echo bye; exit' TERM; echo ready; sleep 600 & wait")
    events = await play(provider, standard_tools(tmp_path), ToolOutput, "ready", "stop")
    result = only(events, ToolResult)
    assert (result.status, result.is_error) == ("stopped", True)
    assert "ready\n" in result.text
    assert "bye\n" in result.text
    assert "[Process interrupted by user]" in result.text
    assert only(events, TurnEnd).outcome == "aborted"
    assert alive("bash") == []


async def test_a_second_stop_ends_the_grace_and_the_result_says_killed(tmp_path):
    command = "trap '' TERM; echo ready; while :; do sleep 60; done"
    provider = model_that_calls("bash", command=command)
    tools = standard_tools(tmp_path, grace_seconds=3600.0)
    events = await play(provider, tools, ToolOutput, "ready", "stop", "now")
    result = only(events, ToolResult)
    assert result.status == "stopped"
    assert "Killed by SIGKILL" in result.text
    assert [event for event in events if isinstance(event, TurnSurvivor)] == []
    assert alive("bash") == []


async def test_a_thread_that_is_left_makes_its_result_unknown():
    go = threading.Event()

    @tool
    def stuck(ctx: ToolContext) -> str:
        ctx.emit("ready")
        go.wait()
        return "done"

    try:
        events = await play(model_that_calls("stuck"), [stuck], ToolOutput, "ready", "stop", "now")
    finally:
        go.set()
    assert only(events, ToolResult).status == "unknown"
    assert only(events, TurnSurvivor).kind == "thread"


async def test_a_file_is_written_and_the_model_is_told(tmp_path):
    provider = model_that_calls("write_file", path="x/a", content="text")
    async with open_session(None, provider=provider, tools=standard_tools(tmp_path)) as session:
        await session.send("go")
        await session.rest()
        events = [record.event async for record in _so_far(session)]
    assert only(events, ToolResult).text == "Wrote x/a: 4 bytes, a new file."
    assert only(events, ToolStart).effect == "effect"
    assert (tmp_path / "x" / "a").read_text() == "text"


FLOOD = """
import resource, sys
from pathlib import Path
import trio
from turnkernel.session import open_session
from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel.testing.scripted import ScriptedProvider
from turnkernel_tools import standard_tools

async def main():
    def flood(size):
        return Reply(calls=[ReplyCall(f"call_{size}", "bash", {"command": f"yes | head -c {size}"})])
    provider = ScriptedProvider([flood(10_000_000), Reply(text="1"), flood(300_000_000), Reply(text="2")])
    async with open_session(Path(sys.argv[1]), provider=provider, tools=standard_tools(Path.cwd())) as session:
        for _ in range(2):
            await session.send("go")
            await session.rest()
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)

trio.run(main)"""


def test_a_flood_of_output_stays_bounded_in_memory_and_in_the_log(tmp_path):
    log = tmp_path / "log.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", FLOOD, log], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120
    )
    before, after = map(int, done.stdout.split())
    assert after - before < 20 * 1024  # KiB, of 300 MB
    assert log.stat().st_size < 2 << 20
