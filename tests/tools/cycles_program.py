"""A kernel for tests: many bash calls in one open session, each cancelled, with few descriptors to have open.

    python cycles_program.py CYCLES TIER

Prints what there was before and after, as JSON: descriptors, threads, trio tasks, children that nobody has reaped;
and those of the supervisor of processes.
"""

import json
import os
import resource
import sys
from pathlib import Path

import trio

from turnkernel.events import ToolOutput
from turnkernel.journal import RecordCursor
from turnkernel.session import Session, open_session
from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel.testing.scripted import ScriptedProvider
from turnkernel_tools import containment, standard_tools
from turnkernel_tools.supervision import supervisor

CYCLES, TIER = int(sys.argv[1]), sys.argv[2]
WARM = 5
COMMAND = "sleep 600 & (setsid sleep 600 &); echo ready; sleep 600"


async def main() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    calls = [ReplyCall(f"call_{number}", "bash", {"command": COMMAND}) for number in range(WARM + CYCLES)]
    provider = ScriptedProvider([Reply(calls=[call]) for call in calls])
    tools = standard_tools(Path.cwd(), grace_seconds=0.5, tier=TIER)
    async with open_session(None, provider=provider, tools=tools, containment=containment(TIER)) as session:
        events = session.records()
        for _ in range(WARM):
            await cycle(session, events)
        before = await counted()
        for _ in range(CYCLES):
            await cycle(session, events)
        after = await counted()
        with trio.move_on_after(20):  # threads that have waited in vain for more to do leave after 10 s
            while after["threads"] > before["threads"]:
                await trio.sleep(0.1)
                after = await counted()
    print(json.dumps([before, after]))


async def cycle(session: Session, events: RecordCursor) -> None:
    """One turn with one call, which is cancelled when the command runs."""
    await session.send("go")
    async for record in events:
        if isinstance(record.event, ToolOutput) and "ready" in record.event.text:
            break
    settled = await session.cancel().settled()
    assert settled.outcome == "aborted"


async def counted() -> dict[str, int]:
    running = await supervisor()
    assert running is not None
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "trio tasks": trio.lowlevel.current_statistics().tasks_living,
        "children": len(children(os.getpid())),  # zombies too
        "descriptors of the supervisor": len(os.listdir(f"/proc/{running.pid}/fd")),
        "children of the supervisor": len(children(running.pid)),
    }


def children(pid: int) -> list[str]:
    return [
        name
        for task in os.listdir(f"/proc/{pid}/task")
        for name in Path(f"/proc/{pid}/task/{task}/children").read_text().split()
    ]


trio.run(main)
