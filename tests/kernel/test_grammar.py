"""What may follow what: legal logs keep the laws, illegal events are refused and change nothing."""

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernel.any_event import any_event
from tests.kernel.histories import everything, folded, histories, numbered, opening

from turnkernel.errors import GrammarError
from turnkernel.events import (
    EVENT_TYPES,
    AskClosed,
    AskOpened,
    InboxCanceled,
    InboxConsumed,
    InboxQueued,
    ModelDelta,
    ModelMessage,
    ModelRetry,
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
    TurnStuck,
    TurnSurvivor,
)
from turnkernel.grammar import INNER, LOG_OUTPUT_BYTES, TABLE, Grammar
from turnkernel.messages import Text, ToolUse
from turnkernel.testing.laws import check_log

# A turn with everything in it, by what is open at the end.
OPEN = [opening()]
QUEUED = [*OPEN, InboxQueued("i1", "prompt", "go")]
TURN = [*QUEUED, TurnStart("t1"), InboxConsumed("i1", "t1", "t1.s1")]
STREAMING = [*TURN, StepStart("t1", "t1.s1", "anthropic", "m")]
MESSAGE = ModelMessage("t1", "t1.s1", "anthropic", "m", (Text("a"), ToolUse("c1", "bash", {})), "tool_use")
ASKED = [*STREAMING, MESSAGE]
TAKEN = [*ASKED, ToolCall("t1", "c1", "bash")]
ASKING = [*TAKEN, AskOpened("t1", "c1", "a1", "approval", "bash?")]
RUNNING = [*TAKEN, ToolStart("t1", "c1", "bash", {}, "effect")]
ANSWERED = [*RUNNING, ToolResult("t1", "c1", "bash", "ok", False, "done")]
STEPPED = [*ANSWERED, StepEnd("t1", "t1.s1")]
ENDED = [*STEPPED, TurnEnd("t1", "completed")]
CLOSED = [*ENDED, SessionClose()]
CANCELLED = [*RUNNING, TurnCancel("t1")]
CUT = [*RUNNING, opening()]
CUT_STREAM = [*STREAMING, opening()]
STATES = {
    "new": [],
    "open": OPEN,
    "queued": QUEUED,
    "turn": TURN,
    "streaming": STREAMING,
    "asked": ASKED,
    "taken": TAKEN,
    "asking": ASKING,
    "running": RUNNING,
    "answered": ANSWERED,
    "stepped": STEPPED,
    "ended": ENDED,
    "closed": CLOSED,
    "cancelled": CANCELLED,
    "cancelled in the stream": [*STREAMING, TurnCancel("t1")],
    "cut": CUT,
    "cut in the stream": CUT_STREAM,
    "cut and asking": [*ASKING, opening()],
}

EVENTS = {
    "session/open": opening(),
    "session/close": SessionClose(),
    "inbox/queued": InboxQueued("i2", "steer", "and"),
    "inbox/consumed": InboxConsumed("i1", "t1", "t1.s1"),
    "inbox/canceled": InboxCanceled("i1", "cancel"),
    "turn/start": TurnStart("t2"),
    "turn/cancel": TurnCancel("t1"),
    "turn/stuck": TurnStuck("t1", ()),
    "turn/survivor": TurnSurvivor("t1", "c1", "thread", "x"),
    "turn/end": TurnEnd("t1", "aborted"),
    "step/start": StepStart("t1", "t1.s2", "w", "m"),
    "step/end": StepEnd("t1", "t1.s1"),
    "model/delta": ModelDelta("t1", "t1.s1", 0, "text", "a"),
    "model/retry": ModelRetry("t1", "t1.s1", 1, 0.5, "why"),
    "model/message": attrs.evolve(MESSAGE, blocks=(ToolUse("c2", "bash", {}),)),
    "tool/call": ToolCall("t1", "c1", "bash"),
    "tool/start": ToolStart("t1", "c1", "bash", {}, "effect"),
    "tool/output": ToolOutput("t1", "c1", "stdout", "line"),
    "tool/checkpoint": ToolCheckpoint("t1", "c1", "bash", "key", 1),
    "tool/result": ToolResult("t1", "c1", "bash", "error", True, "said"),
    "ask/opened": AskOpened("t1", "c1", "a2", "question", "?"),
    "ask/closed": AskClosed("t1", "c1", "a1", "withdrawn"),
    "task/started": TaskStarted("k1", "c1", "bash", "session"),
    "task/ended": TaskEnded("k0", "k0.end", "bash", "ok", "x"),
}

ALWAYS = "session/open inbox/queued task/started"
MAY_FOLLOW = {
    "new": "session/open",
    "open": f"{ALWAYS} session/close turn/start",
    "queued": f"{ALWAYS} session/close turn/start inbox/canceled",
    "turn": f"{ALWAYS} turn/cancel turn/stuck turn/survivor turn/end step/start",
    "streaming": f"{ALWAYS} turn/cancel turn/stuck turn/survivor step/end model/delta model/retry model/message",
    "asked": f"{ALWAYS} turn/cancel turn/stuck turn/survivor tool/call tool/result",
    "taken": f"{ALWAYS} turn/cancel turn/stuck turn/survivor tool/start tool/result ask/opened",
    "asking": f"{ALWAYS} turn/cancel turn/stuck turn/survivor ask/opened ask/closed",
    "running": f"{ALWAYS} turn/cancel turn/stuck turn/survivor tool/output tool/checkpoint tool/result ask/opened",
    "answered": f"{ALWAYS} turn/cancel turn/stuck turn/survivor step/end",
    "stepped": f"{ALWAYS} turn/cancel turn/stuck turn/survivor turn/end step/start",
    "ended": f"{ALWAYS} session/close turn/start",
    "closed": "session/open",
    "cancelled": f"{ALWAYS} turn/stuck turn/survivor tool/output tool/checkpoint tool/result",
    "cancelled in the stream": f"{ALWAYS} turn/stuck turn/survivor step/end model/delta model/message",
    "cut": f"{ALWAYS} turn/survivor tool/result",
    "cut in the stream": f"{ALWAYS} turn/survivor step/end model/message",
    "cut and asking": f"{ALWAYS} turn/survivor ask/closed",
}


def walked(events) -> Grammar:
    return folded(numbered(list(events)))[0]


def refused(grammar: Grammar, event) -> str | None:
    try:
        grammar.check(event)
    except GrammarError as error:
        assert error.event_type == event.type
        return error.reason
    return None


# ------------------------------------------------------------------------------------------- what may follow


def test_the_table_has_a_line_for_every_event():
    assert set(TABLE) == set(EVENT_TYPES) == set(EVENTS)


@pytest.mark.law("L2", "R5")
@pytest.mark.parametrize("state", STATES)
def test_after_each_state_come_the_events_that_may_and_no_others(state):
    grammar = walked(STATES[state])
    allowed = {name for name, event in EVENTS.items() if refused(grammar, event) is None}
    assert allowed == set(MAY_FOLLOW[state].split())


@pytest.mark.law("L2")
@pytest.mark.parametrize(
    ("inside", "closing", "inner"),
    [
        (ASKING, EVENTS["tool/result"], "ask"),
        (TAKEN, EVENTS["step/end"], "call"),
        (ANSWERED, EVENTS["turn/end"], "step"),
        (STEPPED, EVENTS["session/close"], "turn"),
        (CANCELLED, EVENTS["step/end"], "call"),
        (CUT, TurnEnd("t1", "interrupted"), "step"),
        (CUT_STREAM, TurnEnd("t1", "interrupted"), "step"),
    ],
)
def test_nothing_closes_while_what_is_inside_it_is_open(inside, closing, inner):
    reason = refused(walked(inside), closing)
    assert reason is not None
    assert f"a {inner} " in reason
    assert inner in INNER.values()


@pytest.mark.law("R5")
@pytest.mark.parametrize(
    "name", ["step/start", "tool/call", "tool/start", "ask/opened", "inbox/consumed", "model/retry", "turn/cancel"]
)
@pytest.mark.parametrize("state", ["cancelled", "cancelled in the stream", "cut", "cut in the stream"])
def test_after_a_cancel_or_a_crash_nothing_begins(state, name):
    assert refused(walked(STATES[state]), EVENTS[name]) is not None


@pytest.mark.law("R2", "L3")
@pytest.mark.parametrize(
    "name", [name for name, event in EVENTS.items() if hasattr(event, "turn") and name != "turn/start"]
)
def test_an_event_of_another_turn_than_the_open_one_is_refused(name):
    event = attrs.evolve(EVENTS[name], turn="t0")
    for events in STATES.values():
        assert refused(walked(events), event) is not None


@pytest.mark.law("L3")
def test_an_event_of_another_step_than_the_open_one_is_refused():
    grammar = walked(STREAMING)
    for name in ("step/end", "model/delta", "model/retry", "model/message"):
        assert refused(grammar, attrs.evolve(EVENTS[name], step="t1.s9")) is not None


def test_an_ask_is_closed_by_its_own_call_only():
    two = attrs.evolve(MESSAGE, blocks=(ToolUse("c1", "bash", {}), ToolUse("c2", "bash", {})))
    calls = [ToolCall("t1", "c1", "bash"), ToolCall("t1", "c2", "bash")]
    grammar = walked([*STREAMING, two, *calls, AskOpened("t1", "c1", "a1", "approval", "?")])
    assert refused(grammar, AskClosed("t1", "c2", "a1", "allow")) == "ask is other, must be open (seq 10)"
    assert refused(grammar, AskClosed("t1", "c1", "a1", "allow")) is None


# ----------------------------------------------------------------------------------------- names used again


@pytest.mark.law("L3", "L5", "C2")
@pytest.mark.parametrize(
    ("events", "again"),
    [
        (ENDED, TurnStart("t1")),
        (STEPPED, StepStart("t1", "t1.s1", "w", "m")),
        ([*STEPPED, StepStart("t1", "t1.s2", "w", "m")], attrs.evolve(MESSAGE, step="t1.s2")),
        (STREAMING, attrs.evolve(MESSAGE, blocks=(ToolUse("c", "a", {}), ToolUse("c", "b", {})))),
        (TURN, InboxQueued("i1", "prompt", "again")),
        (QUEUED, InboxQueued("i1", "prompt", "again")),
        ([*QUEUED, InboxCanceled("i1", "cancel")], InboxQueued("i1", "prompt", "again")),
        ([*ASKING, AskClosed("t1", "c1", "a1", "allow")], AskOpened("t1", "c1", "a1", "approval", "again?")),
        (ASKING, AskOpened("t1", "c1", "a1", "approval", "again?")),
        ([*OPEN, EVENTS["task/started"]], EVENTS["task/started"]),
        (
            [*OPEN, EVENTS["task/started"], TaskEnded("k1", "k1.end", "bash", "ok", "x")],
            EVENTS["task/started"],
        ),
        (
            [*QUEUED, EVENTS["task/started"]],
            TaskEnded("k1", "i1", "bash", "ok", "x"),
        ),
    ],
)
def test_an_id_is_given_once(events, again):
    assert refused(walked(events), again) is not None
    records = numbered([*events, again])
    laws = {violation.law for violation in check_log(records, every_prefix=False)}
    assert laws & {"L2", "L3", "L5", "C2"}, "the law checks see it too"


@pytest.mark.law("L3", "L5")
@pytest.mark.parametrize(
    ("events", "again"),
    [
        (ANSWERED, ToolResult("t1", "c1", "bash", "ok", False, "done")),
        (ENDED, TurnEnd("t1", "completed")),
        (TURN, InboxConsumed("i1", "t1", "t1.s1")),
        (TURN, InboxCanceled("i1", "cancel")),
        ([*QUEUED, InboxCanceled("i1", "cancel")], InboxCanceled("i1", "withdrawn")),
        (
            [*OPEN, EVENTS["task/started"], TaskEnded("k1", "k1.end", "bash", "ok", "x")],
            TaskEnded("k1", "k1.end2", "bash", "lost", "x"),
        ),
    ],
)
def test_there_is_one_end_and_one_fate(events, again):
    assert refused(walked(events), again) is not None


def test_the_ids_that_come_next_follow_from_the_log():
    grammar = Grammar()
    assert (grammar.next_turn(), grammar.next_step()) == ("t1", "t1.s1")
    grammar = walked(STREAMING)
    assert grammar.next_step() == "t1.s2"
    grammar = walked(ENDED)
    assert (grammar.next_turn(), grammar.next_step()) == ("t2", "t2.s1")


# ---------------------------------------------------------------------------------------------- the others


@pytest.mark.law("L6", "R11")
@pytest.mark.parametrize(
    ("before", "outcomes"),
    [
        (STEPPED, {"completed", "aborted", "failed", "max_steps", "refused"}),
        ([*STEPPED, TurnCancel("t1")], {"aborted"}),
        ([*STEPPED, opening()], {"interrupted"}),
        ([*STEPPED, TurnCancel("t1"), opening()], {"interrupted"}),
    ],
)
def test_the_outcome_fits_what_became_of_the_turn(before, outcomes):
    grammar = walked(before)
    allowed = set()
    for outcome in ("completed", "aborted", "failed", "max_steps", "refused", "interrupted"):
        code = "provider" if outcome == "failed" else None
        if refused(grammar, TurnEnd("t1", outcome, code)) is None:
            allowed.add(outcome)
    assert allowed == outcomes


def test_a_code_says_why_a_turn_failed_and_nothing_else():
    grammar = walked(STEPPED)
    assert refused(grammar, TurnEnd("t1", "failed")) is not None
    assert refused(grammar, TurnEnd("t1", "completed", "provider")) is not None


def test_a_session_does_not_close_while_its_tasks_run_and_leaves_detached_ones_running():
    assert "k1" in str(refused(walked([*OPEN, EVENTS["task/started"]]), SessionClose()))
    detached = TaskStarted("k1", "c1", "bash", "detached")
    assert refused(walked([*OPEN, detached]), SessionClose()) is None


def test_a_notice_is_never_dropped():
    grammar = walked([*OPEN, EVENTS["task/started"], TaskEnded("k1", "k1.end", "bash", "ok", "x")])
    assert refused(grammar, InboxCanceled("k1.end", "cancel")) == "a notice is never dropped (seq 4)"


def test_a_log_of_a_later_format_is_refused():
    assert refused(Grammar(), opening(format=2)) == "format 2 is not known here (seq 1)"


def test_a_steer_that_its_turn_did_not_read_is_a_prompt_afterwards():
    grammar = walked([*STREAMING, InboxQueued("i2", "steer", "and"), StepEnd("t1", "t1.s1")])
    assert grammar.items["i2"].kind == "steer"
    grammar.apply(numbered([TurnEnd("t1", "completed")], grammar)[0])
    assert grammar.items["i2"].kind == "prompt"


def test_the_output_of_a_call_is_kept_in_bounded_memory():
    grammar = walked(RUNNING)
    for _ in range(100):
        grammar.apply(numbered([ToolOutput("t1", "c1", "stdout", "x" * 10_000)], grammar)[0])
    output = grammar.calls["c1"].output
    assert output is not None
    assert (output.total, len(output.text()) < LOG_OUTPUT_BYTES + 100) == (1_000_000, True)


def test_the_repr_says_where_the_log_stands():
    assert repr(walked(CANCELLED)) == "<Grammar seq=9 session=open turn=t1 cancelled queued=0>"


# ------------------------------------------------------------------------------------------- random histories


@pytest.mark.law("L1", "L2", "L3", "L4", "L5", "L6", "R4", "R5", "C1", "C2", "C3", "C4", "C6")
@settings(max_examples=60, deadline=None)
@given(histories())
def test_a_legal_history_keeps_every_law_that_a_log_can_show(records):
    assert check_log(records) == []


@settings(max_examples=60, deadline=None)
@given(histories(), any_event(st.sampled_from(["t1", "t1.s1", "call_1", "i2", "a9", "x"])), st.data())
def test_a_refused_event_changes_nothing(records, event, data):
    cut = data.draw(st.integers(0, len(records)))
    grammar, _ = folded(records[:cut])
    before = everything(grammar)
    refused(grammar, event)
    assert everything(grammar) == before, "check changes nothing, whether it refuses or not"
    for record in records[cut:]:
        grammar.check(record.event)
        grammar.apply(record)


@settings(max_examples=40, deadline=None)
@given(histories())
def test_the_machine_is_deterministic(records):
    assert everything(folded(records)[0]) == everything(folded(records)[0])


@pytest.mark.law("L2", "L3", "L5", "L6", "R5")
@settings(max_examples=80, deadline=None)
@given(histories(), st.data())
def test_what_the_machine_lets_through_keeps_the_laws_of_order(records, data):
    """A legal history with one record lost, doubled or in another place: refused, or still lawful."""
    events = [record.event for record in records]
    place, other = data.draw(st.integers(0, len(events) - 1)), data.draw(st.integers(0, len(events) - 1))
    change = data.draw(st.sampled_from(["lose", "double", "move"]))
    event = events[place] if change == "double" else events.pop(place)
    if change != "lose":
        events.insert(other, event)
    try:
        folded(numbered(events))
    except (GrammarError, KeyError):
        return
    found = check_log(numbered(events), every_prefix=False)
    assert [one for one in found if one.law in ("L1", "L2", "L3", "L5", "L6", "R2", "R4", "R5", "R11")] == []
