"""Sessions within the work of another session, and resources of a session. Virtual time throughout."""

from contextlib import asynccontextmanager
from typing import ClassVar

import pytest
import trio

from turnkernel import Answer, Settings, ToolOutput, open_session
from turnkernel.events import TaskEnded, ToolResult, TurnEnd
from turnkernel.store import MemoryStore
from turnkernel.testing.laws import check_log
from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel.testing.scripted import ScriptedProvider, ScriptedTool


def asks_for(*names, prefix="c"):
    return Reply(text="Go.", calls=[ReplyCall(f"{prefix}{number}", name) for number, name in enumerate(names, 1)])


def events(session):
    return [record.event for record in session._kernel.journal.records_from(1)]


def of(session, kind):
    return [event for event in events(session) if isinstance(event, kind)]


async def until(session, name, nth=1):
    async for event in session.events():
        if event.type == name:
            nth -= 1
            if not nth:
                return event
    raise AssertionError(f"the session ended without its {name}")


class Delegate:
    """A tool that lets a child session do it. With `background` the child is a task."""

    description = "Lets somebody else do it."
    schema: ClassVar = {"type": "object"}
    effect = "effect"
    concurrency = "shared"
    timeout = None
    opens_session = True

    def __init__(self, replies, tools=(), *, name="delegate", background=False, settings=None) -> None:
        self.name = name
        self.providers = []
        self.children = []
        self.opened = trio.Event()
        self._replies, self._tools, self._background = replies, tools, background
        self._settings = settings

    async def run(self, ctx, input):
        if self._background:
            return ToolOutput(await ctx.tasks.start(self.name, self._work, log=ctx.log))
        return await self._work(ctx)

    async def _work(self, ctx):
        provider = ScriptedProvider(self._replies)
        self.providers.append(provider)
        place = ctx.log_at(ctx.log)
        async with open_session(
            place, provider=provider, tools=self._tools, within=ctx, settings=self._settings, durability="memory"
        ) as child:
            self.children.append(child)
            self.opened.set()
            await child.send("do it")
            await child.rest()
            return ToolOutput(child.context[-1].blocks[-1].text)


def a_session(store, replies, tools, **options):
    return open_session(store, provider=ScriptedProvider(replies), tools=tools, durability="memory", **options)


def slow(**options):
    return ScriptedTool("slow", [{"sleep": 100.0}], **options)


@pytest.mark.law("R1")
async def test_a_child_does_its_work_and_the_logs_name_each_other(autojump_clock):
    delegate = Delegate([Reply(text="Done.")])
    store = MemoryStore()
    async with a_session(store, [asks_for("delegate"), Reply(text="Good.")], [delegate]) as session:
        await session.send("go")
        await session.rest()
        assert [result.text for result in of(session, ToolResult)] == ["Done."]
        start = next(event for event in events(session) if event.type == "tool/start")
        (child,) = delegate.children
        opened = events(child)[0]
        assert (opened.parent.session, opened.parent.call) == (events(session)[0].session, "c1")
        assert list(store.children) == [start.log]
        assert events(child)[-1].type == "session/close"
        assert not session.children
    for one in (session, child):
        assert check_log([*one._kernel.journal.records_from(1)]) == []


@pytest.mark.law("R1", "R8")
async def test_a_cancel_of_the_parent_closes_the_whole_subtree_before_its_turn_ends(autojump_clock):
    inner = Delegate([asks_for("slow", prefix="i"), Reply(text="?")], [slow()], name="inner")
    outer = Delegate([asks_for("inner", prefix="o"), Reply(text="?")], [inner])
    async with a_session(None, [asks_for("delegate")], [outer]) as session:
        await session.send("go")
        await until(session, "tool/start")
        await inner.opened.wait()
        await until(inner.children[0], "tool/start")
        assert list(session.children) == ["c1"]
        assert list(session.children["c1"].children) == ["o1"]
        receipt = session.cancel()
        settled = await receipt.settled()
        assert settled.outcome == "aborted"
        for one, call in ((outer.children[0], "o1"), (inner.children[0], "i1")):
            assert [end.outcome for end in of(one, TurnEnd)] == ["aborted"]
            assert events(one)[-1].type == "session/close"
            (result,) = of(one, ToolResult)
            assert (result.call, result.status) == (call, "stopped")
            assert "the session that started this one" in result.text
            assert "the session that started this one" in of(one, TurnEnd)[0].reminder
            assert check_log([*one._kernel.journal.records_from(1)]) == []
        assert [result.status for result in of(session, ToolResult)] == ["stopped"]


async def test_a_child_has_the_grace_that_its_parent_has_and_loses_it_with_it(autojump_clock):
    cleaning = slow(on_cancel=[{"sleep": 1.5}])
    delegate = Delegate([asks_for("slow", prefix="i"), Reply(text="?")], [cleaning])
    for urgent, took in ((False, 1.5), (True, 0.0)):
        async with a_session(None, [asks_for("delegate")], [delegate]) as session:
            await session.send("go")
            await until(session, "tool/start")
            await trio.sleep(5)
            receipt = session.cancel()
            began = trio.current_time()
            if urgent:
                assert session.cancel().answer is Answer.REPEATED
            await receipt.settled()
            assert trio.current_time() - began == pytest.approx(took)


async def test_the_second_cancel_reaches_a_child_that_is_in_its_grace(autojump_clock):
    cleaning = slow(on_cancel=[{"sleep": 4.0}])
    delegate = Delegate([asks_for("slow", prefix="i"), Reply(text="?")], [cleaning])
    async with a_session(None, [asks_for("delegate")], [delegate]) as session:
        await session.send("go")
        await until(session, "tool/start")
        await trio.sleep(5)
        receipt = session.cancel()
        began = trio.current_time()
        await trio.sleep(1)
        session.cancel()
        await receipt.settled()
        assert trio.current_time() - began == pytest.approx(1.0)


async def test_bounds_do_not_add_up(autojump_clock):
    """The parent's block is left: its one deadline bounds what the grandchild may take."""
    cleaning = slow(on_cancel=[{"critical": 50.0}])
    inner = Delegate([asks_for("slow", prefix="i")], [cleaning], name="inner")
    outer = Delegate([asks_for("inner", prefix="o")], [inner])
    async with a_session(None, [asks_for("delegate")], [outer], settings=Settings(closing_seconds=3.0)) as session:
        await session.send("go")
        await until(session, "tool/start")
        await trio.sleep(5)
        session.cancel()
        await trio.sleep(1)
        began = trio.current_time()
    assert trio.current_time() - began <= 3.0


async def test_one_call_is_stopped_and_the_sibling_lives(autojump_clock):
    delegate = Delegate(
        [asks_for("slow", prefix="i"), Reply(text="Done.")], [ScriptedTool("slow", [{"sleep": 9.0}])]
    )
    async with a_session(None, [asks_for("delegate", "delegate"), Reply(text="So.")], [delegate]) as session:
        await session.send("go")
        await until(session, "tool/start", 2)
        await trio.sleep(5)
        session.cancel_call("c1")
        await session.rest()
        assert {one.call: one.status for one in of(session, ToolResult)} == {"c1": "stopped", "c2": "ok"}
        assert [end.outcome for end in of(session, TurnEnd)] == ["completed"]


async def test_a_background_child_lives_on_over_a_cancel_and_takes_words(autojump_clock):
    replies = [asks_for("slow", prefix="i"), Reply(text="Done.")]
    delegate = Delegate(replies, [ScriptedTool("slow", [{"sleep": 9.0}])], background=True)
    async with a_session(None, [asks_for("delegate", "slow"), Reply(text="So.")], [delegate, slow()]) as session:
        await session.send("go")
        await until(session, "tool/start", 2)
        await trio.sleep(1)
        receipt = session.cancel()
        (going_on,) = receipt.going_on
        await receipt.settled()
        assert list(session.children) == [going_on.task]
        session.children[going_on.task].post("hurry")
        await until(session, "task/ended")
        (end,) = of(session, TaskEnded)
        assert end.status == "ok"
        assert "Done." in end.text
        assert "hurry" in str(delegate.children[0].context)


async def test_stop_all_ends_a_background_child(autojump_clock):
    delegate = Delegate([asks_for("slow", prefix="i")], [slow()], background=True)
    async with a_session(None, [asks_for("delegate"), Reply(text="So.")], [delegate]) as session:
        await session.send("go")
        await session.rest()
        await trio.sleep(1)
        await session.stop_all().settled()
        assert [end.status for end in of(session, TaskEnded)] == ["stopped"]
        assert [end.outcome for end in of(delegate.children[0], TurnEnd)] == ["aborted"]


@pytest.mark.law("R1")
async def test_what_a_child_leaves_alive_its_parent_names_too(autojump_clock):
    stubborn = ScriptedTool("slow", [{"block": 100.0}])
    delegate = Delegate([asks_for("slow", prefix="i")], [stubborn])
    async with a_session(None, [asks_for("delegate")], [delegate]) as session:
        await session.send("go")
        await until(session, "tool/start")
        await trio.sleep(5)
        session.cancel()
        await session.cancel().settled()
        names = [event.name for event in events(session) if event.type == "turn/survivor"]
        assert names == [event.name for event in events(delegate.children[0]) if event.type == "turn/survivor"]
        assert names
        assert [result.status for result in of(session, ToolResult)] == ["unknown"]


@pytest.mark.law("L3", "L6")
async def test_opening_a_parent_closes_its_children_first_and_says_how_they_ended(autojump_clock):
    store = MemoryStore()
    inner = Delegate([asks_for("slow", prefix="i")], [slow()], name="inner")
    outer = Delegate([asks_for("inner", prefix="o")], [inner])
    late = Delegate([Reply(text="All of it is done."), Reply(text="")], name="late", background=True)
    images = {}

    def image(one, name, into):
        into[name] = one.read(0, one.size)
        for child, below in one.children.items():
            image(below, f"{name}/{child}", into)

    async with a_session(store, [asks_for("delegate", "late")], [outer, late]) as session:
        await session.send("go")
        await inner.opened.wait()
        await until(inner.children[0], "tool/start")
        image(store, "root", images)
    assert len(images) == 4

    def revive(name):
        one = MemoryStore(images[name])
        for other in images:
            head, _, child = other.rpartition("/memory.d/")
            if head == name:
                one.children[f"memory.d/{child}"] = revive(other)
        return one

    root = revive("root")
    async with a_session(root, [Reply(text="I see.")], []) as session:
        results = {result.call: result for result in of(session, ToolResult)}
        assert results["c1"].status == "unknown"
        assert "interrupted" in results["c1"].text
        (child,) = [one for name, one in root.children.items() if one.children]
        (grandchild,) = child.children.values()
        await session.send("go on")
        await session.rest()
    sizes = root.size, child.size, grandchild.size
    for one in (child, grandchild):
        async with a_session(one, [], []) as again:
            assert [end.outcome for end in of(again, TurnEnd)] == ["interrupted"]
            assert [event.type for event in events(again)].count("session/close") == 1
            assert check_log([*again._kernel.journal.records_from(1)]) == []
    # Closed children are left alone by the next opening of their parent.
    child_size = child.size
    async with a_session(root, [], []):
        pass
    assert child.size == child_size
    assert sizes[0] < root.size


async def test_a_childs_log_that_is_missing_or_damaged_is_told_and_harms_nobody(autojump_clock):
    store = MemoryStore()
    delegate = Delegate([asks_for("slow", prefix="i")], [slow()])
    async with a_session(store, [asks_for("delegate")], [delegate]) as session:
        await session.send("go")
        await until(session, "tool/start")
        await trio.sleep(5)
        dead = store.read(0, store.size)
        (name,) = store.children
        part = store.children[name].read(0, store.children[name].size)
    for child, said in (
        (b"", "had not begun a turn"),
        (b"no log\n" + part, "not known"),
        (part.replace(b'"do it"', b'"do at"'), "not known"),
    ):
        root = MemoryStore(dead)
        root.children[name] = MemoryStore(child)
        async with a_session(root, [], []) as session:
            (result,) = of(session, ToolResult)
            assert said in result.text
            assert check_log([*session._kernel.journal.records_from(1)]) == []


# ------------------------------------------------------------------------------------------------ resources


def resource(name, said, tools=(), *, fails=False, lingers=0.0):
    @asynccontextmanager
    async def entered(ctx):
        said.append(f"{name} begins")
        if fails:
            raise OSError(f"no {name}")
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                try:
                    yield tools
                finally:
                    with ctx.critical("leaving", 5):
                        await trio.sleep(lingers)
                    nursery.cancel_scope.cancel()
        finally:
            said.append(f"{name} ends")

    return entered


@pytest.mark.law("R1")
async def test_resources_live_as_long_as_the_session_and_end_in_reverse_after_its_work(autojump_clock):
    said = []
    tool = ScriptedTool("lent", [{"result": "used"}])
    work = ScriptedTool("work", [{"spawn": "session"}, {"sleep": 100.0}])
    resources = [resource("first", said, [tool]), resource("second", said)]
    async with a_session(
        None, [asks_for("lent", "work"), Reply(text="So.")], [work], resources=resources
    ) as session:
        await session.send("go")
        await session.rest()
        assert {one.text for one in of(session, ToolResult)} >= {"used"}
        assert said == ["first begins", "second begins"]
        cursor = session.events()
    said_types = [event.type for event in events(session)]
    assert said_types[-2:] == ["task/ended", "session/close"]
    assert said == ["first begins", "second begins", "second ends", "first ends"]
    del cursor


async def test_a_resource_that_can_not_begin_ends_the_others_and_closes_the_log(autojump_clock):
    said = []
    store = MemoryStore()
    with pytest.raises(OSError, match="no second"):
        async with a_session(
            store, [], [], resources=[resource("first", said), resource("second", said, fails=True)]
        ):
            raise AssertionError("the block was entered")
    assert said == ["first begins", "second begins", "first ends"]
    assert b"session/close" in store.read(0, store.size)


async def test_being_left_is_bounded_by_the_sessions_deadline(autojump_clock):
    said = []
    resources = [resource(str(number), said, lingers=100.0) for number in range(3)]
    async with a_session(None, [], [], resources=resources, settings=Settings(closing_seconds=3.0)):
        began = trio.current_time()
    assert trio.current_time() - began <= 3.0
    assert len(said) == 6


async def test_two_resources_with_a_tool_of_one_name_are_refused(autojump_clock):
    said = []
    tools = [ScriptedTool("lent")]
    with pytest.raises(ValueError, match="lent"):
        async with a_session(None, [], tools, resources=[resource("first", said, tools)]):
            pass
    assert said == ["first begins", "first ends"]


async def test_the_cause_of_a_hosts_cancel_is_the_host_also_when_the_block_notices_first(autojump_clock):
    for _ in range(20):
        with trio.CancelScope() as scope:
            async with a_session(None, [asks_for("slow")], [slow()]) as session:
                await session.send("go")
                await until(session, "tool/start")
                scope.cancel()
                await trio.lowlevel.checkpoint()
        assert "the program that runs this session" in of(session, TurnEnd)[0].reminder


async def test_a_child_follows_its_parent_to_now_however_late_that_comes(autojump_clock):
    """A thread in the child does not return; the user presses stop again a minute after the first time."""
    delegate = Delegate([asks_for("slow", prefix="i")], [ScriptedTool("slow", [{"block": 1000.0}])])
    async with a_session(None, [asks_for("delegate")], [delegate]) as session:
        await session.send("go")
        await until(session, "tool/start")
        await trio.sleep(5)
        receipt = session.cancel()
        began = trio.current_time()
        await trio.sleep(60)
        session.cancel()
        await receipt.settled()
        assert trio.current_time() - began == pytest.approx(60)
        assert [event.type for event in events(session)].count("turn/survivor") == 1
