"""Agents that are stopped: what ends with them, what lives on, how long it may take."""

import os
import sys
import threading
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from tests.tools.agent_sessions import (
    Children,
    Models,
    agents,
    asks,
    call,
    ends,
    events,
    logged,
    results,
    says,
    session_of,
    slow,
    stores_below,
    task_tool,
    unlawful,
    until,
)

from turnkernel import Answer, Settings
from turnkernel.events import TaskEnded, TaskStarted, TurnEnd, TurnSurvivor
from turnkernel.store import MemoryStore
from turnkernel.testing.replies import ReplyCall
from turnkernel_tools import standard_tools, tool

linux = pytest.mark.skipif(
    sys.platform != "linux", reason="what is left alive is counted in /proc; a Linux machine would run it"
)


@pytest.fixture
def children():
    return Children()


def closed(store):
    """Whether every log of the tree but its root's is closed in order."""
    below = [one for name, one in stores_below(store).items() if name != "root"]
    return all(logged(one)[-1].type == "session/close" for one in below)


# ------------------------------------------------------------------------------------- the tree and its parts


async def test_stopping_one_agent_ends_all_below_it_and_nothing_beside_it(children, autojump_clock):
    """B76: the root has P and S in the background, P has C, C has G."""
    store = MemoryStore()
    models = Models(
        root=[asks(call("p", background=True), call("s", background=True)), *[says("So.")] * 3],
        p=[asks(call("c", background=True)), says("C works."), says("P is done.")],
        c=[asks(call("g", background=True)), says("G works."), says("C is done.")],
        g=[asks(call("x", "slow")), says("G is done.")],
        s=[asks(call("y", "slow")), says("S is done.")],
    )
    async with session_of(models, [*agents(models, depth=3, open_child=children), slow()], store) as session:
        await session.send("go")
        await until(await children.of("g"), "tool/start")
        await until(await children.of("s"), "tool/start")
        tasks = {one.call: one.task for one in events(session, TaskStarted)}
        receipt = session.stop_task(tasks["p"])
        assert [one.task for one in receipt.stopped] == [tasks["p"]]
        assert [one.task for one in receipt.going_on] == [tasks["s"]]
        began = trio.current_time()
        await receipt.settled()
        assert trio.current_time() == began
        assert list(session.children) == [tasks["s"]]
        for one in "pcg":
            assert events(children.by_work[one])[-1].type == "session/close"
        # Each level names what ended with it.
        for parent, below in (("p", "c"), ("c", "g")):
            (started,) = events(children.by_work[parent], TaskStarted)
            assert started.call == below
            assert ends(children.by_work[parent]) == [(started.task, "stopped")]
        (end,) = events(children.by_work["g"], TurnEnd)
        assert (end.outcome, "the session that started this one" in end.reminder) == ("aborted", True)
        await session.rest(tasks=True)
        assert dict(ends(session)) == {tasks["p"]: "stopped", tasks["s"]: "ok"}
        (notice,) = [one.text for one in events(session, TaskEnded) if one.task == tasks["s"]]
        assert "S is done." in notice
    assert closed(store)
    assert unlawful(store, closed=True) == []


async def test_a_cancel_of_the_turn_leaves_background_agents_and_names_them(children, autojump_clock):
    """B77: Esc was meant for the turn; stop_all is another word."""
    store = MemoryStore()
    models = Models(
        root=[asks(call("b", background=True), call("a")), says("I see.")],
        a=[asks(call("x", "slow"))],
        b=[asks(call("y", "slow")), says("B is done.")],
    )
    async with session_of(models, [*agents(models, open_child=children), slow()], store) as session:
        await session.send("go")
        for one in "ab":
            await until(await children.of(one), "tool/start")
        receipt = session.cancel()
        (task,) = [one.task for one in receipt.going_on]
        assert (await receipt.settled()).outcome == "aborted"
        assert results(session)["a"].status == "stopped"
        assert events(children.by_work["a"], TurnEnd)[0].outcome == "aborted"
        assert list(session.children) == [task]
        await session.children[task].rest()
        await until(session, "task/ended")
        assert ends(session) == [(task, "ok")]
        # Its words are there with the user's next ones.
        await session.send("and?")
        await session.rest()
        assert "B is done." in str(session.context)
    assert unlawful(store, closed=True) == []


async def test_stop_all_ends_the_whole_tree(children, autojump_clock):
    store = MemoryStore()
    models = Models(
        root=[asks(call("b", background=True), call("a"))],
        a=[asks(call("c"), call("w", "work"))],
        b=[asks(call("d", background=True), call("y", "slow"))],
        c=[asks(call("x", "slow"))],
        d=[asks(call("z", "slow"))],
    )
    tools = [*agents(models, depth=2, open_child=children), slow(), task_tool(seconds=100.0)]
    async with session_of(models, tools, store) as session:
        await session.send("go")
        for one in "abcd":
            await until(await children.of(one), "tool/start")
        await trio.sleep(1)
        receipt = session.stop_all()
        assert receipt.answer is Answer.APPLIED
        assert receipt.going_on == ()
        assert (await receipt.settled()).outcome == "aborted"
        assert not session.children
        assert models.open_streams == 0
    assert len(stores_below(store)) == 5
    assert closed(store)
    assert unlawful(store, closed=True) == []


async def test_one_agent_is_stopped_and_its_sibling_brings_its_result(children, autojump_clock):
    models = Models(
        root=[asks(call("a"), call("b")), says("So.")],
        a=[asks(call("c"))],
        b=[asks(call("y", "slow")), says("B is done.")],
        c=[asks(call("x", "slow"))],
    )
    async with session_of(models, [*agents(models, depth=2, open_child=children), slow()]) as session:
        await session.send("go")
        for one in "bc":
            await until(await children.of(one), "tool/start")
        assert session.cancel_call("a").answer is Answer.APPLIED
        await session.rest()
        assert {one: result.status for one, result in results(session).items()} == {"a": "stopped", "b": "ok"}
        assert results(session)["b"].text == "B is done."
        assert events(children.by_work["c"], TurnEnd)[0].outcome == "aborted"
        assert [end.outcome for end in events(session, TurnEnd)] == ["completed"]


async def test_leaving_the_block_ends_the_tree_within_one_bound(children, autojump_clock):
    """Four generations, each with a tool that would take a minute: three seconds are three seconds."""
    store = MemoryStore()
    late = {"on_cancel": [{"critical": 60.0}]}
    models = Models(
        root=[asks(call("a", background=True), call("x", "slow"))],
        a=[asks(call("b", background=True), call("y", "slow"))],
        b=[asks(call("c", background=True), call("z", "slow"))],
        c=[asks(call("w", "slow"))],
    )
    tools = [*agents(models, depth=3, open_child=children), slow(**late)]
    async with session_of(models, tools, store, settings=Settings(closing_seconds=3.0)) as session:
        await session.send("go")
        for one in "abc":
            await until(await children.of(one), "tool/start")
        await trio.sleep(1)
        began = trio.current_time()
    assert trio.current_time() - began <= 3.0
    assert closed(store)
    assert unlawful(store, closed=True) == []


# ------------------------------------------------------------------------------------- what does not listen


@linux
async def test_an_agent_whose_thread_does_not_return_is_left_and_the_other_ones_result_is_there():
    """B55: A is blocked in a thread that no cancel reaches, B is done; the parent is back in its time."""
    released, blocked = threading.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()

    @tool(concurrency="shared")
    def stuck() -> str:
        """Does not listen."""
        token.run_sync_soon(blocked.set)
        released.wait(60)
        return "too late"

    store = MemoryStore()
    models = Models(
        root=[asks(call("a"), call("b")), says("So.")], a=[asks(call("x", "stuck"))], b=[says("B is done.")]
    )
    settings = Settings(thread_grace_seconds=0.3)
    try:
        with trio.fail_after(30):
            async with session_of(models, [*agents(models), stuck], store, settings=settings) as session:
                await session.send("go")
                await until(session, "tool/result")
                await blocked.wait()
                settled = await session.cancel().settled()
                assert settled.outcome == "aborted"
                assert settled.milestones["ended"] < 2.0
                assert {one: result.status for one, result in results(session).items()} == {
                    "a": "unknown",
                    "b": "ok",
                }
                assert results(session)["b"].text == "B is done."
                (survivor,) = events(session, TurnSurvivor)
                assert (survivor.call, survivor.kind, survivor.name) == ("a", "thread", "stuck x")
                await session.send("and now?")
                await session.rest()
                assert [end.outcome for end in events(session, TurnEnd)] == ["aborted", "completed"]
    finally:
        released.set()
    named = [one.name for child in store.children.values() for one in logged(child) if one.type == "turn/survivor"]
    assert named == ["stuck x"]
    assert closed(store)


async def test_a_provider_that_takes_its_time_to_close_is_waited_for_no_longer_than_its_contract(autojump_clock):
    """A child's stream closes in bounded time, shielded; the parent's end waits for it, and for nothing else."""
    closing = []

    class Lingering:
        wire, model = "scripted", "slow to close"

        @asynccontextmanager
        async def stream(self, request):
            async def never():
                await trio.sleep_forever()
                yield

            try:
                events = never()
                yield events
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 2.0):
                    await trio.sleep(1.5)
                await events.aclose()
                closing.append(trio.current_time())

    models = Models(root=[asks(call("a")), says("So.")])
    models.by_call["a"] = Lingering()
    async with session_of(models, agents(models)) as session:
        await session.send("go")
        await until(session, "tool/start")
        await trio.sleep(1)
        began = trio.current_time()
        await session.cancel().settled()
        assert closing == [trio.current_time()]
        assert trio.current_time() - began == pytest.approx(1.5)


async def test_a_trio_task_of_an_agent_that_never_ends_is_named_with_its_stack(children, autojump_clock):
    """It can't be left: who holds the turn is said, down to the line of the grandchild's tool that waits."""

    @tool(concurrency="shared")
    async def deaf() -> str:
        """Does not let itself be cancelled, for a while."""
        with trio.CancelScope(shield=True):
            await trio.sleep(40)
        return "at last"

    models = Models(root=[asks(call("a"))], a=[asks(call("b"))], b=[asks(call("x", "deaf"))])
    async with session_of(models, [*agents(models, depth=2, open_child=children), deaf]) as session:
        await session.send("go")
        await until(await children.of("b"), "tool/start")
        await trio.sleep(1)
        receipt = session.cancel()
        session.cancel()
        stuck = await until(session, "turn/stuck")
        (line,) = [one for one in stuck.holders if "call x" in one]
        assert "deaf:" in line
        await receipt.settled()
        assert [event.type for event in events(children.by_work["b"])].count("turn/stuck") == 1


# ------------------------------------------------------------------------------------ real processes, eight agents


def alive(mark):
    """Processes that run with this word in their command."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if mark.encode() in command and state not in "ZX":
                found.append(command)
    return found


@linux
async def test_eight_agents_with_heartbeats_and_processes_stop_together(children, tmp_path):
    """B75: after the cancel no heartbeat, no process, no open stream, and every log is closed."""
    mark = f"agents-{os.getpid()}"
    eight = [f"a{number}" for number in range(8)]
    beats, beating = [], trio.Event()

    @tool(concurrency="shared")
    async def heartbeat(who: str) -> str:
        """Beats for ever."""
        while True:
            beats.append(who)
            if set(beats) == set(eight):
                beating.set()
            await trio.sleep(0.01)

    command = f"(exec -a {mark} sleep 300) & echo up; exec -a {mark} sleep 300"
    models = Models(
        root=[asks(*map(call, eight)), says("So.")],
        **{
            one: [
                asks(
                    ReplyCall(f"h{one}", "heartbeat", {"who": one}),
                    ReplyCall(f"p{one}", "bash", {"command": command}),
                )
            ]
            for one in eight
        },
    )
    bash = standard_tools(tmp_path)[0]
    # Shared, so that both calls of a child run at once.
    object.__setattr__(bash, "concurrency", "shared")
    store = MemoryStore()
    with trio.fail_after(60):
        async with session_of(models, [*agents(models, open_child=children), heartbeat, bash], store) as session:
            await session.send("go")
            await beating.wait()
            for one in eight:
                await until(await children.of(one), "tool/output")
            assert len(alive(mark)) >= 8
            receipt = session.cancel()
            settled = await receipt.settled()
            count = len(beats)
            assert alive(mark) == []
            assert models.open_streams == 0
            assert settled.outcome == "aborted"
            assert settled.milestones["processes_gone"] <= settled.milestones["ended"]
            assert not session.children
            await trio.sleep(0.1)
            assert len(beats) == count
            assert {result.status for result in results(session).values()} == {"stopped"}
    assert len(stores_below(store)) == 9
    assert closed(store)
    assert unlawful(store, closed=True) == []


# ---------------------------------------------------------------------------------------- shared connections


@linux
async def test_a_server_that_one_agent_began_serves_the_next_and_ends_with_the_root(tmp_path):
    """B116: begun by the first agent's call, used by the second when the first is dead, closed by the root."""
    server = []

    @asynccontextmanager
    async def helper(ctx):
        wanted, up = trio.Event(), trio.Event()

        async def serve():
            await wanted.wait()
            process = await trio.lowlevel.open_process(["/bin/sleep", "300"])
            server.append(process)
            try:
                up.set()
                await process.wait()
            finally:
                process.kill()
                with ctx.critical("ending the server", 5, now_seconds=5):
                    await process.wait()

        @tool(name="ask_server", concurrency="shared")
        async def ask_server() -> str:
            """Ask the server, which is started when it is first needed."""
            wanted.set()
            await up.wait()
            assert server[0].poll() is None
            return f"served {len(server)}"

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            yield [ask_server]
            nursery.cancel_scope.cancel()

    models = Models(
        root=[asks(call("a")), asks(call("b")), says("So.")],
        a=[asks(call("u", "ask_server"), call("x", "slow"))],
        b=[asks(call("v", "ask_server")), says("B was served.")],
    )
    store = MemoryStore()
    with trio.fail_after(30):
        async with session_of(models, [*agents(models), slow()], store, resources=[helper]) as session:
            await session.send("go")
            await until(session, "tool/output")  # the first agent was served, and is in its slow call
            session.cancel_call("a")
            await session.rest()
            assert results(session)["a"].status == "stopped"
            assert results(session)["b"].text == "B was served."
            assert [end.outcome for end in events(session, TurnEnd)] == ["completed"]
            (process,) = server
            assert process.poll() is None
    assert process.poll() is not None
    assert unlawful(store, closed=True) == []
