"""What a process of a call costs to start and to end. Starts shells; uses the bash tool and a log on the disk."""

import signal
import subprocess
from functools import partial
from pathlib import Path

import attrs
import trio

from turnkernel import open_session
from turnkernel.events import Record, ToolCall, ToolOutput
from turnkernel.journal import Journal
from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel.testing.scripted import ScriptedProvider
from turnkernel_tools import bash_tool

from .clocked import ClockedJournal
from .figures import Figure, Limit, Share
from .timing import Samples, Tick, interleaved, median_of, quiet

__all__ = ["measure_processes"]

_COMMAND = "echo ready; exec sleep 3600"


@attrs.frozen
class _Process:
    """Seconds."""

    start: float
    """From its beginning to its first output."""
    gone: float
    """From the cancel, or SIGTERM, until it is confirmed gone."""
    flushed: float = 0.0
    """How long the flush of `tool/start` took, which comes before the start."""
    ended: float = 0.0
    """From the cancel to the turn's end."""
    durable: float = 0.0


async def _bare() -> _Process:
    """A bare child: started, told to end, waited for."""
    with quiet():
        began = trio.current_time()
        child = await trio.lowlevel.open_process(
            ["bash", "-c", _COMMAND], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
        )
        assert child.stdout is not None
        async with child.stdout:
            await child.stdout.receive_some()
            started = trio.current_time()
            child.send_signal(signal.SIGTERM)
            await child.wait()
            return _Process(started - began, trio.current_time() - started)


async def _kernel(scratch: Path, journal_type: type[Journal] = Journal) -> _Process:
    """The same by a call of the bash tool, in a session with its log on the disk."""
    reply = Reply(calls=[ReplyCall("call_1", "bash", {"command": _COMMAND})])
    log = scratch / "process.log"
    seen: dict[type, Record] = {}
    async with open_session(
        log, provider=ScriptedProvider([reply]), tools=[bash_tool(scratch)], journal_type=journal_type
    ) as session:
        with quiet():
            await session.send("Sleep.")
            async for record in session.records():
                seen[type(record.event)] = record
                if isinstance(record.event, ToolOutput):
                    break
            flushed = ClockedJournal.flushing
            receipt = session.cancel()
            reached = (await receipt.settled()).milestones
    log.unlink()
    start = seen[ToolOutput].t - seen[ToolCall].t
    return _Process(start, reached["processes_gone"], flushed, reached["ended"], reached["durable"])


async def _shares(splits: int, scratch: Path, start: float) -> list[Share]:
    """Where the time of a start goes, in runs of their own."""
    runs = [await _kernel(scratch, ClockedJournal) for _ in range(splits)]
    flushed, total = median_of(one.flushed for one in runs), median_of(one.start for one in runs)
    return [
        Share("the bare child: fork, exec, its first word", start),
        Share("tool/start made durable before the body runs", flushed),
        Share("the rest: records, pipes, a thread for the fork, reading", total - flushed - start),
    ]


async def measure_processes(runs: int, splits: int, scratch: Path, tick: Tick) -> list[Figure]:
    """The figures of a shell command."""
    bare, ours = await interleaved(runs, _bare, partial(_kernel, scratch), tick)
    gone = Samples([one.gone for one in bare])
    start = Samples([one.start for one in bare])
    child = "SIGTERM and wait of a bare child"
    return [
        Figure(
            "bash_start",
            "bash: from tool/call to its first output",
            "bare open_process, to its first output",
            start,
            Samples([one.start for one in ours]),
            Limit(1.0, 5e-3),
            shares=await _shares(splits, scratch, start.median),
        ),
        Figure(
            "bash_gone",
            "bash: its processes confirmed gone",
            child,
            gone,
            Samples([one.gone for one in ours]),
            Limit(1.5, 2e-3),
        ),
        Figure("bash_ended", "bash: turn ended", child, gone, Samples([one.ended for one in ours])),
        Figure("bash_durable", "bash: durable", child, gone, Samples([one.durable for one in ours])),
    ]
