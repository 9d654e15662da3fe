"""Scenarios played for real: a process of its own for the kernel, real HTTP, real tools, signals and deaths."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from turnkernel.events import SessionOpen, ToolResult, TurnStuck, TurnSurvivor
from turnkernel_demo.processes import bearers

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="what is alive is read in /proc")

COMMAND = """
[[user]]
text = "Run it."

[[reply]]
text = "Let me."
calls = [{{ id = "c1", name = "bash", input = {{ command = "{command}" }} }}]

[[user]]
text = "And?"

[[reply]]
text = "Well."

[[reply]]
text = "More."
"""

SCRIPT = """
[[user]]
text = "Do it."

[[reply]]
calls = [{{ id = "c1", name = "t" }}]

[[user]]
text = "And?"

[[reply]]
text = "Well."

[[tool]]
name = "t"
{does}
"""


def act(on: str, do: str, *more: str) -> str:
    return "\n".join(["", "[[act]]", f'on = "{on}"', f'do = "{do}"', *more, ""])


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch):
    """No process of a run of this test is alive after it. Runs of others go on meanwhile, so ours are noted."""
    made: list[str] = []

    def token_hex(size: int) -> str:
        made.append(os.urandom(size).hex())
        return made[-1]

    monkeypatch.setattr("turnkernel_demo.runner.secrets.token_hex", token_hex)
    yield
    assert made, "nothing was played"
    assert [bearers(token) for token in made] == [[]] * len(made)


@pytest.mark.law("R1")
def test_a_cancelled_command_is_gone_and_the_conversation_goes_on(real):
    came = real(COMMAND.format(command="echo begun; sleep 300") + act("tool/output", "cancel"))
    assert came.ok, came.unmet
    assert came["outcomes"] == ["aborted", "completed"]
    assert came["survivors"] == []
    assert [body["model"] for body in came["request_bodies"]] == ["scripted-1", "scripted-1"]
    [cancel] = came["cancels"]
    assert cancel["stream_closed"] is None
    reached = [cancel[name] for name in ("processes_gone", "tasks_gone", "ended", "durable")]
    assert None not in reached
    assert reached == sorted(reached)


def test_tools_work_in_the_scratch_root_and_the_wire_is_the_scenario_s(real, tmp_path):
    text = """
    wire = "openai-chat"
    [[user]]
    text = "Write it."
    [[reply]]
    calls = [{ id = "c1", name = "write_file", input = { path = "a.txt", content = "all of it" } },
             { id = "c2", name = "bash", input = { command = "pwd; cat a.txt" } },
             { id = "c3", name = "mark" }]
    [[reply]]
    text = "Done."
    [[tool]]
    name = "mark"
    does = [{ touch = "made/by/script" }]
    """
    came = real(text)
    assert came.ok, came.unmet
    assert came["results"] == {"c1": "ok", "c2": "ok", "c3": "ok"}
    root = tmp_path / "scratch"
    assert (root / "a.txt").read_text() == "all of it"
    assert (root / "made/by/script").exists()
    [result] = [one["content"] for one in came["context"]["messages"] if one.get("tool_call_id") == "c2"]
    assert str(root.resolve()) in result
    assert "messages" in came["request_bodies"][0]


def test_a_script_can_not_touch_what_is_outside(real, tmp_path):
    came = real(SCRIPT.format(does='does = [{ touch = "../outside" }]') + '[[reply]]\ntext = "Sorry."\n')
    assert came["results"] == {"c1": "error"}
    assert not (tmp_path / "outside").exists()


@pytest.mark.law("L3", "L6", "L7")
def test_a_killed_kernel_is_started_again_on_its_log(real):
    came = real(COMMAND.format(command="echo begun; sleep 300") + act("tool/output", "kill"))
    assert came["outcomes"] == ["interrupted", "completed"]
    assert came["results"] == {"c1": "unknown"}
    assert came.answers == ["killed"]
    assert came.laws == set()
    assert all(one["after"] == "kill" for one in came["survivors"])


def test_a_kernel_dies_in_the_middle_of_a_record(real):
    came = real(COMMAND.format(command="echo 3 passed") + act("tool/result", "kill", "bytes = 40"))
    assert came.ok, came.unmet
    opened = [record.event for record in came.records if isinstance(record.event, SessionOpen)]
    assert [one.length for one in opened[1].passed_over] == [40]


@pytest.mark.law("L8")
def test_a_power_cut_takes_what_was_not_synced(real):
    came = real(COMMAND.format(command="true") + act("tool/call", "kill", 'lose = "unflushed"'))
    assert came.ok, came.unmet
    assert came.types[:3] == ["session/open", "inbox/queued", "session/open"], "the log was cut to what was synced"


@pytest.mark.law("L7")
def test_a_recovery_that_truncates_destroys_the_unfinished_turn(real):
    text = '[session]\nrecovery = "truncate"\n' + COMMAND.format(command="echo begun; sleep 300")
    came = real(text + act("tool/output", "kill"))
    assert came.laws == {"L7"}
    assert "bash" not in str(came["context"])


def test_sigterm_ends_in_order_and_the_log_is_opened_again(real):
    came = real(COMMAND.format(command="echo begun; sleep 300") + act("tool/output", "terminate"))
    assert came.ok, came.unmet
    assert came["outcomes"] == ["aborted", "completed"]
    assert [kind for kind in came.types if kind.startswith("session/")] == ["session/open", "session/close"] * 2


def test_a_second_sigint_leaves(real):
    slow = SCRIPT.format(does='does = [{ emit = "x" }, { sleep = 60.0 }]\non_cancel = [{ sleep = 30.0 }]')
    came = real(slow + act("tool/output", "interrupt", "times = 2", "gap = 0.05"))
    assert came.ok, came.unmet
    assert came["outcomes"] == ["aborted", "completed"]
    assert came.types.count("session/open") == 2


def test_a_full_disk_ends_the_session_and_the_log_is_opened_again(real):
    came = real(SCRIPT.format(does='does = [{ emit = "x" }, { emit = "y" }]') + act("tool/output", "disk_full"))
    assert came.ok, came.unmet
    assert came["outcomes"] == ["failed", "completed"], "closed in order, out of the reserve"


@pytest.mark.law("R8")
def test_the_host_s_cancel_closes_the_log(real):
    came = real(COMMAND.format(command="echo begun; sleep 300") + act("tool/output", "host_cancel"))
    assert came.ok, came.unmet
    assert came.types[-1] == "session/close"


def test_a_thread_that_will_not_stop_is_left_at_the_second_cancel_and_named(real):
    blocks = SCRIPT.format(does='isolation = "thread"\ndoes = [{ emit = "x" }, { block = 30.0 }]')
    came = real(blocks + act("tool/output", "cancel", "delay = 0.05", "times = 2", "gap = 0.05"))
    assert came.ok, came.unmet
    assert came["results"] == {"c1": "unknown"}
    [left] = [record.event for record in came.records if isinstance(record.event, TurnSurvivor)]
    assert (left.kind, left.call) == ("thread", "c1")


def test_a_thread_of_a_script_listens_while_it_sleeps(real):
    does = 'isolation = "thread"\ndoes = [{ emit = "x" }, { sleep = 60.0 }]\non_cancel = [{ emit = "undone" }]'
    came = real(SCRIPT.format(does=does) + act("tool/output", "cancel", "delay = 0.05"))
    assert came.ok, came.unmet
    assert came["results"] == {"c1": "stopped"}
    assert came.types.count("tool/output") == 2


@pytest.mark.law("R9")
def test_a_run_over_its_limit_says_who_holds_it_and_leaves_nothing(real):
    text = "limit_seconds = 4\n" + SCRIPT.format(does='does = [{ emit = "x" }, { shield = 60.0 }]')
    came = real(text + act("tool/output", "cancel"))
    assert not came.ok
    assert came.unmet[0] == "given up: it took longer than its limit (4 s)"
    assert came.unmet[1].startswith("held by trio task call c1: ")
    assert came.laws == {"R9"}
    [stuck] = [record.event for record in came.records if isinstance(record.event, TurnStuck)]
    assert "call c1" in stuck.holders[0]


AWAY = f"runaway-{os.urandom(6).hex()}"
"""A name that no other run of these tests gives a process on this machine."""
RUNAWAY = (
    f"({{how}} bash -c 'echo > away; exec -a {AWAY} sleep 300' &); "
    "until [ -e away ]; do sleep 0.01; done; echo begun; sleep 300"
)


@pytest.mark.law("R1")
@pytest.mark.parametrize("how", ["setsid", "env -u TURNKERNEL_CALL setsid", "env -i setsid"])
@pytest.mark.parametrize("verb", ["cancel", "kill"])
def test_nothing_gets_away_from_the_containment_that_holds(real, how, verb):
    came = real(COMMAND.format(command=RUNAWAY.format(how=how)) + act("tool/output", verb))
    opened = [record.event.containment for record in came.records if isinstance(record.event, SessionOpen)]
    if opened[0] != "tree":
        pytest.skip("tier tree can't be had here; it takes Linux with subreapers")
    assert came.ok, came.unmet
    assert came["survivors"] == []
    assert not list(running(AWAY))


@pytest.mark.law("R1")
def test_what_gets_away_is_seen_and_ended_whatever_it_did_to_hide(real):
    """Tier `group` does not hold a process that leaves session, parent and environment behind. Here it is seen."""
    hidden = COMMAND.format(command=RUNAWAY.format(how="env -i setsid"))
    came = real('[session]\ncontainment = "group"\n' + hidden + act("tool/output", "cancel"))
    assert [(one["command"], one["after"]) for one in came["survivors"]] == [(f"{AWAY} 300", "t1")]
    assert came.laws == {"R1"}
    assert not list(running(AWAY))


def running(name: str) -> Iterator[int]:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.joinpath("cmdline").read_bytes().startswith(name.encode()):
                yield int(process.name)
        except OSError:
            continue  # gone


KERNEL = """
kernel=$$
until grep -aq turnkernel_demo.player /proc/$kernel/cmdline; do
    kernel=$(sed 's/.*) . \\([0-9]*\\) .*/\\1/' /proc/$kernel/stat)
done
"""
"""A command finds out the pid of the kernel that runs it."""


def test_a_kernel_that_was_killed_by_somebody_else_is_a_failure_of_the_run(real, tmp_path):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch/kill.sh").write_text(KERNEL + "kill -9 $kernel\nsleep 300\n")
    came = real(COMMAND.format(command="bash kill.sh"))
    assert not came.ok
    assert came.unmet[0].startswith("the kernel's process ended with -9")
    assert [one["command"] for one in came["survivors"]] in ([], ["bash kill.sh", "sleep 300"])


def test_keys_of_real_models_do_not_reach_the_kernel_s_process(real, tmp_path, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-not-to-be-seen")
    monkeypatch.setenv("SEEN_BY_ALL", "yes")
    (tmp_path / "scratch").mkdir()
    look = "tr '\\0' '\\n' < /proc/$kernel/environ | grep -E '^(ANTHROPIC_API_KEY|SEEN_BY_ALL)='\n"
    (tmp_path / "scratch/look.sh").write_text(KERNEL + look)
    came = real(COMMAND.format(command="bash look.sh"))
    [result] = [record.event for record in came.records if isinstance(record.event, ToolResult)]
    assert result.text.splitlines() == ["SEEN_BY_ALL=yes"]
