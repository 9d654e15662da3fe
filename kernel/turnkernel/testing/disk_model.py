"""A disk in memory that can lose what a real one can, and every state it may be found in after a crash. Pure.

The model: a write reaches the page cache; a sync carries everything to the disk. A process that is killed leaves
the cache, with the write it was in cut anywhere. A power cut leaves what was synced, and of what was not any part
of it: cut, zeros, garbage, a sector missing, a bit flipped; and a file whose directory entry was not synced may be
gone. A sync that fails says so once, drops what it could not carry, and says yes the next time (measured on ext4).
"""

import errno
import os
import random
from collections.abc import Iterable, Iterator
from typing import Literal

import attrs

__all__ = ["Crash", "Fault", "ModelDisk", "crashes"]

_SECTOR = 512


@attrs.frozen
class Op:
    """Something that was done to the disk, or that somebody now relies on."""

    kind: Literal["create", "link", "write", "truncate", "sync", "bad sync", "ack", "effect", "told"]
    data: bytes = b""
    """Of a write, what was written."""
    size: int = 0
    """Of a truncate, the new size."""
    name: str = ""
    """Of an ack the item, of an effect the call. `told` has none: a failure was reported."""


@attrs.frozen
class Fault:
    """What the n-th operation of a kind (from 1) meets."""

    kind: Literal["write", "sync"]
    number: int
    error: int = errno.EIO
    lasting: bool = False
    """Whether every later one meets it too."""
    part: int = 0
    """Of a write: so many bytes are written all the same, and the rest is not."""


@attrs.define(eq=False)
class ModelDisk:
    """One file; see `turnkernel.logfile.File`. `trace` is what was done to it since it was opened."""

    image: bytes = b""
    exists: bool = True
    fault: Fault | None = None
    trace: list[Op] = attrs.field(factory=list[Op])
    beside: dict[str, bytes] = attrs.field(factory=dict[str, bytes])
    where: str = "model"
    _cache: bytearray = attrs.field(factory=bytearray)
    _counts: dict[str, int] = attrs.field(factory=dict[str, int])

    def __attrs_post_init__(self) -> None:
        self._cache += self.image
        if not self.exists:
            self.trace.append(Op("create"))
        self.trace.append(Op("link"))

    def note(self, kind: Literal["ack", "effect", "told"], name: str = "") -> None:
        """From now on somebody relies on something."""
        self.trace.append(Op(kind, name=name))

    def _met(self, kind: str) -> Fault | None:
        number = self._counts[kind] = self._counts.get(kind, 0) + 1
        fault = self.fault
        if fault is None or fault.kind != kind:
            return None
        return fault if number == fault.number or (fault.lasting and number > fault.number) else None

    def length(self) -> int:
        """Bytes in it."""
        return len(self._cache)

    def append(self, data: bytes) -> int:
        """Into the cache."""
        fault = self._met("write")
        if fault is not None:
            data = data[: fault.part]
            if not data:
                raise OSError(fault.error, os.strerror(fault.error))
        self._cache += data
        self.trace.append(Op("write", data))
        return len(data)

    def truncate(self, size: int) -> None:
        """Of the cache."""
        if size < len(self._cache):
            del self._cache[size:]
            self.trace.append(Op("truncate", size=size))

    def allocate(self, offset: int, size: int) -> bool:
        """This disk can't, so a full one shows in a write."""
        return False

    def sync(self) -> None:
        """To the disk."""
        fault = self._met("sync")
        if fault is not None:
            self.trace.append(Op("bad sync"))
            raise OSError(fault.error, os.strerror(fault.error))
        self.trace.append(Op("sync"))

    def read(self, offset: int, size: int) -> bytes:
        """From the cache."""
        return bytes(self._cache[offset : offset + size])

    def put_beside(self, suffix: str, chunks: Iterable[bytes]) -> str:
        """At once."""
        self.beside[suffix] = b"".join(chunks)
        return suffix

    def close(self, *, unused: bool) -> None:
        """A file that was made and not used is gone, which is to be an empty one."""
        if unused and not self.exists:
            self.truncate(0)


@attrs.frozen
class Crash:
    """The log as it may be found after a crash."""

    label: str
    image: bytes
    power: bool
    """Whether the power was cut; else the process was killed."""
    acked: frozenset[str]
    """Items that somebody had been promised."""
    effects: frozenset[str]
    """Calls whose body had begun."""
    reordered: bool = False
    """Whether bytes that were written later than damaged ones may be whole."""
    in_doubt: bool = False
    """Whether what a failed write has left may be there: nobody was told yet that it failed."""


@attrs.define
class _State:
    cache: bytearray
    disk: bytearray
    linked: bool
    acked: set[str] = attrs.field(factory=set[str])
    effects: set[str] = attrs.field(factory=set[str])
    undone: list[bytes] = attrs.field(factory=list[bytes])
    """What was there before truncates that were not synced."""

    in_doubt: bool = False

    def crash(self, label: str, image: bytes, *, power: bool, reordered: bool = False) -> Crash:
        acked, effects = frozenset(self.acked), frozenset(self.effects)
        return Crash(label, image, power, acked, effects, reordered, self.in_doubt)

    def take(self, op: Op) -> None:
        match op.kind:
            case "create":
                self.linked = False
            case "link":
                self.linked = True
            case "write":
                self.cache += op.data
            case "truncate":
                self.undone.append(bytes(self.cache))
                del self.cache[op.size :]
                del self.disk[op.size :]
            case "sync":
                self.disk += self.cache[len(self.disk) :]
                self.undone.clear()
            case "bad sync":
                self.disk += bytes(len(self.cache) - len(self.disk))
            case "ack":
                self.acked.add(op.name)
            case "effect":
                self.effects.add(op.name)
            case "told":
                self.in_doubt = False


def crashes(disk: ModelDisk, *, stride: int = 1, seed: int = 0, since: int = 0) -> Iterator[Crash]:
    """Every crash of the disk's trace, from operation number `since` on.

    `stride` looks at every so many bytes only, from a place that moves on. The same state may come several times.
    """
    chance = random.Random(seed)
    state = _State(bytearray(disk.image), bytearray(disk.image), linked=True)
    for number, op in enumerate(disk.trace):
        place = f"op {number} {op.kind}"
        if op.kind == "write" and [one.kind for one in disk.trace[number + 1 : number + 2]] == ["truncate"]:
            state.in_doubt = True
        if number < since:
            state.take(op)
            continue
        first = chance.randrange(stride)
        if op.kind == "write":
            for cut in {*range(1 + first, len(op.data), stride), max(len(op.data) - 1, 1)}:
                yield state.crash(
                    f"{place} killed after {cut} bytes", bytes(state.cache + op.data[:cut]), power=False
                )
        state.take(op)
        yield state.crash(f"{place} killed", bytes(state.cache), power=False)
        if not state.linked:
            yield state.crash(f"{place} no directory entry", b"", power=True)
        for old in state.undone:
            yield state.crash(f"{place} truncate undone", old, power=True, reordered=True)
        yield from _damages(state, place, stride, chance)


def _damages(state: _State, place: str, stride: int, chance: random.Random) -> Iterator[Crash]:
    """What a power cut may make of what is not on the disk yet."""
    head, left = bytes(state.disk), bytes(state.cache[len(state.disk) :])
    size, first = len(left), chance.randrange(stride)
    yield state.crash(f"{place} power, nothing of it", head, power=True)
    for cut in range(first, size, stride):
        at = f"{place} power at {len(head) + cut}"
        yield state.crash(f"{at} torn", head + left[:cut], power=True)
    for cut in range(first, size, 7 * stride):
        at = f"{place} power at {len(head) + cut}"
        yield state.crash(f"{at} zeros", head + left[:cut] + bytes(size - cut), power=True)
        garbage = chance.randbytes(size - cut)
        yield state.crash(f"{at} garbage", head + left[:cut] + garbage, power=True, reordered=True)
        flipped = left[:cut] + bytes([left[cut] ^ (1 << chance.randrange(8))]) + left[cut + 1 :]
        yield state.crash(f"{at} flip", head + flipped, power=True, reordered=True)
    for begin in range(-(len(head) % _SECTOR), size, _SECTOR):
        low, high = max(begin, 0), min(begin + _SECTOR, size)
        hole = left[:low] + bytes(high - low) + left[high:]
        yield state.crash(f"{place} power hole at {len(head) + low}", head + hole, power=True, reordered=True)
