"""Functions for tests that run them in processes: each is at the top of this module, which can be imported."""

import ctypes
import enum
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import attrs

from turnkernel.tool import ToolOutput
from turnkernel_tools import tool


class Color(enum.Enum):
    RED = "red"


@attrs.frozen
class Pair:
    left: int
    right: Color = Color.RED


@tool(isolation="process", effect="read_only", timeout=60.0)
def add(left: int, right: int = 2) -> int:
    """Adds."""
    return left + right


@tool(isolation="process")
def types(pair: Pair, words: list[str]) -> dict[str, object]:
    """Tells what it was given."""
    return {"pair": f"{pair}", "words": words}


@tool(isolation="process")
def speaks() -> str:
    """Says something on both streams."""
    print("out")
    print("err", file=sys.stderr)
    return f"{os.getpid()} {sys.stdin.read()!r}"


@tool(isolation="process")
def own_output() -> ToolOutput:
    """Makes its own result."""
    return ToolOutput("not so good", is_error=True)


@tool(isolation="process")
def raises(text: str) -> None:
    """Raises."""
    raise FileNotFoundError(text)


@tool(isolation="process")
def unsayable() -> object:
    """Returns what JSON has no words for."""
    return object()


@tool(isolation="process")
def leaves(how: str) -> None:
    """Ends its process."""
    print("last words", flush=True)
    if how == "exit":
        os._exit(7)
    if how == "sys.exit":
        sys.exit(3)
    if how == "segfault":
        ctypes.string_at(0)
    os.kill(os.getpid(), signal.SIGKILL)


@tool(isolation="process")
def kills_its_keeper() -> None:
    """Kills its parent, and does not return."""
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


@tool(isolation="process")
def blocks(deaf: bool) -> None:
    """Never returns."""
    if deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    print("ready", flush=True)
    with Path("/dev/zero").open("rb") as file:
        while True:
            file.read(1000)


@tool(isolation="process")
def leaves_a_thread() -> str:
    """Returns with a thread that does not."""
    threading.Thread(target=time.sleep, args=(600,)).start()
    return "returned"


def plain(left: int) -> int:
    """Not a tool by itself."""
    return left


plain_tool = tool(isolation="process", name="other")(plain)
