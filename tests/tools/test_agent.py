"""The tool `agent`: what a child session is given, what comes back from it. Virtual time throughout."""

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

from turnkernel import Gate, Settings, open_session
from turnkernel.events import TaskStarted, ToolOutput, ToolStart, TurnEnd
from turnkernel.store import MemoryStore
from turnkernel.testing.replies import Reply
from turnkernel.testing.scripted import ScriptedTool
from turnkernel_tools import ask_tool


async def play(models, tools, store=None, **options):
    """Say one thing, and wait until nothing can happen any more; the closed session."""
    async with session_of(models, tools, store, **options) as session:
        await session.send("go")
        await session.rest(tasks=True)
    return session


async def test_an_agents_last_words_are_the_result_and_the_logs_name_each_other(autojump_clock):
    store = MemoryStore()
    models = Models(root=[asks(call("a", prompt="Look into it.")), says("So.")], a=[says("Found it.")])
    session = await play(models, agents(models), store)
    assert (results(session)["a"].status, results(session)["a"].text) == ("ok", "Found it.")
    assert models("a").requests[0].messages[0].blocks[0].text == "Look into it."
    (start,) = events(session, ToolStart)
    ((_, root), (_, child)) = stores_below(store).items()
    assert root is store
    assert list(store.children) == [start.log]
    opened = logged(child)[0]
    assert (opened.parent.session, opened.parent.call) == (events(session)[0].session, "a")
    assert logged(child)[-1].type == "session/close"
    assert unlawful(store, closed=True) == []


async def test_one_provider_may_serve_everybody(autojump_clock):
    models = Models(root=[asks(call("a")), says("Found it."), says("So.")])
    session = await play(models, agents(models("root")))
    assert results(session)["a"].text == "Found it."


@pytest.mark.parametrize(
    ("reply", "settings", "said"),
    [
        (Reply(status=400, body="no credit"), None, "ended as failed. ProviderError: HTTP 400: no credit."),
        (Reply(text="Half", stop="max_tokens"), None, "ended as failed. OutputLimit"),
        (Reply(text="I won't.", stop="refusal"), None, "ended as refused."),
        (asks(call("s", "slow")), Settings(max_steps=1), "ended as max_steps."),
        (asks(call("s", "slow")), Settings(turn_seconds=1.0), "ended as aborted."),
    ],
)
async def test_an_agent_that_did_not_complete_is_an_error_that_says_how(reply, settings, said, autojump_clock):
    models = Models(root=[asks(call("a")), says("So.")], a=[reply])
    session = await play(models, [*agents(models, settings=settings), slow()])
    result = results(session)["a"]
    assert result.is_error
    assert result.status == ("stopped" if "aborted" in said else "error")
    assert said in result.text
    assert ("Its last words: " + (reply.text or "")) in result.text or not reply.text
    assert events(session, TurnEnd)[0].outcome == "completed"


async def test_an_agent_whose_own_turn_is_stopped_is_stopped_and_its_parent_goes_on(autojump_clock):
    models = Models(root=[asks(call("a")), says("So.")], a=[asks(call("s", "slow"))])
    async with session_of(models, [*agents(models), slow()]) as session:
        await session.send("go")
        await until(session, "tool/start")
        await trio.sleep(1)
        session.children["a"].cancel()
        await session.rest()
        assert results(session)["a"].status == "stopped"
        assert "Its last words: Go." in results(session)["a"].text
        assert [end.outcome for end in events(session, TurnEnd)] == ["completed"]


async def test_an_agents_calls_are_shown_as_output_of_its_call(autojump_clock):
    models = Models(
        root=[asks(call("a")), says("So.")],
        a=[asks(call("s", "slow"), call("n", "nothing")), says("Done.")],
    )
    session = await play(models, [*agents(models), slow(seconds=1.0)])
    assert [one.text for one in events(session, ToolOutput)] == ["slow: ok\n"]


async def test_what_a_stopped_agent_had_done_is_told(autojump_clock):
    models = Models(root=[asks(call("a")), says("So.")], a=[asks(call("s", "slow")), asks(call("t", "slow"))])
    async with session_of(models, [*agents(models), slow(seconds=5.0)]) as session:
        await session.send("go")
        await until(session, "tool/output")
        await trio.sleep(1)
        session.cancel_call("a")
        await session.rest()
        assert results(session)["a"].status == "stopped"
        assert "slow: ok" in results(session)["a"].text


async def test_agents_have_their_parents_tools_and_may_have_agents_as_deep_as_is_said(autojump_clock):
    names = []
    models = Models(
        root=[asks(call("a")), says("So.")], a=[asks(call("b")), says("A.")], b=[asks(call("c")), says("B.")]
    )
    session = await play(models, [*agents(models, depth=2), slow()])
    names = [{tool.name for tool in models(one).requests[0].tools} for one in ("root", "a", "b")]
    assert names == [{"agent", "send_to_task", "slow"}, {"agent", "send_to_task", "slow"}, {"slow"}]
    assert results(session)["a"].text == "A."


async def test_agents_have_the_tools_that_were_given_instead(autojump_clock):
    models = Models(root=[asks(call("a")), says("So.")], a=[says("A.")])
    await play(models, [*agents(models, tools=[slow("other")], depth=2), slow()])
    assert {tool.name for tool in models("a").requests[0].tools} == {"other", "agent", "send_to_task"}


@pytest.mark.parametrize(
    ("input", "said"),
    [({"prompt": " \n"}, "The prompt is empty"), ({"prompt": 7}, "prompt"), ({"prompt": "x", "more": 1}, "more")],
)
async def test_an_input_that_is_no_work_begins_no_agent(input, said, autojump_clock):
    store = MemoryStore()
    models = Models(root=[asks(call("a", **input)), says("So.")])
    session = await play(models, agents(models), store)
    assert results(session)["a"].status == "error"
    assert said in results(session)["a"].text
    assert store.children == {}


async def test_a_bound_below_one_is_refused():
    for bad in ({"depth": 0}, {"max_background": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            agents(Models(), **bad)


async def test_eight_agents_of_one_step_work_together_and_the_ninth_waits(autojump_clock):
    nine = [f"a{number}" for number in range(9)]
    models = Models(
        root=[asks(*map(call, nine)), says("So.")],
        **{one: [asks(call("s", "slow")), says(f"{one} is done")] for one in nine},
    )
    async with session_of(models, [*agents(models), slow(seconds=10.0)]) as session:
        await session.send("go")
        await until(session, "tool/start", 8)
        await trio.sleep(5)
        assert set(session.children) == set(nine[:8])
        await session.rest()
        assert {one: result.text for one, result in results(session).items()} == {
            one: f"{one} is done" for one in nine
        }
        assert trio.current_time() == pytest.approx(20.0, abs=0.1)


# ------------------------------------------------------------------------------------------- in the background


async def test_a_background_agent_is_a_task_whose_end_brings_its_last_words(autojump_clock):
    store = MemoryStore()
    models = Models(
        root=[asks(call("a", background=True, prompt="Dig.")), says("It digs."), says("I see.")],
        a=[asks(call("s", "slow")), says("A bone.")],
    )
    session = await play(models, [*agents(models), slow(seconds=9.0)], store)
    (task,) = events(session, TaskStarted)
    (start,) = events(session, ToolStart)
    assert (task.call, task.name, task.lifetime, task.log) == ("a", "agent", "session", start.log)
    assert task.detail == {"what": "Dig."}
    assert task.task in results(session)["a"].text
    assert ends(session) == [(task.task, "ok")]
    notice = models("root").requests[2].messages[-1].blocks[-1].text
    assert "A bone." in notice
    assert "agent: Dig." in notice
    assert unlawful(store, closed=True) == []


async def test_a_background_agent_that_fails_ends_as_failed(autojump_clock):
    models = Models(
        root=[asks(call("a", background=True)), says("It digs."), says("I see.")],
        a=[Reply(status=400, body="no credit")],
    )
    session = await play(models, agents(models))
    assert [status for _, status in ends(session)] == ["error"]
    assert "no credit" in models("root").requests[-1].messages[-1].blocks[-1].text


async def test_of_agents_in_the_background_no_more_run_than_may(autojump_clock):
    three = ["a", "b", "c"]
    models = Models(
        root=[asks(*(call(one, background=True) for one in three)), *[says("So.")] * 3],
        **{one: [asks(call("s", "slow")), says("Done.")] for one in three},
    )
    session = await play(models, [*agents(models, max_background=2), slow()])
    told = sorted((one.status, one.text) for one in results(session).values())
    assert [status for status, _ in told] == ["error", "ok", "ok"]
    assert "2 agents run in the background" in told[0][1]


# ------------------------------------------------------------------------------------------ tasks of an agent


@pytest.mark.parametrize("background", [False, True])
async def test_an_agent_waits_for_its_tasks_and_has_the_last_word_on_them(background, autojump_clock):
    """B81: nothing of its work is killed because its turn ended; what the task brings, it may speak of."""
    models = Models(
        root=[asks(call("a", background=background)), says("So."), says("I see.")],
        a=[asks(call("w", "work")), says("It builds."), says("It is built.")],
    )
    session = await play(models, [*agents(models), task_tool()])
    assert "work is done" in models("a").requests[2].messages[-1].blocks[-1].text
    told = [one.text for one in events(session) if one.type in ("task/ended", "tool/result")]
    assert any("It is built." in text for text in told)


async def test_a_root_that_is_run_to_its_end_loses_no_work_either(tmp_path, autojump_clock):
    """B81: headless, the program waits until nothing can happen any more."""
    done = tmp_path / "done"
    work = ScriptedTool(
        "work", [{"spawn": "session"}, {"sleep": 2.0}, {"touch": "done"}], touch=lambda name: done.touch()
    )
    models = Models(root=[asks(call("w", "work")), says("It builds."), says("It is built.")])
    await play(models, [work])
    assert done.exists()


async def test_a_session_that_is_left_names_the_work_that_it_ended(autojump_clock):
    """B81, the other half: who leaves at once is told what was stopped, in the log."""
    store = MemoryStore()
    models = Models(
        root=[asks(call("a", background=True)), says("It digs.")], a=[asks(call("w", "work")), says("It builds.")]
    )
    async with session_of(models, [*agents(models), task_tool()], store) as session:
        await session.send("go")
        await until(session, "tool/result")
        await session.rest()
        await trio.sleep(1)
    assert [status for _, status in ends(session)] == ["stopped"]
    (child,) = store.children.values()
    assert [one.status for one in logged(child) if one.type == "task/ended"] == ["stopped"]
    assert unlawful(store, closed=True) == []


async def test_an_agent_whose_turn_was_stopped_does_not_wait_for_its_tasks(autojump_clock):
    """A notice begins nothing after a turn that was cut, so there is nothing to wait for."""
    models = Models(
        root=[asks(call("a")), says("So.")], a=[asks(call("w", "work"), call("s", "slow")), says("It builds.")]
    )
    async with session_of(models, [*agents(models), task_tool(seconds=1000.0), slow()]) as session:
        await session.send("go")
        await until(session, "tool/start")
        await trio.sleep(1)
        session.children["a"].cancel()
        await session.rest()
        assert results(session)["a"].status == "stopped"
        assert trio.current_time() < 10


# --------------------------------------------------------------------------------------------------- asks


async def test_an_approval_in_an_agent_is_asked_for_in_its_log_and_answered_through_it(autojump_clock):
    gates, children = [], Children()

    def gate():
        gates.append(Gate(approve=lambda name, input: name == "slow"))
        return gates[-1]

    models = Models(
        root=[asks(call("a")), asks(call("b")), says("So.")],
        a=[asks(call("s", "slow")), says("A.")],
        b=[asks(call("t", "slow")), says("B.")],
    )
    async with session_of(
        models, [*agents(models, gate=gate, open_child=children), slow(seconds=1.0)], gate=gate()
    ) as session:
        await session.send("go")
        for agent, word in (("a", "allow_always"), ("b", "deny")):
            await until(await children.of(agent), "ask/opened")
            child = session.children[agent]
            (ask,) = child.status().asks
            assert session.answer(ask, "allow") is False
            child.answer(ask, word)
            await until(session, "tool/result", 1 if agent == "a" else 2)
            status = results(child)["s" if agent == "a" else "t"].status
            # What a person allows one agent always, they have not allowed the next.
            assert status == ("ok" if agent == "a" else "denied")
        await session.rest()
    assert len(gates) == 3


@pytest.mark.parametrize("how", ["answered", "cancelled"])
async def test_an_agent_that_asks_while_its_parent_waits_for_it_blocks_nobody(how, autojump_clock):
    """B79: a person answers the child past the parent that waits for it; and a cancel still works."""
    models = Models(
        root=[asks(call("a")), says("So.")],
        a=[asks(call("q", "ask_user", question="Which one?")), says("The blue one.")],
    )
    async with session_of(models, [*agents(models), ask_tool()]) as session:
        await session.send("go")
        await until(session, "tool/start")
        await trio.sleep(60)
        child = session.children["a"]
        (ask,) = child.status().asks
        began = trio.current_time()
        if how == "answered":
            child.answer(ask, "answer", "blue")
            await session.rest()
            assert results(session)["a"].text == "The blue one."
        else:
            settled = await session.cancel().settled()
            assert settled.outcome == "aborted"
            assert results(child)["q"].status == "withdrawn"
            assert results(session)["a"].status == "stopped"
            assert child.answer(ask, "answer", "too late") is False
        assert trio.current_time() - began < 1


async def test_where_nobody_can_approve_an_agent_is_refused_at_once(autojump_clock):
    """B79, for a host that watches no children."""
    models = Models(root=[asks(call("a")), says("So.")], a=[asks(call("s", "slow")), says("Not allowed.")])
    nobody = lambda: Gate(approve=lambda name, input: True, approver="none")  # noqa: E731 - it is a factory
    session = await play(models, [*agents(models, gate=nobody), slow()])
    assert results(session)["a"].text == "Not allowed."
    assert trio.current_time() < 1


async def test_a_host_sees_each_agent_as_it_begins_through_its_own_opening(autojump_clock):
    seen = []

    def opened(*arguments, **options):
        seen.append((options["within"].call_id, options["within"].work_id))
        return open_session(*arguments, **options)

    models = Models(
        root=[asks(call("a"), call("b", background=True)), says("So."), says("I see.")],
        a=[says("A.")],
        b=[says("B.")],
    )
    session = await play(models, agents(models, open_child=opened))
    (task,) = events(session, TaskStarted)
    assert sorted(seen) == [("a", "a"), ("b", task.task)]


@pytest.mark.law("R12")
async def test_an_agent_whose_log_fails_is_an_error_and_its_parents_turn_goes_on(autojump_clock):
    class Full(MemoryStore):
        def write(self, data):
            if b"tool/start" in data:
                raise OSError(28, "No space left on device")
            super().write(data)

    def opened(place, **options):
        return open_session(Full(), **options)

    models = Models(root=[asks(call("a")), says("So.")], a=[asks(call("s", "slow")), says("A.")])
    session = await play(models, [*agents(models, open_child=opened), slow()])
    assert results(session)["a"].status == "error"
    assert "LogFailedError" in results(session)["a"].text
    assert "No space left on device" in results(session)["a"].text
    assert [end.outcome for end in events(session, TurnEnd)] == ["completed"]
