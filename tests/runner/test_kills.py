"""Killing the kernel wherever it stands: between records, inside one, with a power cut, in recovery, again."""

import pytest
from tests.runner.conftest import AFTERWARDS, kill

from turnkernel.events import EVENT_TYPES, InboxConsumed, SessionOpen, ToolResult
from turnkernel.journal import Journal

CALL = """
[[user]]
text = "One?"

[[reply]]
text = "Let me see."
calls = [{ id = "c1", name = "quick" }]

[[reply]]
text = "One."

[[tool]]
name = "quick"
"""

STORY = CALL + 'does = [{ emit = "line" }, { sleep = 1.0 }, { result = "quick result" }]' + AFTERWARDS

STORIES = {
    "a call": STORY,
    "a retry": '[[reply]]\nfault = "overloaded"\n' + STORY,
    "a question": CALL
    + 'does = [{ checkpoint = { done = 1 } }, { ask = "sure?" }, { result = "quick result" }]'
    + AFTERWARDS
    + '[[act]]\non = "ask/opened"\ndelay = 1.0\ndo = "answer"\ntext = "yes"\n',
    "a task": CALL + 'does = [{ spawn = "session" }, { sleep = 0.5 }, { result = "quick result" }]' + AFTERWARDS,
    "a cancel": STORY
    + '[[act]]\non = "tool/start"\ndo = "send"\ntext = "Later."\n'
    + '[[act]]\non = "tool/output"\ndo = "cancel"\n',
}

EVENTS = {
    **dict.fromkeys(
        (
            "session/open",
            "inbox/queued",
            "turn/start",
            "inbox/consumed",
            "step/start",
            "model/delta",
            "model/message",
            "tool/call",
            "tool/start",
            "tool/output",
            "tool/result",
            "step/end",
            "turn/end",
            "session/close",
        ),
        "a call",
    ),
    "model/retry": "a retry",
    "tool/checkpoint": "a question",
    "ask/opened": "a question",
    "ask/closed": "a question",
    "task/started": "a task",
    "task/ended": "a task",
    "turn/cancel": "a cancel",
    "inbox/canceled": "a cancel",
}
"""Every type of event, and the story in which it is met."""

ELSEWHERE = {
    "turn/survivor": "a thread that will not stop: test_real_kills",
    "turn/stuck": "ends the run: nothing comes after it",
}

HOWS = {
    "after it": [],
    "before it": ["bytes = 0"],
    "in its middle": ["bytes = 30"],
    "after it, in the write": ["bytes = 100000"],
    "after it, power cut": ['lose = "unflushed"'],
}


def test_every_type_of_event_is_met():
    assert set(EVENTS) | set(ELSEWHERE) == set(EVENT_TYPES)


@pytest.mark.parametrize("wire", ["anthropic", "openai-chat"])
@pytest.mark.parametrize("on", EVENTS)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.law("L3", "L6", "L7", "L8")
def test_no_law_breaks_whatever_record_the_kernel_dies_at(virtual, on, how, wire):
    came = virtual(f'wire = "{wire}"\n' + STORIES[EVENTS[on]] + kill(on, *HOWS[how]))
    assert came.laws == set()
    assert [one for one in came.unmet if one != "act 1 (answer on ask/opened) never fired"] == []
    assert came.answers.count("killed") == 1
    assert came["outcomes"][-1] == "completed"
    messages = came["context"]["messages"]
    said = str([one["content"] for one in messages if one["role"] == "user"])
    # Whose words are in the log, and who died before hearing of it, says them again.
    assert said.count("One?") == 1 + ((on, how) == ("inbox/queued", "after it, in the write"))
    assert said.count("And now?") == 1


@pytest.mark.parametrize("on", ["session/open", "tool/result", "step/end", "turn/end"])
@pytest.mark.parametrize("how", [[], ["bytes = 30"]])
def test_no_law_breaks_when_it_dies_again_in_the_recovery(virtual, on, how):
    nth = 2 if on == "session/open" else 1
    came = virtual(STORY + kill("tool/output") + kill(on, *how, f"nth = {nth}"))
    assert came.ok, came.unmet
    assert came.answers == ["killed", "killed"]
    assert came["outcomes"] == ["interrupted", "completed"]


def test_a_record_is_torn_at_the_byte(virtual):
    came = virtual(STORY + kill("tool/result", "bytes = 40"))
    opened = [record.event for record in came.records if isinstance(record.event, SessionOpen)]
    assert [one.length for one in opened[1].passed_over] == [40]
    results = [record.event for record in came.records if isinstance(record.event, ToolResult)]
    assert [(one.status, one.synthetic) for one in results] == [("unknown", True)]


def test_records_of_the_same_write_that_come_first_are_whole(virtual):
    """`turn/start` and `inbox/consumed` are one write; the second is torn."""
    came = virtual(STORY + kill("inbox/consumed", "bytes = 5"))
    first = next(record.event for record in came.records if isinstance(record.event, InboxConsumed))
    assert first.turn == "t2", "t1 has begun and consumed nothing"


def test_a_power_cut_takes_what_was_not_flushed(virtual):
    came = virtual(STORY + kill("tool/call", 'lose = "unflushed"'))
    assert came.ok, came.unmet
    assert came.types[:3] == ["session/open", "inbox/queued", "session/open"]


def test_a_power_cut_takes_all_of_a_log_that_never_syncs_and_breaks_no_promise(virtual):
    came = virtual('[session]\ndurability = "process"\n' + STORY + kill("tool/call", 'lose = "unflushed"'))
    assert came.ok, came.unmet
    assert came.types[:2] == ["session/open", "inbox/queued"]
    assert came.types.count("session/open") == 1


def test_one_act_kills_as_often_as_it_says(virtual):
    came = virtual(STORY + kill("tool/output", "times = 3", "gap = 0.01"))
    assert came.ok, came.unmet
    assert came.answers == ["killed"] * 3
    assert came.types.count("session/open") == 4


def test_counting_goes_on_over_a_death(virtual):
    """The first turn/end is the recovery's, the second the next turn's."""
    came = virtual(STORY + kill("tool/output") + '[[act]]\non = "turn/end"\nnth = 2\ndo = "cancel"\n')
    assert came.ok, came.unmet
    assert came.answers == ["killed", "idle"]
    assert came["cancels"][0]["seq"] > came.types.index("turn/end") + 1


def test_a_delay_goes_on_over_a_death(virtual):
    cancel = '[[act]]\non = "turn/start"\ndelay = 5.0\ndo = "cancel"\n'
    came = virtual(STORY + cancel + kill("tool/output"))
    assert came.ok, came.unmet
    assert came.answers == ["killed", "idle"]


def test_the_users_that_are_left_speak_after_a_kill(virtual):
    came = virtual(STORY + kill("tool/output"))
    assert came["outcomes"] == ["interrupted", "completed"]


def test_what_is_queued_runs_when_no_user_is_left(virtual):
    text = STORY.replace('[[user]]\ntext = "And now?"\n', "")
    came = virtual(text + kill("inbox/queued"))
    assert came.ok, came.unmet
    assert came["outcomes"] == ["completed"]


def test_a_user_whose_words_were_torn_says_them_again(virtual):
    came = virtual(STORY + kill("inbox/queued", "bytes = 12"))
    assert came["outcomes"] == ["completed", "completed"]


def test_a_user_whose_words_are_in_the_log_does_not_say_them_again(virtual):
    came = virtual(STORY + kill("inbox/queued"))
    assert came["outcomes"] == ["completed", "completed"]


# -------------------------------------------------------------------------------------------------- the truth


@pytest.mark.law("L7")
def test_a_recovery_that_truncates_breaks_l7_and_says_what_is_gone(virtual):
    came = virtual('[session]\nrecovery = "truncate"\n' + STORY + kill("step/end"))
    assert came.laws == {"L7"}
    [broken] = came["violations"]
    assert "16 records are gone, results of calls among them: 1" in broken["detail"]
    assert came["outcomes"] == ["completed", "completed"], "the prompt was queued before and runs again"


@pytest.mark.law("L8")
def test_l8_is_broken_when_an_acknowledged_item_is_lost(virtual, monkeypatch):
    """A flush that does not sync: what was acknowledged goes in a power cut."""

    async def no_flush(self: Journal) -> None:
        self._synced = self.seq

    monkeypatch.setattr(Journal, "flush", no_flush)
    came = virtual(STORY + kill("turn/start", 'lose = "unflushed"'))
    assert "L8" in came.laws


@pytest.mark.law("L4")
def test_l4_is_broken_when_a_body_ran_and_its_intent_is_lost(virtual, monkeypatch):
    flush = Journal.flush

    async def lazy_flush(self: Journal) -> None:
        if not self.grammar.calls:
            await flush(self)

    monkeypatch.setattr(Journal, "flush", lazy_flush)
    came = virtual(STORY + kill("tool/output", 'lose = "unflushed"'))
    assert came.laws == {"L4"}
