"""What a run and the process that it plays in say to each other. Pure, but for the one who tells.

Values of our own classes, pickled, each behind its length: the two ends are one program, and nobody else has the
pipe. A frame that death cut short is no frame.
"""

import os
import pickle
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from .ledger import Carry, Report
from .scenario import Scenario

__all__ = ["Frames", "Job", "Teller", "frame"]

_LENGTH = struct.Struct("!I")


@attrs.frozen
class Job:
    """What the process is to play."""

    scenario: Scenario
    carry: Carry
    log: Path
    root: Path
    """The scratch root of the tools."""
    base_url: str
    """Of the model server."""
    childrens_url: str
    """What stands before a child session's name in the base URL of its model."""
    seconds: float
    """What is left of the run's limit."""


def frame(value: Any) -> bytes:
    """A value as bytes."""
    data = pickle.dumps(value)
    return _LENGTH.pack(len(data)) + data


class Frames:
    """Bytes, in any split, to values."""

    def __init__(self) -> None:
        self._rest = b""

    def __repr__(self) -> str:
        return f"<Frames {len(self._rest)} bytes waiting>"

    def feed(self, data: bytes | bytearray) -> Iterator[Any]:
        """The values that are whole now."""
        self._rest += data
        while len(self._rest) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._rest)[0]
            if len(self._rest) < end:
                return
            value, self._rest = self._rest[_LENGTH.size : end], self._rest[end:]
            yield pickle.loads(value)


class Teller:
    """Tells reports through a pipe. When a call returns, the report is the system's and survives us."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        # The sync of a log tells too, from its thread.
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Teller to {self._fd}>"

    def __call__(self, report: Report) -> None:
        """Tell. Blocks while the pipe is full. Whoever has stopped listening is not told."""
        data = memoryview(frame(report))
        with self._lock:
            try:
                while data:
                    data = data[os.write(self._fd, data) :]
            except BrokenPipeError:
                pass  # the run is gone; it is noticed where its life line is watched
