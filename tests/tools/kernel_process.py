"""A kernel for tests to end: one session that runs one command, and says what that says.

    python kernel_process.py HOW COMMAND TIER

HOW it ends when the command has said `ready`: `waits` (to be killed), `returns` and `raises` (when the turn has
ended), `_exit` (at once), `forks` (a child without a new program, and waits), `handles` (SIGTERM), `hears`
(SIGINT, and goes on).
"""

import os
import signal
import sys
from pathlib import Path

import trio

from turnkernel.events import ToolOutput, TurnEnd
from turnkernel.session import Session, open_session
from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel.testing.scripted import ScriptedProvider
from turnkernel_tools import process, standard_tools
from turnkernel_tools.containment import containment

HOW, COMMAND, TIER = sys.argv[1:]
GRACE = 0.05

# A tool that has exited and left something is found draining, for as long as the test needs.
process.DRAIN_SECONDS = 3600.0


async def main() -> None:
    provider = ScriptedProvider(
        [Reply(calls=[ReplyCall("call_1", "bash", {"command": COMMAND})]), Reply(text="I see.")]
    )
    tools = standard_tools(Path.cwd(), grace_seconds=GRACE, tier=TIER)
    async with trio.open_nursery() as nursery:
        if HOW == "handles":
            nursery.start_soon(leave_at_sigterm, nursery.cancel_scope)
        if HOW == "hears":
            nursery.start_soon(hear_sigint)
        async with open_session(None, provider=provider, tools=tools, containment=containment(TIER)) as session:
            await session.send("go")
            await listen(session)
        nursery.cancel_scope.cancel()
    if HOW == "raises":
        raise RuntimeError("as told")


async def hear_sigint() -> None:
    with trio.open_signal_receiver(signal.SIGINT) as arrived:
        async for _ in arrived:
            print("heard", flush=True)


async def leave_at_sigterm(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as arrived:
        async for _ in arrived:
            scope.cancel()


async def listen(session: Session) -> None:
    async for event in session.events():
        if isinstance(event, ToolOutput):
            if "ready" in event.text and HOW == "forks" and os.fork() == 0:
                signal.pause()
            print(event.text, flush=True)
            if "ready" in event.text and HOW == "_exit":
                os._exit(0)
        if isinstance(event, TurnEnd):
            if HOW == "waits":
                await trio.sleep_forever()
            return


trio.run(main)
