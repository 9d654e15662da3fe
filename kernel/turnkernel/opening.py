"""The arguments of `open_session`, looked at before there is a log. Pure; touches nothing."""

import errno
import os
from os import PathLike
from pathlib import Path
from typing import cast

from .checks import check_provider, check_tools, one_of
from .gate import Gate
from .kernel import Settings
from .tool import Tool

__all__ = ["check_opening"]


def check_opening(
    path: object, *, provider: object, tools: object, settings: object, gate: object, durability: object
) -> tuple[Tool, ...]:
    """The tools, once everything was looked at.

    Raises TypeError or ValueError for what can't open a session, naming the argument, and IsADirectoryError for a
    path that can only be a folder's.
    """
    if isinstance(path, str | PathLike):
        path = Path(cast("str", path))
        if not path.name:  # "", "." and "/", which no file can be called
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    elif path is not None and not (hasattr(path, "write") and hasattr(path, "sync")):
        raise TypeError(f"path must be a file's path, None for a log in memory, or a Store, not {path!r}")
    check_provider(provider)
    checked = check_tools(tools)
    if settings is not None and not isinstance(settings, Settings):
        raise TypeError(f"settings must be a Settings, not {settings!r}")
    if gate is not None and not isinstance(gate, Gate):
        raise TypeError(f"gate must be a Gate, not {gate!r}")
    one_of("durability", durability, ("power", "process", "memory"))
    return checked
