"""Tasks: work that outlives its turn. Its end is one record, which is the notice. Virtual time throughout."""

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
import trio

from turnkernel import Answer, ToolOutput, open_session
from turnkernel.events import TaskEnded, TaskStarted
from turnkernel.store import MemoryStore
from turnkernel.testing.laws import check_log
from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel.testing.scripted import ScriptedProvider, ScriptedTool
from turnkernel.tool import TaskBody


def spawning(*rest, lifetime="session", name="work", **options):
    return ScriptedTool(name, [{"spawn": lifetime}, *rest], **options)


def asks_for(*names):
    calls = [ReplyCall(f"c{number}", name) for number, name in enumerate(names, 1)]
    return Reply(text="I begin.", calls=calls)


def events(session):
    return [record.event for record in session._kernel.journal.records_from(1)]


def types(session, *of):
    return [event.type for event in events(session) if event.type in of]


def ends(session):
    return [event for event in events(session) if isinstance(event, TaskEnded)]


async def until(session, name, nth=1):
    async for event in session.events():
        if event.type == name:
            nth -= 1
            if not nth:
                return event
    raise AssertionError(f"the session ended without its {name}")


async def test_a_task_goes_on_after_its_turn_and_its_end_wakes_the_model(autojump_clock):
    provider = ScriptedProvider([asks_for("work"), Reply(text="It runs."), Reply(text="It is built.")])
    async with open_session(
        None, provider=provider, tools=[spawning({"sleep": 5.0}, {"result": "built"})]
    ) as session:
        await session.send("build it")
        await session.rest()
        assert session.status().tasks
        assert types(session, "turn/end", "task/ended") == ["turn/end"]
        await until(session, "task/ended")
        await session.rest()
        (end,) = ends(session)
        assert end.status == "ok"
        assert "built" in end.text
        assert "5.0 s" in end.text
        assert len(provider.requests) == 3
        assert "built" in str(provider.requests[-1].messages[-1].blocks[-1])
        assert not session.status().tasks
    assert check_log([*session._kernel.journal.records_from(1)]) == []


@pytest.mark.law("R1", "L3")
async def test_a_cancel_of_the_turn_leaves_the_task_and_the_receipt_names_it(autojump_clock):
    slow = ScriptedTool("slow", [{"sleep": 100.0}])
    provider = ScriptedProvider([asks_for("work", "slow"), Reply(text="So it is done.")])
    tools = [spawning({"sleep": 5.0}, {"result": "built"}), slow]
    async with open_session(None, provider=provider, tools=tools) as session:
        await session.send("build it")
        await until(session, "tool/start", 2)
        receipt = session.cancel()
        (going_on,) = receipt.going_on
        assert going_on.name == "work"
        await receipt.settled()
        await until(session, "task/ended")
        await session.rest()
        # A notice does not wake the model after an aborted turn; it waits for the next words.
        assert len(provider.requests) == 1
        await session.send("and?")
        await session.rest()
        assert "built" in str(provider.requests[-1].messages)
    assert types(session, "turn/cancel", "turn/end", "task/ended") == [
        "turn/cancel",
        "turn/end",
        "task/ended",
        "turn/end",
    ]


async def test_a_task_that_is_stopped_ends_as_stopped_and_the_receipt_settles_with_it(autojump_clock):
    provider = ScriptedProvider([asks_for("work"), Reply(text="It runs."), Reply(text="Oh.")])
    tool = spawning({"sleep": 100.0}, on_cancel=[{"sleep": 1.5}])
    async with open_session(None, provider=provider, tools=[tool]) as session:
        await session.send("go")
        await session.rest()
        (task,) = session.status().tasks
        receipt = session.stop_task(task)
        assert receipt.answer is Answer.APPLIED
        assert [one.task for one in receipt.stopped] == [task]
        began = trio.current_time()
        await receipt.settled()
        assert trio.current_time() - began == pytest.approx(1.5)
        (end,) = ends(session)
        assert end.status == "stopped"
        assert "the user" in end.text
        assert session.stop_task(task).answer is Answer.STALE
        assert session.stop_task("k999").answer is Answer.STALE


async def test_a_second_stop_ends_the_graces(autojump_clock):
    provider = ScriptedProvider([asks_for("work"), Reply(text="It runs."), Reply(text="Oh.")])
    tool = spawning({"sleep": 100.0}, on_cancel=[{"sleep": 30.0}])
    async with open_session(None, provider=provider, tools=[tool]) as session:
        await session.send("go")
        await session.rest()
        (task,) = session.status().tasks
        session.stop_task(task)
        await trio.sleep(1)
        second = session.stop_task(task)
        assert second.answer is Answer.REPEATED
        began = trio.current_time()
        await second.settled()
        assert trio.current_time() == began


async def test_stop_all_ends_the_turn_and_every_task(autojump_clock):
    slow = ScriptedTool("slow", [{"sleep": 100.0}])
    provider = ScriptedProvider([asks_for("work", "work", "slow"), Reply(text="Fine.")])
    async with open_session(None, provider=provider, tools=[spawning({"sleep": 50.0}), slow]) as session:
        await session.send("go")
        await until(session, "tool/start", 3)
        receipt = session.stop_all()
        assert receipt.answer is Answer.APPLIED
        assert receipt.going_on == ()
        assert len(receipt.stopped) == 2
        settled = await receipt.settled()
        assert settled.outcome == "aborted"
        assert [end.status for end in ends(session)] == ["stopped", "stopped"]
        assert session.stop_all().answer is Answer.IDLE


@pytest.mark.law("L3")
async def test_leaving_the_session_ends_its_tasks_before_its_log(autojump_clock):
    provider = ScriptedProvider([asks_for("work"), Reply(text="It runs.")])
    tool = spawning({"sleep": 100.0}, on_cancel=[{"sleep": 1.0}])
    async with open_session(None, provider=provider, tools=[tool]) as session:
        await session.send("go")
        await session.rest()
    assert types(session, "turn/end", "task/ended", "session/close") == ["turn/end", "task/ended", "session/close"]
    (end,) = ends(session)
    assert end.status == "stopped"
    assert "shutdown" in end.text


async def test_a_block_that_fails_ends_its_tasks_at_once_and_in_order(autojump_clock):
    provider = ScriptedProvider([asks_for("work"), Reply(text="It runs.")])
    tool = spawning({"sleep": 100.0}, on_cancel=[{"sleep": 1.0}])
    with pytest.raises(ZeroDivisionError):
        async with open_session(None, provider=provider, tools=[tool]) as session:
            await session.send("go")
            await session.rest()
            await trio.sleep(1)
            began = trio.current_time()
            raise ZeroDivisionError
    assert trio.current_time() == began
    assert types(session, "task/ended", "session/close") == ["task/ended", "session/close"]
    assert "shutdown" in ends(session)[0].text


async def test_the_hosts_cancel_ends_tasks_and_closes_the_log(autojump_clock):
    store = MemoryStore()
    provider = ScriptedProvider([asks_for("work"), Reply(text="It runs.")])
    tools = [spawning({"sleep": 100.0})]
    with trio.move_on_after(10) as scope:
        async with open_session(store, provider=provider, tools=tools, durability="memory") as session:
            await session.send("go")
            await trio.sleep_forever()
    assert scope.cancelled_caught
    (end,) = ends(session)
    assert (end.status, types(session, "session/close")) == ("stopped", ["session/close"])
    assert "the program that runs this session" in end.text


@pytest.mark.parametrize(
    ("rest", "status", "said"),
    [
        ([{"raise": "ValueError: no such file"}], "error", "ValueError: no such file"),
        ([{"sleep": 100.0}], "stopped", "the user"),
        ([{"result": "fine"}], "ok", "fine"),
        ([{"result": "a bell \x07 and half a pair \ud800"}], "ok", "a bell \\x07 and half a pair \ufffd"),
    ],
)
async def test_a_task_ends_as_its_body_did(rest, status, said, autojump_clock):
    provider = ScriptedProvider([asks_for("work"), Reply(text="It runs."), Reply(text="Oh.")])
    async with open_session(None, provider=provider, tools=[spawning(*rest)]) as session:
        await session.send("go")
        await trio.sleep(1)
        await session.stop_all().settled()
        await session.rest()
        (end,) = ends(session)
        assert end.status == status
        assert said in end.text


async def test_a_failure_while_a_task_is_stopped_is_told_and_harms_nobody(autojump_clock):
    async def cleanup_that_fails(ctx):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise OSError("the disk is gone")

    provider = ScriptedProvider([asks_for("begin"), Reply(text="It runs."), Reply(text="Oh.")])
    async with open_session(None, provider=provider, tools=[Begins(cleanup_that_fails)]) as session:
        await session.send("go")
        await session.rest()
        await session.stop_task(session.status().tasks[0]).settled()
        (end,) = ends(session)
        assert end.status == "stopped"
        assert "the disk is gone" in end.text


async def test_tasks_that_end_in_one_instant_give_a_notice_each(autojump_clock):
    provider = ScriptedProvider([asks_for(*["work"] * 20), Reply(text="They run."), *[Reply(text="Good.")] * 20])
    async with open_session(None, provider=provider, tools=[spawning({"sleep": 3.0})]) as session:
        await session.send("go")
        await until(session, "task/ended", 20)
        await session.rest()
        assert len({end.item for end in ends(session)}) == 20
        consumed = [event.item for event in events(session) if event.type == "inbox/consumed"]
        assert consumed[1:] == [end.item for end in ends(session)]


async def test_a_crash_leaves_a_lost_task_and_its_notice_comes_with_the_next_words(autojump_clock):
    store = MemoryStore()
    provider = ScriptedProvider([asks_for("work"), Reply(text="It runs.")])
    async with open_session(store, provider=provider, tools=[spawning({"sleep": 100.0})]) as session:
        await session.send("go")
        await session.rest()
        dead = store.read(0, store.size)
    provider = ScriptedProvider([Reply(text="I see.")])
    async with open_session(MemoryStore(dead), provider=provider) as session:
        (end,) = ends(session)
        assert (end.status, end.synthetic) == ("lost", True)
        await session.rest()
        assert not provider.requests
        await session.send("and?")
        await session.rest()
        assert "lost" in str(provider.requests[0].messages)
    assert check_log([*session._kernel.journal.records_from(1)]) == []


@pytest.mark.law("L4", "R5")
async def test_no_task_begins_in_a_call_that_was_cancelled(autojump_clock):
    gate = trio.Event()

    class Late(Begins):
        async def run(self, ctx, input):
            with trio.CancelScope(shield=True):
                await gate.wait()
            return await super().run(ctx, input)

    async def body(ctx):
        raise AssertionError("it began")

    provider = ScriptedProvider([asks_for("begin")])
    async with open_session(None, provider=provider, tools=[Late(body)]) as session:
        await session.send("go")
        await until(session, "tool/start")
        receipt = session.cancel()
        gate.set()
        await receipt.settled()
        assert not types(session, "task/started")


async def test_a_task_that_is_stopped_in_the_instant_of_its_record_never_begins(autojump_clock):
    began = []

    async def body(ctx):
        began.append(ctx.work_id)
        return ToolOutput("done")

    class Stopped(Begins):
        async def run(self, ctx, input):
            output = await super().run(ctx, input)
            ctx.tasks.stop(output.text)
            return output

    provider = ScriptedProvider([asks_for("begin"), Reply(text="Oh."), Reply(text="So.")])
    async with open_session(None, provider=provider, tools=[Stopped(body)]) as session:
        await session.send("go")
        await until(session, "task/ended")
        assert not began
        (end,) = ends(session)
        assert end.status == "stopped"
        assert "was stopped by a tool call" in end.text


class Begins:
    """A tool that begins a task with a body of the test's; the result is the task's id."""

    name = "begin"
    description = "Begins a task."
    schema: ClassVar = {"type": "object"}
    effect = "effect"
    concurrency = "shared"
    timeout = None

    def __init__(self, body: TaskBody, *, lifetime="session", find: Callable | None = None) -> None:
        self._body = body
        self._lifetime = lifetime
        self._find = find

    async def run(self, ctx, input):
        return ToolOutput(await ctx.tasks.start(self.name, self._body, lifetime=self._lifetime, detail={"pid": 7}))

    def find(self, started: TaskStarted, folder: Path | None) -> TaskBody | None:
        return self._find(started) if self._find is not None else None


async def detached_log() -> bytes:
    """A log in which a detached task was let go of."""
    let_go = []

    async def body(ctx):
        try:
            await trio.sleep_forever()
        finally:
            let_go.append(ctx.stopping)

    store = MemoryStore()
    provider = ScriptedProvider([asks_for("begin"), Reply(text="It runs.")])
    tools = [Begins(body, lifetime="detached")]
    async with open_session(store, provider=provider, tools=tools, durability="memory") as session:
        await session.send("go")
        await session.rest()
        await trio.sleep(1)
    assert let_go == [False]
    assert types(session, "task/started", "task/ended", "session/close") == ["task/started", "session/close"]
    return store.read(0, store.size)


async def test_a_detached_task_is_let_go_of_and_found_again(autojump_clock):
    log = await detached_log()

    async def body(ctx):
        await trio.sleep(3)
        return ToolOutput("exit code 0")

    found = []

    def find(started):
        found.append((started.task, started.detail))
        return body

    provider = ScriptedProvider([Reply(text="Good.")])
    tools = [Begins(body, lifetime="detached", find=find)]
    async with open_session(MemoryStore(log), provider=provider, tools=tools) as session:
        assert len(found) == 1
        assert found[0][1] == {"pid": 7}
        assert session.status().tasks == (found[0][0],)
        await until(session, "task/ended")
        await session.rest()
        assert not provider.requests  # an opening never calls the model
        (end,) = ends(session)
        assert end.status == "ok"
        assert "exit code 0" in end.text
    assert check_log([*session._kernel.journal.records_from(1)]) == []


async def test_a_detached_task_that_is_not_found_is_lost_and_one_whose_tool_is_missing_is_left(autojump_clock):
    log = await detached_log()
    store = MemoryStore(log)
    async with open_session(store, provider=ScriptedProvider([])) as session:
        assert len(session.status().tasks) == 1
    tools = [Begins(trio.sleep_forever)]
    async with open_session(store, provider=ScriptedProvider([]), tools=tools) as session:
        (end,) = ends(session)
        assert end.status == "lost"
    assert check_log([*session._kernel.journal.records_from(1)]) == []


@pytest.mark.parametrize(
    ("output", "status", "said"),
    [
        (ToolOutput("its keeper is gone", is_error=True, status="unknown"), "lost", "is lost: it does not run"),
        (ToolOutput("by an earlier life", status="stopped"), "stopped", "was stopped]"),
        (ToolOutput("its hour was over", is_error=True, status="timed_out"), "error", "failed]"),
    ],
)
async def test_a_body_says_what_became_of_detached_work(output, status, said, autojump_clock):
    async def body(ctx):
        return output

    store = MemoryStore(await detached_log())
    tools = [Begins(body, find=lambda started: body)]
    async with open_session(store, provider=ScriptedProvider([]), tools=tools) as session:
        end = await until(session, "task/ended")
        assert end.status == status
        assert said in end.text
        assert output.text in end.text


async def test_a_detached_task_that_is_stopped_ends(autojump_clock):
    log = await detached_log()
    stopped = []

    async def body(ctx):
        try:
            await trio.sleep_forever()
        finally:
            stopped.append(ctx.stopping)

    tools = [Begins(body, find=lambda started: body)]
    async with open_session(
        MemoryStore(log), provider=ScriptedProvider([]), tools=tools, durability="memory"
    ) as session:
        await trio.sleep(1)
        await session.stop_all().settled()
        assert stopped == [True]
        (end,) = ends(session)
        assert end.status == "stopped"


@pytest.mark.parametrize("stopped", [True, False])
async def test_a_found_task_is_ended_or_let_go_of_by_its_body_in_the_first_instant_too(stopped, autojump_clock):
    seen = []

    async def body(ctx):
        try:
            await trio.sleep_forever()
        finally:
            seen.append(ctx.stopping)

    store = MemoryStore(await detached_log())
    tools = [Begins(body, find=lambda started: body)]
    async with open_session(store, provider=ScriptedProvider([]), tools=tools, durability="memory") as session:
        if stopped:
            session.stop_all()
    assert seen == [stopped]
    assert [end.status for end in ends(session)] == (["stopped"] if stopped else [])


async def test_what_a_task_could_not_stop_is_named_in_its_end(autojump_clock):
    async def body(ctx):
        try:
            await trio.sleep_forever()
        finally:
            ctx.survivor("process", "pid 7 sleep")

    provider = ScriptedProvider([asks_for("begin"), Reply(text="It runs."), Reply(text="Oh.")])
    async with open_session(None, provider=provider, tools=[Begins(body)]) as session:
        await session.send("go")
        await session.rest()
        await trio.sleep(1)
        await session.stop_all().settled()
        (end,) = ends(session)
        assert "pid 7 sleep" in end.text


async def test_a_tool_sees_how_every_task_began_and_ended(autojump_clock):
    seen = []

    async def body(ctx):
        return ToolOutput("done")

    class Looks(Begins):
        async def run(self, ctx, input):
            task = (await super().run(ctx, input)).text
            seen.append([one.task for one in ctx.tasks.running()])
            seen.append(ctx.tasks.end_of(task))
            await ctx.tasks.over(task)
            seen.append(ctx.tasks.end_of(task).status)
            seen.append(ctx.tasks.known(task).call)
            seen.append([one.task for one in ctx.tasks.begun()])
            seen.append((ctx.tasks.known("k0"), ctx.tasks.end_of("k0"), ctx.tasks.say(task, "hello")))
            return ToolOutput(task)

    provider = ScriptedProvider([asks_for("begin"), Reply(text="So."), Reply(text="Good.")])
    async with open_session(None, provider=provider, tools=[Looks(body)]) as session:
        await session.send("go")
        await session.rest()
        (task,) = [event.task for event in events(session) if isinstance(event, TaskStarted)]
    assert seen == [[task], None, "ok", "c1", [task], (None, None, False)]
