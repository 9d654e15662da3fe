"""The object that a run gives: every field, every expectation, every law that only the runner can see."""

import json

import attrs
import pytest

from turnkernel.testing.laws import Violation
from turnkernel_demo.ledger import CancelSeen, Ledger, Left, Stuck, Survivor
from turnkernel_demo.load import loads
from turnkernel_demo.played import Played, Refused
from turnkernel_demo.report import judge

STORY = """
title = "A story"

[[user]]
text = "Do it."

[[reply]]
thinking = "hm"
text = "Let me see."
calls = [{ id = "c1", name = "slow", input = { path = "a b.txt" } }]

[[user]]
text = "And?"

[[reply]]
text = "Well."

[[tool]]
name = "slow"
does = [{ emit = "half of it" }, { sleep = 600.0 }]

[[act]]
on = "tool/start"
do = "send"
text = "Too late."

[[act]]
on = "tool/output"
do = "cancel"
"""

FIELDS = {
    "title",
    "ok",
    "outcomes",
    "requests",
    "request_bodies",
    "survivors",
    "results",
    "violations",
    "unmet",
    "acts",
    "cancels",
    "log",
    "context",
}


def test_the_object_has_these_fields_and_no_others(virtual):
    came = virtual(STORY)
    assert set(came.result.fields) == FIELDS
    assert json.loads(json.dumps(came.result.fields)) == came.result.fields


def test_what_the_fields_say(virtual):
    came = virtual(STORY)
    assert (came["title"], came["ok"], came["unmet"], came["log"]) == ("A story", True, [], None)
    assert came["outcomes"] == ["aborted", "completed"]
    assert came["requests"] == len(came["request_bodies"]) == 2
    assert (came["survivors"], came["violations"]) == ([], [])
    assert came["results"] == {"c1": "stopped"}
    started, shown = came.types.index("tool/start") + 1, came.types.index("tool/output") + 1
    assert came["acts"] == [
        {"act": 1, "do": "send", "firing": 1, "seq": started, "answer": "done"},
        {"act": 2, "do": "cancel", "firing": 1, "seq": shown, "answer": "applied"},
    ]


def test_a_cancel_is_told_with_its_milestones_in_milliseconds(virtual):
    came = virtual(STORY.replace("600.0 }]", "600.0 }]\non_cancel = [{ sleep = 0.25 }]"))
    assert came["cancels"] == [
        {
            "turn": "t1",
            "seq": came.types.index("turn/cancel") + 1,
            "cause": "user",
            "answer": "applied",
            "stream_closed": None,
            "tasks_gone": 250.0,
            "processes_gone": None,
            "ended": 250.0,
            "durable": 250.0,
        }
    ]


def test_milestones_that_a_killed_kernel_had_reached_are_kept(virtual):
    """The turn's end is appended and not yet durable when the kernel dies."""
    came = virtual(STORY + '[[act]]\non = "turn/end"\ndo = "kill"\n')
    [cancel] = came["cancels"]
    assert cancel["tasks_gone"] == 0.0
    assert cancel["durable"] is None


@pytest.mark.parametrize(
    ("trigger", "cause"),
    [
        ("[session]\nturn_seconds = 5\n", "limit"),
        ('[[act]]\non = "tool/output"\ndo = "host_cancel"\n', "host"),
        ('[[act]]\non = "tool/output"\ndo = "close"\n', "shutdown"),
        ('[[act]]\non = "tool/output"\ndo = "replace"\ntext = "x"\n', "replaced"),
    ],
)
def test_cancels_of_every_origin_are_told(virtual, trigger, cause):
    own = '[[act]]\non = "tool/output"\ndo = "cancel"\n'
    came = virtual(STORY.replace(own, "") + trigger)
    assert [one["cause"] for one in came["cancels"]] == [cause]


def test_a_denial_that_stops_is_a_cancel_too(virtual):
    own = '[[act]]\non = "tool/output"\ndo = "cancel"\n'
    came = virtual(
        STORY.replace(own, '[[act]]\non = "ask/opened"\ndo = "deny_stop"\n[tools]\napprove = ["slow"]\n')
    )
    assert [(one["cause"], one["answer"]) for one in came["cancels"]] == [("user", "applied")]


# ------------------------------------------------------------------------------------------- what was expected

MET = """
outcomes = ["aborted", "completed"]
requests = 2
survivors = 0
results = { c1 = "stopped" }
answers = ["applied"]
events = ["turn/start", "turn/cancel", "turn/end", "turn/start"]
dropped = ["Too late."]
said = { c1 = ["half of it"] }
context_has = ["Let me see.", "a b.txt", "Well."]
context_lacks = ["Too late.", "c2NyaXB0ZWQ="]
violations = []
"""

UNMET = [
    ('outcomes = ["completed", "completed"]', "outcomes"),
    ('outcomes = ["aborted"]', "outcomes"),
    ("requests = 3", "requests"),
    ("survivors = 1", "survivors"),
    ('results = { c1 = "ok" }', "results: c1"),
    ('results = { c9 = "ok" }', "results: c9"),
    ("answers = []", "answers"),
    ('answers = ["applied", "repeated"]', "answers"),
    ('events = ["turn/cancel", "turn/start", "turn/cancel"]', "events: no turn/cancel (number 3)"),
    ("dropped = []", "dropped"),
    ('said = { c1 = ["all of it"] }', "said: c1"),
    ('said = { c9 = ["half of it"] }', "said: c9"),
    ('context_has = ["Too late."]', "context_has"),
    ('context_lacks = ["a b.txt"]', "context_lacks"),
    ('violations = ["L7"]', "violations: L7 is not broken"),
]


def test_expectations_that_are_met_are_no_news(virtual):
    came = virtual(f"{STORY}\n[expect]\n{MET}")
    assert came.ok, came.unmet


@pytest.mark.parametrize("wire", ["anthropic", "openai-chat"])
def test_the_context_is_looked_at_on_the_wire_of_the_scenario(virtual, wire):
    text = (
        f'wire = "{wire}"\n{STORY}\n[expect]\ncontext_has = ["a b.txt", "half of it"]\ncontext_lacks = ["later"]\n'
    )
    came = virtual(text)
    assert came.ok, came.unmet
    shape = came["context"]["messages"][1]
    assert ("tool_calls" in shape) is (wire == "openai-chat")


@pytest.mark.parametrize(("expectation", "line"), UNMET)
def test_an_expectation_that_is_not_met_is_a_line(virtual, expectation, line):
    came = virtual(f"{STORY}\n[expect]\n{expectation}\n")
    assert not came.ok
    assert came["ok"] is False
    assert [told[: len(line)] for told in came.unmet] == [line]
    assert came["unmet"] == came.unmet


def test_an_act_that_never_fired_is_unmet(virtual):
    came = virtual(STORY + '[[act]]\non = "ask/opened"\ndo = "allow"\n')
    assert came.unmet == ["act 3 (allow on ask/opened) never fired"]


def test_an_act_that_fired_too_seldom_is_unmet(virtual):
    closes = '[[act]]\non = "turn/start"\nnth = 2\ndo = "close"\n'
    thrice = '[[act]]\non = "turn/end"\ndo = "cancel"\ntimes = 3\ngap = 60\n'
    came = virtual(STORY + closes + thrice)
    assert came.unmet == ["act 4 (cancel on turn/end) fired 1 of 3 times"]


def test_a_request_too_many_is_unmet(virtual):
    came = virtual(STORY + '[[user]]\ntext = "More?"\n[session]\nretries = 0\n')
    assert came.unmet == ["replies: 1 request too many, answered 500"]


def test_replies_that_are_left_over_are_no_failure(virtual):
    came = virtual(STORY + '[[reply]]\ntext = "Never said."\n')
    assert came.ok, came.unmet


# ------------------------------------------------------------------------------------------------- the laws

SHIELD = STORY.replace("{ sleep = 600.0 }", "{ shield = 1.0 }")


@pytest.mark.law("R9")
@pytest.mark.parametrize("cut", [True, False])
def test_an_unlisted_shield_breaks_r9_whether_or_not_a_cancel_meets_it(virtual, cut):
    own = '[[act]]\non = "tool/output"\ndo = "cancel"\n'
    came = virtual(SHIELD if cut else SHIELD.replace(own, ""))
    assert came.laws == {"R9"}
    assert not came.ok


def test_a_law_that_must_be_broken_is_met_by_breaking_it(virtual):
    came = virtual(SHIELD + '[expect]\nviolations = ["R9"]\n')
    assert came.ok, came.unmet
    assert [one["law"] for one in came["violations"]] == ["R9"]


def played(text: str = STORY, **changes: object) -> Played:
    """A run that is over and has an empty log, to be judged with some change."""
    ledger = Ledger()
    ledger.take(Left("over"))
    made = Played(loads(text), ledger, b"", [])
    return attrs.evolve(made, **changes)


def laws_of(result) -> list[str]:
    return [one.law for one in result.violations]


@pytest.mark.parametrize(
    ("rule", "law"),
    [("A13", "C1"), ("A01", "C2"), ("C02", "C2"), ("A08", "C3"), ("shape", "C3"), ("A19", "C4"), ("A27", "C5")],
)
def test_what_the_server_refuses_breaks_a_law_of_the_context(rule, law):
    assert laws_of(judge(played(refused=[Refused(rule, "no")]))) == [law]


def test_a_survivor_is_told_and_counted():
    run = played("[expect]\nsurvivors = 0\n")
    run.ledger.take(Survivor(7, "sleep 300", "kill"))
    result = judge(run)
    assert result.fields["survivors"] == [{"pid": 7, "command": "sleep 300", "after": "kill"}]
    assert "survivors: expected 0, found 1" in result.unmet


@pytest.mark.law("R11")
def test_an_aborted_turn_that_nobody_cancelled_breaks_r11(virtual):
    came = virtual(STORY)
    records = came.played.log.splitlines(keepends=True)
    [cancel] = [place for place, line in enumerate(records) if b'"type":"turn/cancel"' in line]
    run = attrs.evolve(came.played, log=b"".join(records[:cancel]), ledger=Ledger(left=Left("over")))
    assert "L3" in laws_of(judge(run)), "what is left is an open log"
    run.ledger.cancels[0, 0] = CancelSeen(0, "t1", 1, "user", "applied", {})
    assert "R11" not in laws_of(judge(run))


@pytest.mark.law("R4")
@pytest.mark.parametrize(("cause", "laws"), [("user", []), ("limit", ["R4"])])
def test_a_repeated_cancel_must_be_answered_with_the_first_cause(cause, laws):
    run = played()
    run.ledger.take(CancelSeen(0, "t1", 5, "user", "applied", {}))
    run.ledger.take(CancelSeen(1, "t1", 6, cause, "repeated", {}))
    assert laws_of(judge(run)) == laws


@pytest.mark.law("R8")
def test_a_log_that_the_host_s_cancel_left_open_breaks_r8():
    run = played()
    run.ledger.take(Left("host"))
    assert laws_of(judge(run)) == ["R8"]


def test_a_log_that_was_left_open_is_a_violation_unless_the_run_was_given_up(virtual):
    came = virtual(STORY)
    cut = came.played.log[: came.played.log.index(b'"type":"turn/end"') - 50]
    cut = cut[: cut.rindex(b"\n") + 1]
    over = attrs.evolve(came.played, log=cut)
    assert "L3" in laws_of(judge(over))
    given_up = attrs.evolve(over, ledger=Ledger(left=Left("over"), stuck=Stuck("too long")))
    assert "L3" not in laws_of(judge(given_up))


def test_a_log_that_can_t_be_read_on_is_a_violation(virtual):
    came = virtual(STORY)
    lines = came.played.log.splitlines(keepends=True)
    damaged = b"".join([*lines[:3], b"garbage\n", *lines[3:]])
    assert "L7" in laws_of(judge(attrs.evolve(came.played, log=damaged)))


def test_the_kernel_s_failure_is_told():
    run = played()
    run.ledger.take(Left("over", "InternalError: oops"))
    assert "the kernel failed: InternalError: oops" in judge(run).unmet


def test_violations_are_told_once_each():
    run = played()
    run.ledger.violations += [Violation("R1", 3, "twice"), Violation("R1", 3, "twice")]
    assert laws_of(judge(run)) == ["R1"]


# --------------------------------------------------------------------------------------------- being given up


def test_a_virtual_run_in_which_nothing_can_happen_any_more_says_who_holds_it(virtual):
    came = virtual('[[user]]\ntext = "x"\n[[reply]]\ntext = "a b c"\nfault = "stall"\n')
    assert not came.ok
    assert came.unmet[0] == "given up: nothing can happen any more"
    assert came.unmet[1].startswith("held by trio task driver: ")
    assert "turn/stuck" in came.types


def test_a_virtual_run_that_goes_round_for_ever_is_given_up_at_its_limit(virtual):
    text = STORY.replace("{ sleep = 600.0 }", "{ swallow = true }, { sleep = 600.0 }")
    endless = '[[act]]\non = "tool/output"\ndo = "cancel_call"\ntimes = 1000000000\ngap = 0.001\n'
    came = virtual(f"limit_seconds = 0.2\n{text}{endless}")
    assert came.unmet[0] == "given up: it took longer than its limit (0.2 s)"
    assert not came.ok
