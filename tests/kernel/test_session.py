"""A session as its users see it: input, turns, cancels, receipts, cursors, leaving. Virtual time throughout."""

import pytest
import trio

from turnkernel import (
    Answer,
    Cause,
    LogDamagedError,
    LogFailedError,
    ProviderError,
    Session,
    SessionClosedError,
    Settings,
    ToolOutput,
    open_session,
)
from turnkernel.events import Error
from turnkernel.messages import Text, ToolResultBlock
from turnkernel.store import MemoryStore
from turnkernel.testing.laws import check_log
from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel.testing.scripted import ScriptedProvider, ScriptedTool


def slow(**options):
    return ScriptedTool("slow", [{"emit": "line\n"}, {"sleep": 2.0}, {"result": "done"}], **options)


def calls(*ids, text="Let me see."):
    return Reply(text=text, calls=[ReplyCall(one, "slow") for one in ids])


async def until(session: Session, name: str, nth: int = 1):
    """Wait for the n-th event of a type."""
    async for event in session.events():
        if event.type == name:
            nth -= 1
            if not nth:
                return event
    raise AssertionError(f"the session ended without its {name}")


def events(session: Session):
    return [record.event for record in session._kernel.journal.records_from(1)]


def only(session: Session, name: str):
    (event,) = [one for one in events(session) if one.type == name]
    return event


def outcomes(session: Session):
    return [one.outcome for one in events(session) if one.type == "turn/end"]


def statuses(session: Session):
    return {one.call: one.status for one in events(session) if one.type == "tool/result"}


async def test_a_prompt_is_answered_and_the_session_rests(autojump_clock):
    provider = ScriptedProvider([Reply(text="Hello.")])
    async with open_session(None, provider=provider) as session:
        item = await session.send("hi")
        await session.rest()
        assert outcomes(session) == ["completed"]
        assert only(session, "inbox/consumed").item == item
        assert [message.role for message in session.context] == ["user", "assistant"]
        assert session.status().state == "rest"
    assert provider.open_streams == 0


@pytest.mark.law("R7", "R11")
async def test_a_cancel_in_a_running_call_ends_the_turn_aborted_and_the_next_prompt_works(autojump_clock):
    provider = ScriptedProvider([calls("c1"), Reply(text="Fine.")])
    async with open_session(None, provider=provider, tools=[slow()]) as session:
        await session.send("go")
        await until(session, "tool/output")
        receipt = session.cancel()
        assert receipt.answer is Answer.APPLIED
        settled = await receipt.settled()
        assert settled.outcome == "aborted"
        assert settled.durable
        assert set(settled.milestones) == {"tasks_gone", "ended", "durable"}
        await session.send("and now?")
        await session.rest()
        assert outcomes(session) == ["aborted", "completed"]
        result, reminder, words = session.context[2].blocks
        assert isinstance(result, ToolResultBlock)
        assert "stopped by the user" in result.text
        assert "line\n" in result.text
        assert isinstance(reminder, Text)
        assert reminder.text.startswith("<system-reminder>")
        assert words == Text("and now?")


@pytest.mark.law("R2")
async def test_a_handle_of_an_earlier_turn_is_stale_for_ever(autojump_clock):
    provider = ScriptedProvider([Reply(text="One."), calls("c1"), Reply(text="Two.")])
    async with open_session(None, provider=provider, tools=[slow()]) as session:
        await session.send("go")
        await until(session, "turn/start")
        first = session.turn
        await session.rest()
        await session.send("again")
        await until(session, "tool/output")
        receipt = session.cancel(turn=first)
        assert receipt.answer is Answer.STALE
        assert receipt.dropped == ()
        await session.rest()
        assert outcomes(session) == ["completed", "completed"]
        assert session.cancel(turn=first).answer is Answer.STALE
        assert [one.type for one in events(session)].count("turn/cancel") == 0


@pytest.mark.law("R3")
async def test_a_cancel_at_rest_drops_the_queue_and_plants_nothing(autojump_clock):
    provider = ScriptedProvider([Reply(text="One.")])
    async with open_session(None, provider=provider) as session:
        item = session.post("never mind", prompt=True)
        receipt = session.cancel()
        assert receipt.answer is Answer.IDLE
        assert [(one.item, one.text) for one in receipt.dropped] == [(item, "never mind")]
        assert (await receipt.settled()).outcome is None
        await session.send("go")
        await session.rest()
        assert outcomes(session) == ["completed"]
        assert only(session, "inbox/canceled").item == item


@pytest.mark.law("R4")
async def test_the_first_cause_wins_and_a_second_cancel_only_raises_the_urgency(autojump_clock):
    provider = ScriptedProvider([calls("c1"), Reply(text="Fine.")])
    tool = slow(on_cancel=[{"sleep": 50.0}])
    async with open_session(None, provider=provider, tools=[tool]) as session:
        await session.send("go")
        await until(session, "tool/output")
        began = trio.current_time()
        session.cancel(Cause.LIMIT)
        await trio.sleep(1)
        receipt = session.cancel()
        assert receipt.answer is Answer.REPEATED
        assert receipt.cause is Cause.LIMIT
        await receipt.settled()
        # The scripted cleanup is a critical section of 50 s; the second cancel ended it.
        assert trio.current_time() - began == pytest.approx(1.0)
        assert outcomes(session) == ["aborted"]


async def test_replace_cancels_and_prompts_in_one_and_reminds_of_nothing(autojump_clock):
    provider = ScriptedProvider([calls("c1"), Reply(text="Fine.")])
    async with open_session(None, provider=provider, tools=[slow()]) as session:
        await session.send("go")
        await until(session, "tool/output")
        receipt = await session.replace("no, look at src/api first")
        assert receipt.answer is Answer.APPLIED
        await session.rest()
        assert outcomes(session) == ["aborted", "completed"]
        assert session.context[2].blocks[1:] == (Text("no, look at src/api first"),)


async def test_a_cancel_drops_what_is_queued_and_keep_inbox_runs_it_at_once(autojump_clock):
    for keep in (False, True):
        provider = ScriptedProvider([calls("c1"), Reply(text="Fine."), Reply(text="Fine.")])
        async with open_session(None, provider=provider, tools=[slow()]) as session:
            await session.send("go")
            await until(session, "tool/output")
            await session.send("one")
            await session.steer("two")
            receipt = session.cancel(keep_inbox=keep)
            assert [one.text for one in receipt.dropped] == ([] if keep else ["one", "two"])
            await session.rest()
            assert outcomes(session) == ["aborted", *(["completed"] * 2 if keep else [])]


async def test_input_after_the_cancel_belongs_to_the_next_turn(autojump_clock):
    provider = ScriptedProvider([calls("c1"), Reply(text="Fine.")])
    async with open_session(None, provider=provider, tools=[slow(on_cancel=[{"sleep": 1.0}])]) as session:
        await session.send("go")
        await until(session, "tool/output")
        session.cancel()
        await session.steer("typed while it stops")
        await session.rest()
        assert outcomes(session) == ["aborted", "completed"]


async def test_a_steer_stands_after_the_results_of_its_step(autojump_clock):
    provider = ScriptedProvider([calls("c1", "c2"), Reply(text="Fine.")])
    async with open_session(None, provider=provider, tools=[slow()]) as session:
        await session.send("go")
        await until(session, "tool/output")
        await session.steer("with --verbose")
        await session.rest()
        assert outcomes(session) == ["completed"]
        blocks = session.context[2].blocks
        assert [getattr(block, "call", None) for block in blocks] == ["c1", "c2", None]
        assert blocks[2] == Text("with --verbose")


async def test_a_steer_with_no_call_pending_makes_the_turn_go_on(autojump_clock):
    provider = ScriptedProvider([Reply(text="One two three."), Reply(text="Also that.")])
    async with open_session(None, provider=provider) as session:
        await session.send("go")
        await until(session, "model/delta")
        session.post("and that")
        await session.rest()
        assert outcomes(session) == ["completed"]
        assert len(provider.requests) == 2


@pytest.mark.law("L5")
async def test_steers_left_over_by_a_limit_are_prompts_of_their_own(autojump_clock):
    provider = ScriptedProvider([Reply(text="One.", pace=1.0), Reply(text="Two."), Reply(text="Three.")])
    async with open_session(None, provider=provider, settings=Settings(max_steps=1)) as session:
        await session.send("go")
        await until(session, "model/delta")
        session.post("first")
        session.post("second")
        await session.rest()
        assert outcomes(session) == ["max_steps", "completed", "completed"]
        assert [one.turn for one in events(session) if one.type == "inbox/consumed"] == ["t1", "t2", "t3"]


async def test_withdraw_takes_a_queued_item_back_and_no_other(autojump_clock):
    provider = ScriptedProvider([calls("c1"), Reply(text="Fine.")])
    async with open_session(None, provider=provider, tools=[slow()]) as session:
        first = await session.send("go")
        await until(session, "tool/output")
        second = await session.send("later")
        assert session.withdraw(second)
        assert not session.withdraw(second)
        assert not session.withdraw(first)
        assert not session.withdraw("i999")
        await session.rest()
        assert outcomes(session) == ["completed"]


class Gated(MemoryStore):
    """A store whose sync waits for the test."""

    def __init__(self):
        super().__init__()
        import threading

        self.gate = threading.Event()
        self.gate.set()

    def sync(self):
        self.gate.wait()


@pytest.mark.law("L8")
async def test_a_cancelled_send_takes_its_item_back():
    store = Gated()
    async with open_session(store, provider=ScriptedProvider([Reply(text="Hi.")])) as session:
        store.gate.clear()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.send, "go")
                await until(session, "inbox/queued")
                scope.cancel()
        store.gate.set()
        await session.rest()
        assert outcomes(session) == []
        assert only(session, "inbox/canceled").reason == "withdrawn"


@pytest.mark.law("L8")
async def test_send_returns_when_its_item_is_synced_and_not_before():
    store = Gated()
    returned = []
    async with open_session(store, provider=ScriptedProvider([Reply(text="Hi.")])) as session:

        async def send():
            returned.append(await session.send("go"))

        store.gate.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await until(session, "inbox/queued")
            await trio.testing.wait_all_tasks_blocked()
            assert returned == []
            assert [one.type for one in events(session)] == ["session/open", "inbox/queued"]
            store.gate.set()
        assert len(returned) == 1


async def test_blank_words_and_input_to_a_session_that_is_left_are_refused(autojump_clock):
    async with open_session(None, provider=ScriptedProvider([])) as session:
        for say in (session.send, session.steer, session.replace):
            with pytest.raises(ValueError, match="blank"):
                await say(" \n")
    with pytest.raises(SessionClosedError):
        await session.send("too late")
    assert session.cancel().answer is Answer.IDLE
    assert not session.withdraw("i2")
    await session.rest()


async def test_cancel_call_stops_one_call_and_the_turn_goes_on(autojump_clock):
    provider = ScriptedProvider([calls("c1", "c2"), Reply(text="Fine.")])
    async with open_session(None, provider=provider, tools=[slow(concurrency="exclusive")]) as session:
        await session.send("go")
        await until(session, "tool/output")
        assert session.cancel_call("c2").answer is Answer.APPLIED
        assert session.cancel_call("c1").answer is Answer.APPLIED
        assert session.cancel_call("c1").answer is Answer.REPEATED
        assert session.cancel_call("c2").answer is Answer.STALE
        assert session.cancel_call("nowhere").answer is Answer.STALE
        await session.rest()
        assert session.cancel_call("c1").answer is Answer.STALE
        assert statuses(session) == {"c1": "stopped", "c2": "not_started"}
        assert outcomes(session) == ["completed"]


@pytest.mark.law("R8")
async def test_the_hosts_cancel_closes_the_log_and_goes_on(autojump_clock):
    provider = ScriptedProvider([calls("c1")])
    store = MemoryStore()
    with trio.CancelScope() as host:
        async with open_session(store, provider=provider, tools=[slow()]) as session:
            await session.send("go")
            await until(session, "tool/output")
            host.cancel()
            await trio.sleep_forever()
    assert host.cancelled_caught
    kinds = [one.type for one in events(session)]
    assert kinds[-5:] == ["turn/cancel", "tool/result", "step/end", "turn/end", "session/close"]
    assert outcomes(session) == ["aborted"]
    assert not check_log(session._kernel.journal.records_from(1), closed=True)


async def test_leaving_the_block_ends_the_running_turn_and_keeps_what_is_queued(autojump_clock):
    provider = ScriptedProvider([calls("c1"), Reply(text="Late.")])
    store = MemoryStore()
    async with open_session(store, provider=provider, tools=[slow()]) as session:
        await session.send("go")
        await until(session, "tool/output")
        session.post("for next time", prompt=True)
    assert outcomes(session) == ["aborted"]
    assert only(session, "tool/result").status == "stopped"
    async with open_session(MemoryStore(store.read(0, 1 << 20)), provider=provider) as again:
        await again.rest()
        assert outcomes(again) == ["aborted"]
        again.go_on()
        await again.rest()
        assert outcomes(again) == ["aborted", "completed"]
        assert again.context[-2].blocks[-1] == Text("for next time")


async def test_the_blocks_own_exception_leaves_as_it_is(autojump_clock):
    error = KeyError("mine")
    with pytest.raises(KeyError) as caught:
        async with open_session(None, provider=ScriptedProvider([calls("c1")]), tools=[slow()]) as session:
            await session.send("go")
            await until(session, "tool/output")
            raise error
    assert caught.value is error
    assert outcomes(session) == ["aborted"]


class Failing(MemoryStore):
    """A store that fails from a given moment on."""

    broken = False

    def write(self, data):
        if self.broken:
            raise OSError(28, "No space left on device")
        super().write(data)


async def test_a_log_that_fails_stops_the_turn_and_is_told_to_everybody_who_waits(autojump_clock):
    store = Failing()
    tool = slow()
    with pytest.raises(LogFailedError, match="No space left"):
        async with open_session(store, provider=ScriptedProvider([calls("c1")]), tools=[tool]) as session:
            await session.send("go")
            await until(session, "tool/output")
            store.broken = True
            with pytest.raises(LogFailedError):
                session.post("more")
            assert session.cancel().answer is Answer.REPEATED  # never raises (law R7)
            with pytest.raises(LogFailedError):
                await session.rest()
    assert tool.running == set()
    # The next opening finds an unfinished turn and closes it.
    async with open_session(MemoryStore(store.read(0, 1 << 20)), provider=ScriptedProvider([])) as again:
        assert outcomes(again) == ["interrupted"]


@pytest.mark.law("R12", "R10")
async def test_a_failing_cleanup_and_a_swallowed_cancel_are_both_told_and_the_turn_is_aborted(autojump_clock):
    fails = ScriptedTool("fails", [{"sleep": 1.0}], on_cancel=[{"raise": "OSError: disk gone"}])
    swallows = ScriptedTool("swallows", [{"swallow": True}, {"sleep": 1.0}, {"result": "kept"}])
    reply = Reply(calls=[ReplyCall("c1", "fails"), ReplyCall("c2", "swallows")])
    provider = ScriptedProvider([reply])
    async with open_session(None, provider=provider, tools=[fails, swallows]) as session:
        await session.send("go")
        await until(session, "tool/start", 2)
        await trio.testing.wait_all_tasks_blocked()
        session.cancel()
        await session.rest()
        assert statuses(session) == {"c1": "stopped", "c2": "ok"}
        end = only(session, "turn/end")
        assert end.outcome == "aborted"
        assert [(error.type, error.text, error.place) for error in end.errors] == [
            ("OSError", "disk gone", "call c1")
        ]
        assert len(provider.requests) == 1


async def test_a_bad_request_fails_the_turn_and_keeps_what_was_said(autojump_clock):
    provider = ScriptedProvider(
        [Reply(status=400, body="bad"), Reply(text="Half a", fault="cut"), Reply(text="Ok.")]
    )
    async with open_session(None, provider=provider) as session:
        await session.send("go")
        await session.rest()
        await session.send("again")
        await session.rest()
        await session.send("once more")
        await session.rest()
        ends = [one for one in events(session) if one.type == "turn/end"]
        assert [(one.outcome, one.code) for one in ends] == [
            ("failed", "provider"),
            ("failed", "provider"),
            ("completed", None),
        ]
        assert session.context[1].blocks == (Text("Half a [interrupted]"),)


async def test_a_retry_is_in_the_log_before_its_wait_and_is_given_up_in_time(autojump_clock):
    provider = ScriptedProvider([Reply(status=529)] * 3)
    async with open_session(None, provider=provider) as session:
        await session.send("go")
        await session.rest()
        retries = [one for one in events(session) if one.type == "model/retry"]
        assert [(one.attempt, one.wait) for one in retries] == [(1, 0.5), (2, 1.0)]
        assert len(provider.requests) == 3
        assert only(session, "turn/end").code == "provider"


@pytest.mark.law("R5")
async def test_a_cancel_while_waiting_to_retry_sends_nothing_more(autojump_clock):
    provider = ScriptedProvider([Reply(status=529), Reply(text="Never.")])
    async with open_session(None, provider=provider) as session:
        await session.send("go")
        await until(session, "model/retry")
        began = trio.current_time()
        await session.cancel().settled()
        assert trio.current_time() == began
        assert len(provider.requests) == 1
        assert outcomes(session) == ["aborted"]


async def test_limits_have_a_cause_and_an_outcome(autojump_clock):
    provider = ScriptedProvider([calls("c1"), calls("c2"), calls("c3")])
    settings = Settings(max_steps=2)
    async with open_session(None, provider=provider, tools=[slow()], settings=settings) as session:
        await session.send("go")
        await session.rest()
        assert outcomes(session) == ["max_steps"]
    provider = ScriptedProvider([calls("c1")])
    settings = Settings(turn_seconds=1.5)
    async with open_session(None, provider=provider, tools=[slow()], settings=settings) as session:
        await session.send("go")
        await session.rest()
        assert outcomes(session) == ["aborted"]
        assert only(session, "turn/cancel").turn == "t1"
        assert "a limit of this session" in only(session, "turn/end").reminder
    provider = ScriptedProvider([])
    async with open_session(None, provider=provider, settings=Settings(context_tokens=10)) as session:
        await session.send("x" * 400)
        await session.rest()
        assert only(session, "turn/end").code == "context_limit"
        assert provider.requests == []


async def test_a_stuck_turn_says_who_holds_it(autojump_clock):
    tool = ScriptedTool("stuck", [{"swallow": True}, {"shield": 30.0}, {"result": "at last"}])
    provider = ScriptedProvider([Reply(calls=[ReplyCall("c1", "stuck")])])
    settings = Settings(stuck_after_seconds=5.0)
    async with open_session(None, provider=provider, tools=[tool], settings=settings) as session:
        await session.send("go")
        await until(session, "tool/start")
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        receipt = session.cancel()
        stuck = await until(session, "turn/stuck")
        assert trio.current_time() - began == pytest.approx(5.0)
        assert [one.split(":")[0] for one in stuck.holders] == ["trio task call c1"]
        assert "sleep" in stuck.holders[0]
        await receipt.settled()
        assert outcomes(session) == ["aborted"]
        assert statuses(session) == {"c1": "ok"}


@pytest.mark.law("D1", "D2")
async def test_cursors_see_what_is_in_the_log_each_at_its_own_pace(autojump_clock):
    provider = ScriptedProvider([Reply(text="One two three."), Reply(text="Four.")])
    store = MemoryStore()
    seen = []
    async with open_session(store, provider=provider) as session:
        late = session.records()

        async def quick():
            async for record in session.records():
                # Shown is appended: its line is in the store already.
                assert b'"seq":%d,' % record.seq in store.read(0, 1 << 20)
                seen.append(record.seq)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(quick)
            await session.send("go")
            await session.rest()
            assert (await late.__anext__()).seq == 1
            nursery.cancel_scope.cancel()
        last = session._kernel.journal.seq
    assert seen == list(range(1, last + 1))
    rest = [record.seq async for record in late]
    assert rest == list(range(2, last + 2))  # and the session/close, after which it ends


@pytest.mark.law("D2")
async def test_status_follows_the_log(autojump_clock):
    provider = ScriptedProvider([calls("c1"), Reply(text="Fine.")])
    async with open_session(None, provider=provider, tools=[slow(on_cancel=[{"sleep": 1.0}])]) as session:
        assert session.status().state == "rest"
        await session.send("go")
        await until(session, "model/delta")
        assert session.status().state == "streaming"
        await until(session, "tool/output")
        await trio.sleep(0.5)
        status = session.status()
        assert status.state == "calling"
        assert [(one.call, one.name, one.state, one.seconds) for one in status.calls] == [
            ("c1", "slow", "running", pytest.approx(0.5))
        ]
        item = await session.send("later")
        session.cancel()
        assert session.status().state == "stopping"
        await session.rest()
        status = session.status()
        assert (status.state, status.outcome, status.dropped) == ("stopped", "aborted", (item,))


async def test_a_fault_of_a_provider_is_a_failed_turn_and_not_a_dead_session(autojump_clock):
    class Odd(ScriptedProvider):
        def stream(self, request):
            if not self.requests:
                self.requests.append(request)
                raise ZeroDivisionError("odd")
            return super().stream(request)

    async with open_session(None, provider=Odd([Reply(text="Fine.")])) as session:
        await session.send("go")
        await session.rest()
        end = only(session, "turn/end")
        assert (end.outcome, end.code) == ("failed", "provider")
        assert end.errors == (Error("ZeroDivisionError", "odd", "provider"),)
        assert end.reminder.endswith("failed (provider): ZeroDivisionError: odd.\n</system-reminder>")
        assert (session.status().state, session.status().outcome) == ("stopped", "failed")
        assert session.status().errors == end.errors, "what a screen shows after failed"
        await session.send("again")
        await session.rest()
        assert outcomes(session) == ["failed", "completed"]
        status = session.status()
        assert (status.state, status.outcome, status.errors) == ("rest", "completed", ())


async def test_an_exception_without_words_is_told_by_its_type_alone(autojump_clock):
    class Mute(ScriptedProvider):
        def stream(self, request):
            raise ValueError

    async with open_session(None, provider=Mute([])) as session:
        await session.send("go")
        await session.rest()
        assert only(session, "turn/end").errors == (Error("ValueError", "", "provider"),)
        assert "failed (provider): ValueError." in only(session, "turn/end").reminder


async def test_a_tool_that_raises_or_does_not_exist_or_gets_no_object_is_an_error_result(autojump_clock):
    broken = ScriptedTool("broken", [{"raise": "ValueError: no good"}])
    reply = Reply(
        calls=[
            ReplyCall("a", "broken"),
            ReplyCall("b", "nowhere"),
            ReplyCall("c", "slow", raw_input='{"path": "cut'),
            ReplyCall("d", "slow"),
        ]
    )
    provider = ScriptedProvider([reply, Reply(text="I see.")])
    async with open_session(None, provider=provider, tools=[broken, slow()]) as session:
        await session.send("go")
        await session.rest()
        texts = {one.call: one.text for one in session.context[2].blocks}
        assert "ValueError: no good" in texts["a"]
        assert "no tool named 'nowhere'" in texts["b"]
        assert '{"path": "cut' in texts["c"]
        assert texts["d"] == "done"
        assert statuses(session) == {"a": "error", "b": "error", "c": "error", "d": "ok"}
        assert session.context[1].blocks[2].input == {}


@pytest.mark.law("R6")
async def test_a_result_that_was_returned_in_the_instant_of_the_cancel_is_kept(autojump_clock):
    class Quick:
        name, description, schema = "quick", "returns and cancels", {"type": "object"}
        effect, concurrency, timeout = "effect", "shared", None

        async def run(self, ctx, input):
            await trio.sleep(1)
            session.cancel()
            return ToolOutput("what it found")

    provider = ScriptedProvider([Reply(calls=[ReplyCall("c1", "quick")])])
    async with open_session(None, provider=provider, tools=[Quick()]) as session:
        await session.send("go")
        await session.rest()
        result = only(session, "tool/result")
        assert (result.status, result.text) == ("ok", "what it found")
        assert outcomes(session) == ["aborted"]


async def test_a_checkpoint_is_found_by_the_next_call_with_the_same_input(autojump_clock):
    found = []

    class Batch:
        name, description, schema = "batch", "works through", {"type": "object"}
        effect, concurrency, timeout = "idempotent", "shared", None

        async def run(self, ctx, input):
            found.append((input["job"], ctx.resumed_state))
            ctx.checkpoint({"done": 800})
            if len(found) < 3:
                await trio.sleep_forever()
            return ToolOutput("all done")

    def job(call, name):
        return Reply(calls=[ReplyCall(call, "batch", {"job": name})])

    store = MemoryStore()
    async with open_session(store, provider=ScriptedProvider([job("c1", "x")]), tools=[Batch()]) as session:
        await session.send("go")
        await until(session, "tool/checkpoint")
        await session.cancel().settled()
        assert "checkpoint" in only(session, "tool/result").text
    replies = [job("c2", "y"), job("c3", "x"), job("c4", "x"), Reply(text="Done.")]
    copy = MemoryStore(store.read(0, 1 << 20))
    async with open_session(copy, provider=ScriptedProvider(replies), tools=[Batch()]) as session:
        await session.send("go on")
        await until(session, "tool/checkpoint", 2)
        session.cancel_call("c2")
        await session.rest()
    assert found == [("x", None), ("y", None), ("x", {"done": 800}), ("x", None)]


async def test_provider_errors_never_retry_after_something_was_shown(autojump_clock):
    provider = ScriptedProvider([Reply(thinking="Hm.", fault="reset", after_bytes=8), Reply(text="Never.")])
    async with open_session(None, provider=provider) as session:
        await session.send("go")
        await session.rest()
        assert len(provider.requests) == 1
        assert only(session, "turn/end").code == "provider"
        # Cut thinking is gone: nothing of the message is left.
        assert [message.role for message in session.context] == ["user"]


def test_the_errors_of_the_port_say_what_they_are():
    error = ProviderError("busy", retryable=True, retry_after=3.0, status=529)
    assert (error.retryable, error.retry_after, error.status, error.kind) == (True, 3.0, 529, "provider")


async def test_a_file_that_is_no_log_is_refused_and_left_as_it_is(tmp_path):
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear all, no newline at the end")
    with pytest.raises(LogDamagedError, match="no log"):
        async with open_session(letter, provider=ScriptedProvider([])):
            pass
    assert letter.read_text() == "Dear all, no newline at the end"


async def test_a_session_says_what_it_is_also_when_its_run_is_over():
    async with open_session(None, provider=ScriptedProvider([])) as session:
        assert repr(session) == "<Session memory rest seq=1>"
    assert await trio.to_thread.run_sync(repr, session) == "<Session memory rest seq=2>"


async def test_the_receipt_of_a_cancelled_call_settles_with_its_turn(autojump_clock):
    provider = ScriptedProvider([calls("c1"), Reply(text="Fine.", pace=1.0)])
    async with open_session(None, provider=provider, tools=[slow()]) as session:
        await session.send("go")
        await until(session, "tool/output")
        settled = await session.cancel_call("c1").settled()
        assert (settled.outcome, settled.durable) == ("completed", True)
        assert outcomes(session) == ["completed"]


async def test_a_server_that_asks_for_a_day_is_not_waited_for(autojump_clock):
    class Busy(ScriptedProvider):
        def stream(self, request):
            self.requests.append(request)
            raise ProviderError("busy", retryable=True, retry_after=86_400.0, status=429)

    provider = Busy([])
    async with open_session(None, provider=provider) as session:
        await session.send("go")
        await session.rest()
        assert len(provider.requests) == 1
        assert only(session, "turn/end").code == "provider"


async def test_what_a_failing_log_did_not_take_is_not_told_as_dropped(autojump_clock):
    store = Failing()
    with pytest.raises(LogFailedError):
        async with open_session(store, provider=ScriptedProvider([])) as session:
            item = session.post("wait for me", prompt=True)
            store.broken = True
            assert session.cancel().dropped == ()
            assert not session.withdraw(item)
            await session.rest()
