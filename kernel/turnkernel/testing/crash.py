"""Crash at every write: a program is run on a model disk, and every state a crash may leave is recovered from.

The method is ALICE's and SQLite's: record what was done to the disk, derive what may be found, check each. Every
state must open, or be refused as damaged and salvaged; what is then read must be a prefix of what was written,
closed by appending alone, with everything in it that somebody was promised; opening it again must append nothing;
and a crash in the middle of the recovery must come to the same.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import attrs
import trio

from ..codec import encode
from ..errors import LogDamagedError, LogFailedError, SessionLiveError, TurnkernelError
from ..events import Event, InboxQueued, PassedOver, Record, Salvaged, SessionClose, SessionOpen, ToolStart
from ..journal import Journal
from ..records import read_records
from ..recovery import recover
from ..session import open_session
from ..store import FileStore, MemoryStore, Store
from ..wording import DEFAULT
from .disk_model import Crash, Fault, ModelDisk, crashes
from .laws import Violation, check_append_only, check_log
from .replies import Reply
from .scripted import ScriptedProvider
from .sweep import Box, Program
from .virtual import run_virtually

__all__ = ["CrashChecker", "Parts", "Played", "Swept", "play_on", "play_on_disk", "records_of", "sweep_crashes"]


@attrs.frozen
class Parts:
    """What the log is kept with; a planted bug replaces one."""

    store: Callable[[Any], FileStore] = FileStore
    journal: type[Journal] = Journal


@attrs.define(eq=False)
class Played:
    """A program that was run on a model disk."""

    disk: ModelDisk
    durability: str
    truth: list[bytes] = attrs.field(factory=list[bytes])
    """The lines of every record that was appended; what was reported as failed is not among them."""
    failed: list[bytes] = attrs.field(factory=list[bytes])
    """The lines of what was reported as failed."""
    error: BaseException | None = None


@attrs.define
class Swept:
    """What a sweep has found."""

    states: int = 0
    """Crashes that were looked at."""
    distinct: int = 0
    """How many of them are different, by what is there and what was promised."""
    found: list[tuple[str, Violation]] = attrs.field(factory=list[tuple[str, Violation]])
    """Where a law breaks."""

    def __iadd__(self, other: "Swept") -> "Swept":
        self.states += other.states
        self.distinct += other.distinct
        self.found += other.found
        return self


# --------------------------------------------------------------------------------------------------- one run


class _Told(list[str]):
    """A scripted tool's list of calls whose body has begun, that tells the disk. Read-only ones need no intent."""

    def __init__(self, disk: ModelDisk) -> None:
        super().__init__()
        self._disk = disk

    def append(self, call: str, /) -> None:
        self._disk.note("effect", call)
        super().append(call)


def play_on_disk(
    program: Program, *, durability: str = "power", fault: Fault | None = None, parts: Parts | None = None
) -> Played:
    """Run the program's prompts, each to its end, with the log on a model disk. Virtual; deterministic.

    A log that fails ends it, and is told in `error`; anything else that is raised is raised.
    """
    played = Played(ModelDisk(exists=False, fault=fault), durability)
    parts = parts or Parts()
    play_on(lambda: parts.store(played.disk), program, played, parts.journal)
    return played


def play_on(store: Callable[[], Store], program: Program, played: Played, kind: type[Journal] = Journal) -> None:
    """The same on any store, which is opened in the run; what came of it goes into `played`.

    A damaged log is salvaged. What was promised is noted on the disk of `played`.
    """
    box = Box()
    journal = type("_Watched", (_Unthreaded, kind), {"box": box, "program": program, "played": played})

    async def main() -> None:
        tools = program.tools()
        for tool in (one for one in tools if one.effect != "read_only"):
            object.__setattr__(tool, "began", _Told(played.disk))
        async with open_session(
            store(),
            provider=ScriptedProvider(program.replies, spare=Reply(text="Anything else?")),
            tools=tools,
            settings=program.settings,
            gate=program.gate(),
            durability=played.durability,
            journal_type=cast("type[Journal]", journal),
            salvage=True,
        ) as session:
            box.session = session
            for prompt in program.prompts:
                played.disk.note("ack", await session.send(prompt))
                await session.rest()

    try:
        run_virtually(main, seed=0)
    except (LogFailedError, SessionLiveError, OSError) as error:
        played.error = error


class _Unthreaded:
    """A journal that syncs without a thread, which a virtual run can't have, and tells what was written.

    To be put before a journal's class.
    """

    box: Box
    program: Program
    played: Played

    async def _sync(self) -> None:
        journal = cast(Any, self)
        journal._syncing = True
        upto = journal.seq
        try:
            await trio.lowlevel.checkpoint()
            journal._sync_in_thread(upto)
        finally:
            journal._syncing = False
            journal._flushers.unpark_all()

    def _write(self, entries: list[tuple[Record, bytes]]) -> None:
        lines = [line for _, line in entries]
        try:
            cast(Any, super())._write(entries)
        except LogFailedError:
            self.played.failed += lines
            self.played.disk.note("told")
            raise
        self.played.truth += lines
        self.box.records += [record for record, _ in entries]

    def append(self, *events: Event) -> None:
        before = len(self.box.records)
        cast(Any, super()).append(*events)
        for place in range(before, len(self.box.records)):
            event = self.box.records[place].event
            number = sum(one.event.type == event.type for one in self.box.records[: place + 1])
            for name, nth, action in self.program.on:
                if (name, nth) == (event.type, number):
                    action(self.box)


# ------------------------------------------------------------------------------------------------- one crash


@attrs.define
class _Recovered:
    disk: ModelDisk
    records: list[Record]
    salvaged: bool


def _recover(image: bytes, parts: Parts, *, salvage: bool) -> _Recovered:
    """What an opening does, and leaving at once. Raises what it raises."""
    disk = ModelDisk(image)
    store = parts.store(disk)
    journal = parts.journal(store, durability="power", clock=lambda: 0.0)
    passed_over: PassedOver | None
    salvaged: Salvaged | None = None
    try:
        passed_over = journal.load()
    except LogDamagedError:
        if not salvage:
            raise
        passed_over, salvaged = journal.salvage()
    recover(journal, DEFAULT, passed_over, salvaged)
    store.sync()
    journal.append(SessionClose())
    store.sync()
    return _Recovered(disk, records_of(_bytes(disk)), salvaged is not None)


def _bytes(disk: ModelDisk) -> bytes:
    return disk.read(0, disk.length())


def records_of(data: bytes) -> list[Record]:
    """The records of a log's bytes. Raises `LogDamagedError`."""
    return [item for _, item in read_records(MemoryStore(data)) if isinstance(item, Record)]


@attrs.define
class CrashChecker:
    """Checks crashes of one run. The laws are asked once per log that a recovery came to."""

    played: Played
    parts: Parts = Parts()
    _lawful: dict[tuple[int, bytes], list[Violation]] = attrs.field(
        factory=dict[tuple[int, bytes], list[Violation]]
    )

    def check(self, crash: Crash) -> list[Violation]:
        """Every violation at one crash."""
        try:
            recovered = self._opened(crash)
        except (TurnkernelError, OSError, ValueError, AssertionError, KeyError) as error:
            return [Violation("L7", 0, f"recovery raised {type(error).__name__}: {error}")]
        if recovered is None:
            return [Violation("L7", 0, "a log without damage was refused")]
        after = _bytes(recovered.disk)
        found = check_append_only(crash.image, after)
        kept = next(n for n, one in enumerate(recovered.records) if _is_last_opening(one, recovered.records))
        good = [encode(one) for one in recovered.records[:kept]]
        truth = self.played.truth + (self.played.failed if crash.in_doubt else [])
        if good != truth[:kept]:
            found.append(Violation("L7", kept, "what is read is no prefix of what was written"))
        found += self._promises(crash, recovered.records[:kept])
        found += self._laws(kept, recovered.records)
        found += self._again(after, recovered.records)
        return found

    def _opened(self, crash: Crash) -> _Recovered | None:
        try:
            return _recover(crash.image, self.parts, salvage=False)
        except LogDamagedError:
            if not crash.reordered:
                return None
        return _recover(crash.image, self.parts, salvage=True)

    def _promises(self, crash: Crash, records: Sequence[Record]) -> Iterable[Violation]:
        """L8 and L4, in the mode that the log was opened with."""
        if self.played.durability != "power" and (crash.power or self.played.durability == "memory"):
            return
        items = {one.event.item for one in records if isinstance(one.event, InboxQueued)}
        for item in sorted(crash.acked - items):
            yield Violation("L8", 0, f"{item} was acknowledged and is lost")
        started = {one.event.call for one in records if isinstance(one.event, ToolStart)}
        for call in sorted(crash.effects - started):
            yield Violation("L4", 0, f"the body of {call} ran and nothing says so")

    def _laws(self, kept: int, records: Sequence[Record]) -> list[Violation]:
        ending = b"".join(encode(one) for one in records[kept:] if not isinstance(one.event, SessionOpen))
        known = self._lawful.get((kept, ending))
        if known is None:
            known = self._lawful[kept, ending] = check_log(records, closed=True, every_prefix=False)
        return known

    def _again(self, after: bytes, before: Sequence[Record]) -> Iterable[Violation]:
        """A second opening appends nothing, and the log can be written and read on."""
        again = _recover(after, self.parts, salvage=False)
        data = _bytes(again.disk)
        yield from check_append_only(after, data)
        added = [one.event.type for one in again.records[len(before) :]]
        if added != ["session/open", "session/close"]:
            yield Violation("L7", len(before), f"a second recovery appended {', '.join(added)}")
        last = again.records[-1]
        more = Record(last.seq + 1, last.epoch + 1, 0.0, SessionOpen("s", "now", "power"))
        if records_of(data + encode(more))[-1] != more:
            yield Violation("L7", more.seq, "what was appended next is not read")


def _is_last_opening(record: Record, records: Sequence[Record]) -> bool:
    return isinstance(record.event, SessionOpen) and record.epoch == records[-1].epoch


# ------------------------------------------------------------------------------------------------- the sweep


def _say_nothing(done: int, total: int) -> None:
    """Nobody wants to know."""


def sweep_crashes(
    played: Played,
    *,
    stride: int = 1,
    parts: Parts | None = None,
    deeper: int = 0,
    most: int = 10,
    progress: Callable[[int, int], None] = _say_nothing,
) -> Swept:
    """Check every crash of a run, or with `stride` every so many bytes; stops at `most` violations.

    `deeper` also crashes the recovery itself, at every one of its operations and every so many bytes of it, for
    one crash of each number of whole records and kind of damage. `progress` is told before each crash how many
    were looked at and how many there are, those of recoveries not counted.
    """
    parts = parts or Parts()
    checker, swept = CrashChecker(played, parts), Swept()
    seen: set[tuple[bytes, frozenset[str], frozenset[str], bool]] = set()
    deep: set[tuple[int, bool, bool]] = set()
    total = 0 if progress is _say_nothing else sum(1 for _ in crashes(played.disk, stride=stride))
    for number, crash in enumerate(crashes(played.disk, stride=stride)):
        progress(number, total)
        swept.states += 1
        key = (crash.image, crash.acked, crash.effects, crash.power)
        if key in seen:
            continue
        seen.add(key)
        swept.distinct += 1
        found = checker.check(crash)
        kind = (crash.image.count(b"\n"), crash.image.endswith(b"\n") or not crash.image, crash.reordered)
        if deeper and not found and kind not in deep:
            deep.add(kind)
            swept += _crash_the_recovery(crash, checker, deeper)
        swept.found += [(crash.label, one) for one in found]
        if len(swept.found) >= most:
            break
    return swept


def _crash_the_recovery(crash: Crash, checker: CrashChecker, stride: int) -> Swept:
    swept = Swept()
    recovered = checker._opened(crash)  # pyright: ignore[reportPrivateUsage] - of this module
    assert recovered is not None
    # What the first opening has written is the truth for the second.
    data = _bytes(recovered.disk)
    truth = [encode(record) for record in records_of(data)]
    inner = CrashChecker(Played(recovered.disk, checker.played.durability, truth), checker.parts)
    seen: set[bytes] = set()
    for second in crashes(recovered.disk, stride=stride):
        swept.states += 1
        if second.image in seen:
            continue
        seen.add(second.image)
        swept.distinct += 1
        promised = attrs.evolve(
            second,
            acked=crash.acked,
            effects=crash.effects,
            power=crash.power,
            reordered=crash.reordered or second.reordered,
        )
        swept.found += [(f"{crash.label}, then {second.label}", one) for one in inner.check(promised)]
    return swept
