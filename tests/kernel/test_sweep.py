"""Cancel at every site of every program: no law may break. And the instruments that the sweep stands on."""

import pytest
import trio

from turnkernel import Cause
from turnkernel.testing.programs import PROGRAMS
from turnkernel.testing.sweep import Box, Program, cancel, host_cancel, pairs, play, steer, sweep

TITLES = [program.title for program in PROGRAMS]


def cancel_twice(box: Box) -> None:
    cancel(box)
    cancel(box)


def replace(box: Box) -> None:
    box.receipts.append((len(box.records), box.session.cancel(Cause.REPLACED)))
    box.session.post("no, this", prompt=True)


def cancel_keeping_input(box: Box) -> None:
    box.session.post("later", prompt=True)
    box.receipts.append((len(box.records), box.session.cancel(keep_inbox=True)))


def cancel_each_call(box: Box) -> None:
    for call in list(box.session._kernel.calls):
        box.session.cancel_call(call)


def stop_all(box: Box) -> None:
    box.receipts.append((len(box.records), box.session.stop_all()))


def stop_each_task_twice(box: Box) -> None:
    for task in (*box.session.status().tasks, *box.session.status().tasks):
        box.session.stop_task(task)


def stale_cancel(box: Box) -> None:
    assert box.session.cancel(turn="t0").answer == "stale"


ACTIONS = [
    cancel,
    cancel_twice,
    host_cancel,
    replace,
    cancel_keeping_input,
    cancel_each_call,
    stale_cancel,
    steer("by the way"),
]


def swept(program: Program, action, seed: int = 0) -> None:
    sites, failures = sweep(program, action, seed=seed)
    assert sites > 20
    assert not failures, "\n".join(map(str, failures))


@pytest.mark.law(
    *["L1", "L2", "L3", "L4", "L5", "L6", "C1", "C2", "C3", "C4", "C6"],
    *["R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8", "R9", "R10", "R11"],
)
@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.__name__)
@pytest.mark.parametrize("program", PROGRAMS, ids=TITLES)
def test_no_law_breaks_wherever_it_strikes(program, action):
    swept(program, action)


@pytest.mark.law("L3", "R1", "R5")
@pytest.mark.parametrize("action", [stop_all, stop_each_task_twice], ids=lambda action: action.__name__)
@pytest.mark.parametrize("seed", [0, 3])
def test_no_law_breaks_wherever_a_task_is_stopped(action, seed):
    (program,) = [program for program in PROGRAMS if program.title == "tasks"]
    swept(program, action, seed)


@pytest.mark.parametrize("program", PROGRAMS, ids=TITLES)
def test_no_law_breaks_under_another_schedule(program):
    swept(program, cancel, seed=7)


@pytest.mark.parametrize("program", [PROGRAMS[1], PROGRAMS[3], PROGRAMS[7]], ids=lambda program: program.title)
def test_two_cancels_break_no_law_wherever_they_strike(program):
    runs, failures = pairs(program, cancel, cancel, stride=11)
    assert runs > 100
    assert not failures, "\n".join(map(str, failures))


def lines(run):
    return [
        (record.seq, record.t, record.event)
        for record in run.box.records
        if record.event.type != "session/open"  # a random id and the wall clock
    ]


def test_the_same_plan_gives_the_same_log_and_another_seed_another_schedule():
    program = PROGRAMS[2]
    plan = {40: cancel}
    assert lines(play(program, plan)) == lines(play(program, plan))
    assert len({str(play(program, seed=seed).sites) for seed in range(6)}) > 1


def test_what_comes_before_a_site_is_as_without_the_plan():
    program = PROGRAMS[1]
    base, cut = play(program), play(program, {60: cancel})
    assert base.sites[:60] == cut.sites[:60]


def test_a_planned_site_that_is_not_reached_is_an_error():
    with pytest.raises(AssertionError, match="were not reached"):
        play(PROGRAMS[0], {100_000: cancel})


def test_an_action_that_raises_is_not_swallowed_by_trio():
    def fault(box):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        play(PROGRAMS[0], {5: fault})


def test_the_private_switches_of_trio_that_the_sweep_stands_on_still_work():
    """FACTS 2.1: with the flag and our own chooser, a batch is ordered by spawning and then ours to shuffle."""
    core = trio._core._run
    assert hasattr(core, "_r")
    assert hasattr(core, "_ALLOW_DETERMINISTIC_SCHEDULING")

    async def order(seen):
        async def one(name):
            for _ in range(3):
                seen.append(name)
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            for name in range(5):
                nursery.start_soon(one, name)

    class InOrder:
        def shuffle(self, batch):
            pass

        random = uniform = lambda self, *args: 0.5

    kept = core._r, core._ALLOW_DETERMINISTIC_SCHEDULING
    core._r, core._ALLOW_DETERMINISTIC_SCHEDULING = InOrder(), True
    try:
        seen: list[int] = []
        trio.run(order, seen)
    finally:
        core._r, core._ALLOW_DETERMINISTIC_SCHEDULING = kept
    assert seen == [4, 3, 2, 1, 0] * 3
