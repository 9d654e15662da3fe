"""What stands between a call and its body: hooks, approvals, questions, and what a cancel does to each."""

import pytest
import trio

from turnkernel import Answer, Block, Gate, Rewrite, open_session
from turnkernel.messages import Text
from turnkernel.store import MemoryStore
from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel.testing.scripted import ScriptedProvider, ScriptedTool


def quick(**options):
    return ScriptedTool("quick", [{"result": "done"}], **options)


def question():
    return ScriptedTool("question", [{"ask": "which one?"}], effect="read_only")


def needs(*names):
    return Gate(approve=lambda name, input: name in names)


def calls(*pairs):
    return Reply(calls=[ReplyCall(call, name, {"n": 1}) for call, name in pairs])


async def asked(session, nth=1):
    async for event in session.events():
        if event.type == "ask/opened":
            nth -= 1
            if not nth:
                return event
    raise AssertionError("nobody was asked")


def statuses(session):
    records = session._kernel.journal.records_from(1)
    return {record.event.call: record.event.status for record in records if record.event.type == "tool/result"}


def events(session, name):
    return [one.event for one in session._kernel.journal.records_from(1) if one.event.type == name]


@pytest.mark.parametrize(
    ("word", "status", "outcome"),
    [
        ("allow", "ok", "completed"),
        ("allow_always", "ok", "completed"),
        ("deny", "denied", "completed"),
        ("dismissed", "denied", "completed"),
        ("deny_stop", "denied", "aborted"),
    ],
)
async def test_an_approval_is_answered_by_its_id(word, status, outcome, autojump_clock):
    tool = quick()
    provider = ScriptedProvider([calls(("c1", "quick")), Reply(text="I see.")])
    async with open_session(None, provider=provider, tools=[tool], gate=needs("quick")) as session:
        await session.send("go")
        ask = await asked(session)
        assert session.status().state == "asking"
        assert session.status().asks == (ask.ask,)
        assert not session.answer("a999", word)
        assert session.answer(ask.ask, word, "because")
        assert not session.answer(ask.ask, "allow")
        await session.rest()
        assert statuses(session) == {"c1": status}
        assert tool.began == (["c1"] if status == "ok" else [])
        assert events(session, "turn/end")[0].outcome == outcome
        if status == "denied":
            assert "because" in events(session, "tool/result")[0].text


async def test_a_word_that_does_not_fit_the_ask_is_an_error_and_leaves_it_open(autojump_clock):
    provider = ScriptedProvider([calls(("c1", "quick")), Reply(text="I see.")])
    async with open_session(None, provider=provider, tools=[quick()], gate=needs("quick")) as session:
        await session.send("go")
        ask = await asked(session)
        with pytest.raises(ValueError, match=f"^{ask.ask} is an approval: it takes allow, .* not 'answer'$"):
            session.answer(ask.ask, "answer", "blue")
        assert session.answer(ask.ask, "allow")
        await session.rest()


async def test_allow_always_is_a_rule_for_later_calls_and_answers_no_other_ask(autojump_clock):
    provider = ScriptedProvider(
        [calls(("c1", "quick"), ("c2", "quick")), calls(("c3", "quick")), Reply(text="I see.")]
    )
    store = MemoryStore()
    async with open_session(store, provider=provider, tools=[quick()], gate=needs("quick")) as session:
        await session.send("go")
        first, second = await asked(session, 1), await asked(session, 2)
        session.answer(first.ask, "allow_always")
        await trio.testing.wait_all_tasks_blocked()
        assert session.status().asks == (second.ask,)
        session.answer(second.ask, "deny")
        await session.rest()
        assert sorted(statuses(session).values()) == ["denied", "ok", "ok"]
        assert len(events(session, "ask/opened")) == 2
    # It is in the log, so it holds for the session, also after a restart.
    provider = ScriptedProvider([calls(("c4", "quick")), Reply(text="I see.")])
    copy = MemoryStore(store.read(0, 1 << 20))
    async with open_session(copy, provider=provider, tools=[quick()], gate=needs("quick")) as session:
        await session.send("again")
        await session.rest()
        assert statuses(session)["c4"] == "ok"


@pytest.mark.law("R5", "L2")
async def test_a_cancel_withdraws_every_open_ask_and_nothing_reads_as_a_denial(autojump_clock):
    tool = quick()
    provider = ScriptedProvider([calls(("c1", "quick"), ("c2", "question")), Reply(text="Fine.")])
    async with open_session(None, provider=provider, tools=[tool, question()], gate=needs("quick")) as session:
        await session.send("go")
        first, second = await asked(session, 1), await asked(session, 2)
        session.cancel()
        assert session.status().asks == ()
        for ask in (first, second):
            assert not session.answer(ask.ask, "allow" if ask.kind == "approval" else "answer")
        await session.rest()
        assert statuses(session) == {"c1": "withdrawn", "c2": "withdrawn"}
        assert {event.answer for event in events(session, "ask/closed")} == {"withdrawn"}
        assert "nobody denied it" in events(session, "tool/result")[0].text
        assert tool.began == []


async def test_cancel_call_withdraws_its_ask_alone(autojump_clock):
    provider = ScriptedProvider([calls(("c1", "quick"), ("c2", "quick")), Reply(text="Fine.")])
    async with open_session(None, provider=provider, tools=[quick()], gate=needs("quick")) as session:
        await session.send("go")
        first, second = await asked(session, 1), await asked(session, 2)
        assert session.cancel_call(first.call).answer is Answer.APPLIED
        await trio.testing.wait_all_tasks_blocked()
        assert session.status().asks == (second.ask,)
        session.answer(second.ask, "allow")
        await session.rest()
        assert statuses(session) == {first.call: "not_started", second.call: "ok"}


async def test_a_steer_leaves_an_open_ask_open(autojump_clock):
    provider = ScriptedProvider([calls(("c1", "question")), Reply(text="Fine.")])
    async with open_session(None, provider=provider, tools=[question()]) as session:
        await session.send("go")
        ask = await asked(session)
        await session.steer("by the way")
        assert session.status().asks == (ask.ask,)
        session.answer(ask.ask, "answer", "the blue one")
        await session.rest()
        result, words = session.context[2].blocks
        assert result.text == "the blue one"
        assert words == Text("by the way")


async def test_a_dismissed_question_is_an_answer(autojump_clock):
    provider = ScriptedProvider([calls(("c1", "question")), Reply(text="Fine.")])
    async with open_session(None, provider=provider, tools=[question()]) as session:
        await session.send("go")
        session.answer((await asked(session)).ask, "dismissed")
        await session.rest()
        result = events(session, "tool/result")[0]
        assert (result.status, result.is_error) == ("dismissed", False)
        assert result.text == "[User dismissed the question without answering]"


async def test_a_denied_call_that_comes_back_the_same_is_not_asked_again_until_the_user_has_spoken(autojump_clock):
    replies = [
        calls(("c1", "quick")),
        calls(("c2", "quick")),
        Reply(text="Hm."),
        calls(("c3", "quick")),
        Reply(text="Ok."),
    ]
    provider = ScriptedProvider(replies)
    async with open_session(None, provider=provider, tools=[quick()], gate=needs("quick")) as session:
        await session.send("go")
        session.answer((await asked(session)).ask, "deny")
        await session.rest()
        assert statuses(session) == {"c1": "denied", "c2": "denied"}
        assert len(events(session, "ask/opened")) == 1
        await session.send("do it after all")
        session.answer((await asked(session, 2)).ask, "allow")
        await session.rest()
        assert statuses(session)["c3"] == "ok"


async def test_without_an_approver_a_call_that_needs_one_does_not_run(autojump_clock):
    for approver, status in (("none", "no_approver"), ("always", "ok")):
        provider = ScriptedProvider([calls(("c1", "quick")), Reply(text="Fine.")])
        gate = Gate(approve=lambda name, input: True, approver=approver)
        async with open_session(None, provider=provider, tools=[quick()], gate=gate) as session:
            await session.send("go")
            await session.rest()
            assert statuses(session) == {"c1": status}


async def test_hooks_block_rewrite_and_fail_closed(autojump_clock):
    async def block(name, input):
        return Block("not here") if name == "blocked" else None

    async def rewrite(name, input):
        return Rewrite({"n": 2}) if name == "quick" else None

    async def broken(name, input):
        if name == "unlucky":
            raise RuntimeError("hook fault")

    told = []

    async def after(result):
        told.append((result.call, result.status))
        if result.call == "c3":
            raise RuntimeError("after fault")

    tools = [quick(), ScriptedTool("blocked", []), ScriptedTool("unlucky", [])]
    gate = Gate(hooks=[block, rewrite, broken], after=[after])
    provider = ScriptedProvider(
        [calls(("c1", "quick"), ("c2", "blocked"), ("c3", "unlucky")), Reply(text="Fine.")]
    )
    async with open_session(None, provider=provider, tools=tools, gate=gate) as session:
        await session.send("go")
        await session.rest()
        assert statuses(session) == {"c1": "ok", "c2": "blocked", "c3": "blocked"}
        assert events(session, "tool/start")[0].input == {"n": 2}
        assert session.context[1].blocks[0].input == {"n": 1}
        texts = {event.call: event.text for event in events(session, "tool/result")}
        assert "not here" in texts["c2"]
        assert "hook fault" in texts["c3"]
        end = events(session, "turn/end")[0]
        assert end.outcome == "completed"
        assert [(error.type, error.text) for error in end.errors] == [("RuntimeError", "after fault")]
        assert sorted(told) == [("c1", "ok"), ("c2", "blocked"), ("c3", "blocked")]
        assert [tool.began for tool in tools] == [["c1"], [], []]


async def test_an_approval_that_was_given_in_the_instant_of_a_cancel_starts_nothing(autojump_clock):
    tool = quick()
    provider = ScriptedProvider([calls(("c1", "quick"))])
    async with open_session(None, provider=provider, tools=[tool], gate=needs("quick")) as session:
        await session.send("go")
        ask = await asked(session)
        assert session.answer(ask.ask, "allow")
        session.cancel()
        await session.rest()
        assert statuses(session) == {"c1": "not_started"}
        assert tool.began == []


async def test_an_answer_that_came_is_used_when_only_the_result_is_missing(autojump_clock):
    provider = ScriptedProvider([calls(("c1", "question"))])
    store = MemoryStore()
    copies = []
    async with open_session(store, provider=provider, tools=[question()]) as session:
        await session.send("go")
        session.answer((await asked(session)).ask, "answer", "the blue one")
        copies.append(store.read(0, 1 << 20))  # the process dies here
    async with open_session(MemoryStore(copies[0]), provider=ScriptedProvider([])) as session:
        result = events(session, "tool/result")[0]
        assert (result.status, result.text, result.synthetic) == ("ok", "the blue one", True)


@pytest.mark.parametrize(("error", "said"), [(OSError("no disk"), "OSError: no disk"), (OSError(), "OSError")])
async def test_a_hook_that_fails_blocks_the_call_and_says_once_what_failed(autojump_clock, error, said):
    async def failing(name, input):
        raise error

    provider = ScriptedProvider([calls(("c1", "quick")), Reply(text="Fine.")])
    async with open_session(None, provider=provider, tools=[quick()], gate=Gate(hooks=[failing])) as session:
        await session.send("go")
        await session.rest()
        assert statuses(session) == {"c1": "blocked"}
        assert events(session, "tool/result")[0].text.endswith(f": a hook failed: {said}")


async def test_a_rewrite_that_the_log_can_not_hold_blocks_the_call(autojump_clock):
    async def odd(name, input):
        return Rewrite({"when": object()})

    tool = quick()
    provider = ScriptedProvider([calls(("c1", "quick")), Reply(text="Fine.")])
    async with open_session(None, provider=provider, tools=[tool], gate=Gate(hooks=[odd])) as session:
        await session.send("go")
        await session.rest()
        assert statuses(session) == {"c1": "blocked"}
        assert tool.began == []


async def test_an_ask_inside_a_critical_section_is_over_when_it_is_withdrawn(autojump_clock):
    class Careful:
        name, description, schema = "careful", "asks in a section", {"type": "object"}
        effect, concurrency, timeout = "effect", "shared", None
        said = None

        async def run(self, ctx, input):
            with ctx.critical("sure?", 50.0):
                self.said = await ctx.ask("sure?")
            await trio.sleep_forever()

    tool = Careful()
    provider = ScriptedProvider([calls(("c1", "careful"))])
    async with open_session(None, provider=provider, tools=[tool]) as session:
        await session.send("go")
        await asked(session)
        began = trio.current_time()
        await session.cancel().settled()
        assert trio.current_time() == began
        assert tool.said.answer == "withdrawn"
        assert statuses(session) == {"c1": "withdrawn"}
