"""Which calls run when, what they may do, and how each is closed. Virtual time throughout."""

import pytest
import trio

from turnkernel import Settings, ToolOutput, open_session
from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel.testing.scripted import ScriptedProvider, ScriptedTool


def reply(*pairs, **options):
    return Reply(calls=[ReplyCall(call, name) for call, name in pairs], **options)


def events(session, name):
    return [one.event for one in session._kernel.journal.records_from(1) if one.event.type == name]


class Made:
    """A tool from a coroutine function."""

    description, schema = "made for a test", {"type": "object"}

    def __init__(self, run, *, name="made", effect="effect", concurrency="shared", timeout=None):
        self.name, self.effect, self.concurrency, self.timeout = name, effect, concurrency, timeout
        self._run = run

    async def run(self, ctx, input):
        return await self._run(ctx)


async def until(session, name):
    async for event in session.events():
        if event.type == name:
            return event
    raise AssertionError(f"no {name}")


async def test_shared_calls_run_together_up_to_the_limit_and_an_exclusive_one_alone(autojump_clock):
    running, most = set(), {}

    def tracked(name, **options):
        async def run(ctx):
            running.add(ctx.call_id)
            most[ctx.call_id] = set(running)
            await trio.sleep(1)
            running.discard(ctx.call_id)
            return ToolOutput("ok")

        return Made(run, name=name, **options)

    tools = [tracked("shared"), tracked("alone", concurrency="exclusive")]
    order = [("a", "shared"), ("b", "shared"), ("c", "shared"), ("d", "alone"), ("e", "shared"), ("f", "shared")]
    provider = ScriptedProvider([reply(*order), Reply(text="Fine.")])
    async with open_session(None, provider=provider, tools=tools, settings=Settings(max_parallel=2)) as session:
        await session.send("go")
        await session.rest()
        assert max(map(len, most.values())) == 2
        assert most["d"] == {"d"}
        assert all("d" not in beside for call, beside in most.items() if call != "d")
        ends = [event.call for event in events(session, "tool/result")]
        assert set(ends[:3]) == {"a", "b", "c"}
        assert ends[3] == "d"
        # Results stand in model order, whatever order they came in.
        assert [block.call for block in session.context[2].blocks] == ["a", "b", "c", "d", "e", "f"]


async def test_a_timeout_ends_one_call_keeps_its_output_and_leaves_its_siblings(autojump_clock):
    slow = ScriptedTool("slow", [{"emit": "CRITICAL\n"}, {"sleep": 30.0}], timeout=1.0)
    quick = ScriptedTool("quick", [{"sleep": 2.0}, {"result": "fine"}])
    provider = ScriptedProvider([reply(("c1", "slow"), ("c2", "quick")), Reply(text="Fine.")])
    async with open_session(None, provider=provider, tools=[slow, quick]) as session:
        await session.send("go")
        await session.rest()
        results = {event.call: event for event in events(session, "tool/result")}
        assert results["c1"].status == "timed_out"
        assert "CRITICAL" in results["c1"].text
        assert results["c1"].seconds == 1.0
        assert results["c2"].text == "fine"


async def test_output_is_capped_for_the_model_and_in_the_log_and_the_cut_is_told(autojump_clock):
    async def flood(ctx):
        for _ in range(100):
            ctx.emit("x" * 10_000)
        ctx.emit("last words")
        return ToolOutput("y" * 100_000 + "the end")

    provider = ScriptedProvider([reply(("c1", "made")), Reply(text="Fine.")])
    async with open_session(None, provider=provider, tools=[Made(flood)]) as session:
        await session.send("go")
        await session.rest()
        logged = "".join(event.text for event in events(session, "tool/output"))
        assert 255 * 1024 < len(logged) < 270 * 1024
        assert "bytes left out" in logged
        assert logged.endswith("x" * 10_000 + "last words")
        text = events(session, "tool/result")[0].text
        assert len(text) < 33 * 1024
        assert text.endswith("the end")
        assert "bytes left out" in text


async def test_what_a_tool_prints_is_made_safe(autojump_clock):
    async def nasty(ctx):
        ctx.emit("a\ud800b\x1b[2J\x00")
        return ToolOutput("\udfff\x9b31m")

    provider = ScriptedProvider([reply(("c1", "made")), Reply(text="Fine.")])
    async with open_session(None, provider=provider, tools=[Made(nasty)]) as session:
        await session.send("go")
        await session.rest()
        assert events(session, "tool/output")[0].text == "a\ufffdb\\x1b[2J\\x00"
        assert events(session, "tool/result")[0].text == "\ufffd\\x9b31m"


async def test_a_blank_result_gets_words_and_an_empty_exception_its_name(autojump_clock):
    async def blank(ctx):
        return ToolOutput(" \n")

    async def broken(ctx):
        raise RuntimeError

    tools = [Made(blank), Made(broken, name="broken")]
    provider = ScriptedProvider([reply(("c1", "made"), ("c2", "broken")), Reply(text="Fine.")])
    async with open_session(None, provider=provider, tools=tools) as session:
        await session.send("go")
        await session.rest()
        texts = {event.call: event.text for event in events(session, "tool/result")}
        assert texts["c1"] == "(no output)"
        assert "RuntimeError" in texts["c2"]


async def test_a_context_that_is_over_can_not_be_used(autojump_clock):
    kept = []

    async def keeps(ctx):
        kept.append(ctx)
        return ToolOutput("done")

    provider = ScriptedProvider([reply(("c1", "made")), Reply(text="Fine.")])
    async with open_session(None, provider=provider, tools=[Made(keeps)]) as session:
        await session.send("go")
        await session.rest()
        (ctx,) = kept
        for use in (lambda: ctx.emit("late"), lambda: ctx.checkpoint(1), lambda: ctx.survivor("process", "pid 1")):
            with pytest.raises(RuntimeError, match="over"):
                use()
        with pytest.raises(RuntimeError, match="over"):
            await ctx.ask("late?")


@pytest.mark.law("R9")
async def test_a_critical_section_is_not_cut_before_its_deadline_and_ends_at_now(autojump_clock):
    done = []

    async def careful(ctx):
        with ctx.critical("rename", 5.0):
            await trio.sleep(3.0)
            done.append("whole")
        await trio.sleep(100)
        return ToolOutput("late")

    for times, expected, took in ((1, ["whole"], 3.0), (2, [], 0.0)):
        done.clear()
        provider = ScriptedProvider([reply(("c1", "made"))])
        async with open_session(None, provider=provider, tools=[Made(careful)]) as session:
            await session.send("go")
            await until(session, "tool/start")
            await trio.testing.wait_all_tasks_blocked()
            began = trio.current_time()
            for _ in range(times):
                receipt = session.cancel()
            await receipt.settled()
            assert done == expected
            assert trio.current_time() - began == pytest.approx(took)
            assert events(session, "tool/result")[0].status == "stopped"


@pytest.mark.law("R1")
async def test_a_survivor_is_named_and_the_calls_result_is_unknown(autojump_clock):
    async def leaves_a_thread(ctx):
        try:
            await trio.sleep_forever()
        finally:
            ctx.survivor("thread", "worker 7")

    provider = ScriptedProvider([reply(("c1", "made"))])
    async with open_session(None, provider=provider, tools=[Made(leaves_a_thread)]) as session:
        await session.send("go")
        await until(session, "tool/start")
        await trio.testing.wait_all_tasks_blocked()
        await session.cancel().settled()
        (survivor,) = events(session, "turn/survivor")
        assert (survivor.call, survivor.kind, survivor.name) == ("c1", "thread", "worker 7")
        assert events(session, "tool/result")[0].status == "unknown"


async def test_processes_gone_is_told_when_the_last_one_is(autojump_clock):
    async def holds(ctx):
        with ctx.holding("process", "pid 42 sleep"):
            try:
                await trio.sleep_forever()
            finally:
                with ctx.critical("end it", 5):
                    await trio.sleep(2)

    provider = ScriptedProvider([reply(("c1", "made"))])
    async with open_session(None, provider=provider, tools=[Made(holds)]) as session:
        await session.send("go")
        await until(session, "tool/start")
        await trio.testing.wait_all_tasks_blocked()
        settled = await session.cancel().settled()
        assert settled.milestones["processes_gone"] == pytest.approx(2.0)
        assert "[Process interrupted by user]" in events(session, "tool/result")[0].text


@pytest.mark.law("R12")
async def test_an_error_beside_a_cancel_in_one_group_is_told_and_the_cancel_goes_on(autojump_clock):
    async def two(ctx):
        async def fails():
            try:
                await trio.sleep_forever()
            finally:
                raise KeyError("lost")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fails)
            nursery.start_soon(trio.sleep_forever)
        return ToolOutput("never")

    provider = ScriptedProvider([reply(("c1", "made"))])
    async with open_session(None, provider=provider, tools=[Made(two)]) as session:
        await session.send("go")
        await until(session, "tool/start")
        await trio.testing.wait_all_tasks_blocked()
        assert (await session.cancel().settled()).outcome == "aborted"
        (end,) = events(session, "turn/end")
        assert [(error.type, error.place) for error in end.errors] == [("KeyError", "call c1")]
        assert events(session, "tool/result")[0].status == "stopped"


@pytest.mark.law("C2")
async def test_call_ids_that_repeat_or_are_empty_are_made_unique(autojump_clock):
    quick = ScriptedTool("quick", [{"result": "fine"}])
    replies = [reply(("x", "quick"), ("x", "quick"), ("", "quick")), reply(("x", "quick")), Reply(text="Fine.")]
    async with open_session(None, provider=ScriptedProvider(replies), tools=[quick]) as session:
        await session.send("go")
        await session.rest()
        assert sorted(event.call for event in events(session, "tool/result")) == ["call_1", "x", "x_2", "x_3"]
        assert quick.began and len(set(quick.began)) == 4


@pytest.mark.law("R1", "R9")
async def test_a_section_may_keep_a_little_time_for_itself_at_now(autojump_clock):
    took = []

    async def confirms(ctx):
        began = trio.current_time()
        try:
            await trio.sleep_forever()
        finally:
            with ctx.critical("confirm", 60.0, now_seconds=3.0):
                await trio.sleep_forever()
            took.append(trio.current_time() - began)

    provider = ScriptedProvider([reply(("c1", "made"))])
    async with open_session(None, provider=provider, tools=[Made(confirms)]) as session:
        await session.send("go")
        await until(session, "tool/start")
        await trio.testing.wait_all_tasks_blocked()
        session.cancel()
        await session.cancel().settled()
    assert took == [pytest.approx(3.0)]


async def test_a_failed_log_met_inside_a_tools_own_nursery_is_not_the_tools_failure(autojump_clock):
    from turnkernel import LogFailedError
    from turnkernel.store import MemoryStore

    class Failing(MemoryStore):
        broken = False

        def write(self, data):
            if self.broken:
                raise OSError(28, "No space left on device")
            super().write(data)

    store = Failing()

    async def emits(ctx):
        async def inside():
            store.broken = True
            ctx.emit("more")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(inside)
        return ToolOutput("never")

    provider = ScriptedProvider([reply(("c1", "made"))])
    with pytest.raises(LogFailedError):
        async with open_session(store, provider=provider, tools=[Made(emits)]) as session:
            await session.send("go")
            await session.rest()


async def test_two_calls_of_the_same_work_may_both_leave_a_checkpoint_and_end_well(autojump_clock):
    async def works(ctx):
        ctx.checkpoint({"done": 1})
        await trio.sleep(1)
        return ToolOutput("done")

    from turnkernel.store import MemoryStore

    store = MemoryStore()
    provider = ScriptedProvider([reply(("c1", "made"), ("c2", "made")), Reply(text="Fine.")])
    async with open_session(store, provider=provider, tools=[Made(works)], durability="memory") as session:
        await session.send("go")
        await session.rest()
        assert [event.status for event in events(session, "tool/result")] == ["ok", "ok"]
    copy = MemoryStore(store.read(0, 1 << 20))
    async with open_session(copy, provider=ScriptedProvider([]), durability="memory"):
        pass


@pytest.mark.law("R9")
async def test_a_section_inside_a_section_ends_with_it_at_the_latest(autojump_clock):
    took = []

    async def nests(ctx):
        began = trio.current_time()
        try:
            await trio.sleep_forever()
        finally:
            with ctx.critical("outer", 1.0), ctx.critical("inner", 10.0):
                await trio.sleep_forever()
            took.append(trio.current_time() - began)

    provider = ScriptedProvider([reply(("c1", "made"))])
    async with open_session(None, provider=provider, tools=[Made(nests)]) as session:
        await session.send("go")
        await until(session, "tool/start")
        await trio.testing.wait_all_tasks_blocked()
        await session.cancel().settled()
    assert took == [pytest.approx(1.0)]


async def test_one_emit_without_end_costs_no_more_log_than_many(autojump_clock):
    async def floods(ctx):
        ctx.emit("x" * 3_000_000 + "the end")
        return ToolOutput("done")

    provider = ScriptedProvider([reply(("c1", "made")), Reply(text="Fine.")])
    async with open_session(None, provider=provider, tools=[Made(floods)]) as session:
        await session.send("go")
        await session.rest()
        logged = "".join(event.text for event in events(session, "tool/output"))
        assert len(logged) < 260 * 1024
        assert logged.endswith("the end")
        assert "bytes left out" in logged


async def test_another_sessions_failed_log_is_a_tools_failure_and_not_this_sessions(autojump_clock):
    from turnkernel import LogFailedError

    async def meets(ctx):
        raise LogFailedError("append", "elsewhere.log", "No space left on device", 1)

    provider = ScriptedProvider([reply(("c1", "made")), Reply(text="Fine.")])
    async with open_session(None, provider=provider, tools=[Made(meets)]) as session:
        await session.send("go")
        await session.rest()
        assert events(session, "tool/result")[0].status == "error"
        assert events(session, "turn/end")[0].outcome == "completed"


async def test_a_tool_whose_key_can_not_be_made_is_an_error_result(autojump_clock):
    class Odd(Made):
        def resume_key(self, input):
            raise KeyError("no key")

    async def never(ctx):
        raise AssertionError

    provider = ScriptedProvider([reply(("c1", "made")), Reply(text="Fine.")])
    async with open_session(None, provider=provider, tools=[Odd(never)]) as session:
        await session.send("go")
        await session.rest()
        assert "no key" in events(session, "tool/result")[0].text
        assert events(session, "turn/end")[0].outcome == "completed"


@pytest.mark.law("R5")
async def test_after_a_cancel_no_queued_call_is_looked_at_and_no_hook_is_told(autojump_clock):
    from turnkernel import Gate

    told = []

    async def after(result):
        told.append(result.call)

    async def cancels(ctx):
        session.cancel()
        return ToolOutput("kept")

    order = reply(("c1", "made"), ("c2", "made"), ("c3", "nowhere"))
    provider = ScriptedProvider([order])
    tools = [Made(cancels, concurrency="exclusive")]
    async with open_session(None, provider=provider, tools=tools, gate=Gate(after=[after])) as session:
        await session.send("go")
        await session.rest()
        assert {event.call: event.status for event in events(session, "tool/result")} == {
            "c1": "ok",
            "c2": "not_started",
            "c3": "not_started",
        }
        assert told == []


@pytest.mark.law("R5")
async def test_a_read_only_body_does_not_begin_after_a_cancel_in_the_instant_of_its_start(autojump_clock):
    began = []

    async def looks(ctx):
        began.append(ctx.call_id)
        return ToolOutput("seen")

    from turnkernel.journal import Journal

    class Cancelling(Journal):
        def append(self, *added):
            super().append(*added)
            if any(event.type == "tool/start" for event in added):
                session.cancel()

    provider = ScriptedProvider([reply(("c1", "made"))])
    tool = Made(looks, effect="read_only")
    async with open_session(None, provider=provider, tools=[tool], journal_type=Cancelling) as session:
        await session.send("go")
        await session.rest()
        assert began == []
        assert events(session, "tool/result")[0].status == "not_started"


async def test_a_tool_that_breaks_its_contract_is_an_error_result_and_no_dead_session(autojump_clock):
    async def nothing(ctx):
        return None

    async def no_text(ctx):
        return ToolOutput(None)

    async def no_status(ctx):
        return ToolOutput("fine", status="splendid")

    tools = [Made(nothing, name="a"), Made(no_text, name="b"), Made(no_status, name="c")]
    provider = ScriptedProvider([reply(("c1", "a"), ("c2", "b"), ("c3", "c")), Reply(text="I see.")])
    async with open_session(None, provider=provider, tools=tools) as session:
        await session.send("go")
        await session.rest()
        results = {event.call: event for event in events(session, "tool/result")}
        assert {result.status for result in results.values()} == {"error"}
        assert "NoneType" in results["c1"].text
        assert "NoneType" in results["c2"].text
        assert "splendid" in results["c3"].text
        assert events(session, "turn/end")[0].outcome == "completed"


async def test_what_is_told_of_an_abandoned_call_is_by_its_effect_and_invents_no_answer(autojump_clock):
    async def leaves(ctx):
        try:
            await trio.sleep_forever()
        finally:
            ctx.survivor("thread", "worker 7")

    for effect, says in (("read_only", "it may be called again"), ("effect", "do not retry blindly")):
        provider = ScriptedProvider([reply(("c1", "made"))])
        async with open_session(None, provider=provider, tools=[Made(leaves, effect=effect)]) as session:
            await session.send("go")
            await until(session, "tool/start")
            await trio.testing.wait_all_tasks_blocked()
            await session.cancel().settled()
            (result,) = events(session, "tool/result")
            assert result.status == "unknown"
            assert says in result.text
            assert "answered" not in result.text
