"""What the log costs: one event appended, and a long log loaded. Writes files in a scratch folder."""

import os
import zlib
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import perf_counter

import orjson
import trio
import trio.testing

from turnkernel import Gate, open_session
from turnkernel.bulk import look_over
from turnkernel.codec import event_fields
from turnkernel.context import Checkpoints
from turnkernel.events import ModelDelta, SessionOpen, StepStart, TurnStart
from turnkernel.journal import Journal, RecordCursor
from turnkernel.observe import StatusFold
from turnkernel.replay import Context
from turnkernel.store import FileStore, MemoryStore, stretches
from turnkernel.testing.scripted import ScriptedProvider

from .figures import Figure, Limit, Share
from .sample import log_of_lines
from .timing import Tick, interleaved, quiet

__all__ = ["measure_append", "measure_load"]

_DELTA = ModelDelta("t1", "t1.s1", 0, "text", "word ")


async def _bare_append(file: int) -> Mapping[str, float]:
    """Encode, checksum, write; after the same wait as the subject's, which leaves the caches as cold."""
    line = {"seq": 1, "epoch": 1, "t": 1.234567, "type": _DELTA.type, **event_fields(_DELTA)}
    await trio.testing.wait_all_tasks_blocked()
    began = perf_counter()
    data = orjson.dumps(line)
    os.write(file, b"%08x%b\n" % (zlib.crc32(data), data))
    return {"append": perf_counter() - began}


async def _append(journal: Journal) -> Mapping[str, float]:
    """Append with every fold of a session, while a subscriber waits to be woken."""
    await trio.testing.wait_all_tasks_blocked()
    began = perf_counter()
    journal.append(_DELTA)
    return {"append": perf_counter() - began}


async def _follow(cursor: RecordCursor) -> None:
    async for _ in cursor:
        pass


async def measure_append(runs: int, scratch: Path, tick: Tick) -> list[Figure]:
    """The figure of one append."""
    paths = scratch / "bare.log", scratch / "append.log"
    folds = (Context(), Checkpoints(), Gate(), StatusFold())
    with ExitStack() as closing:
        file = os.open(paths[0], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        closing.callback(os.close, file)
        journal = Journal(FileStore.open(paths[1]), durability="process", folds=folds, clock=trio.current_time)
        closing.callback(journal.close)
        journal.append(SessionOpen("bench", "", "process"), TurnStart("t1"), StepStart("t1", "t1.s1", "w", "m"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_follow, RecordCursor(journal, 0))
            closing.enter_context(quiet())
            bare, ours = await interleaved(runs, tick, partial(_bare_append, file), partial(_append, journal))
            nursery.cancel_scope.cancel()
    floor = "orjson.dumps, crc32, os.write"
    shares = [
        Share(floor, bare.median("append")),
        Share(
            "the rest: grammar, fields and their check, record, folds, wake",
            ours.median("append") - bare.median("append"),
        ),
    ]
    return [
        Figure(
            "append",
            "one event: append, fold, wake",
            floor,
            bare["append"],
            ours["append"],
            Limit(plus=10e-6),
            unit="us",
            shares=shares,
        )
    ]


async def _bare_load(path: Path) -> Mapping[str, float]:
    """Read the file and parse every line."""
    with quiet():
        began = perf_counter()
        _parse_lines(path)
        return {"load": perf_counter() - began}


def _parse_lines(path: Path) -> None:
    for line in path.read_bytes().splitlines():
        orjson.loads(line)


async def _looked_over(data: bytes) -> Mapping[str, float]:
    """What is asked of all lines at once: crc, number and form; of deltas that is all."""
    store = MemoryStore(data)
    with quiet():
        began = perf_counter()
        for _, lines in stretches(store, 0, store.size):
            look_over(lines)
        return {"load": perf_counter() - began}


async def _load(data: bytes, scratch: Path) -> Mapping[str, float]:
    """Open a session over the log of a crash: read, verify, fold, repair."""
    path = scratch / "long.log"
    path.write_bytes(data)
    try:
        with quiet():
            began = perf_counter()
            async with open_session(path, provider=ScriptedProvider([]), durability="process"):
                return {"load": perf_counter() - began}
    finally:
        path.unlink()


async def measure_load(runs: int, lines: int, scratch: Path, tick: Tick) -> list[Figure]:
    """The figure of a long log."""
    data = log_of_lines(lines)
    path = scratch / "lines.log"
    path.write_bytes(data)
    bare, looked_over, ours = await interleaved(
        runs, tick, partial(_bare_load, path), partial(_looked_over, data), partial(_load, data, scratch)
    )
    looking, loading = looked_over.median("load"), ours.median("load")
    return [
        Figure(
            "load",
            f"log of {lines:,} lines: loaded and repaired",
            "orjson.loads over the lines",
            bare["load"],
            ours["load"],
            Limit(3.0),
            shares=[
                Share("asking all lines at once for crc and number, and deltas for their form", looking),
                Share("the rest: records that are no deltas, their grammar and folds; repair", loading - looking),
            ],
        )
    ]
