"""A log that is being written, followed from its file. Reads that file and the system's locks; waits for nothing.

For whoever is not in the program that writes: it takes no lock and is a cursor like any other, so a slow or dead
follower harms nobody.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import attrs

from turnkernel.codec import BadLineError, decode
from turnkernel.events import Record
from turnkernel.store import ReadOnlyStore, lines

__all__ = ["Change", "Tail", "writer_of"]


@attrs.frozen
class Change:
    """What has come, and what has gone."""

    records: Sequence[Record] = ()
    """New ones, in order."""
    removed: int = 0
    """How many of those seen before are gone (law L7 is broken); the new ones stand in their place."""


class Tail:
    """The records of a log's file as they come. Lines that are no record (a torn end) are left out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: list[Record] = []
        """Those that are there, as far as has been looked."""
        self._end = 0
        """Where in the file the line after the last one begins."""
        self._last = b""
        """The line of the last one."""

    def __repr__(self) -> str:
        return f"<Tail of {self.path} at {len(self.records)}>"

    def look(self) -> Change:
        """What has changed since the last look. A file that is not there yet is an empty one."""
        try:
            store = ReadOnlyStore.open(self.path)
        except FileNotFoundError:
            return Change()
        try:
            place = self._end - len(self._last) - 1
            if not self.records or store.read(place, len(self._last) + 1) == self._last + b"\n":
                return Change(self._read(store))
            before, self.records, self._end = self.records, [], 0
            self._read(store)
        finally:
            store.close()
        pairs = zip(before, self.records, strict=False)
        kept = next((place for place, (one, other) in enumerate(pairs) if one != other), None)
        if kept is None:
            kept = min(len(before), len(self.records))
        return Change(self.records[kept:], len(before) - kept)

    def _read(self, store: ReadOnlyStore) -> Sequence[Record]:
        new: list[Record] = []
        for offset, line, whole in lines(store, self._end):
            if not whole:
                break  # half written, perhaps
            try:
                new.append(decode(line))
            except BadLineError:
                continue
            self._end, self._last = offset + len(line) + 1, line
        self.records += new
        return new


def writer_of(log: Path) -> int | None:
    """The pid of the program that has the log open for writing; None where there is none, or no way to know.

    Reads the system's list of locks (proc_locks(5), Linux): trying the lock would keep a writer out for a moment.
    """
    try:
        lock = log.with_name(log.name + ".lock").stat()
        listed = Path("/proc/locks").read_text("ascii")
    except OSError:
        return None
    place = f"{os.major(lock.st_dev):02x}:{os.minor(lock.st_dev):02x}:{lock.st_ino}"
    for line in listed.splitlines():
        fields = line.split()
        if fields[1] == "FLOCK" and fields[5] == place:
            return int(fields[4])
    return None
