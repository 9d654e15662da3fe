"""What a long log costs: to open it, in time and memory, and to make a step in it. Writes to a temporary folder.

    python benchmarks/log_scale.py [EVENTS]

Opening is held against `orjson.loads` over the lines of the same file, in turn with it, by processor time, the
best of several. Memory is what opening leaves in a fresh process: for a log whose context grows with it, and for
one of as many events whose context stays small. Steps are the medians of a hundred turns on a log of 10 and of
10,000 turns.
"""

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import orjson
import trio

from turnkernel import open_session
from turnkernel.codec import encode
from turnkernel.context import Checkpoints
from turnkernel.events import (
    Event,
    InboxConsumed,
    InboxQueued,
    ModelDelta,
    ModelMessage,
    Record,
    SessionClose,
    SessionOpen,
    StepEnd,
    StepStart,
    ToolCall,
    ToolOutput,
    ToolResult,
    ToolStart,
    TurnEnd,
    TurnStart,
)
from turnkernel.gate import Gate
from turnkernel.journal import Journal
from turnkernel.messages import Text, ToolUse
from turnkernel.observe import StatusFold
from turnkernel.replay import Context
from turnkernel.store import FileStore
from turnkernel.testing.replies import Reply
from turnkernel.testing.scripted import ScriptedProvider

WORDS = 60
"""Deltas of a message: a word each, or 8 bytes of a call's input."""


def turn(number: int, deltas: int = WORDS) -> list[Event]:
    """A prompt, a message that asks for a call, the call, and an answer: 140 events.

    More, if a message comes in more deltas; what it says stays the same.
    """
    t, item, call = f"t{number}", f"i{number}", f"c{number}"
    events: list[Event] = [InboxQueued(item, "prompt", "Please look at the next file."), TurnStart(t)]
    events.append(InboxConsumed(item, t, f"{t}.s1"))
    for step in (f"{t}.s1", f"{t}.s2"):
        events.append(StepStart(t, step, "anthropic", "model-1"))
        events += [ModelDelta(t, step, 0, "text", "several ") for _ in range(deltas)]
        blocks: tuple[Text | ToolUse, ...] = (Text("several " * WORDS),)
        if step.endswith("1"):
            use = ToolUse(call, "bash", {"command": f"cat file-{number}.txt"})
            events.append(ModelMessage(t, step, "anthropic", "model-1", (*blocks, use), "tool_use"))
            events += [ToolCall(t, call, "bash"), ToolStart(t, call, "bash", use.input, "effect")]
            events += [ToolOutput(t, call, "stdout", "a line of the file that is looked at\n")] * 8
            events.append(ToolResult(t, call, "bash", "ok", False, "a line of the file\n" * 8, 0.01))
        else:
            events.append(ModelMessage(t, step, "anthropic", "model-1", blocks, "end_turn"))
        events.append(StepEnd(t, step))
    events.append(TurnEnd(t, "completed"))
    return events


def write_log(path: Path, events: int, deltas: int = WORDS) -> int:
    """A log of so many events, that many of them deltas of each message; how many turns it has."""
    seq, number = 1, 0
    with path.open("wb") as file:
        file.write(encode(Record(1, 1, 0.0, SessionOpen("s", "2026-01-01T00:00:00.000+00:00", "process"))))
        while seq < events:
            number += 1
            for event in turn(number, deltas):
                seq += 1
                file.write(encode(Record(seq, 1, seq / 1000, event)))
        file.write(encode(Record(seq + 1, 1, seq / 1000, SessionClose())))
    return number


def load(path: Path) -> Journal:
    """What an opening does before it writes."""
    store = FileStore.open(path)
    folds = (Context(), Checkpoints(), Gate(), StatusFold())
    journal = Journal(store, durability="process", folds=folds, clock=time.monotonic)
    journal.load()
    return journal


def opening(path: Path, rounds: int) -> tuple[float, float]:
    """Seconds of `orjson.loads` over the lines of the file, and of loading it."""
    bare: list[float] = []
    loaded: list[float] = []
    for _ in range(rounds):
        begun = time.process_time()
        with path.open("rb") as file:
            for line in file:
                orjson.loads(line)
        bare.append(time.process_time() - begun)
        begun = time.process_time()
        load(path).close()
        loaded.append(time.process_time() - begun)
    return min(bare), min(loaded)


def memory(path: Path) -> float:
    """MiB that a loaded log holds in a fresh process. Linux only."""
    code = (
        "import sys, pathlib; sys.path.insert(0, sys.argv[2]); import log_scale;"
        "size = lambda: int(pathlib.Path('/proc/self/statm').read_text().split()[1]) * 4096;"
        "before = size(); journal = log_scale.load(pathlib.Path(sys.argv[1])); print(size() - before)"
    )
    argv = [sys.executable, "-c", code, str(path), str(Path(__file__).parent)]
    return int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout) / (1 << 20)


async def steps(path: Path, turns: int) -> float:
    """Milliseconds of processor time of a turn of one step, on a log that has so many."""
    times: list[float] = []
    provider = ScriptedProvider([Reply(text="Yes.")] * turns)
    async with open_session(path, provider=provider, durability="process") as session:
        for _ in range(turns):
            begun = time.process_time()
            await session.send("next?")
            await session.rest()
            times.append(time.process_time() - begun)
    return 1000 * statistics.median(times)


def main() -> None:
    """Measure and print."""
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    print(
        f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} processors, {time.ctime()}"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.log"
        for size in (events // 10, events):
            turns = write_log(path, size)
            bare, loaded = opening(path, 3)
            print(
                f"{size} events, {turns} turns, {path.stat().st_size / 1e6:.0f} MB: orjson.loads {bare:.2f} s, "
                f"opening {loaded:.2f} s, {loaded / bare:.1f} times; memory {memory(path):.0f} MiB"
            )
        turns = write_log(path, events, deltas=events // 20)
        print(f"{events} events, {turns} turns: memory {memory(path):.0f} MiB")
        for turns in (10, 10_000):
            write_log(path, turns * len(turn(1)))
            print(f"a step in a session of {turns} turns: {trio.run(partial(steps, path, 100)):.3f} ms")


if __name__ == "__main__":
    main()
