"""What every verb of an act does, and how it is answered when it can't do anything."""

import pytest

from turnkernel.events import InboxQueued

ONE_TURN = """
[[user]]
text = "One?"

[[reply]]
text = "One."
"""

TWO_TURNS = """
[[user]]
text = "Do it."

[[reply]]
calls = [{ id = "c1", name = "slow" }]

[[user]]
text = "And?"

[[reply]]
text = "Well."

[[reply]]
text = "More."

[[tool]]
name = "slow"
does = [{ emit = "line" }, { sleep = 600.0 }, { result = "slow result" }]
"""

ASKING = """
[[user]]
text = "Do it."

[[reply]]
calls = [{ id = "c1", name = "act" }]

[[reply]]
text = "Done."

[[tool]]
name = "act"
does = [{ result = "acted" }]

[tools]
approve = ["act"]
"""

QUESTION = """
[[user]]
text = "Do it."

[[reply]]
calls = [{ id = "c1", name = "question" }]

[[reply]]
text = "Done."

[[tool]]
name = "question"
effect = "read_only"
does = [{ ask = "which one?" }]
"""


def act(on: str, do: str, *more: str) -> str:
    return "\n".join(["", "[[act]]", f'on = "{on}"', f'do = "{do}"', *more, ""])


# --------------------------------------------------------------------------------------------- cancels of a turn


@pytest.mark.law("R4", "R11")
def test_cancel_stops_the_turn(virtual):
    came = virtual(TWO_TURNS + act("tool/output", "cancel"))
    assert came.ok, came.unmet
    assert came["outcomes"] == ["aborted", "completed"]
    assert came["results"] == {"c1": "stopped"}
    assert came.answers == ["applied"]


def test_cancel_drops_the_queue_unless_it_is_kept(virtual):
    queued = act("tool/start", "send", 'text = "later"')
    dropped = virtual(TWO_TURNS + queued + act("tool/output", "cancel"))
    kept = virtual(TWO_TURNS + queued + act("tool/output", "cancel", "keep_inbox = true"))
    assert "inbox/canceled" in dropped.types
    assert "inbox/canceled" not in kept.types
    assert dropped["outcomes"] == ["aborted", "completed"]
    assert kept["outcomes"] == ["aborted", "completed", "completed"]


def test_a_second_cancel_is_repeated(virtual):
    slow_end = TWO_TURNS.replace('name = "slow"\ndoes', 'name = "slow"\non_cancel = [{ sleep = 1.0 }]\ndoes')
    came = virtual(slow_end + act("tool/output", "cancel", "times = 2", "gap = 0.1"))
    assert came.ok, came.unmet
    assert came.answers == ["applied", "repeated"]
    assert [one["answer"] for one in came["cancels"]] == ["applied", "repeated"]


@pytest.mark.law("R3")
def test_cancel_at_rest_is_idle(virtual):
    came = virtual(TWO_TURNS + act("turn/end", "cancel", "nth = 2") + act("tool/output", "cancel"))
    assert came.ok, came.unmet
    assert came.answers == ["applied", "idle"]


def test_replace_cancels_and_queues_in_one(virtual):
    came = virtual(TWO_TURNS + act("tool/output", "replace", 'text = "Rather this."'))
    assert came.ok, came.unmet
    assert came["outcomes"] == ["aborted", "completed", "completed"]
    assert [one["cause"] for one in came["cancels"]] == ["replaced"]
    texts = [record.event.text for record in came.records if isinstance(record.event, InboxQueued)]
    assert texts == ["Do it.", "Rather this.", "And?"]


def test_stop_all_cancels_the_turn(virtual):
    came = virtual(TWO_TURNS + act("tool/output", "stop_all"))
    assert came.ok, came.unmet
    assert came["outcomes"] == ["aborted", "completed"]


@pytest.mark.law("R2")
def test_stale_cancel_takes_the_handle_of_the_turn_before(virtual):
    came = virtual(TWO_TURNS + act("tool/output", "cancel") + act("model/delta", "stale_cancel", "nth = 4"))
    assert came.ok, came.unmet
    assert came["outcomes"] == ["aborted", "completed"]
    stale = came["cancels"][1]
    assert (stale["turn"], stale["answer"]) == ("t1", "stale")


def test_stale_cancel_needs_a_turn_before(virtual):
    came = virtual(ONE_TURN + act("turn/start", "stale_cancel"))
    assert came.ok, came.unmet
    assert (came.answers, came["cancels"]) == (["no_turn"], [])


def test_a_handle_of_an_earlier_life_is_stale_too(virtual):
    killed = act("turn/end", "kill") + act("session/open", "stale_cancel", "nth = 2", "delay = 0")
    came = virtual(ONE_TURN + killed)
    assert came.ok, came.unmet
    assert came["cancels"][0]["answer"] == "stale"


# ------------------------------------------------------------------------------------------------ one call


def test_cancel_call_stops_the_events_own_call_and_the_turn_goes_on(virtual):
    came = virtual(TWO_TURNS + act("tool/output", "cancel_call"))
    assert came.ok, came.unmet
    assert came["outcomes"] == ["completed", "completed"]
    assert came["results"] == {"c1": "stopped"}
    assert came["cancels"][0]["answer"] == "applied"


def test_cancel_call_of_a_call_that_is_over_is_stale(virtual):
    came = virtual(TWO_TURNS + act("tool/output", "cancel") + act("turn/end", "cancel_call", 'target = "c1"'))
    assert came.ok, came.unmet
    assert came.answers == ["applied", "stale"]


# ------------------------------------------------------------------------------------------------ input


def test_steer_is_answered_in_the_running_turn(virtual):
    came = virtual(ONE_TURN + '[[reply]]\ntext = "Two."\n' + act("model/delta", "steer", 'text = "And two?"'))
    assert came.ok, came.unmet
    assert came["outcomes"] == ["completed"]
    assert came["requests"] == 2


def test_send_is_a_turn_of_its_own(virtual):
    came = virtual(ONE_TURN + '[[reply]]\ntext = "Two."\n' + act("model/delta", "send", 'text = "And two?"'))
    assert came.ok, came.unmet
    assert came["outcomes"] == ["completed", "completed"]


def test_withdraw_takes_the_events_own_item_back(virtual):
    text = (
        ONE_TURN + act("model/delta", "send", 'text = "Never mind."') + act("inbox/queued", "withdraw", "nth = 2")
    )
    came = virtual(text)
    assert came.ok, came.unmet
    assert came.answers == ["done", "done"]
    assert came["outcomes"] == ["completed"]


def test_withdraw_of_what_was_consumed_is_stale(virtual):
    came = virtual(ONE_TURN + act("inbox/consumed", "withdraw"))
    assert came.ok, came.unmet
    assert came.answers == ["stale"]


def test_input_to_a_session_that_is_being_left_is_refused(virtual):
    came = virtual(TWO_TURNS + act("tool/output", "close") + act("turn/cancel", "send", 'text = "Wait!"'))
    assert came.ok, came.unmet
    assert came.answers == ["done", "closed"]


def test_go_on_lets_what_is_queued_run(virtual):
    """After a kill nobody speaks, since a user is left; the act lets the queue run before he does."""
    text = ONE_TURN.replace("One?", "Zero?") + '[[user]]\ntext = "One?"\n[[reply]]\ntext = "Two."\n'
    came = virtual(text + act("inbox/queued", "kill") + act("session/open", "go_on", "nth = 2", "delay = 0"))
    assert came.ok, came.unmet
    assert came["outcomes"] == ["completed", "completed"]


# ------------------------------------------------------------------------------------------------ asks


@pytest.mark.parametrize(
    ("verb", "status", "outcome"),
    [
        ("allow", "ok", "completed"),
        ("allow_always", "ok", "completed"),
        ("deny", "denied", "completed"),
        ("deny_stop", "denied", "aborted"),
        ("dismiss", "denied", "completed"),
    ],
)
def test_an_approval_is_answered_in_the_step_in_which_it_opens(virtual, verb, status, outcome):
    came = virtual(ASKING + act("ask/opened", verb))
    assert came.ok, came.unmet
    assert came.answers == ["done"]
    assert (came["results"], came["outcomes"]) == ({"c1": status}, [outcome])


@pytest.mark.parametrize(("verb", "status"), [("answer", "ok"), ("dismiss", "dismissed")])
def test_a_question_is_answered_or_dismissed(virtual, verb, status):
    more = ['text = "the red one"'] if verb == "answer" else []
    came = virtual(QUESTION + act("ask/opened", verb, *more))
    assert came.ok, came.unmet
    assert came["results"] == {"c1": status}


def test_an_ask_can_be_meant_by_its_call(virtual):
    came = virtual(ASKING + act("ask/opened", "allow", 'target = "c1"', "delay = 0.1"))
    assert came.ok, came.unmet
    assert came["results"] == {"c1": "ok"}


def test_an_answer_to_an_ask_that_is_closed_does_nothing(virtual):
    came = virtual(
        ASKING + act("ask/opened", "deny") + act("ask/opened", "allow") + act("turn/end", "allow", 'target = "a9"')
    )
    assert came.ok, came.unmet
    assert came.answers == ["done", "closed", "closed"]
    assert came["results"] == {"c1": "denied"}


def test_a_word_that_does_not_fit_the_ask_does_nothing(virtual):
    came = virtual(
        ASKING + act("ask/opened", "answer", 'text = "yes"') + act("ask/opened", "allow", "delay = 0.1")
    )
    assert came.ok, came.unmet
    assert came.answers == ["unfit", "done"]


def test_with_only_an_unanswered_ask_left_the_block_is_left(virtual):
    came = virtual(ASKING)
    assert came.ok, came.unmet
    assert came["outcomes"] == ["aborted"]
    assert came["results"] == {"c1": "withdrawn"}
    assert came["cancels"][0]["cause"] == "shutdown"


def test_an_ask_is_waited_with_while_an_act_may_answer_it(virtual):
    came = virtual(QUESTION + act("ask/opened", "answer", 'text = "late"', "delay = 3600"))
    assert came.ok, came.unmet
    assert came["results"] == {"c1": "ok"}


# ------------------------------------------------------------------------------------------------ the program


def test_close_leaves_the_block(virtual):
    came = virtual(TWO_TURNS + act("tool/output", "close"))
    assert came.ok, came.unmet
    assert came["outcomes"] == ["aborted"]
    assert came["cancels"][0]["cause"] == "shutdown"
    assert came.types[-1] == "session/close"
    assert came.types.count("session/open") == 1


@pytest.mark.law("R8")
def test_host_cancel_closes_the_log(virtual):
    came = virtual(TWO_TURNS + act("tool/output", "host_cancel"))
    assert came.ok, came.unmet
    assert came["outcomes"] == ["aborted"]
    assert came["cancels"][0]["cause"] == "host"
    assert came.types[-1] == "session/close"


def test_terminate_leaves_in_order_and_the_log_is_opened_again(virtual):
    came = virtual(TWO_TURNS + act("tool/output", "terminate"))
    assert came.ok, came.unmet
    assert came["outcomes"] == ["aborted", "completed"]
    assert [kind for kind in came.types if kind.startswith("session/")] == ["session/open", "session/close"] * 2


def test_interrupt_stops_the_turn(virtual):
    came = virtual(TWO_TURNS + act("tool/output", "interrupt"))
    assert came.ok, came.unmet
    assert came["outcomes"] == ["aborted", "completed"]
    assert came.types.count("session/open") == 1
    assert came["cancels"][0]["cause"] == "user"


def test_a_second_interrupt_leaves(virtual):
    slow_end = TWO_TURNS.replace('name = "slow"\ndoes', 'name = "slow"\non_cancel = [{ sleep = 1.0 }]\ndoes')
    came = virtual(slow_end + act("tool/output", "interrupt", "times = 2", "gap = 0.1"))
    assert came.ok, came.unmet
    assert came["outcomes"] == ["aborted", "completed"]
    assert came.types.count("session/open") == 2


@pytest.mark.parametrize("verb", ["disk_full", "disk_error"])
@pytest.mark.parametrize("op", ["append", "flush"])
def test_a_disk_that_fails_once_ends_the_session_and_the_log_is_opened_again(virtual, verb, op):
    came = virtual(TWO_TURNS.replace("600.0", "0.1") + act("tool/output", verb, f'op = "{op}"'))
    assert came.ok, came.unmet
    assert came.types.count("session/open") == 2
    assert came["outcomes"][-1] == "completed"


def test_a_disk_that_stays_full_ends_the_run(virtual):
    came = virtual(TWO_TURNS + act("tool/output", "disk_full", "lasting = true") + act("tool/output", "cancel"))
    # What closes the turn goes into the reserve; then the log is closed for writing.
    assert came.types[-1] == "turn/end"
    assert came["outcomes"] == ["aborted"]
    assert came.answers == ["done", "applied"], "a cancel never raises, also when it can't be recorded"
    assert came.laws == set()


def test_a_task_that_does_not_run_is_stale(virtual):
    came = virtual(ONE_TURN + act("turn/start", "stop_task", 'target = "task_1"'))
    assert came.ok, came.unmet
    assert came.answers == ["stale"]


def test_an_act_before_the_session_is_open_does_nothing(virtual):
    came = virtual(ONE_TURN + act("session/open", "cancel"))
    assert came.ok, came.unmet
    assert (came.answers, came["cancels"]) == (["no_session"], [])


# --------------------------------------------------------------------------------------------- when they happen


def test_an_act_without_a_delay_comes_before_the_appender_goes_on(virtual):
    came = virtual(TWO_TURNS + act("tool/start", "cancel"))
    assert came.ok, came.unmet
    assert came["results"] == {"c1": "not_started"}, "the body of the tool never began"


def test_an_act_that_appends_comes_before_those_that_its_record_makes_due(virtual):
    text = ONE_TURN + '[[reply]]\ntext = "More."\n'
    first = act("step/start", "steer", 'text = "a"')
    second = act("inbox/queued", "steer", "nth = 2", 'text = "b"')
    third = act("step/start", "steer", 'text = "c"')
    came = virtual(text + first + second + third)
    texts = [record.event.text for record in came.records if isinstance(record.event, InboxQueued)]
    assert texts == ["One?", "a", "c", "b"]


def test_acts_with_a_delay_outlive_the_turn_that_they_came_from(virtual):
    came = virtual(ONE_TURN + act("turn/start", "cancel", "delay = 60"))
    assert came.ok, came.unmet
    assert came.answers == ["idle"]


def test_an_act_at_a_site_happens_there(virtual):
    plain = virtual(TWO_TURNS.replace("600.0", "1.0"))
    assert plain["outcomes"] == ["completed", "completed"]
    came = virtual(TWO_TURNS.replace("600.0", "1.0") + '\n[[act]]\nsite = 60\ndo = "cancel"\n')
    assert came.ok, came.unmet
    assert came["outcomes"][0] == "aborted"


def test_a_kernel_can_be_killed_at_a_site(virtual):
    came = virtual(TWO_TURNS.replace("600.0", "1.0") + '\n[[act]]\nsite = 60\ndo = "kill"\n')
    assert came.ok, came.unmet
    assert came["outcomes"][0] == "interrupted"
