"""Closers: what is open at any prefix of any history is closed, once, in order, and honestly."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernel.histories import folded, histories, numbered, opening

from turnkernel.causes import Cause
from turnkernel.codec import decode, encode
from turnkernel.events import (
    AskClosed,
    AskOpened,
    Error,
    Event,
    InboxConsumed,
    InboxQueued,
    ModelDelta,
    ModelMessage,
    Record,
    SessionClose,
    StepEnd,
    StepStart,
    TaskEnded,
    TaskStarted,
    ToolCall,
    ToolCheckpoint,
    ToolOutput,
    ToolResult,
    ToolStart,
    TurnCancel,
    TurnEnd,
    TurnStart,
)
from turnkernel.messages import Message, Text, Thinking, ToolUse
from turnkernel.repair import INTERRUPTION, Ending, closers
from turnkernel.testing.laws import check_log, check_messages
from turnkernel.wording import DEFAULT, WORDINGS

TURN = [opening(), InboxQueued("i1", "prompt", "go"), TurnStart("t1"), InboxConsumed("i1", "t1", "t1.s1")]
STREAMING = [*TURN, StepStart("t1", "t1.s1", "anthropic", "m")]


def asked(*names: str) -> list[Event]:
    """A log in which the model has asked for calls c1, c2 ... of these tools."""
    uses = tuple(ToolUse(f"c{number}", name, {}) for number, name in enumerate(names, 1))
    return [*STREAMING, ModelMessage("t1", "t1.s1", "anthropic", "m", (Text("Let me."), *uses), "tool_use")]


def taken(call: str) -> ToolCall:
    return ToolCall("t1", call, "bash")


def started(call: str, effect: str = "effect") -> ToolStart:
    return ToolStart("t1", call, "bash", {}, effect)


def shown(text: str) -> ToolOutput:
    return ToolOutput("t1", "c1", "stdout", text)


def delta(block: int, part, text: str = "", **more) -> ModelDelta:
    return ModelDelta("t1", "t1.s1", block, part, text, **more)


def recovered(events: list[Event]) -> list[Event]:
    """What an opening after a crash appends, its own record left out."""
    grammar, _ = folded(numbered([*events, opening()]))
    return closers(grammar, DEFAULT, INTERRUPTION)


def results(events: list[Event]) -> dict[str, str]:
    return {event.call: event.status for event in events if isinstance(event, ToolResult)}


def only(events: list[Event], kind):
    (event,) = [one for one in events if isinstance(one, kind)]
    return event


def types(events: list[Event]) -> list[str]:
    return [event.type for event in events]


# ------------------------------------------------------------------------------------------- any prefix at all


def check_closing(records: list[Record], ending: Ending) -> None:
    """Close what is open, and look at everything that must be true of it."""
    grammar, context = folded(records)
    before = context.messages
    closing = closers(grammar, DEFAULT, ending)
    assert closing == closers(grammar, DEFAULT, ending), "asking again gives the same"
    read = [decode(encode(record)[:-1]) for record in records]
    assert closing == closers(folded(read)[0], DEFAULT, ending), "so does asking a log that was read"
    # Legal, and everything is closed; a second run appends nothing.
    closed = [*records, *numbered(closing, grammar)]
    after, context = folded(closed)
    assert after.turn is after.step is None
    assert not after.asks
    if ending.outcome == "interrupted":
        assert not [task for task in after.tasks.values() if task.lifetime == "session"]
    assert closers(after, DEFAULT, ending) == []
    # What the model is told is well formed, and what it was told stands.
    assert check_messages(context.messages) == []
    assert check_log(closed, every_prefix=False) == []
    for old, new in zip(before, context.messages, strict=False):
        assert new.role == old.role
        assert new.blocks[: len(old.blocks)] == old.blocks
    assert len(context.messages) >= len(before)
    # All of it says who wrote it.
    for event in closing:
        assert isinstance(event, TurnEnd) or event.synthetic  # type: ignore[union-attr]


@pytest.mark.law("L2", "L3", "L6", "C1", "C2", "C3", "C4", "C6")
@settings(max_examples=40, deadline=None)
@given(histories())
def test_at_every_prefix_recovery_closes_everything_and_leaves_a_context_that_can_be_sent(records):
    for cut in range(len(records) + 1):
        grammar, _ = folded(records[:cut])
        check_closing([*records[:cut], *numbered([opening()], grammar)], INTERRUPTION)


@pytest.mark.law("L2", "L3", "C1", "C2", "C3", "C4", "R12")
@settings(max_examples=20, deadline=None)
@given(histories(40), st.sampled_from(["aborted", "completed", "failed", "max_steps", "refused"]))
def test_at_every_prefix_a_live_turn_can_be_closed(records, outcome):
    for cut in range(len(records) + 1):
        grammar, _ = folded(records[:cut])
        if grammar.turn is None or grammar.turn.state == "cut":
            continue
        aborted = grammar.turn.state == "cancelled"
        errors = (Error("OSError", "x", "kernel"),)
        code = "internal" if outcome == "failed" and not aborted else None
        ending = Ending("aborted" if aborted else outcome, code, errors, Cause.USER if aborted else None)
        check_closing(records[:cut], ending)
        assert only(closers(grammar, DEFAULT, ending), TurnEnd).errors == errors


@pytest.mark.law("L7", "C6")
@settings(max_examples=60, deadline=None)
@given(histories(), st.data())
def test_a_crash_in_the_middle_of_a_recovery_comes_to_the_same_end(records, data):
    grammar, _ = folded(records)
    records = [*records, *numbered([opening()], grammar)]
    grammar, _ = folded(records)
    closing = closers(grammar, DEFAULT, INTERRUPTION)
    whole = [*records, *numbered(closing, grammar)]
    for _ in range(data.draw(st.integers(1, 3))):
        stop = data.draw(st.integers(0, len(closing)))
        records = [*records, *numbered(closing[:stop], grammar)]
        grammar, _ = folded(records)
        records = [*records, *numbered([opening()], grammar)]
        grammar, _ = folded(records)
        rest = closers(grammar, DEFAULT, INTERRUPTION)
        assert rest == closing[stop:]
        closing = rest
    again = [*records, *numbered(closing, grammar)]
    assert folded(again)[1].messages == folded(whole)[1].messages


@pytest.mark.law("L7")
@pytest.mark.parametrize("wording", WORDINGS.values(), ids=list(WORDINGS))
def test_every_wording_closes_into_a_context_that_can_be_sent(wording):
    events = [*asked("bash", "bash"), taken("c1"), started("c1"), opening()]
    grammar, _ = folded(numbered(events))
    _, context = folded([*numbered(events), *numbered(closers(grammar, wording, INTERRUPTION), grammar)])
    assert check_messages(context.messages) == []


def test_a_closed_log_has_no_closers():
    for events in ([opening()], [opening(), SessionClose()], [opening(), SessionClose(), opening()]):
        assert closers(folded(numbered(events))[0], DEFAULT, INTERRUPTION) == []


# --------------------------------------------------------------------------------------------- their order


@pytest.mark.law("L2", "L3")
def test_closers_come_in_the_order_of_the_design():
    task = TaskStarted("k1", "c0", "server", "session")
    calls = [
        delta(0, "text", "Let me"),
        delta(1, "call", call="c1", name="bash"),
        delta(1, "end"),
        delta(2, "call", call="c2", name="bash"),
        delta(2, "end"),
    ]
    assert types(recovered([*STREAMING, task, *calls])) == [
        "model/message",
        "tool/result",
        "tool/result",
        "step/end",
        "turn/end",
        "task/ended",
    ]
    asking = [*asked("bash", "bash"), taken("c1"), taken("c2"), AskOpened("t1", "c2", "a1", "approval", "?")]
    closing = recovered(asking)
    assert types(closing) == ["tool/result", "ask/closed", "tool/result", "step/end", "turn/end"]
    assert [event.call for event in closing[:3]] == ["c1", "c2", "c2"]  # type: ignore[union-attr]


def test_results_come_in_model_order_whatever_was_begun_first():
    events = [*asked("bash", "bash", "bash"), taken("c3"), started("c3"), taken("c1")]
    assert list(results(recovered(events)).items()) == [
        ("c1", "not_started"),
        ("c2", "not_started"),
        ("c3", "unknown"),
    ]


# ------------------------------------------------------------------------------------- what became of a call


@pytest.mark.law("L4")
@pytest.mark.parametrize(
    ("events", "status"),
    [
        ([], "not_started"),
        ([taken("c1")], "not_started"),
        ([taken("c1"), started("c1")], "unknown"),
        ([taken("c1"), started("c1", "read_only")], "unknown"),
        ([taken("c1"), AskOpened("t1", "c1", "a1", "approval", "?")], "withdrawn"),
        ([taken("c1"), started("c1"), AskOpened("t1", "c1", "a1", "question", "?")], "withdrawn"),
    ],
)
def test_a_call_that_a_crash_cut_is_told_by_how_far_it_had_come(events, status):
    result = only(recovered([*asked("bash"), *events]), ToolResult)
    assert (result.status, result.is_error, result.seconds) == (status, True, None)


def approval(answer, text: str = "") -> list[Event]:
    return [AskOpened("t1", "c1", "a1", "approval", "?"), AskClosed("t1", "c1", "a1", answer, text)]


def question(answer, text: str = "", *, effect: str = "read_only") -> list[Event]:
    said = AskClosed("t1", "c1", "a1", answer, text)
    return [taken("c1"), started("c1", effect), AskOpened("t1", "c1", "a1", "question", "?"), said]


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ("allow", "not_started"),
        ("allow_always", "not_started"),
        ("deny", "denied"),
        ("deny_stop", "denied"),
        ("dismissed", "denied"),
        ("withdrawn", "withdrawn"),
    ],
)
def test_a_call_whose_approval_was_answered_is_told_the_answer(answer, status):
    result = only(recovered([*asked("bash"), taken("c1"), *approval(answer, "not on Fridays")]), ToolResult)
    assert (result.status, result.is_error) == (status, True)
    assert ("not on Fridays" in result.text) == (status == "denied")


def test_a_call_that_was_allowed_and_started_is_unknown():
    events = [*asked("bash"), taken("c1"), *approval("allow"), started("c1")]
    assert results(recovered(events)) == {"c1": "unknown"}


def test_a_question_that_was_answered_gives_the_answer_itself():
    result = only(recovered([*asked("bash"), *question("answer", "the blue one")]), ToolResult)
    assert (result.status, result.is_error, result.text) == ("ok", False, "the blue one")


@pytest.mark.law("C3")
@pytest.mark.parametrize("blank", ["", " ", "\n"])
def test_a_blank_answer_is_still_a_result_that_can_be_sent(blank):
    result = only(recovered([*asked("bash"), *question("answer", blank)]), ToolResult)
    assert (result.status, result.text) == ("ok", "(no output)")


def test_a_question_that_was_dismissed_says_so_and_is_no_error():
    result = only(recovered([*asked("bash"), *question("dismissed")]), ToolResult)
    assert (result.status, result.is_error) == ("dismissed", False)
    assert result.text == "[User dismissed the question without answering]"


def test_an_answer_to_a_tool_with_effects_is_not_the_end_of_it():
    """Whether it went on to do what it had asked about is not in the log."""
    result = only(recovered([*asked("bash"), *question("answer", "yes, deploy", effect="effect")]), ToolResult)
    assert (result.status, result.is_error) == ("unknown", True)
    assert "yes, deploy" in result.text


def test_a_tool_that_went_on_after_the_answer_is_unknown():
    for more in (shown("reading\n"), ToolCheckpoint("t1", "c1", "bash", "key", 1)):
        events = [*asked("bash"), *question("answer", "all"), more]
        assert results(recovered(events)) == {"c1": "unknown"}


def test_a_call_that_asked_again_is_withdrawn_whatever_was_answered_first():
    again = AskOpened("t1", "c1", "a2", "question", "sure?")
    assert results(recovered([*asked("bash"), *question("answer", "all"), again])) == {"c1": "withdrawn"}


def test_a_call_that_left_a_checkpoint_is_said_to_go_on_from_there():
    events = [*asked("bash"), taken("c1"), started("c1"), ToolCheckpoint("t1", "c1", "bash", "key", {"done": 1})]
    assert "called again" in only(recovered(events), ToolResult).text
    assert "called again with the same input" not in only(recovered(events[:-1]), ToolResult).text


def test_what_a_call_had_shown_is_in_its_result():
    text = only(
        recovered([*asked("bash"), taken("c1"), started("c1"), shown("half"), shown(" done")]), ToolResult
    ).text
    assert "half done" in text
    flood = [shown("x" * 200_000)] * 3
    text = only(recovered([*asked("bash"), taken("c1"), started("c1"), *flood]), ToolResult).text
    assert len(text) < 34_000
    assert "bytes left out" in text


def test_finished_calls_keep_their_results():
    done = ToolResult("t1", "c1", "bash", "ok", False, "real", 0.5)
    events = [*asked("bash", "bash"), taken("c1"), started("c1"), done]
    assert results(recovered(events)) == {"c2": "not_started"}


# ---------------------------------------------------------------------------------------------- cut streams


def closed_messages(events: list[Event]) -> tuple[Message, ...]:
    records = numbered([*events, opening()])
    grammar, _ = folded(records)
    return folded([*records, *numbered(closers(grammar, DEFAULT, INTERRUPTION), grammar)])[1].messages


def test_a_cut_text_is_in_the_context_with_its_mark():
    messages = closed_messages([*STREAMING, delta(0, "text", "Half a sen")])
    assert messages[1].blocks == (Text("Half a sen [interrupted]"),)
    assert (messages[1].wire, messages[1].model) == ("anthropic", "m")


def test_a_stream_that_had_shown_nothing_leaves_no_message():
    for deltas in ([], [delta(0, "thinking", "hm")], [delta(0, "text", " \n")]):
        closing = recovered([*STREAMING, *deltas])
        assert types(closing) == ["step/end", "turn/end"]
        assert closed_messages([*STREAMING, *deltas]) == (Message("user", (Text("go"),)),)


@pytest.mark.law("C4")
def test_whole_thinking_before_a_whole_call_stays():
    deltas = [
        delta(0, "thinking", "hm"),
        delta(0, "signature", "sig"),
        delta(0, "end"),
        delta(1, "call", call="c1", name="bash"),
        delta(1, "input", "{}"),
        delta(1, "end"),
    ]
    closing = recovered([*STREAMING, *deltas])
    assert only(closing, ModelMessage).blocks == (Thinking("hm", "sig"), ToolUse("c1", "bash", {}))
    assert results(closing) == {"c1": "not_started"}


def test_an_id_that_the_session_knows_is_made_unique_in_what_a_cut_stream_leaves():
    done = [ToolResult("t1", "c1", "bash", "ok", False, "x"), StepEnd("t1", "t1.s1")]
    events = [*asked("bash"), *done, StepStart("t1", "t1.s2", "anthropic", "m")]
    events += [ModelDelta("t1", "t1.s2", 0, "call", call="c1", name="bash"), ModelDelta("t1", "t1.s2", 0, "end")]
    assert results(recovered(events)) == {"c1_2": "not_started"}


# -------------------------------------------------------------------------------------------- the turn's end


def test_a_call_that_was_cut_while_it_was_written_is_told_once():
    name = [delta(0, "call", call="c1", name="bash")] * 2
    closing = recovered([*STREAMING, *name, delta(0, "input", '{"a')])
    reminder = only(closing, TurnEnd).reminder
    assert reminder is not None
    assert reminder.count("A call of bash was cut off while you wrote it; it did not run.") == 1


@pytest.mark.law("L6")
def test_recovery_ends_a_turn_interrupted_also_one_that_had_been_cancelled():
    for events in (STREAMING, [*STREAMING, TurnCancel("t1")]):
        end = only(recovered(events), TurnEnd)
        assert (end.outcome, end.code, end.synthetic) == ("interrupted", None, True)
        assert "interrupted" in str(end.reminder)


def test_a_live_end_is_no_closers_of_a_crash():
    grammar, _ = folded(numbered([*STREAMING, TurnCancel("t1")]))
    end = only(closers(grammar, DEFAULT, Ending("aborted", cause=Cause.USER)), TurnEnd)
    assert (end.outcome, end.synthetic) == ("aborted", False)


def answered(stop) -> list[Event]:
    message = ModelMessage("t1", "t1.s1", "anthropic", "m", (Text("All passed."),), stop)
    return [*STREAMING, message, StepEnd("t1", "t1.s1", "Continue." if stop == "pause_turn" else None)]


def test_a_turn_cancelled_after_its_answer_is_not_called_partial():
    grammar, _ = folded(numbered([*answered("end_turn"), TurnCancel("t1")]))
    reminder = only(closers(grammar, DEFAULT, Ending("aborted", cause=Cause.USER)), TurnEnd).reminder
    assert "after your answer was complete" in str(reminder)


def test_a_turn_cancelled_in_a_providers_pause_was_not_done():
    grammar, _ = folded(numbered([*answered("pause_turn"), TurnCancel("t1")]))
    reminder = only(closers(grammar, DEFAULT, Ending("aborted", cause=Cause.USER)), TurnEnd).reminder
    assert "before it was done" in str(reminder)


def test_a_replaced_turn_has_no_reminder():
    grammar, _ = folded(numbered([*STREAMING, TurnCancel("t1")]))
    assert only(closers(grammar, DEFAULT, Ending("aborted", cause=Cause.REPLACED)), TurnEnd).reminder is None


# ------------------------------------------------------------------------------------------------------ tasks


@pytest.mark.law("L3", "L5")
def test_tasks_of_the_session_die_with_the_kernel_and_detached_ones_do_not():
    tasks = [TaskStarted("k1", "c1", "server", "session"), TaskStarted("k2", "c2", "build", "detached")]
    closing = recovered([opening(), *tasks])
    ended = only(closing, TaskEnded)
    assert (ended.task, ended.status, ended.synthetic) == ("k1", "lost", True)
    grammar, _ = folded(numbered([opening(), *tasks, opening(), *closing]))
    assert list(grammar.items) == [ended.item], "its end is a notice, queued once"
    assert list(grammar.tasks) == ["k2"]


def test_a_live_turn_takes_no_task_with_it():
    task = TaskStarted("k1", "c1", "server", "session")
    grammar, _ = folded(numbered([*STREAMING, task, TurnCancel("t1")]))
    assert "task/ended" not in types(closers(grammar, DEFAULT, Ending("aborted", cause=Cause.USER)))
