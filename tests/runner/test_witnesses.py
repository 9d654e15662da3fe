"""What a run sees besides the log, and that it would see it: every watch is shown something that it must catch."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from turnkernel.causes import Answer, Cause
from turnkernel.events import Error, Record, ToolResult, ToolStart, TurnEnd, TurnSurvivor
from turnkernel.kernel import Kernel, Receipt
from turnkernel.provider import Request
from turnkernel.session import Session
from turnkernel_demo.frames import Frames, Teller, frame
from turnkernel_demo.ledger import Body, Broken, Report, Said, Survivor, Synced
from turnkernel_demo.lives import cut_back
from turnkernel_demo.processes import Process
from turnkernel_demo.truth import check_bodies
from turnkernel_demo.witness import TurnWatch, WitnessedProvider

STORY = """
[[user]]
text = "Do it."
[[reply]]
calls = [{ id = "c1", name = "t" }]
[[user]]
text = "And?"
[[reply]]
text = "Well."
[[tool]]
name = "t"
does = [{ emit = "x" }, { sleep = 60.0 }]
"""


QUICK = STORY.replace("60.0", "1.0") + '[[reply]]\ntext = "More."\n'


def act(on: str, do: str, *more: str) -> str:
    return "\n".join(["", "[[act]]", f'on = "{on}"', f'do = "{do}"', *more, ""])


# ------------------------------------------------------------------------------------- what tools did, by the log


def start(call: str = "c1") -> Record:
    return Record(1, 1, 0.0, ToolStart("t1", call, "t", {}, "effect"))


def result(status: str, *, synthetic: bool = False) -> Record:
    return Record(2, 1, 0.0, ToolResult("t1", "c1", "t", status, status != "ok", "text", synthetic=synthetic))


def end(*errors: Error) -> Record:
    return Record(3, 1, 0.0, TurnEnd("t1", "aborted", errors=errors))


BEGAN = Body("c1", "effect", "began")
RETURNED = Body("c1", "effect", "returned", "ok")
RAISED = Body("c1", "effect", "raised", "OSError")


@pytest.mark.parametrize(
    ("bodies", "records", "laws"),
    [
        ([BEGAN, RETURNED], [start(), result("ok"), end()], []),
        ([BEGAN], [], ["L4"]),
        ([Body("c1", "read_only", "began")], [], []),
        ([BEGAN], [start(), result("not_started")], ["R5"]),
        ([BEGAN, RETURNED], [start(), result("stopped")], ["R6"]),
        ([BEGAN, RETURNED], [start(), result("unknown", synthetic=True)], []),
        ([BEGAN, BEGAN], [start()], ["R6"]),
        ([BEGAN, RAISED], [start(), result("stopped"), end()], ["R12"]),
        ([BEGAN, RAISED], [start(), result("stopped"), end(Error("OSError", "y", "call c1"))], []),
        ([BEGAN, RAISED], [start(), result("error"), end()], []),
    ],
)
@pytest.mark.law("L4", "R5", "R6", "R12")
def test_what_tools_did_is_held_against_the_log(bodies, records, laws):
    assert [one.law for one in check_bodies(bodies, records, promised=True)] == laws


def test_an_intent_that_was_not_promised_may_be_lost():
    assert check_bodies([BEGAN], [], promised=False) == []


# ----------------------------------------------------------------------------------- what is alive at a turn's end


class Provider:
    wire, model = "anthropic", "scripted-1"

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[object]:
        yield object()


class Watched:
    """A `TurnWatch` and what it tells."""

    def __init__(self, processes=()) -> None:
        self.told: list[Report] = []
        self.provider = WitnessedProvider(Provider())
        self.watch = TurnWatch(self.provider, {"bash"}, lambda: processes, self.told.append)

    def turn_ends(self, *, synthetic: bool = False, session: object = None) -> list[str]:
        event = TurnEnd("t1", "interrupted" if synthetic else "aborted", synthetic=synthetic)
        self.watch.turn_ended(Record(9, 1, 0.0, event), event, session)
        return [one.violation.law for one in self.told if isinstance(one, Broken)]


class Resting:
    """A session at rest, as far as it is looked at."""

    turn = None


class Running(Resting):
    turn = "t1"


def bash() -> ToolStart:
    return ToolStart("t1", "c1", "bash", {}, "effect")


def test_nothing_is_said_when_nothing_is_left():
    assert Watched().turn_ends(session=Resting()) == []


@pytest.mark.law("R1")
async def test_an_open_response_breaks_r1():
    watched = Watched()
    async with watched.provider.stream(Request("", [], [], 1)):
        assert watched.turn_ends(session=Resting()) == ["R1"]
    watched.told.clear()
    assert watched.turn_ends(session=Resting()) == []


@pytest.mark.law("R1")
async def test_an_open_nursery_breaks_r1():
    watched = Watched()
    async with trio.open_nursery() as nursery:
        watched.watch.turn_started(nursery)
        assert watched.turn_ends(session=Resting()) == ["R1"]
    watched.told.clear()
    assert watched.turn_ends(session=Resting()) == []


@pytest.mark.law("R2")
def test_an_authority_that_is_still_there_breaks_r2():
    assert Watched().turn_ends(session=Running()) == ["R2"]


@pytest.mark.law("R1")
@pytest.mark.parametrize("named", [True, False])
def test_a_thread_of_a_call_breaks_r1_unless_it_is_named(named):
    watched, over = Watched(), threading.Event()
    thread = threading.Thread(target=over.wait, name="compute c1")
    thread.start()
    try:
        watched.watch.call_started(bash())
        if named:
            watched.watch.survivor(TurnSurvivor("t1", "c1", "thread", "compute c1"))
        assert watched.turn_ends(session=Resting()) == ([] if named else ["R1"])
    finally:
        over.set()
        thread.join()


@pytest.mark.law("R1")
@pytest.mark.parametrize("named", [True, False])
def test_a_process_of_a_call_is_a_survivor_and_breaks_r1_unless_it_is_named(named):
    watched = Watched([Process(77, "sleep 300")])
    watched.watch.call_started(bash())
    if named:
        watched.watch.survivor(TurnSurvivor("t1", "c1", "process", "pid 77 sleep 300"))
    assert watched.turn_ends(session=Resting()) == ([] if named else ["R1"])
    assert [one for one in watched.told if isinstance(one, Survivor)] == [Survivor(77, "sleep 300", "t1")]


def test_what_a_recovery_finds_alive_is_a_survivor_too():
    assert Watched([Process(77, "sleep 300")]).turn_ends(synthetic=True) == ["R1"]


# ---------------------------------------------------------------------------------------- kernels that break a law


@pytest.mark.law("R2")
def test_a_kernel_that_takes_an_old_handle_for_the_new_breaks_r2(virtual, monkeypatch):
    cancel = Kernel.cancel

    def careless(self: Kernel, *args: object, turn: str | None = None, **more: object) -> Receipt:
        return cancel(self, *args, **more)

    monkeypatch.setattr(Kernel, "cancel", careless)
    came = virtual(
        STORY.replace("60.0", "1.0") + '[[reply]]\ntext = "x"\n' + act("turn/start", "stale_cancel", "nth = 2")
    )
    assert "R2" in came.laws


@pytest.mark.law("R7")
def test_a_cancel_that_raises_breaks_r7(virtual, monkeypatch):
    def broken(self: Session, *args: object, **more: object) -> Receipt:
        raise OSError("the disk is gone")

    monkeypatch.setattr(Session, "cancel", broken)
    came = virtual(QUICK + act("tool/output", "cancel"))
    assert came.laws == {"R7"}
    assert came.answers == ["raised OSError: the disk is gone"]


@pytest.mark.law("R11")
def test_a_cancel_that_is_applied_and_does_nothing_breaks_r11(virtual, monkeypatch):
    def idle(self: Kernel, cause: Cause = Cause.USER, **more: object) -> Receipt:
        return Receipt(Answer.APPLIED, cause, "t1")

    monkeypatch.setattr(Kernel, "cancel", idle)
    came = virtual(QUICK + act("tool/output", "cancel"))
    assert "R11" in came.laws


# ------------------------------------------------------------------------------------------- what is told, and cut


def test_reports_come_whole_whatever_the_split():
    reports = [Said(0, "i2"), Synced(400), Said(1, "i9")]
    data = b"".join(map(frame, reports))
    for size in range(1, len(data)):
        frames = Frames()
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        assert [report for piece in pieces for report in frames.feed(piece)] == reports


def test_a_report_that_death_cut_short_is_none():
    assert list(Frames().feed(frame(Said(0, "i2"))[:-1])) == []


def test_nobody_left_to_tell_is_no_error():
    import os

    reads, writes = os.pipe()
    os.close(reads)
    try:
        Teller(writes)(Said(0, "i2"))
    finally:
        os.close(writes)


def test_a_recovery_that_truncates_cuts_before_the_unfinished_turn(virtual):
    log = virtual(STORY + act("tool/output", "cancel")).played.log
    lines = log.splitlines(keepends=True)
    starts = [place for place, line in enumerate(lines) if b'"type":"turn/start"' in line]
    ends = [place for place, line in enumerate(lines) if b'"type":"turn/end"' in line]
    assert cut_back(log).size == len(log)
    for size in range(starts[1] + 1, ends[1]):
        cut = cut_back(b"".join(lines[:size]) + b'{"crc":"torn')
        assert (cut.size, cut.records) == (sum(map(len, lines[: starts[1]])), size - starts[1])
