"""A crash at every record and at every byte: what a log is then, opening closes, by appending alone."""

import pytest
import trio

from turnkernel import open_session
from turnkernel.errors import LogDamagedError
from turnkernel.journal import read_records
from turnkernel.store import MemoryStore
from turnkernel.testing.laws import check_append_only, check_log
from turnkernel.testing.programs import PROGRAMS
from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel.testing.scripted import ScriptedProvider, ScriptedTool
from turnkernel.testing.sweep import cancel, play


def lines_of(program, plan=None):
    """The log of a run as lines of bytes, newline included."""
    from turnkernel.codec import encode

    return [encode(record) for record in play(program, plan or {}).box.records]


async def reopened(data: bytes, replies=(), tools=(), prompt: str | None = None) -> bytes:
    """The bytes after opening, saying a prompt if one is given, and leaving."""
    store = MemoryStore(data)
    async with open_session(
        store, provider=ScriptedProvider(replies), tools=tools, durability="memory"
    ) as session:
        if prompt is not None:
            session.post(prompt, prompt=True)
            await session.rest()
    return store.read(0, 1 << 24)


def records_of(data: bytes):
    return [item for _, item in read_records(MemoryStore(data))]


def check_recovered(before: bytes, after: bytes) -> None:
    assert not check_append_only(before, after)
    records = records_of(after)
    assert not check_log(records, closed=True, every_prefix=False)


@pytest.mark.law("L7", "L6", "L3")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.title)
async def test_after_a_crash_between_any_two_records_the_log_is_closed_and_the_next_prompt_works(program):
    for plan in ({}, {40: cancel}):
        lines = await trio.to_thread.run_sync(lines_of, program, plan)
        for kept in range(len(lines) + 1):
            before = b"".join(lines[:kept])
            after = await reopened(before, [Reply(text="Understood.")] * 9, (), "and now?")
            check_recovered(before, after)
            ends = [record.event for record in records_of(after) if record.event.type == "turn/end"]
            assert ends[-1].outcome == "completed"


@pytest.mark.law("L7")
async def test_a_crash_at_any_byte_is_passed_over_by_name_and_nothing_else_is_lost():
    lines = await trio.to_thread.run_sync(lines_of, PROGRAMS[1])
    data = b"".join(lines)
    whole = records_of(data)
    for cut in range(0, len(data), 7):
        before = data[:cut]
        after = await reopened(before)
        check_recovered(before, after)
        count = before.count(b"\n")
        got = records_of(after)
        # A line that only lacks its newline is whole.
        lacks_newline = cut < len(data) and data[cut : cut + 1] == b"\n"
        assert got[: count + lacks_newline] == whole[: count + lacks_newline]
        torn = bool(before) and not before.endswith(b"\n") and not lacks_newline
        opening = got[count + lacks_newline].event
        assert opening.type == "session/open"
        assert bool(opening.passed_over) == torn
        if torn:
            (named,) = opening.passed_over
            assert named.length == len(before) - before.rfind(b"\n") - 1
            assert named.offset == before.rfind(b"\n") + 1


async def test_a_second_opening_finds_nothing_to_close():
    lines = await trio.to_thread.run_sync(lines_of, PROGRAMS[2])
    for kept in range(1, len(lines), 5):
        once = await reopened(b"".join(lines[:kept]))
        twice = await reopened(once)
        added = records_of(twice)[len(records_of(once)) :]
        assert [record.event.type for record in added] == ["session/open", "session/close"]


async def test_a_crash_in_the_middle_of_a_recovery_comes_to_the_same_end():
    lines = await trio.to_thread.run_sync(lines_of, PROGRAMS[1])
    cut = b"".join(lines[:28])
    once = await reopened(cut)
    ending = [record.event for record in records_of(once)[28:] if record.event.type != "session/open"]
    for stop in range(len(cut), len(once)):
        if once[stop - 1 : stop] != b"\n":
            continue
        again = await reopened(once[:stop])
        check_recovered(once[:stop], again)
        closers = [
            record.event
            for record in records_of(again)[28:]
            if record.event.type not in ("session/open", "session/close")
        ]
        assert closers == [event for event in ending if event.type != "session/close"]


async def test_damage_in_the_middle_is_refused_with_its_place():
    lines = await trio.to_thread.run_sync(lines_of, PROGRAMS[0])
    for number in (1, 5, len(lines) - 2):
        bad = bytearray(lines[number])
        bad[30] ^= 1
        data = b"".join([*lines[:number], bytes(bad), *lines[number + 1 :]])
        with pytest.raises(LogDamagedError) as caught:
            await reopened(data)
        assert caught.value.line == number + 1
        assert caught.value.offset == sum(map(len, lines[:number]))


@pytest.mark.law("L4")
async def test_a_call_that_had_started_is_unknown_and_one_that_had_not_is_not_started():
    tool = ScriptedTool("slow", [{"emit": "half\n"}, {"sleep": 2.0}], concurrency="exclusive")
    safe = ScriptedTool("safe", [{"sleep": 2.0}], effect="read_only")
    reply = Reply(calls=[ReplyCall("c1", "slow"), ReplyCall("c2", "safe"), ReplyCall("c3", "slow")])

    from turnkernel.testing.sweep import Program

    program = Program("p", [reply], lambda: [safe, tool])
    lines = await trio.to_thread.run_sync(lines_of, program)
    types = [record.event.type for record in records_of(b"".join(lines))]
    after = await reopened(b"".join(lines[: types.index("tool/output") + 1]))
    results = {
        record.event.call: (record.event.status, record.event.text, record.event.synthetic)
        for record in records_of(after)
        if record.event.type == "tool/result"
    }
    assert {call: (status, synthetic) for call, (status, _, synthetic) in results.items()} == {
        "c1": ("unknown", True),
        "c2": ("not_started", True),
        "c3": ("not_started", True),
    }
    assert "do not retry blindly" in results["c1"][1]
    assert "half" in results["c1"][1]


async def test_an_opening_never_calls_the_model_and_go_on_does():
    lines = await trio.to_thread.run_sync(lines_of, PROGRAMS[0])
    types = [record.event.type for record in records_of(b"".join(lines))]
    provider = ScriptedProvider([Reply(text="Here I am.")])
    store = MemoryStore(b"".join(lines[: types.index("inbox/queued") + 1]))
    async with open_session(store, provider=provider, durability="memory") as session:
        await session.rest()
        assert provider.requests == []
        assert session.status().queued == 1
        session.go_on()
        await session.rest()
        assert len(provider.requests) == 1
