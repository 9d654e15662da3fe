"""Tools for turnkernel: what a model can do on this machine, stopped when its call is. Imports only."""

from collections.abc import Collection
from pathlib import Path

from turnkernel.tool import Tool

from .ask import ask_tool
from .bash import bash_tool
from .containment import Tier, containment
from .files import edit_file_tool, read_file_tool, write_file_tool
from .function import FunctionTool, tool
from .process import NotStartedError, ProcessEnd, run_process

__all__ = [
    "FunctionTool",
    "NotStartedError",
    "ProcessEnd",
    "Tier",
    "ask_tool",
    "bash_tool",
    "containment",
    "edit_file_tool",
    "read_file_tool",
    "run_process",
    "standard_tools",
    "tool",
    "write_file_tool",
]


def standard_tools(
    root: str | Path, *, grace_seconds: float = 2.0, hidden: Collection[str] = (), tier: Tier = "tree"
) -> list[Tool]:
    """`bash`, `read_file`, `write_file`, `edit_file` and `ask_user`, working in `root`.

    The file tools can't leave `root`; `bash` only starts there. `grace_seconds` lie between SIGTERM and SIGKILL;
    `hidden` names environment variables that commands do not get, besides the providers' keys. `tier` is the
    containment of processes that is wanted; `containment(tier)` tells which is in force here.
    """
    place = Path(root)
    return [
        bash_tool(place, grace_seconds=grace_seconds, hidden=hidden, tier=tier),
        read_file_tool(place),
        write_file_tool(place),
        edit_file_tool(place),
        ask_tool(),
    ]
