"""The authority over a running turn, and the shields that it meets. Virtual time throughout."""

import math

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from turnkernel.cancel import SHIELDS, Authority, Holder, is_listed, shield
from turnkernel.causes import Answer, Cause, Urgency


async def sleeping(authority: Authority, log: list[str]) -> None:
    try:
        await trio.sleep(1000)
    finally:
        log.append(f"cancelled at {trio.current_time():g}")


# ------------------------------------------------------------------------------------------------- authority


@pytest.mark.law("R4")
async def test_the_first_cause_wins_and_only_the_first_cancel_applies(autojump_clock):
    async with trio.open_nursery() as nursery:
        authority = Authority("t1", nursery)
        answers = [
            authority.cancel(Cause.LIMIT, Urgency.POLITE),
            authority.cancel(Cause.USER, Urgency.POLITE),
            authority.cancel(Cause.HOST, Urgency.NOW),
        ]
        assert answers == [Answer.APPLIED, Answer.REPEATED, Answer.REPEATED]
        assert authority.cause is Cause.LIMIT


@pytest.mark.law("R7")
async def test_a_cancel_is_synchronous_and_reaches_every_trio_task_of_the_turn(autojump_clock):
    log: list[str] = []
    async with trio.open_nursery() as outer:
        async with trio.open_nursery() as nursery:
            authority = Authority("t1", nursery)
            for _ in range(3):
                nursery.start_soon(sleeping, authority, log)
            outer.start_soon(trio.sleep, 5)
            await trio.sleep(1)
            authority.cancel(Cause.USER, Urgency.POLITE)
            assert not log, "the cancel itself waits for nothing"
        assert log == ["cancelled at 1"] * 3
    assert trio.current_time() == 5, "what is outside of the turn goes on"


@pytest.mark.law("R4")
async def test_urgency_only_rises(autojump_clock):
    async with trio.open_nursery() as nursery:
        authority = Authority("t1", nursery)
        seen = []
        for urgency in (Urgency.POLITE, Urgency.NOW, Urgency.POLITE):
            authority.cancel(Cause.USER, urgency)
            seen.append(authority.urgency)
        assert seen == [Urgency.POLITE, Urgency.NOW, Urgency.NOW]


async def test_who_waits_for_urgency_is_woken_by_now_and_not_by_a_polite_cancel(autojump_clock):
    times: list[float] = []

    async def wait(authority: Authority) -> None:
        await authority.urgent()
        times.append(trio.current_time())

    async with trio.open_nursery() as outer, trio.open_nursery() as nursery:
        authority = Authority("t1", nursery)
        outer.start_soon(wait, authority)
        await wait_all_tasks_blocked()
        authority.cancel(Cause.USER, Urgency.POLITE)
        with trio.CancelScope(shield=True):
            await trio.sleep(2)
            assert not times
            authority.cancel(Cause.USER, Urgency.NOW)
            await wait_all_tasks_blocked()
        assert times == [2]


async def section(authority: Authority, seconds: float, now_seconds: float, log: list[float]) -> None:
    scope = shield("critical section", seconds)
    with scope, authority.section(scope, now_seconds):
        await trio.sleep(1000)
    log.append(trio.current_time())


@pytest.mark.law("R9")
@pytest.mark.parametrize(
    ("seconds", "now_seconds", "urgent_at", "ends"),
    [
        (10, 0, None, 10),  # nobody hurries: it has its time
        (10, 0, 4, 4),
        (10, 2, 4, 6),
        (10, 20, 4, 10),  # what is left at now never lengthens it
        (10, 0, 0, 0),  # entered when it is urgent already
        (10, 2, 0, 2),
    ],
)
async def test_a_critical_section_ends_at_its_deadline_or_soon_after_now(
    autojump_clock, seconds, now_seconds, urgent_at, ends
):
    log: list[float] = []
    async with trio.open_nursery() as outer, trio.open_nursery() as nursery:
        authority = Authority("t1", nursery)
        if urgent_at == 0:
            authority.cancel(Cause.USER, Urgency.NOW)
        nursery.start_soon(section, authority, seconds, now_seconds, log)
        if urgent_at:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
                authority.cancel(Cause.USER, Urgency.POLITE)
                await trio.sleep(urgent_at - 1)
                authority.cancel(Cause.USER, Urgency.NOW)
                authority.cancel(Cause.USER, Urgency.NOW)
        outer.start_soon(trio.sleep, 0)
    assert log == [ends]


async def test_a_section_that_is_over_is_not_touched_any_more(autojump_clock):
    async with trio.open_nursery() as nursery:
        authority = Authority("t1", nursery)
        scope = shield("critical section", 10)
        with scope, authority.section(scope, 0):
            pass
        authority.cancel(Cause.USER, Urgency.NOW)
        assert not scope.cancel_called


async def test_what_a_call_holds_is_named_while_it_is_held(autojump_clock):
    async with trio.open_nursery() as nursery:
        authority = Authority("t1", nursery)
        one, two = (Holder("c1", "process", "sleep 300") for _ in range(2))
        with authority.holding(one):
            with authority.holding(two):
                assert authority.holders == {one, two}, "two that look alike are two"
            assert authority.holders == {one}
        assert authority.holders == set()
        with pytest.raises(ZeroDivisionError), authority.holding(one):
            raise ZeroDivisionError
        assert authority.holders == set()


async def test_times_are_counted_from_the_first_cancel_and_not_noted_before_one(autojump_clock):
    async with trio.open_nursery() as nursery:
        authority = Authority("t1", nursery)
        one, two = Holder("c1", "process", "a"), Holder("c2", "process", "b")
        with authority.holding(Holder("c0", "process", "c")):
            pass
        authority.mark("stream_closed")
        assert authority.milestones == {}
        with trio.CancelScope(shield=True), authority.holding(one):
            await trio.sleep(5)
            with authority.holding(two), authority.holding(Holder("c3", "thread", "t")):
                authority.cancel(Cause.USER, Urgency.POLITE)
                await trio.sleep(1)
                authority.cancel(Cause.USER, Urgency.NOW)
            assert authority.milestones == {}, "one process is still there"
            await trio.sleep(1)
        assert authority.milestones == {"processes_gone": 2}


def test_the_repr_tells_the_state():
    async def main() -> str:
        async with trio.open_nursery() as nursery:
            authority = Authority("t1", nursery)
            authority.cancel(Cause.USER, Urgency.NOW)
            return repr(authority)

    assert trio.run(main) == "<Authority t1 cause=user urgency=<Urgency.NOW: 2> holders=0>"


# --------------------------------------------------------------------------------------------------- shields


@pytest.mark.law("R9")
@pytest.mark.parametrize("kind", SHIELDS)
async def test_a_shield_keeps_a_cancel_away_until_its_deadline(autojump_clock, kind):
    with trio.CancelScope() as outer:
        outer.cancel()
        scope = shield(kind, 3)
        assert is_listed(scope)
        with scope:
            await trio.sleep(2)
            await trio.sleep(1000)
        assert trio.current_time() == 3
        await trio.sleep(1000)
    assert trio.current_time() == 3
    assert outer.cancelled_caught


@pytest.mark.law("R9")
async def test_nested_shields_do_not_add_up(autojump_clock):
    outer = shield("closing flush", 5)
    with outer:
        await trio.sleep(3)
        with shield("closing flush", 5, outer_deadline=outer.deadline):
            await trio.sleep(1000)
        assert trio.current_time() == 5


@pytest.mark.law("R9")
@pytest.mark.parametrize("seconds", [math.inf, math.nan])
async def test_a_shield_without_an_end_is_refused(seconds):
    with pytest.raises(ValueError, match="no end"):
        shield("critical section", seconds)


@pytest.mark.law("R9")
async def test_a_shield_that_is_bounded_by_the_one_around_it_is_bounded(autojump_clock):
    with shield("critical section", math.inf, outer_deadline=trio.current_time() + 2):
        await trio.sleep(1000)
    assert trio.current_time() == 2


@pytest.mark.law("R9")
async def test_a_shield_for_no_listed_reason_is_refused_and_others_are_not_listed():
    with pytest.raises(ValueError, match="no such shield"):
        shield("because", 1)
    assert not is_listed(trio.CancelScope(shield=True))


async def test_a_shield_whose_time_is_over_already_lets_nothing_wait():
    scope = shield("closing flush", 5, outer_deadline=trio.current_time() - 1)
    with scope:
        await trio.sleep(1000)
    assert scope.cancelled_caught
