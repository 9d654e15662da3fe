"""What is kept of a task's output: in files beside the log, or in memory where the log is. Writes those files.

Both are bounded: the head and the tail are kept, and what was cut between them is told.
"""

from pathlib import Path
from typing import Protocol

from turnkernel.logfile import make_private
from turnkernel.text import Clip

from .keeping.capped import CappedWriter, read_output

__all__ = ["FileOutput", "Kept", "MemoryOutput", "output_folder"]

MEMORY_BYTES = 64 * 1024
"""Of the output of one task, where the log is in memory."""


class Kept(Protocol):
    """The output of one task."""

    def add(self, text: str) -> None:
        """Keep more of it. Synchronous, never raises."""
        ...

    def text(self) -> str:
        """What is kept, with the cut told where it is."""
        ...

    def close(self) -> None:
        """Nothing more will come."""
        ...


class MemoryOutput:
    """Output in memory, as long as the tool remembers it."""

    def __init__(self) -> None:
        self._clip = Clip(MEMORY_BYTES)

    def __repr__(self) -> str:
        return f"<MemoryOutput of {self._clip.total} bytes>"

    def add(self, text: str) -> None:
        """See `Kept`."""
        self._clip.add(text)

    def text(self) -> str:
        """See `Kept`."""
        return self._clip.text()

    def close(self) -> None:
        """Nothing to do."""


class FileOutput:
    """Output in files of one folder, see `keeping.capped`."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError where they can't be made."""
        self._folder = folder
        self._writer = CappedWriter(folder)

    def __repr__(self) -> str:
        return f"<FileOutput {self._folder}, {self._writer.written} bytes>"

    def add(self, text: str) -> None:
        """See `Kept`. What the disk does not take is lost, which `text` tells."""
        self._writer.write(text.encode("utf-8", "replace"))

    def text(self) -> str:
        """See `Kept`."""
        lost = self._writer.error
        note = f"\n[Not all of it could be written: {lost.strerror}]" if lost is not None else ""
        return read_output(self._folder).text() + note

    def close(self) -> None:
        """See `Kept`."""
        self._writer.close()


def output_folder(beside: Path, name: str) -> Path:
    """Make a private folder for the output of one task in the session's. Raises OSError."""
    make_private(beside)
    folder = beside / name
    folder.mkdir(0o700)
    return folder
