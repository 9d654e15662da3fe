"""A kernel for tests that is process 1: calls of bash that leave a child each, in one session.

Prints the statuses of their results, and how many zombies there are when all is over, as JSON.
"""

import json
import os
import time
from pathlib import Path

import trio

from turnkernel.events import ToolResult, TurnEnd
from turnkernel.session import Settings, open_session
from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel.testing.scripted import ScriptedProvider
from turnkernel_tools import containment, standard_tools

COUNT = 50


async def main() -> None:
    calls = [
        ReplyCall(f"call_{number}", "bash", {"command": f"(sleep 0.1 &); exit {number % 3}"})
        for number in range(COUNT)
    ]
    provider = ScriptedProvider([*(Reply(calls=[call]) for call in calls), Reply(text="I see.")])
    tools = standard_tools(Path.cwd())
    settings = Settings(max_steps=COUNT + 1)
    results: list[str] = []
    async with open_session(
        None, provider=provider, tools=tools, containment=containment(), settings=settings
    ) as session:
        await session.send("go")
        async for event in session.events():
            if isinstance(event, ToolResult):
                results.append(event.text)
            if isinstance(event, TurnEnd):
                break
        end = time.monotonic() + 20
        while zombies() and time.monotonic() < end:  # noqa: ASYNC110 - nobody tells of it
            await trio.sleep(0.01)
        print(json.dumps({"pid": os.getpid(), "results": results, "zombies": zombies()}))


def zombies() -> int:
    states = [stat.read_text().rpartition(")")[2].split()[0] for stat in Path("/proc").glob("[0-9]*/stat")]
    return states.count("Z")


trio.run(main)
