"""A kernel for tests to kill: one session that makes a task of one command, then does as it is told.

    python task_kernel.py LOG LIFETIME COMMAND

It works where it is started. It says `begun` when the turn that began the task is over, and obeys words on its
input: `stop` the task (says `stopping` at once, and `stopped` when it has settled), `command` (a turn that runs
one in the foreground; says `running`), `leave` the session. SIGINT cancels the turn (then says `cancelled`).
"""

import signal
import sys
from pathlib import Path

import trio

from turnkernel.events import ToolOutput
from turnkernel.session import Session, open_session
from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel.testing.scripted import ScriptedProvider
from turnkernel_tools import standard_tools

LOG, LIFETIME, COMMAND = sys.argv[1:]


async def main() -> None:
    provider = ScriptedProvider(
        [
            Reply(calls=[ReplyCall("call_1", "bash", {"command": COMMAND, "background": True})]),
            Reply(text="It runs."),
            Reply(calls=[ReplyCall("call_2", "bash", {"command": "echo running; sleep 600"})]),
        ],
        spare=Reply(text="I see."),
    )
    tools = standard_tools(Path.cwd(), grace_seconds=0.05, background=LIFETIME)
    async with (
        open_session(LOG, provider=provider, tools=tools, durability="process") as session,
        trio.open_nursery() as nursery,
    ):
        await session.send("go")
        await session.rest()
        nursery.start_soon(cancel_at_sigint, session)
        nursery.start_soon(tell_output, session)
        print("begun", flush=True)
        while (word := (await trio.to_thread.run_sync(sys.stdin.readline)).strip()) != "leave":
            if word == "stop":
                (task,) = session.status().tasks
                receipt = session.stop_task(task)
                print("stopping", flush=True)
                await receipt.settled()
                print("stopped", flush=True)
            elif word == "command":
                await session.send("and now")
        nursery.cancel_scope.cancel()


async def cancel_at_sigint(session: Session) -> None:
    with trio.open_signal_receiver(signal.SIGINT) as arrived:
        async for _ in arrived:
            await session.cancel().settled()
            print("cancelled", flush=True)


async def tell_output(session: Session) -> None:
    async for event in session.events():
        if isinstance(event, ToolOutput):
            print(event.text, end="", flush=True)


trio.run(main)
