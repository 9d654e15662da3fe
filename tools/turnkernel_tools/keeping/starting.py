"""Starts what a keeper is told to: a process that leads a session of its own. Starts processes."""

import marshal
import os
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Order", "read_order", "start"]


class Order(NamedTuple):
    """What to start, as the kernel has written it."""

    argv: list[bytes]
    cwd: bytes
    env: dict[bytes, bytes]
    inside: bool
    """Whether in a PID namespace of its own."""


def read_order(paper: int) -> Order:
    """What a file in memory says."""
    return Order(*marshal.loads(os.pread(paper, os.fstat(paper).st_size, 0)))


def start(order: Order, streams: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start it with these as standard input, output and error. Raises OSError. The result, if dropped, reaps."""
    given, out, err = streams
    return subprocess.Popen(
        order.argv,
        cwd=order.cwd,
        env=order.env,
        stdin=given,
        stdout=out,
        stderr=err,
        start_new_session=True,  # no controlling terminal: reading /dev/tty would stop it with SIGTTIN
    )
