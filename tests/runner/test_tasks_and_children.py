"""Tasks and child sessions in a run: who may be stopped and asked, and that what they break is still seen."""

import os
import signal
import subprocess
from pathlib import Path

import attrs
import pytest

from turnkernel.events import Event, Record, TaskEnded, TaskStarted, ToolStart
from turnkernel_demo.ledger import Acknowledged, Acted, Broken, Report, Survivor
from turnkernel_demo.lives import Lives, children_of, detached_of, records_of
from turnkernel_demo.processes import Process, descendants_of
from turnkernel_demo.report import judge
from turnkernel_demo.scenario import ROOT, Act, Scenario
from turnkernel_demo.witness import TurnWatch, WitnessedProvider
from turnkernel_tools.process import MARK, new_mark

BACKGROUND = """
[[user]]
text = "Build it."
[[reply]]
calls = [{ id = "c1", name = "build" }]
[[reply]]
text = "It is being built."
[[reply]]
text = "It is over."
[[tool]]
name = "build"
does = [{ spawn = "LIFETIME" }, { sleep = 60.0 }, { result = "120 files" }]
on_cancel = [{ sleep = 5.0 }]
"""
SESSION, DETACHED = BACKGROUND.replace("LIFETIME", "session"), BACKGROUND.replace("LIFETIME", "detached")


def act(on: str, do: str, *more: str) -> str:
    return "\n".join(["", "[[act]]", f'on = "{on}"', f'do = "{do}"', *more, ""])


def ends(came) -> list[TaskEnded]:
    return [record.event for record in came.records if isinstance(record.event, TaskEnded)]


# ------------------------------------------------------------------------------------------------------- tasks


@pytest.mark.parametrize("text", [SESSION, DETACHED])
def test_a_run_waits_for_its_tasks_and_their_ends_wake_the_model(virtual, text):
    came = virtual(text)
    assert came.ok, came.unmet
    assert came["outcomes"] == ["completed", "completed"]
    assert [(end.status, "120 files" in end.text) for end in ends(came)] == [("ok", True)]


@pytest.mark.parametrize("target", ["", 'target = "c1"'])
def test_a_task_is_stopped_by_its_own_id_or_by_that_of_its_call(virtual, target):
    came = virtual(SESSION + act("task/started", "stop_task", "delay = 2.0", "times = 2", "gap = 1.0", target))
    assert came.ok, came.unmet
    assert came.answers == ["applied", "repeated"]
    assert [end.status for end in ends(came)] == ["stopped"]
    assert came["cancels"] == [], "no turn was cancelled"


def test_an_act_waits_for_a_task_by_its_fields(virtual):
    came = virtual(SESSION + act("task/ended", "send", 'where = { task = "k12", status = "ok" }', 'text = "x"'))
    task = next(record.event.task for record in came.records if isinstance(record.event, TaskStarted))
    assert (came.ok, task) == (True, "k12"), came.unmet


def test_stop_all_ends_the_turn_and_the_tasks(virtual):
    came = virtual(SESSION + act("task/started", "stop_all"))
    assert came.ok, came.unmet
    assert (came["outcomes"], came.answers) == (["aborted"], ["applied"])
    assert [end.status for end in ends(came)] == ["stopped"]
    assert came["requests"] == 1, "a notice does not wake the model after a turn that was cut"


def test_a_detached_task_is_let_go_of_when_the_block_is_left(virtual):
    came = virtual(DETACHED + act("turn/end", "close"))
    assert came.ok, came.unmet
    assert ends(came) == []


@pytest.mark.parametrize("text", [SESSION, DETACHED])
def test_a_task_of_a_script_is_lost_with_its_kernel(virtual, text):
    came = virtual(text + act("turn/end", "kill"))
    assert came.ok, came.unmet
    assert [end.status for end in ends(came)] == ["lost"]


def test_a_shield_in_a_task_breaks_r9(virtual):
    came = virtual(SESSION.replace("{ sleep = 60.0 }", "{ shield = 1.0 }"))
    assert came.laws == {"R9"}


# --------------------------------------------------------------------------------- who is alive, and of what it is


class Provider:
    wire, model = "anthropic", "scripted-1"


def watched(*processes: Process) -> tuple[TurnWatch, list[Report]]:
    told: list[Report] = []
    return TurnWatch(WitnessedProvider(Provider()), {"bash"}, lambda: processes, told.append), told


def record(event: Event) -> Record:
    return Record(9, 1, 0.0, event)


@pytest.mark.law("R1")
@pytest.mark.parametrize("named", [True, False])
def test_a_process_that_outlives_its_task_is_a_survivor_and_breaks_r1_unless_it_is_named(named):
    watch, told = watched(Process(77, "sleep 300", "k3"))
    event = TaskEnded("k3", "k3.end", "bash", "stopped", "Left: pid 77 sleep 300" if named else "Stopped.")
    watch.task_ended(record(event), event)
    assert [one for one in told if isinstance(one, Survivor)] == [Survivor(77, "sleep 300", "k3")]
    assert [one.violation.law for one in told if isinstance(one, Broken)] == ([] if named else ["R1"])


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="what a process is of is read in /proc")
def test_a_process_is_of_the_work_that_it_or_its_parent_is_marked_with():
    command = ["bash", "-c", "env -i bash -c 'echo up; sleep 4711; :' & wait"]
    environment = {MARK: f"outer.1 {new_mark('k 3')}", "PATH": os.environ["PATH"]}
    marked = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, start_new_session=True)
    with marked:
        try:
            assert marked.stdout is not None
            assert marked.stdout.readline() == b"up\n"
            found = [one for one in descendants_of(os.getpid()) if "4711" in one.command]
            assert {(one.work, one.detached) for one in found} == {("k_3", False)}
            assert len(found) >= 2, "the one that has cleared its environment, too"
        finally:
            os.killpg(marked.pid, signal.SIGKILL)


BUSY = """
[[user]]
text = "x"
[[reply]]
calls = [{ id = "c1", name = "bash", input = { command = "touch up; setsid sleep 300", background = true } },
    { id = "c2", name = "bash", input = { command = "until [ -e up ]; do sleep 0.1; done; echo in" } }]
[[reply]]
text = "y"
"""


@pytest.mark.law("R1")
@pytest.mark.parametrize("lifetime", ["session", "detached"])
def test_the_processes_of_a_task_are_no_survivors_of_the_turn(real, lifetime):
    came = real(f'{BUSY}[tools]\nbackground = "{lifetime}"\n' + act("turn/end", "close"))
    assert came.ok, came.unmet
    assert came["survivors"] == []
    assert len(ends(came)) == (lifetime == "session")


# ---------------------------------------------------------------------------------------------------- children

CHILD = """
[[user]]
text = "Let somebody do it."
[[reply]]
calls = [{ id = "c1", name = "agent", input = { prompt = "Do it." } }]
[[reply]]
session = "c1"
text = "Done."
[[reply]]
text = "Well."
"""


def test_users_and_acts_of_a_child_reach_the_child(real):
    more = """
[[user]]
session = "c1"
text = "Twice."
[[reply]]
session = "c1"
text = "Done twice."
[[reply]]
session = "c1"
text = "And once more."
"""
    came = real(CHILD + more + act("turn/end", "send", 'session = "c1"', 'text = "Again."'))
    assert came.ok, came.unmet
    assert came["requests"] == 5
    assert came["results"] == {"c1": "ok"}
    child = records_of(came.played.children["c1"])[0]
    queued = [record.event.text for record in child if record.event.type == "inbox/queued"]
    assert queued == ["Do it.", "Again.", "Twice."]


def test_a_user_of_a_child_that_does_not_run_is_unmet(real):
    came = real(CHILD.replace("agent", "nobody") + '[[user]]\nsession = "c1"\ntext = "Hello?"\n')
    assert came.unmet == ["user 2 had nobody to speak to: c1 did not run, or had ended"]


def test_what_a_child_s_log_breaks_is_told_with_its_name(real):
    came = real(CHILD)
    assert came.ok, came.unmet
    whole = came.played.children["c1"]
    cut = b"".join(whole.splitlines(keepends=True)[:-2])
    result = judge(attrs.evolve(came.played, children={"c1": cut}))
    assert {(one.law, one.detail.split(":")[0]) for one in result.violations} == {("L3", "in c1")}


def test_the_cancel_of_a_child_is_listed_with_its_milestones_and_is_no_answer_of_its_own(real):
    stalls = CHILD.replace('text = "Done."', 'text = "I am on it, as you can see."\nfault = "stall"')
    came = real(stalls + act("model/delta", "interrupt", 'session = "c1"') + '[expect]\nanswers = ["applied"]\n')
    assert came.ok, came.unmet
    root, child = sorted(came["cancels"], key=lambda one: "session" in one)
    assert (root["cause"], root.get("session")) == ("user", None)
    assert (child["cause"], child["session"], child["answer"]) == ("parent", "c1", "applied")
    assert child["ended"] is not None


# ------------------------------------------------------------------------------------------- between two lives


def test_what_is_open_of_children_and_detached_tasks_is_read_from_the_log():
    events = [
        ToolStart("t1", "c1", "agent", {}, "effect", "x.d/c5.log"),
        TaskStarted("k6", "c1", "agent", "session", None, "x.d/c5.log"),
        TaskStarted("k7", "c2", "bash", "detached"),
        TaskStarted("k8", "c3", "bash", "detached"),
        TaskStarted("k9", "c4", "agent", "session", None, "x.d/c5.log"),
        TaskEnded("k7", "k7.end", "bash", "ok", "done"),
    ]
    records = [record(event) for event in events]
    assert children_of(records) == {"c1": "x.d/c5.log"}
    assert detached_of(records) == {"k8"}


@pytest.mark.law("L8")
def test_words_that_a_child_has_acknowledged_and_lost_break_l8(real):
    came = real(CHILD)
    logs = {ROOT: came.played.log, "c1": came.played.children["c1"]}
    for said, laws in (("Do it.", set()), ("Do that.", {"L8"})):
        lives = Lives(Scenario())
        lives.ledger.take(Acknowledged("i2", said, "c1"))
        lives.after(logs, died=True, clock=0.0)
        assert {one.law for one in lives.ledger.violations} == laws


def test_a_power_cut_takes_of_each_log_what_was_not_synced(real):
    came = real(CHILD)
    logs = {ROOT: came.played.log, "c1": came.played.children["c1"]}
    lives = Lives(Scenario(acts=(Act("kill", on="turn/end", lose="unflushed"),)))
    sizes = {name: len(log.splitlines(keepends=True)[0]) for name, log in logs.items()}
    lives.ledger.synced.update(sizes)
    lives.ledger.take(Acted(0, 1, 1))
    left, _ = lives.after(logs, died=True, clock=0.0)
    assert {name: len(log) for name, log in left.items()} == sizes
