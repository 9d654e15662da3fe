"""A disk that fails: each of its operations, once and for ever, and what is there afterwards. Writes real files.

SQLite's method: fail the n-th operation of a kind, for n = 1, 2, ... until the run passes. The model disk fails
writes in the middle and is crashed afterwards; real files meet every system call that a log makes.
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from ..codec import encode
from ..disk import Disk
from ..errors import LogDamagedError, TurnkernelError
from ..events import Record
from ..grammar import Grammar
from ..records import read_records, refusal
from ..store import FileStore, MemoryStore
from .crash import CrashChecker, Parts, Played, Swept, play_on, play_on_disk
from .disk_model import Crash, Fault, ModelDisk, crashes
from .laws import Violation, check_append_only
from .sweep import Program

__all__ = ["CALLS", "CallFault", "FaultyDisk", "sweep_calls", "sweep_faults"]


# ------------------------------------------------------------------------------------------------ a model disk


def sweep_faults(
    program: Program, *, parts: Parts | None = None, durability: str = "power", most: int = 10
) -> Swept:
    """Fail each write and each sync of a program, once and for ever, with a full and with a bad disk; then crash.

    Writes fail whole, after one byte, after a part, and before the last byte. What is checked is what a crash
    leaves after the failure: nothing that was reported as failed may be there, and nothing promised may be lost.
    Stops at `most` violations.
    """
    parts = parts or Parts()
    swept = Swept()
    whole = play_on_disk(program, durability=durability, parts=parts)
    for fault in _faults(whole.disk):
        played = play_on_disk(program, durability=durability, fault=fault, parts=parts)
        if played.error is None:
            swept.found.append((str(fault), Violation("L8", 0, "the disk failed, and nobody was told")))
        checker = CrashChecker(played, parts)
        seen: set[Crash] = set()
        for crash in crashes(played.disk, stride=1 << 30, since=_last_write(played.disk)):
            swept.states += 1
            if (key := attrs.evolve(crash, label="")) not in seen:
                seen.add(key)
                swept.distinct += 1
                swept.found += [(f"{fault}, {crash.label}", one) for one in checker.check(crash)]
        if len(swept.found) >= most:
            break
    return swept


def _last_write(disk: ModelDisk) -> int:
    """Where the failure was met: nothing is written after it."""
    return max((number for number, op in enumerate(disk.trace) if op.kind in ("write", "bad sync")), default=0)


def _faults(disk: ModelDisk) -> Iterable[Fault]:
    writes = [op.data for op in disk.trace if op.kind == "write"]
    for number, data in enumerate(writes, 1):
        parts = {0, 1, len(data) - 1, *(place + 1 for place, byte in enumerate(data[:-1]) if byte == 10)}
        for part in sorted(parts):
            for lasting in (False, True):
                yield Fault("write", number, errno.ENOSPC, lasting, part)
        yield Fault("write", number, errno.EIO)
    for number in range(1, 1 + sum(op.kind == "sync" for op in disk.trace)):
        for lasting in (False, True):
            yield Fault("sync", number, errno.EIO, lasting)
            yield Fault("sync", number, errno.ENOSPC, lasting)


# -------------------------------------------------------------------------------------------------- real files

CALLS: Mapping[str, tuple[int, ...]] = {
    "open": (errno.EIO, errno.EMFILE),
    "lock": (errno.ENOLCK, errno.EWOULDBLOCK),
    "stat": (errno.EIO,),
    "read": (errno.EIO,),
    "write": (errno.EIO, errno.ENOSPC),
    "truncate": (errno.EIO,),
    "allocate": (errno.EIO, errno.ENOSPC),
    "duplicate": (errno.EMFILE,),
    "sync": (errno.EIO, errno.ENOSPC),
    "sync_all": (errno.EIO, errno.ENOSPC),
    "make_folder": (errno.EIO, errno.ENOSPC),
    "rename": (errno.EIO, errno.ENOSPC),
    "remove": (errno.EIO,),
    "unlock": (errno.EIO,),
    "close": (errno.EIO,),
}
"""Every call of a `Disk`, and what it may meet."""

_SYNCS = ("sync", "sync_all")
"""What a disk that does not fail is not made to do: thousands of syncs take minutes, and show nothing."""


@attrs.frozen
class CallFault:
    """What the n-th call of a kind (from 1) meets."""

    call: str
    number: int
    error: int
    lasting: bool = False
    """Whether every later one meets it too."""


class FaultyDisk(Disk):
    """The file system, with a fault. Counts its calls, so that without one it says what there is to fail."""

    def __init__(self, fault: CallFault | None = None) -> None:
        self.fault = fault
        self.counts = dict.fromkeys(CALLS, 0)
        self.held: set[int] = set()
        """Descriptors that are open."""
        for name in CALLS:
            setattr(
                self, name, partial(self._call, name, getattr(super(), name) if name not in _SYNCS else _nothing)
            )

    def _call(self, name: str, real: Callable[..., Any], *args: Any, **options: Any) -> Any:
        number = self.counts[name] = self.counts[name] + 1
        fault = self.fault
        if fault is None or name != fault.call or not (number == fault.number or self._lasts(number)):
            return self._kept(name, args, real(*args, **options))
        if name in ("close", "unlock"):
            self._kept(name, args, real(*args, **options))  # the system says so and does it all the same
        raise OSError(fault.error, os.strerror(fault.error))

    def _kept(self, name: str, args: tuple[Any, ...], came: Any) -> Any:
        if name in ("open", "duplicate"):
            self.held.add(came)
        elif name == "close":
            self.held.discard(args[0])
        return came

    @property
    def must_be_told(self) -> bool:
        """Whether somebody must hear of the fault. Not of blocks that can't be given back; and where not so many
        can be had ahead as are wanted, fewer will do.
        """
        fault = self.fault
        return fault is not None and fault.call != "truncate" and (fault.call != "allocate" or fault.lasting)

    def _lasts(self, number: int) -> bool:
        assert self.fault is not None
        return self.fault.lasting and number > self.fault.number


def sweep_calls(
    program: Program, folder: Path, *, before: bytes | None = None, every_error: bool = True, most: int = 10
) -> Swept:
    """Fail each system call of a program on real files below `folder`, once and for ever, with each error or one.

    `before` is the log that is there before, None for a new one; a damaged one is salvaged. Checked: the failure
    is told; no descriptor and no lock is left; a new log that could not be written is not there, and neither is
    its lock; nothing that was there is changed; the next opening breaks no law, and has all that was promised.
    """
    disk = FaultyDisk()
    swept = Swept()
    run = _Calls(program, before, folder)
    swept.found += [(f"without a fault: {label}", one) for label, one in run.with_disk(disk, "whole")]
    for fault in _call_faults(disk.counts, every_error):
        swept.states += 1
        swept.distinct += 1
        label = f"{fault.call} {fault.number} {errno.errorcode[fault.error]}{' for ever' * fault.lasting}"
        swept.found += [(f"{label}: {where}", one) for where, one in run.with_disk(FaultyDisk(fault), label)]
        if len(swept.found) >= most:
            break
    return swept


def _call_faults(counts: Mapping[str, int], every_error: bool) -> Iterator[CallFault]:
    for call, count in counts.items():
        for number in range(1, count + 1):
            for error in CALLS[call] if every_error else CALLS[call][number % len(CALLS[call]) :][:1]:
                yield CallFault(call, number, error)
                yield CallFault(call, number, error, lasting=True)


@attrs.frozen
class _Calls:
    """Runs of a program on real files."""

    program: Program
    before: bytes | None
    folder: Path

    def with_disk(self, disk: FaultyDisk, label: str) -> Iterator[tuple[str, Violation]]:
        """One run, and what is wrong after it."""
        path = self.folder / label.replace(" ", "-") / "session.log"
        path.parent.mkdir()
        if self.before is not None:
            path.write_bytes(self.before)
        good, damaged = _good(self.before or b"")
        played = Played(ModelDisk(), "power", [encode(one) for one in good])
        play_on(lambda: FileStore.open(path, disk), self.program, played)
        after = path.read_bytes() if path.exists() else b""
        if disk.held:
            yield "descriptors", Violation("R1", 0, "a descriptor of the log is left open")
        if disk.must_be_told and played.error is None:
            yield "silence", Violation("L8", 0, "the disk failed, and nobody was told")
        if self.before is None and not after and self._is_left(path, disk.fault):
            yield "left over", Violation("L7", 0, "nothing was written, and something is left")
        yield from (("appended", one) for one in check_append_only(self.before or b"", after))
        try:
            FileStore.open(path).close()
        except (TurnkernelError, OSError) as error:
            yield "lock", Violation("L7", 0, f"it can't be opened again: {error!r}")
        promised = {kind: {op.name for op in played.disk.trace if op.kind == kind} for kind in ("ack", "effect")}
        crash = Crash(
            label, after, False, frozenset(promised["ack"]), frozenset(promised["effect"]), reordered=damaged
        )
        yield from (("opened again", one) for one in CrashChecker(played).check(crash))

    def _is_left(self, path: Path, fault: CallFault | None) -> bool:
        if fault is not None and (fault.call in ("remove", "stat") or fault.error == errno.EWOULDBLOCK):
            return (
                False  # who can't remove, or can't see what it would remove, or sees it in other hands, leaves it
            )
        return any(path.parent.iterdir())


def _good(data: bytes) -> tuple[list[Record], bool]:
    """The records of a log up to where it is damaged, and whether it is."""
    records: list[Record] = []
    grammar = Grammar()
    try:
        for _, item in read_records(MemoryStore(data), lambda record: refusal(grammar, record)):
            if isinstance(item, Record):
                grammar.apply(item)
                records.append(item)
    except LogDamagedError:
        return records, True
    return records, False


def _nothing(fd: int) -> None:
    """Said and not done."""
