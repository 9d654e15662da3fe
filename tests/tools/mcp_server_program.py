"""An MCP server for tests to use, built with the SDK's own server.

    python mcp_server_program.py FOLDER HOW

HOW: `well` as servers do; `stubborn`, which ignores the end of its input and SIGTERM. One that ends by itself
leaves a note in FOLDER.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp_types import ToolAnnotations

FOLDER, HOW = Path(sys.argv[1]), sys.argv[2]

server = MCPServer("test")
cancelled = asyncio.Event()


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def echo(text: str) -> str:
    """Say it again."""
    return text


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
async def slow(ctx: Context) -> str:
    """Never come to an end."""
    await ctx.report_progress(1, 3, "waiting")
    try:
        await asyncio.Event().wait()
    finally:
        cancelled.set()
    return "?"


@server.tool()
async def until_cancelled() -> str:
    """Wait until a call of `slow` has been cancelled."""
    await cancelled.wait()
    return "it was cancelled"


@server.tool()
async def die() -> str:
    """Be killed in the middle of it."""
    print("I am dying", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
async def flood(mebibytes: int) -> str:
    """Say more on the standard error than anybody reads."""
    for _ in range(mebibytes):
        sys.stderr.write("x" * (1 << 20))
    print("the end", file=sys.stderr, flush=True)
    return "said"


@server.tool()
async def fail() -> str:
    """Fail."""
    raise ValueError("out of paint")


@server.tool(structured_output=False)
async def picture() -> list:
    """Words and a picture."""
    return ["Here:", Image(data=b"\x89PNG", format="png")]


@server.tool()
async def who() -> str:
    """What this process is and has."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL)
    facts = {"pid": os.getpid(), "session": os.getsid(0), "child": child.pid, "env": dict(os.environ)}
    return json.dumps(facts | {"cwd": os.getcwd()})


@server.tool(name="with.dots")
async def dotted() -> str:
    """Have a name that no wire takes."""
    return "dotted"


if HOW == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
server.run()
while HOW == "stubborn":
    signal.pause()
(FOLDER / "left").touch()
