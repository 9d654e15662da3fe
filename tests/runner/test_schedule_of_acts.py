"""Which acts are due: counting, delays, repetitions, and what a death must not forget."""

import pytest

from turnkernel.events import ModelDelta, Record, SessionOpen, ToolStart, TurnStart
from turnkernel_demo.acts import ActState, Schedule, matches
from turnkernel_demo.scenario import Act


def start(call: str, seq: int = 1) -> Record:
    return Record(seq, 1, 0.0, ToolStart("t1", call, "bash", {"command": "ls"}, "effect"))


def turn(seq: int = 1) -> Record:
    return Record(seq, 1, 0.0, TurnStart("t1"))


@pytest.mark.parametrize(
    ("where", "fits"),
    [
        ({}, True),
        ({"call": "c1"}, True),
        ({"call": "c2"}, False),
        ({"call": "c1", "name": "bash"}, True),
        ({"call": "c1", "name": "read_file"}, False),
        ({"input": {"command": "ls"}}, True),
        ({"seq": 7, "epoch": 1}, True),
        ({"seq": 8}, False),
    ],
)
def test_an_act_waits_for_the_fields_that_it_names(where, fits):
    assert matches(Act("cancel", on="tool/start", where=where), start("c1", seq=7)) is fits


def test_a_field_that_has_its_default_is_compared_too():
    delta = Record(1, 1, 0.0, ModelDelta("t1", "t1.s1", 0, "end"))
    opened = Record(1, 1, 0.0, SessionOpen("id", "now", "power"))
    assert matches(Act("cancel", on="model/delta", where={"text": ""}), delta)
    assert matches(Act("cancel", on="session/open", where={"passed_over": [], "format": 1}), opened)


def test_an_act_of_a_child_session_matches_nothing_of_the_root():
    assert not matches(Act("cancel", on="turn/start", session="c1"), turn())


def test_acts_happen_at_their_nth_match_and_at_no_other():
    schedule = Schedule([Act("cancel", on="tool/start", nth=2)])
    assert [schedule.take(start(call), 0.0) for call in ("c1", "c2", "c3")] == [[], [0], []]


def test_acts_that_are_due_together_come_in_file_order():
    acts = [Act("steer", on="turn/start"), Act("cancel", on="tool/start"), Act("send", on="turn/start")]
    assert Schedule(acts).take(turn(), 0.0) == [0, 2]


def test_a_delay_puts_an_act_off():
    schedule = Schedule([Act("cancel", on="turn/start", delay=0.5)])
    assert schedule.take(turn(), 10.0) == []
    assert schedule.next_due == 10.5
    assert (schedule.due(10.4), schedule.due(10.5)) == ([], [0])
    schedule.fire(0, 10.5)
    assert schedule.next_due is None


def test_times_and_gap_fire_again():
    schedule = Schedule([Act("cancel", on="turn/start", times=3, gap=0.1)])
    assert schedule.take(turn(), 1.0) == [0]
    states = [schedule.fire(0, now) for now in (1.0, 1.1, 1.2)]
    assert [state.fired for state in states] == [1, 2, 3]
    assert [state.due for state in states] == [1.1, pytest.approx(1.2), None]


def test_the_earliest_comes_first_and_then_file_order():
    acts = [Act("cancel", on="turn/start", delay=delay) for delay in (0.3, 0.1, 0.1)]
    schedule = Schedule(acts)
    schedule.take(turn(), 0.0)
    assert schedule.due(1.0) == [1, 2, 0]


def test_the_next_life_goes_on_counting():
    acts = [Act("kill", on="tool/start", nth=1), Act("cancel", on="tool/start", nth=3)]
    first = Schedule(acts)
    assert first.take(start("c1"), 0.0) == [0]
    first.fire(0, 0.0)
    second = Schedule(acts, first.states)
    assert [second.take(start(call), 0.0) for call in ("c2", "c3")] == [[], [1]]


def test_what_was_put_off_is_due_in_the_next_life():
    acts = [Act("cancel", on="turn/start", delay=5.0)]
    first = Schedule(acts)
    first.take(turn(), 1.0)
    assert Schedule(acts, first.states).next_due == 6.0


def test_a_torn_record_is_found_before_it_is_written_and_not_matched_again():
    schedule = Schedule([Act("kill", on="tool/start", nth=2, bytes=40)])
    assert schedule.torn([start("c1")]) is None
    schedule.take(start("c1"), 0.0)
    assert schedule.torn([turn(), start("c2"), start("c3")]) == (0, 1)
    state = schedule.fire(0, 0.0)
    assert state == ActState(seen=2, fired=1)
    assert schedule.torn([start("c2")]) is None
    assert schedule.take(start("c2"), 0.0) == []


def test_an_act_at_a_site_happens_there_once():
    schedule = Schedule([Act("cancel", site=4)])
    assert (schedule.reach(3), schedule.reach(4)) == ([], [0])
    schedule.fire(0, 0.0)
    assert schedule.reach(4) == []
