"""A kernel for tests to end or to interrupt: one session with an MCP server.

    python mcp_kernel_program.py FOLDER HOW [terminal]

With `terminal` its standard input becomes its controlling terminal. It calls `who` and prints what that says, then
calls `slow` and prints `waiting`. At SIGINT it stops that turn, prints how it ended, and calls `who` once more.
"""

import fcntl
import signal
import sys
import termios
from pathlib import Path

import trio

from turnkernel.events import ToolOutput, ToolResult, TurnEnd
from turnkernel.session import Session, open_session
from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel.testing.scripted import ScriptedProvider
from turnkernel_tools.mcp import mcp_server

FOLDER, HOW = sys.argv[1:3]
SERVER = Path(__file__).with_name("mcp_server_program.py")

if "terminal" in sys.argv:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


async def main() -> None:
    calls = [Reply(calls=[ReplyCall(f"call_{name}", f"t_{name}", {})]) for name in ("who", "slow")]
    replies = [calls[0], Reply(text="I see."), calls[1], calls[0], Reply(text="I see.")]
    server = mcp_server("t", [sys.executable, str(SERVER), FOLDER, HOW])
    async with open_session(None, provider=ScriptedProvider(replies), resources=[server]) as session:
        await session.send("who are you?")
        await session.rest()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(interrupted, session)
            await session.send("wait")
            await listen(session)
            nursery.cancel_scope.cancel()


async def interrupted(session: Session) -> None:
    with trio.open_signal_receiver(signal.SIGINT) as arrived:
        async for _ in arrived:
            await session.cancel().settled()
            await session.send("who are you now?")


async def listen(session: Session) -> None:
    turns = 0
    async for event in session.events():
        match event:
            case ToolOutput():
                print("waiting", flush=True)
            case ToolResult():
                print(event.text.splitlines()[0], flush=True)
            case TurnEnd():
                turns += 1
                if turns == 3:
                    return


trio.run(main)
