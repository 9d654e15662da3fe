"""The tools `read_file`, `write_file` and `edit_file`, confined to one directory. Touch files beneath it only."""

import codecs
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import trio

from turnkernel.tool import Tool, ToolContext, ToolOutput

from .confined import RefusedError, Root
from .function import tool
from .replace import replace_file

__all__ = ["edit_file_tool", "read_file_tool", "write_file_tool"]

READ_BYTES = 256 * 1024
"""Of a file, at most, from its beginning; the kernel shows the model less still."""

EDIT_BYTES = 16 * 1024 * 1024
"""A larger file is not edited."""

DISK_SECONDS = 60.0
"""The bound of the section in which a file is replaced. It takes milliseconds, but for a stuck network disk."""

_PATH = "Relative to the working directory, or absolute in it."
_TOLD_LINES = 10


def read_file_tool(root: Path) -> Tool:
    """The tool `read_file {path}`."""
    confined = Root(root)

    @tool(name="read_file", effect="read_only")
    async def read_file(path: Annotated[str, _PATH]) -> ToolOutput:
        """Read a text file."""
        return await _in_thread(path, partial(_read, confined, path))

    return read_file


def write_file_tool(root: Path) -> Tool:
    """The tool `write_file {path, content}`. A cancel leaves the old file or the new one, whole."""
    confined = Root(root)

    @tool(name="write_file", effect="effect")
    async def write_file(
        ctx: ToolContext,
        path: Annotated[str, _PATH],
        content: Annotated[str, "The whole new content."],
    ) -> ToolOutput:
        """Write a file: make it, and the directories it is in, or replace its whole content."""
        return await _uncut(ctx, path, partial(_write, confined, path, content))

    return write_file


def edit_file_tool(root: Path) -> Tool:
    """The tool `edit_file {path, old, new}`. A cancel leaves the old file or the new one, whole."""
    confined = Root(root)

    @tool(name="edit_file", effect="effect")
    async def edit_file(
        ctx: ToolContext,
        path: Annotated[str, _PATH],
        old: Annotated[str, "Text that occurs exactly once in the file, with its spaces and line ends."],
        new: Annotated[str, "What to put in its place."],
    ) -> ToolOutput:
        """Replace one piece of text in a file."""
        return await _uncut(ctx, path, partial(_edit, confined, path, old, new))

    return edit_file


async def _in_thread(path: str, work: Callable[[], ToolOutput]) -> ToolOutput:
    """Do it in a thread, which a cancel waits for. What goes wrong is a result that names the path."""
    try:
        return await trio.to_thread.run_sync(work, limiter=trio.CapacityLimiter(1))
    except RefusedError as error:
        return ToolOutput(str(error), is_error=True)
    except OSError as error:
        return ToolOutput(f"{path}: {error.strerror or error}", is_error=True)


async def _uncut(ctx: ToolContext, path: str, work: Callable[[], ToolOutput]) -> ToolOutput:
    """Like `_in_thread`, but once begun it is done to the end, and said, also at a cancel."""
    done: list[ToolOutput] = []
    with ctx.critical(f"replacing {path}", DISK_SECONDS):
        done.append(await _in_thread(path, work))
    if not done:  # the section was over before the thread began
        await trio.lowlevel.checkpoint()
        return ToolOutput(f"{path}: nothing was written; there was no time", is_error=True)
    return done[0]


# ------------------------------------------------------------------------------------- in the thread


def _load(root: Root, path: str, most: int) -> tuple[bytes, int]:
    """The first `most` bytes of a file, and its size."""
    with root.place(path) as place, os.fdopen(place.open_to_read(), "rb") as file:
        return file.read(most), os.fstat(file.fileno()).st_size


def _read(root: Root, path: str) -> ToolOutput:
    data, size = _load(root, path, READ_BYTES)
    if b"\0" in data:
        return ToolOutput(f"{path}: a binary file of {size} bytes; not shown", is_error=True)
    cut = size > len(data)
    notes: list[str] = []
    try:
        text = _decode(data, "strict", cut)
    except UnicodeDecodeError:
        text = _decode(data, "replace", cut)
        notes.append("[The file is not all UTF-8; what is not is shown as U+FFFD]")
    if cut:
        notes.append(f"[The file has {size} bytes; the first {len(data)} are shown]")
    if notes and not text.endswith("\n"):
        text += "\n"
    text += "\n".join(notes)
    return ToolOutput(text if text.strip() else f"[{path}: {size} bytes, nothing to see]")


def _decode(data: bytes, errors: str, cut: bool) -> str:
    """As text; a character that the cut went through is left out."""
    return codecs.getincrementaldecoder("utf-8")(errors).decode(data, final=not cut)


def _write(root: Root, path: str, content: str) -> ToolOutput:
    data = _encode(path, content)
    with root.place(path, create=True) as place:
        new = replace_file(place, data)
    return ToolOutput(f"Wrote {path}: {len(data)} bytes{', a new file' if new else ''}.")


def _edit(root: Root, path: str, old: str, new: str) -> ToolOutput:
    """On bytes: whatever is not touched stays as it is, line ends and bytes that are no UTF-8 too."""
    before, after = _encode(path, old), _encode(path, new)
    if not before or before == after:
        return ToolOutput("Nothing to change: `old` is empty or the same as `new`.", is_error=True)
    with root.place(path) as place:
        with os.fdopen(place.open_to_read(), "rb") as file:
            data = file.read(EDIT_BYTES + 1)
        if len(data) > EDIT_BYTES:
            raise RefusedError(f"{path}: over {EDIT_BYTES} bytes, too large to edit")
        found = _occurrences(data, before)
        if len(found) != 1:
            return ToolOutput(f"{path}: {_not_once(data, found)} Nothing was changed.", is_error=True)
        replace_file(place, data[: found[0]] + after + data[found[0] + len(before) :])
    return ToolOutput(f"Edited {path} at line {_line(data, found[0])}.")


def _encode(path: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise RefusedError(f"{path}: the text holds a lone surrogate at character {error.start}") from None


def _occurrences(data: bytes, piece: bytes) -> list[int]:
    """Where a piece begins in the data; also where two of them overlap, since either could be meant."""
    found: list[int] = []
    at = data.find(piece)
    while at >= 0:
        found.append(at)
        at = data.find(piece, at + 1)
    return found


def _not_once(data: bytes, found: list[int]) -> str:
    if not found:
        return "`old` does not occur in it."
    lines = [str(_line(data, at)) for at in found[:_TOLD_LINES]]
    more = ", ..." if len(found) > _TOLD_LINES else ""
    return f"`old` occurs {len(found)} times in it, at lines {', '.join(lines)}{more}; it must occur exactly once."


def _line(data: bytes, at: int) -> int:
    return data.count(b"\n", 0, at) + 1
