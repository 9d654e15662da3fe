"""What is known of detached work, in files of its folder. Reads and writes them, reads /proc. Standard library.

`keeper` is the claim, made once and for all, by the keeper before it starts anything, or by who looks for it and
finds that there is none: then none will ever start. `tool` names the process, once it is started. `end` says how
it ended, and is the last thing that a keeper writes. All are JSON, and whole or not there.
"""

import json
import os
from contextlib import suppress
from typing import Any, cast

from .below import Process, alive

__all__ = ["END", "KEEPER", "TOOL", "claim", "here", "is_there", "read", "write"]

KEEPER, TOOL, END = "keeper", "tool", "end"

_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def write(folder: str, name: str, fact: dict[str, Any], *, sync: bool = False) -> None:
    """Make a file, or replace it. Raises OSError."""
    os.replace(_written(folder, name, fact, sync), os.path.join(folder, name))  # noqa: PTH105, PTH118


def claim(folder: str, fact: dict[str, Any]) -> bool:
    """Make the file `keeper`, if there is none; whether it was us. Raises OSError."""
    made = _written(folder, KEEPER, fact, False)
    try:
        os.link(made, os.path.join(folder, KEEPER))  # noqa: PTH118
    except FileExistsError:
        return False
    finally:
        os.unlink(made)  # noqa: PTH108
    return True


def read(folder: str, name: str) -> dict[str, Any] | None:
    """What a file says; None when there is none, or not a whole one (a power cut)."""
    try:
        with open(os.path.join(folder, name), "rb") as file:  # noqa: PTH118, PTH123
            fact: Any = json.load(file)
    except (OSError, ValueError):
        return None
    return cast("dict[str, Any]", fact) if isinstance(fact, dict) else None


def here() -> list[str]:
    """In what a pid counts: this boot of this machine, this PID namespace."""
    with open(_BOOT_ID) as file:  # noqa: PTH123
        return [file.read().strip(), os.readlink("/proc/self/ns/pid")]  # noqa: PTH115


def is_there(fact: dict[str, Any] | None) -> Process | None:
    """The process that a file names, if it is alive: the pid *and* its start, on this boot, are the same."""
    with suppress(OSError):
        if fact is not None and fact.get("here") == here():
            process = (int(fact["pid"]), int(fact["start"] or 0))
            return process if alive(process) else None
    return None


def _written(folder: str, name: str, fact: dict[str, Any], sync: bool) -> str:
    path = os.path.join(folder, f".{name}.{os.getpid()}")  # noqa: PTH118
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, json.dumps(fact).encode())
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    return path
