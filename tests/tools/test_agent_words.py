"""The tool `send_to_task`: words to agents that run, that have ended, and that a crash has ended. Virtual time."""

import os

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

from turnkernel import open_session
from turnkernel.events import TaskStarted, ToolStart
from turnkernel.journal import Journal
from turnkernel.store import MemoryStore
from turnkernel.testing.replies import Reply
from turnkernel.testing.scripted import ScriptedProvider


def tell(id, task, text="And the cellar?"):
    return asks(call(id, "send_to_task", task=task, text=text))


@pytest.fixture
def children():
    return Children()


def begun(session):
    return [one.task for one in events(session, TaskStarted)]


async def test_a_running_agent_gets_the_words_after_the_results_of_its_step(children, autojump_clock):
    store = MemoryStore()
    models = Models(
        root=[asks(call("a", background=True)), says("So.")], a=[asks(call("s", "slow")), says("Both are dry.")]
    )
    async with session_of(models, [*agents(models, open_child=children), slow()], store) as session:
        await session.send("go")
        await session.rest()
        (task,) = begun(session)
        models("root").replace([tell("t", task), says("Told."), says("I see.")])
        await session.send("ask about the cellar")
        await session.rest(tasks=True)
        assert results(session)["t"].text == f"Said to task {task}, which runs."
    assert [block.text for block in models("a").requests[1].messages[-1].blocks][-1] == "And the cellar?"
    assert ends(session) == [(task, "ok")]
    assert unlawful(store, closed=True) == []


async def test_words_to_an_agent_that_waits_for_its_tasks_are_its_next_prompt(children, autojump_clock):
    models = Models(
        root=[asks(call("a", background=True)), says("So.")],
        a=[asks(call("w", "work")), says("It builds."), says("Still."), says("Built.")],
    )
    async with session_of(models, [*agents(models, open_child=children), task_tool()]) as session:
        await session.send("go")
        await session.rest()
        (task,) = begun(session)
        child = await children.of(task)
        await child.rest()
        models("root").replace([tell("t", task), says("Told."), says("I see.")])
        await session.send("ask")
        await session.rest(tasks=True)
    assert [request.messages[-1].blocks[-1].text for request in models("a").requests[2:3]] == ["And the cellar?"]
    assert ends(session) == [(task, "ok")]


@pytest.mark.parametrize("how", ["ended", "failed", "stopped", "urgently"])
async def test_an_agent_that_has_ended_goes_on_as_a_new_task_with_all_it_knew(how, children, autojump_clock):
    """B77: a stopped agent is not lost; B78: the model API accepts what it comes back with."""
    store = MemoryStore()
    first = {"ended": [says("A bone.")], "failed": [Reply(status=400, body="no credit")]}
    models = Models(
        root=[asks(call("a", background=True)), says("So."), says("I see.")],
        a=first.get(how, [asks(call("s", "slow"), call("t", "slow"))]),
    )
    async with session_of(models, [*agents(models, open_child=children), slow()], store) as session:
        await session.send("go")
        if how in first:
            await session.rest(tasks=True)
        else:
            await until(session, "turn/end")
            (task,) = begun(session)
            child = await children.of(task)
            await until(child, "tool/start", 2)
            receipt = session.stop_task(task)
            if how == "urgently":
                receipt = session.stop_task(task)
            await receipt.settled()
            await session.rest()
        (task,) = begun(session)
        models("root").replace([tell("t", task, "Go on."), says("Told."), says("I see.")])
        models("a").replace([says("All of it.")])
        await session.send("make it go on")
        await session.rest(tasks=True)
        _, again = begun(session)
        assert again in results(session)["t"].text
        status = {"ended": "ok", "failed": "error"}.get(how, "stopped")
        assert ends(session) == [(task, status), (again, "ok")]
        assert "All of it." in str(session.context)
    (child,) = store.children.values()
    assert len(store.children) == 1
    texts = str(models("a").requests[-1].messages)
    assert "the work of a" in texts
    assert "Go on." in texts
    assert [one.type for one in logged(child)].count("session/open") == 2
    assert unlawful(store, closed=True) == []


async def test_words_for_the_first_task_of_an_agent_reach_the_one_that_it_is_now(children, autojump_clock):
    models = Models(
        root=[asks(call("a", background=True)), says("So."), says("I see.")], a=[says("A bone."), says("x")]
    )
    async with session_of(models, [*agents(models, open_child=children), slow()]) as session:
        await session.send("go")
        await session.rest(tasks=True)
        (first,) = begun(session)
        models("root").replace([tell("t", first, "Dig on."), says("Told.")])
        models("a").replace([asks(call("s", "slow")), says("Two bones.")])
        await session.send("on")
        await session.rest()
        _, second = begun(session)
        await until(await children.of(second), "tool/start")
        models("root").replace([tell("u", first, "Deeper."), says("Told."), says("I see.")])
        await session.send("on")
        await session.rest(tasks=True)
        assert results(session)["u"].text == f"Said to task {second}, which runs."
        assert begun(session) == [first, second]
    assert "Deeper." in str(models("a").requests[-1].messages)


async def test_two_calls_of_one_step_begin_an_agent_again_once(children, autojump_clock):
    models = Models(root=[asks(call("a", background=True)), says("So."), says("I see.")], a=[says("A bone.")])
    async with session_of(models, agents(models, open_child=children)) as session:
        await session.send("go")
        await session.rest(tasks=True)
        (first,) = begun(session)
        both = [call(one, "send_to_task", task=first, text=one) for one in ("t", "u")]
        models("root").replace([asks(*both), says("Told."), says("I see.")])
        models("a").replace([says("Two bones."), says("Three.")])
        await session.send("on")
        await session.rest(tasks=True)
        assert len(begun(session)) == 2
        assert {results(session)[one].status for one in "tu"} == {"ok", "error"}


async def test_an_agent_that_is_ending_takes_no_words_and_says_so(children, autojump_clock):
    """It was stopped and its tool is still in its cleanup."""
    models = Models(root=[asks(call("a", background=True)), says("So.")], a=[asks(call("s", "slow"))])
    tools = [*agents(models, open_child=children), slow(on_cancel=[{"sleep": 30.0}])]
    async with session_of(models, tools) as session:
        await session.send("go")
        await session.rest()
        (task,) = begun(session)
        await until(await children.of(task), "tool/start")
        await trio.sleep(1)
        receipt = session.stop_task(task)
        await trio.sleep(1)
        models("root").replace([tell("t", task), says("Too late.")])
        await session.send("ask")
        await until(session, "tool/result", 2)
        assert results(session)["t"].status == "error"
        assert "takes no words now" in results(session)["t"].text
        await receipt.settled()


@pytest.mark.parametrize(
    ("input", "said"),
    [
        ({"task": "k99", "text": "Hm?"}, "There is no task 'k99'"),
        ({"task": "work", "text": "Hm?"}, "is no agent"),
        ({"task": "agent", "text": " "}, "The text is empty"),
        ({"task": "agent"}, "text"),
    ],
)
async def test_words_that_can_reach_nobody_are_an_error(input, said, children, autojump_clock):
    models = Models(
        root=[asks(call("a", background=True), call("w", "work")), *[says("So.")] * 3], a=[says("A bone.")]
    )
    async with session_of(models, [*agents(models, open_child=children), task_tool()]) as session:
        await session.send("go")
        await session.rest(tasks=True)
        ids = {one.name: one.task for one in events(session, TaskStarted)}
        words = {**input, "task": ids.get(input["task"], input["task"])}
        models("root").replace([asks(call("t", "send_to_task", **words)), says("Hm.")])
        await session.send("ask")
        await session.rest()
        assert results(session)["t"].status == "error"
        assert said in results(session)["t"].text
        assert len(begun(session)) == 2


# ------------------------------------------------------------------------------------------------- a crash


async def crashed(path, models, tools, running):
    """Play until `running` has seen enough, and put back all logs as they were then: a kill."""
    async with session_of(models, tools, path, "process") as session:
        await session.send("go")
        await running()
        logs = {one: one.read_bytes() for one in path.parent.rglob("*.log")}
    for one, data in logs.items():
        one.write_bytes(data)


def begun_in(log):
    return [one.task for one in logged(MemoryStore(log.read_bytes())) if isinstance(one, TaskStarted)]


async def test_an_agent_that_a_crash_has_ended_goes_on_and_so_do_its_own(children, tmp_path):
    """B78, three deep: the histories of all of them are accepted after the kill."""
    path = tmp_path / "root.log"
    models = Models(
        root=[asks(call("a", background=True)), says("So.")],
        a=[asks(call("b", background=True)), says("B digs.")],
        b=[asks(call("c", background=True), call("s", "slow"))],
        c=[asks(call("t", "slow"), call("u", "slow"))],
    )
    tools = [*agents(models, depth=3, open_child=children), slow()]

    async def running():
        await until(await children.of("b"), "tool/start", 2)
        await until(await children.of("c"), "tool/start", 2)

    await crashed(path, models, tools, running)
    logs = sorted(path.parent.rglob("*.log"), key=lambda one: len(one.parts))
    assert len(logs) == 4
    tasks = [begun_in(log)[0] for log in logs[:3]]
    for name, below, task in (("root", "a", tasks[0]), ("a", "b", tasks[1]), ("b", "c", tasks[2])):
        models(name).replace([tell(f"to_{below}", task), says("Told."), says(f"{name} is back.")])
    models("c").replace([says("c is back.")])
    async with session_of(models, tools, path, "process") as session:
        assert ends(session) == [(tasks[0], "lost")]
        await session.send("go on")
        await session.rest(tasks=True)
        assert [status for _, status in ends(session)] == ["lost", "ok"]
        assert "a is back." in str(session.context)
    assert "And the cellar?" in str(models("c").requests[-1].messages)
    for log in logs:
        store = MemoryStore(log.read_bytes())
        assert unlawful(store, closed=True) == []
        assert all(one.status in ("lost", "ok") for one in logged(store) if one.type == "task/ended")
    outcomes = [
        [one.outcome for one in logged(MemoryStore(log.read_bytes())) if one.type == "turn/end"] for log in logs
    ]
    assert outcomes[2][0] == outcomes[3][0] == "interrupted"
    assert outcomes[3] == ["interrupted", "completed"]


@pytest.mark.parametrize("how", ["missing", "empty", "torn", "damaged", "live"])
async def test_an_agents_log_that_can_not_be_gone_on_with_is_told(how, children, tmp_path):
    path = tmp_path / "root.log"
    models = Models(root=[asks(call("a", background=True)), says("So."), says("I see.")], a=[says("A bone.")])
    async with session_of(models, agents(models, open_child=children), path, "process") as session:
        await session.send("go")
        await session.rest(tasks=True)
        (task,) = begun(session)
        log = path.parent / events(session, ToolStart)[0].log
        data = log.read_bytes()
        if how in ("missing", "empty"):
            log.unlink() if how == "missing" else log.write_bytes(b"")
        elif how == "torn":
            log.write_bytes(data[:-10])
        elif how == "damaged":
            log.write_bytes(data.replace(b"the work of a", b"the work of b", 1))
        models("root").replace([tell("t", task), *[says("Hm.")] * 3])
        models("a").replace([says("Two bones.")])
        async with trio.open_nursery() as nursery:
            if how == "live":
                await nursery.start(_hold, log)
            await session.send("on")
            await session.rest(tasks=True)
            nursery.cancel_scope.cancel()
        result, notice = results(session)["t"], str(session.context[-2])
        if how in ("missing", "empty"):
            assert result.is_error
            assert "is not there" in result.text
            assert not log.exists() or log.read_bytes() == b""
        elif how == "torn":
            assert "Two bones." in notice
        else:
            assert ends(session)[-1][1] == "error"
            assert {"damaged": "LogDamagedError", "live": "SessionLiveError"}[how] in notice
            assert how != "live" or log.read_bytes().startswith(data)
        assert os.stat(path.parent / "root.log.d").st_mode & 0o777 == 0o700


async def _hold(log, task_status):
    """Another session has it open."""
    async with open_session(log, provider=ScriptedProvider([]), durability="process"):
        task_status.started()
        await trio.sleep_forever()


async def test_what_was_said_to_an_agent_that_was_being_stopped_is_not_lost(children, autojump_clock):
    """The words came in the instant of the stop: they wait in its log, and it has them when it goes on."""
    said = []

    class Watched(Journal):
        def append(self, *events):
            super().append(*events)
            if any(event.type == "turn/cancel" for event in events) and self.grammar.opened.parent is not None:
                said.append(session.children[task].post("one more thing"))

    models = Models(root=[asks(call("a", background=True)), says("So.")], a=[asks(call("s", "slow"))])

    def watched(*arguments, **options):
        return children(*arguments, **options, journal_type=Watched)

    store = MemoryStore()
    async with session_of(models, [*agents(models, open_child=watched), slow()], store) as session:
        await session.send("go")
        await session.rest()
        (task,) = begun(session)
        await until(await children.of(task), "tool/start")
        await session.stop_task(task).settled()
        assert said
        models("root").replace([tell("t", task), says("Told."), says("I see.")])
        models("a").replace([says("First."), says("Second.")])
        await session.send("on")
        await session.rest(tasks=True)
    asked = [request.messages[-1].blocks[-1].text for request in models("a").requests[1:]]
    assert asked == ["one more thing", "And the cellar?"]
    assert unlawful(store, closed=True) == []
    assert len(stores_below(store)) == 2
