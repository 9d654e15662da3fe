"""How long a child session may take, what it says of what holds it, and what it has from its parent."""

import pytest
import trio
from tests.kernel.test_children import Delegate, a_session, asks_for, events, of, slow, until

from turnkernel import Settings, ToolOutput, open_session
from turnkernel.events import TaskEnded, TurnEnd
from turnkernel.store import MemoryStore
from turnkernel.testing.crash import records_of
from turnkernel.testing.replies import Reply
from turnkernel.testing.scripted import ScriptedProvider, ScriptedTool


class Holds:
    """A tool that holds something for ever, and lets go of it when it is cancelled."""

    name, description, effect, concurrency, timeout = "holds", "", "effect", "shared", None

    def __init__(self, kind, held) -> None:
        self.schema = {"type": "object"}
        self._kind, self._held = kind, held

    async def run(self, ctx, input):
        with ctx.holding(self._kind, self._held):
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                with ctx.critical("letting go", 30):
                    await trio.sleep(20)
                raise


async def started(session, delegate):
    await session.send("go")
    await delegate.opened.wait()
    await until(delegate.children[-1], "tool/start")
    await trio.sleep(1)


async def test_a_child_that_is_asked_politely_has_its_parents_time(autojump_clock):
    """A cleanup of 20 seconds is not cut by the child's own bound, as it would not be in the parent."""
    delegate = Delegate([asks_for("slow", prefix="i")], [slow(on_cancel=[{"sleep": 20.0}])])
    async with a_session(None, [asks_for("delegate")], [delegate]) as session:
        await started(session, delegate)
        began = trio.current_time()
        await session.cancel().settled()
        assert trio.current_time() - began == pytest.approx(20.0)


async def test_the_parents_patience_with_threads_holds_in_a_child(autojump_clock):
    """B55: a thread that does not return holds the turn for as long as the parent's settings allow, not longer."""
    stubborn = ScriptedTool("slow", [{"block": 25000.0}])
    delegate = Delegate([asks_for("slow", prefix="i")], [stubborn])
    async with a_session(
        None, [asks_for("delegate")], [delegate], settings=Settings(thread_grace_seconds=1.5)
    ) as session:
        await started(session, delegate)
        began = trio.current_time()
        await session.cancel().settled()
        assert trio.current_time() - began == pytest.approx(1.5)
        assert [event.type for event in events(session)].count("turn/survivor") == 1


async def test_a_task_of_a_child_that_waits_for_it_follows_its_parent_to_now(autojump_clock):
    """The child is at rest, only its task runs; the user presses stop a second time."""
    work = ScriptedTool("work", [{"spawn": "session"}, {"critical": 50.0}, {"sleep": 50.0}])

    class Patient(Delegate):
        async def _work(self, ctx):
            async with open_session(
                ctx.log_at(ctx.log), provider=ScriptedProvider(self._replies), tools=self._tools, within=ctx
            ) as child:
                self.children.append(child)
                self.opened.set()
                await child.send("do it")
                await child.rest(tasks=True)
                return ToolOutput("done")

    delegate = Patient([asks_for("work", prefix="i"), Reply(text="Started.")], [work])
    async with a_session(None, [asks_for("delegate")], [delegate]) as session:
        await session.send("go")
        await delegate.opened.wait()
        await delegate.children[0].rest()
        await trio.sleep(1)
        began = trio.current_time()
        receipt = session.cancel()
        await trio.sleep(3)
        session.cancel()
        await receipt.settled()
        assert trio.current_time() - began == pytest.approx(3.0)
        assert [end.status for end in of(delegate.children[0], TaskEnded)] == ["stopped"]


async def test_rest_with_tasks_waits_for_what_their_ends_begin(autojump_clock):
    work = ScriptedTool("work", [{"spawn": "session"}, {"sleep": 50.0}, {"result": "built"}])
    async with a_session(
        None, [asks_for("work"), Reply(text="Wait."), Reply(text="It is built.")], [work]
    ) as session:
        await session.send("go")
        await session.rest()
        assert session.context[-1].blocks[-1].text == "Wait."
        await session.rest(tasks=True)
        assert session.context[-1].blocks[-1].text == "It is built."


async def test_rest_with_tasks_does_not_wait_where_their_ends_begin_nothing(autojump_clock):
    """After a cancelled turn a notice waits for the next prompt; so does who waits for rest."""
    work = ScriptedTool("work", [{"spawn": "session"}, {"sleep": 50.0}])
    async with a_session(None, [asks_for("work", "slow")], [work, slow()]) as session:
        await session.send("go")
        await until(session, "tool/start", 2)
        session.cancel()
        began = trio.current_time()
        await session.rest(tasks=True)
        assert trio.current_time() == began
        assert session.status().tasks


async def test_rest_with_tasks_leaves_detached_ones_alone(autojump_clock):
    work = ScriptedTool("work", [{"spawn": "detached"}, {"sleep": 50.0}])
    async with a_session(None, [asks_for("work"), Reply(text="So.")], [work]) as session:
        await session.send("go")
        began = trio.current_time()
        await session.rest(tasks=True)
        assert trio.current_time() == began


async def test_a_stuck_parent_names_what_a_grandchild_waits_in_and_holds(autojump_clock):
    inner = Delegate([asks_for("holds", prefix="i")], [Holds("process", "4711 make")], name="inner")
    outer = Delegate([asks_for("inner", prefix="o")], [inner])
    async with a_session(None, [asks_for("delegate")], [outer]) as session:
        await started(session, inner)
        receipt = session.cancel()
        stuck = await until(session, "turn/stuck")
        assert any("call i1" in line and "run:" in line for line in stuck.holders)
        assert "process of c1: 4711 make" in stuck.holders
        settled = await receipt.settled()
        assert settled.milestones["processes_gone"] == pytest.approx(20.0)
        for child, call in ((outer.children[0], "o1"), (inner.children[0], "i1")):
            (own,) = [event for event in events(child) if event.type == "turn/stuck"]
            assert f"process of {call}: 4711 make" in own.holders


async def test_a_child_is_as_durable_and_as_contained_as_its_parent(autojump_clock):
    opened = []

    class Plain(Delegate):
        async def _work(self, ctx):
            async with open_session(ctx.log_at(ctx.log), provider=ScriptedProvider([]), within=ctx) as child:
                opened.append(events(child)[0])
            return ToolOutput("done")

    replies = [asks_for("delegate"), Reply(text="So.")]
    for durability, containment in (("memory", "tree"), ("process", "none")):
        async with open_session(
            MemoryStore(),
            provider=ScriptedProvider(replies),
            tools=[Plain([])],
            durability=durability,
            containment=containment,
        ) as session:
            await session.send("go")
            await session.rest()
            assert [end.outcome for end in of(session, TurnEnd)] == ["completed"]
    assert [(one.durability, one.containment) for one in opened] == [("memory", "tree"), ("process", "none")]


@pytest.mark.law("R8")
async def test_an_opening_that_is_cancelled_closes_the_log_that_it_opened(autojump_clock):
    store = MemoryStore()
    with trio.CancelScope() as scope:
        scope.cancel()
        async with a_session(store, [], []):
            raise AssertionError("it was cancelled before it could begin")
    assert [record.event.type for record in records_of(store.read(0, store.size))] == [
        "session/open",
        "session/close",
    ]
