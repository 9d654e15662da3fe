"""The output of a process, from a pipe to text. Waits for descriptors; starts nothing."""

import codecs
import os
from collections.abc import Callable

import trio

__all__ = ["OnOutput", "Pipe"]

_READ_BYTES = 65536
_REST_BYTES = 1 << 20  # the most that a pipe holds, by default (pipe(7), pipe-max-size)

OnOutput = Callable[[str, str], None]
"""Called with text and stream (`stdout`, `stderr`, or `note` for what this package has to say), without a
checkpoint around it. What it raises ends the process and passes."""


class Pipe:
    """One stream of output, from the system to text."""

    def __init__(self, stream: str, on_output: OnOutput) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self.ended = False
        self._stream = stream
        self._on_output = on_output
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def __repr__(self) -> str:
        return f"<Pipe {self._stream} {'ended' if self.ended else 'open'}>"

    def __enter__(self) -> "Pipe":
        return self

    def __exit__(self, *_: object) -> None:
        self.close_write_end()
        os.close(self.read_end)

    def close_write_end(self) -> None:
        os.close(self.write_end)

    async def pump(self) -> None:
        """Pass on what comes, until the end. Waits for the selector each time, so a flood lets others run."""
        while not self.ended:
            await trio.lowlevel.wait_readable(self.read_end)
            self._read()

    def finish(self) -> None:
        """Pass on what is there already, at most a pipe full, and close."""
        try:
            most = _REST_BYTES
            while not self.ended and most > 0 and (got := self._read()):
                most -= got
            self._show(self._decoder.decode(b"", final=True))
        finally:
            os.close(self.read_end)

    def _read(self) -> int:
        try:
            data = os.read(self.read_end, _READ_BYTES)
        except BlockingIOError:
            return 0
        self.ended = not data
        self._show(self._decoder.decode(data))
        return len(data)

    def _show(self, text: str) -> None:
        if text:
            self._on_output(text, self._stream)
