"""The logs of child sessions below a log: counted, and closed in copies of them in memory. Only reads."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import trio

from turnkernel.errors import SessionLiveError
from turnkernel.journal import Journal
from turnkernel.recovery import close_children
from turnkernel.store import MemoryStore, ReadOnlyStore
from turnkernel.wording import DEFAULT

__all__ = ["lines_below", "would_close"]


class _Copy(MemoryStore):
    """A log's bytes as they are, and those of the logs beside it once they are asked for."""

    def __init__(self, path: Path, *, live: bool = False) -> None:
        data = b""
        if path.exists():
            store = ReadOnlyStore.open(path)
            try:
                if store.is_live() and not live:
                    raise SessionLiveError(str(path))
                data = store.read(0, store.size)
            finally:
                store.close()
        super().__init__(data)
        self.path = path
        self.before = data.count(b"\n")
        self.below: list[_Copy] = []

    def beside(self, name: str) -> "_Copy":
        """In the folder of this log. Raises ValueError, `SessionLiveError`, OSError, as an opening would."""
        parts = PurePosixPath(name).parts
        if parts[:1] != (f"{self.path.name}.d",) or ".." in parts or len(parts) < 2:
            raise ValueError(f"{name!r} does not lead into {self.path.name}.d")
        copy = _Copy(self.path.parent / name)
        self.below.append(copy)
        return copy

    def added(self) -> dict[Path, int]:
        """Records that were appended to the copies below, the deepest first."""
        found: dict[Path, int] = {}
        for copy in self.below:
            found |= copy.added()
            more = copy.read(0, copy.size).count(b"\n") - copy.before
            if more:
                found[copy.path] = more
        return found


def would_close(log: Path) -> tuple[Mapping[str, str], Mapping[Path, int]]:
    """What an opening of this log does to those below it, tried in memory: how each child ended, in words, by the
    name of its log; and how many records each log would get, the deepest first.

    For a log that is not damaged.
    """
    copy = _Copy(log, live=True)

    async def close() -> Mapping[str, str]:
        journal = Journal(copy, durability="memory", clock=trio.current_time)
        journal.load()
        return await close_children(journal, DEFAULT)

    words = trio.run(close)
    return words, copy.added()


def lines_below(log: Path) -> Mapping[Path, int]:
    """How many lines each log below has now, the deepest first."""
    logs = sorted(log.with_name(f"{log.name}.d").rglob("*.log"), key=lambda one: (-len(one.parts), one))
    return {one: one.read_bytes().count(b"\n") for one in logs if one.is_file()}
