"""Signals that tell a host to stop: every one counts, and what each does to the session."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
import trio

from turnkernel import SessionClosedError, open_session
from turnkernel.events import TaskEnded, ToolResult, TurnEnd
from turnkernel.signals import STOPPING, each_signal, stop_on_signals
from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel.testing.scripted import ScriptedProvider, ScriptedTool

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals are sent as POSIX has them")

SLOW = ScriptedTool("slow", [{"sleep": 100.0}], [{"sleep": 3.0}])
SERVER = ScriptedTool("server", [{"spawn": "session"}, {"sleep": 100.0}], [{"sleep": 2.0}])


def a_session(*replies):
    return open_session(None, provider=ScriptedProvider(replies), tools=[SLOW, SERVER])


def events(session, kind):
    records = session._kernel.journal.records_from(1)
    return [record.event for record in records if isinstance(record.event, kind)]


def send(*numbers):
    """To ourselves; every one is delivered before the next is sent."""
    for number in numbers:
        os.kill(os.getpid(), number)


@contextmanager
def handlers_come_back():
    before = [signal.getsignal(number) for number in STOPPING]
    yield
    assert [signal.getsignal(number) for number in STOPPING] == before


async def stopped_by(*numbers, calls=("slow",), more=()):
    """A turn that runs these calls is struck; what came of it, and how many seconds it took."""
    replies = [Reply(calls=[ReplyCall(f"c{number}", name) for number, name in enumerate(calls, 1)]), *more]
    with handlers_come_back():
        async with a_session(*replies) as session, stop_on_signals(session) as stopped:
            await session.send("go")
            await trio.sleep(10)
            began = trio.current_time()
            send(*numbers)
            if not session.turn:
                await trio.sleep_forever()
            await session.rest()
            if stopped.by is not None:
                await trio.sleep_forever()
    return session, stopped, trio.current_time() - began


async def test_sigint_stops_the_turn_and_nothing_else(autojump_clock):
    session, stopped, seconds = await stopped_by(signal.SIGINT)
    assert [end.outcome for end in events(session, TurnEnd)] == ["aborted"]
    assert (stopped.by, seconds) == (None, pytest.approx(3.0))


@pytest.mark.parametrize("second", STOPPING)
async def test_two_signals_in_one_instant_are_two(autojump_clock, second):
    session, stopped, seconds = await stopped_by(signal.SIGINT, second)
    assert [end.outcome for end in events(session, TurnEnd)] == ["aborted"]
    assert stopped.by == second
    # SIGTERM is the first of its kind that asks to go, and grants the grace that is under way.
    assert seconds == pytest.approx(0.0 if second == signal.SIGINT else 3.0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_request_to_go_grants_the_graces_and_a_second_does_not(autojump_clock, number):
    for numbers, took in (((number,), 3.0), ((number, number), 0.0), ((number, signal.SIGINT), 0.0)):
        session, stopped, seconds = await stopped_by(*numbers)
        (end,) = events(session, TurnEnd)
        assert (end.outcome, stopped.by) == ("aborted", number)
        assert "stopped by the shutdown of this session" in (end.reminder or "")
        assert seconds == pytest.approx(took), numbers


async def test_sigint_at_rest_ends_the_block(autojump_clock):
    with handlers_come_back():
        async with a_session() as session, stop_on_signals(session) as stopped:
            send(signal.SIGINT)
            await trio.sleep_forever()
    assert stopped.by == signal.SIGINT


async def test_winding_down_stops_tasks_in_order_and_starts_no_turn(autojump_clock):
    session, _, seconds = await stopped_by(signal.SIGTERM, calls=("server",), more=[Reply(text="It runs.")])
    assert [end.status for end in events(session, TaskEnded)] == ["stopped"]
    assert [end.outcome for end in events(session, TurnEnd)] == ["completed"]
    assert seconds == pytest.approx(2.0)


async def test_words_that_come_too_late_are_no_error_once_a_signal_has_come(autojump_clock):
    async with a_session(Reply(calls=[ReplyCall("c1", "slow")])) as session:
        async with stop_on_signals(session) as stopped:
            await session.send("go")
            await trio.sleep(10)
            send(signal.SIGTERM)
            await trio.sleep(1)
            await session.send("one thing more")
        assert [result.status for result in events(session, ToolResult)] == ["stopped"]
        with pytest.raises(SessionClosedError):
            await session.send("and another")
    assert stopped.by == signal.SIGTERM


async def test_what_the_block_raises_leaves_as_it_is():
    async with a_session() as session:
        with pytest.raises(LookupError, match="mine"), handlers_come_back():
            async with stop_on_signals(session):
                raise LookupError("mine")


async def test_an_ignored_signal_stays_ignored():
    heard = []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with each_signal(heard.append, signal.SIGHUP, signal.SIGTERM):
            send(signal.SIGHUP, signal.SIGTERM)
            await trio.testing.wait_all_tasks_blocked()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert heard == [signal.SIGTERM]


PROGRAM = """
import sys, trio
from turnkernel.signals import STOPPING, each_signal
async def main():
    heard = []
    with each_signal(heard.append, *STOPPING):
        print("ready", flush=True)
        sys.stdin.readline()  # the loop does not run while the signals come
        for _ in range(10):
            await trio.sleep(0)
        print(*map(int, heard), flush=True)
trio.run(main)
"""


def test_signals_from_outside_that_come_while_nobody_looks_all_count():
    # Not two of a kind: the system itself makes one of two that wait for delivery.
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with program:
        assert program.stdout.readline() == "ready\n"
        for number in STOPPING:
            program.send_signal(number)
        program.stdin.write("\n")
        program.stdin.close()
        assert sorted(map(int, program.stdout.read().split())) == sorted(STOPPING)
