"""What the model is told: every text says what it must, and nothing that is not so."""

from typing import get_args

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkernel.causes import Cause
from turnkernel.events import Error, Outcome, ResultStatus, ToolResult
from turnkernel.text import is_blank
from turnkernel.wording import (
    DEFAULT,
    MODEL_OUTPUT_BYTES,
    WORDINGS,
    CallFacts,
    TurnFacts,
    for_seconds,
    who,
)

WRITTEN = tuple(one for one in get_args(ResultStatus) if one not in ("ok", "error"))
"""The results that the kernel writes itself; `ok` and `error` are a tool's own words."""


def ended(name: str, status: ResultStatus, seconds: float | None) -> ToolResult:
    return ToolResult("t1", "call_1", name, status, status != "ok", "as it was told", seconds)


def told(status: ResultStatus, **facts) -> str:
    return DEFAULT.result(status, CallFacts("bash", **facts))


# ------------------------------------------------------------------------------------------------- results


@pytest.mark.law("C3")
@pytest.mark.parametrize("wording", WORDINGS.values(), ids=list(WORDINGS))
@pytest.mark.parametrize("status", WRITTEN)
@pytest.mark.parametrize("cause", [None, *Cause])
def test_no_result_is_blank_whoever_stopped_it(wording, status, cause):
    for facts in (CallFacts("bash", cause), CallFacts("", cause, 1.0, " ", "", process=True)):
        assert not is_blank(wording.result(status, facts))


def test_not_started_did_not_run_is_no_failure_and_may_be_asked_for_again():
    text = told("not_started", cause=Cause.USER)
    assert "bash did not run" in text
    assert "the user stopped the turn" in text
    assert "nothing failed" in text
    assert "call it again if it is still needed" in text


def test_a_call_that_was_stopped_alone_is_not_told_of_a_stopped_turn():
    text = told("not_started", cause=Cause.USER, alone=True)
    assert "the user stopped this call first" in text
    assert "turn" not in text


def test_skipped_says_that_the_user_said_something_new():
    text = DEFAULT.skipped(CallFacts("bash"))
    assert "did not run: the user said something new first" in text
    assert "call it again if it is still needed" in text


def test_stopped_says_who_when_what_it_printed_and_to_look_first():
    text = told("stopped", cause=Cause.USER, seconds=2.04, output="line 1\n", process=True)
    assert text.startswith("[Process interrupted by user]\n")
    assert "bash was stopped by the user after 2.0 s" in text
    assert "may have had effects already" in text
    assert "Look at what is there before you remove a lock or a half-written file" in text
    assert "Output until then:\nline 1" in text


def test_what_was_no_process_is_not_called_one_and_silence_is_told():
    text = told("stopped", cause=Cause.USER, seconds=2.0)
    assert "Process" not in text
    assert "It had printed nothing." in text


def test_what_went_wrong_while_it_was_stopped_is_told():
    assert "While it was stopped: OSError: y" in told("stopped", cause=Cause.USER, seconds=1.0, error="OSError: y")
    assert "While it was stopped: OSError: y" in told("timed_out", seconds=1.0, error="OSError: y")


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause not in (Cause.USER, Cause.REPLACED)])
def test_only_a_person_is_called_the_user(cause):
    text = told("stopped", cause=cause, seconds=1.0, process=True)
    assert "user" not in text.split("Look")[0]
    assert f"[Process interrupted by {who(cause)}]" in text


@pytest.mark.parametrize("effect", ["read_only", "idempotent"])
def test_unknown_work_that_harms_nothing_may_be_done_again(effect):
    text = told("unknown", effect=effect)
    assert "bash was started, but no result was recorded" in text
    assert "may be called again" in text
    assert "retry" not in text


def test_unknown_work_with_effects_is_to_be_looked_at_first():
    text = told("unknown", effect="effect", output="half\n")
    assert "bash was started, but no result was recorded" in text
    assert "Verify" in text
    assert "ask the user" in text
    assert "do not retry blindly" in text
    assert "half" in text


def test_unknown_work_says_what_the_user_had_answered_it():
    assert "The user had answered its question with: yes" in told("unknown", answer="yes")
    assert "answered" not in told("unknown")


def test_withdrawn_is_no_denial():
    text = told("withdrawn", cause=Cause.USER)
    assert "waiting for the user's answer when the user stopped the turn" in text
    assert "nobody denied it" in text


def test_denied_says_who_why_and_not_to_repeat_it():
    text = told("denied", error="not on Fridays")
    assert "The user did not allow this call of bash" in text
    assert "not on Fridays" in text
    assert "Do not make the same call again" in text
    assert "think about why" in text
    assert "reason" not in told("denied")


def test_dismissed_is_the_documented_line():
    assert told("dismissed") == "[User dismissed the question without answering]"


def test_blocked_timed_out_no_approver_and_output_limit_say_by_what():
    assert "A rule of this session blocks it: not here" in told("blocked", error="not here")
    text = told("timed_out", seconds=5.0, output="so far\n")
    assert "stopped by its time limit after 5.0 s" in text
    assert "so far" in text
    assert "nobody can give it here. It did not run" in told("no_approver")
    text = told("output_limit")
    assert "Your message reached its length limit" in text
    assert "was not run" in text


@pytest.mark.parametrize("status", ["stopped", "timed_out", "unknown"])
def test_output_is_kept_head_and_tail_and_the_cut_is_told(status):
    text = told(status, seconds=1.0, output="first\n" + "x" * 100_000 + "\nlast")
    assert len(text) < MODEL_OUTPUT_BYTES + 1000
    assert "first\n" in text
    assert text.endswith("\nlast")
    assert "bytes left out" in text


def test_a_checkpoint_is_told():
    assert told("stopped", cause=Cause.USER, seconds=1.0, resumable=True).endswith(
        "called again with the same input, it goes on from there."
    )


def test_a_bad_input_is_quoted_and_a_long_one_is_cut():
    text = DEFAULT.bad_input("bash", '{"command": "ls')
    assert "was not a JSON object" in text
    assert '{"command": "ls' in text
    assert len(DEFAULT.bad_input("bash", "x" * 100_000)) < 3000


def test_an_unknown_tool_is_told_which_there_are():
    assert DEFAULT.unknown_tool("bsh", ["bash", "edit"]) == (
        "[Error] There is no tool named 'bsh'. There are: bash, edit."
    )
    assert "There are: none." in DEFAULT.unknown_tool("bsh", [])


def test_a_tool_that_raised_is_told_with_what_it_had_shown():
    assert DEFAULT.raised(CallFacts("bash", error="OSError: x")) == "[Error] bash failed: OSError: x"
    assert "so far" in DEFAULT.raised(CallFacts("bash", error="OSError: x", output="so far"))


@pytest.mark.parametrize(("seconds", "words"), [(None, ""), (0.0, " after 0.0 s"), (61.26, " after 61.3 s")])
def test_a_duration_in_words(seconds, words):
    assert for_seconds(seconds) == words


# ------------------------------------------------------------------------------------------------- reminder

FACTS = TurnFacts("aborted", Cause.USER, None, errors=(), calls=(), text_cut=False, calls_cut=(), answered=False)


def reminded(**facts) -> str | None:
    return DEFAULT.reminder(attrs.evolve(FACTS, **facts))


def test_the_reminder_stands_in_its_tags():
    text = reminded()
    assert text == (
        "<system-reminder>\nYour previous turn was stopped by the user before it was done.\n</system-reminder>"
    )


def test_the_reminder_tells_which_calls_ran_for_how_long_and_which_did_not_start():
    calls = [
        ended("edit", "ok", 0.25),
        ended("make", "error", 61.26),
        ended("bash", "stopped", 2.0),
        ended("read", "not_started", None),
        ended("ask", "withdrawn", None),
        ended("a{b}", "no_approver", None),
    ]
    lines = str(reminded(calls=calls)).splitlines()[2:-1]
    assert lines == [
        "edit had run for 0.2 s and has its result.",
        "make had run for 61.3 s and failed.",
        "bash was running and was stopped after 2.0 s.",
        "read did not start.",
        "ask was waiting for an answer; the question was withdrawn.",
        "a{b}: no approver.",
    ]


def test_the_reminder_tells_what_was_cut():
    text = str(reminded(text_cut=True, calls_cut=["bash"]))
    assert "cut off where it is marked [interrupted]" in text
    assert "A call of bash was cut off while you wrote it; it did not run." in text


def test_a_whole_answer_is_not_called_partial():
    assert "stopped by the user after your answer was complete" in str(reminded(answered=True))


@pytest.mark.parametrize("outcome", get_args(Outcome))
def test_a_replaced_turn_needs_no_reminder(outcome):
    assert reminded(outcome=outcome, cause=Cause.REPLACED) is None


@pytest.mark.parametrize("outcome", ["completed", "refused"])
def test_a_turn_that_ended_by_itself_needs_no_reminder(outcome):
    assert reminded(outcome=outcome, cause=None) is None


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"outcome": "failed", "cause": None, "code": "provider"}, "failed (provider)."),
        ({"outcome": "interrupted", "cause": None}, "was interrupted"),
        ({"outcome": "max_steps", "cause": None}, "reached its limit of steps"),
        ({"cause": Cause.LIMIT}, "stopped by a limit of this session"),
        ({"cause": Cause.SHUTDOWN}, "stopped by the shutdown of this session"),
        ({"cause": Cause.HOST}, "stopped by the program that runs this session"),
        ({"cause": Cause.PARENT}, "stopped by the session that started this one"),
    ],
)
def test_failed_and_interrupted_turns_have_a_reminder_too(facts, words):
    assert words in str(reminded(**facts))


def test_the_errors_of_a_failed_turn_are_told_and_long_ones_are_cut():
    errors = (Error("ProviderError", "overloaded", "provider"), Error("OSError", "x" * 10_000, "kernel"))
    text = str(reminded(outcome="failed", cause=None, code="provider", errors=errors))
    assert "failed (provider): ProviderError: overloaded; OSError: x" in text
    assert len(text) < 1000


@pytest.mark.law("C3")
@given(
    st.sampled_from(get_args(Outcome)),
    st.sampled_from([None, *Cause]),
    st.lists(
        st.builds(ended, st.text(max_size=5), st.sampled_from(get_args(ResultStatus)), st.none()), max_size=3
    ),
    st.booleans(),
    st.sampled_from(list(WORDINGS.values())),
)
def test_a_reminder_is_none_or_has_words_in_it(outcome, cause, calls, flag, wording):
    facts = TurnFacts(outcome, cause, "provider" if outcome == "failed" else None, (), calls, flag, (), flag)
    text = wording.reminder(facts)
    assert text is None or text.count("\n") >= 2
