"""What a process of a call costs to start and to end. Starts shells; uses the bash tool and a log on the disk."""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import trio

from turnkernel import open_session
from turnkernel.events import Record, ToolCall, ToolOutput
from turnkernel.journal import Journal
from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel.testing.scripted import ScriptedProvider
from turnkernel_tools import bash_tool

from .clocked import ClockedJournal
from .figures import Figure, Limit, Share
from .timing import Series, Tick, interleaved, quiet

__all__ = ["measure_processes"]

_COMMAND = "echo ready; exec sleep 3600"


async def _bare() -> Mapping[str, float]:
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
            return {"start": started - began, "gone": trio.current_time() - started}


async def _kernel(scratch: Path, journal_type: type[Journal] = Journal) -> Mapping[str, float]:
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
            began = trio.current_time()
            receipt = session.cancel()
            returned = trio.current_time() - began
            reached = (await receipt.settled()).milestones
    log.unlink()
    return {**reached, "returned": returned, "start": seen[ToolOutput].t - seen[ToolCall].t, "flushed": flushed}


def _shares_of_the_start(bare: Series, clocked: Series) -> Sequence[Share]:
    """Where the time of a start goes, from runs with a clock in the flush."""
    child, flushed = bare.median("start"), clocked.median("flushed")
    return [
        Share("the bare child: fork, exec, its first word", child),
        Share("tool/start made durable before the body runs", flushed),
        Share("the rest: records, pipes, keeping hold of the process", clocked.median("start") - child - flushed),
    ]


def _shares_of_the_end(bare: Series, ours: Series) -> Sequence[Share]:
    """Where the time goes from the cancel until the processes of the call are confirmed gone."""
    child, returned = bare.median("gone"), ours.median("returned")
    return [
        Share("SIGTERM and wait of the bare child", child),
        Share("cancel() itself", returned),
        Share(
            "the rest: the way to the signal, the look for others, the way back",
            ours.median("processes_gone") - child - returned,
        ),
    ]


async def measure_processes(runs: int, scratch: Path, tick: Tick) -> list[Figure]:
    """The figures of a shell command."""
    kernel = partial(_kernel, scratch)
    bare, ours, clocked = await interleaved(runs, tick, _bare, kernel, partial(kernel, ClockedJournal))
    child = "SIGTERM and wait of a bare child"
    return [
        Figure(
            "bash_start",
            "bash: from tool/call to its first output",
            "bare open_process, to its first output",
            bare["start"],
            ours["start"],
            Limit(1.0, 5e-3),
            shares=_shares_of_the_start(bare, clocked),
        ),
        Figure(
            "bash_gone",
            "bash: its processes confirmed gone",
            child,
            bare["gone"],
            ours["processes_gone"],
            Limit(1.5, 2e-3),
            shares=_shares_of_the_end(bare, ours),
        ),
        Figure("bash_ended", "bash: turn ended", child, bare["gone"], ours["ended"]),
        Figure("bash_durable", "bash: durable", child, bare["gone"], ours["durable"]),
    ]
