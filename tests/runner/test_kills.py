"""Killing the kernel wherever it stands: between records, inside one, with a power cut, in recovery, again."""

import pytest

from turnkernel.events import InboxConsumed, SessionOpen, ToolResult
from turnkernel.journal import Journal

STORY = """
[[user]]
text = "One?"

[[reply]]
text = "Let me see."
calls = [{ id = "c1", name = "quick" }]

[[reply]]
text = "One."

[[reply]]
text = "Two."

[[reply]]
text = "Three."

[[reply]]
text = "Four."

[[user]]
text = "Two?"

[[tool]]
name = "quick"
does = [{ emit = "line" }, { sleep = 1.0 }, { result = "quick result" }]
"""

EVENTS = [
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
]


def kill(on: str, *more: str) -> str:
    return "\n".join(["", "[[act]]", f'on = "{on}"', 'do = "kill"', *more, ""])


@pytest.mark.parametrize("on", EVENTS)
@pytest.mark.parametrize("how", [[], ["bytes = 0"], ["bytes = 30"], ["bytes = 100000"], ['lose = "unflushed"']])
@pytest.mark.law("L3", "L6", "L7", "L8")
def test_no_law_breaks_whatever_record_the_kernel_dies_at(virtual, on, how):
    came = virtual(STORY + kill(on, *how))
    assert came.ok, came.unmet
    assert came.answers == ["killed"]
    assert came["outcomes"][-1] == "completed"
    said = [one["content"] for one in came["context"]["messages"] if one["role"] == "user"]
    texts = str(said)
    assert "One?" in texts
    assert "Two?" in texts


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
    text = STORY.replace('[[user]]\ntext = "Two?"\n', "")
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
