"""Tools for turnkernel: what a model can do on this machine, stopped when its call is. Imports only."""

from collections.abc import Collection
from pathlib import Path

from turnkernel.tool import TaskLifetime, Tool

from .agent import agent_tools
from .ask import ask_tool
from .bash import BashTool, bash_tool
from .containment import Tier, containment
from .detached import Detached, start_detached
from .files import edit_file_tool, read_file_tool, write_file_tool
from .function import FunctionTool, IsolatedTool, tool
from .process import NotStartedError, ProcessEnd, run_process
from .tasks import ShowsTasks, task_list_tool, task_output_tool, task_stop_tool

__all__ = [
    "BashTool",
    "Detached",
    "FunctionTool",
    "IsolatedTool",
    "NotStartedError",
    "ProcessEnd",
    "ShowsTasks",
    "Tier",
    "agent_tools",
    "ask_tool",
    "bash_tool",
    "containment",
    "edit_file_tool",
    "read_file_tool",
    "run_process",
    "standard_tools",
    "start_detached",
    "task_list_tool",
    "task_output_tool",
    "task_stop_tool",
    "tool",
    "write_file_tool",
]


def standard_tools(
    root: str | Path,
    *,
    grace_seconds: float = 2.0,
    hidden: Collection[str] = (),
    tier: Tier = "tree",
    background: TaskLifetime = "session",
) -> list[Tool]:
    """`bash`, with `task_list`, `task_output` and `task_stop`; the file tools; `ask_user`. All work in `root`.

    The file tools can't leave `root`; `bash` only starts there. `grace_seconds` lie between SIGTERM and SIGKILL;
    `hidden` names environment variables that commands do not get, besides the providers' keys. `tier` is the
    containment of processes that is wanted; `containment(tier)` tells which is in force here. `background` is how
    long commands run that `bash` makes tasks of: until the session ends, or `detached`, beyond it.
    """
    place = Path(root)
    return [
        bash_tool(place, grace_seconds=grace_seconds, hidden=hidden, tier=tier, background=background),
        read_file_tool(place),
        write_file_tool(place),
        edit_file_tool(place),
        ask_tool(),
        task_list_tool(),
        task_output_tool(),
        task_stop_tool(),
    ]
