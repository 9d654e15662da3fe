"""Commands that go on when their call is over: real processes, held by gates and counted in /proc."""

import sys
from pathlib import Path

import pytest
from tests.tools.task_sessions import Host, alive, hosted

from turnkernel.causes import Answer
from turnkernel.events import TaskEnded
from turnkernel.testing.scripted import ScriptedTool
from turnkernel_tools.background import LAST_BYTES

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="what is left alive is counted in /proc; a Linux machine would run it"
)


@pytest.fixture(params=["file", "memory"])
def log(request, tmp_path) -> Path | None:
    """Where the log is."""
    return tmp_path / "log.jsonl" if request.param == "file" else None


async def test_a_command_goes_on_after_its_turn_and_its_end_is_told_with_what_it_printed(tmp_path, log, gate):
    async with hosted(tmp_path, log) as host:
        task = await host.begin("read x <gate; echo RESULT; exit 3")
        await host.session.rest()
        assert host.session.status().tasks == (task,)
        assert "[Task " + task + " runs since 2" in (await host.call("task_list")).text
        gate.open()
        end = await host.end_of(task)
        assert (end.status, end.name) == ("error", "bash")
        assert end.text.endswith("RESULT\n[Exit code 3]")
        await host.session.rest()
        assert "RESULT" in str(host.provider.requests[-1].messages[-1].blocks[-1])
        assert host.session.status().tasks == ()
        listed = (await host.call("task_list")).text
        assert listed.startswith(f"[Task {task} failed after ")
        assert len([event for event in host.events() if isinstance(event, TaskEnded)]) == 1


async def test_a_notice_that_comes_after_a_stop_waits_for_the_next_prompt(tmp_path, mark, gate, up):
    slow = ScriptedTool("slow", [{"sleep": 3600.0}])
    async with hosted(tmp_path, None, slow) as host:
        task = await host.begin("echo >up; read x <gate; echo RESULT")
        await up.passed()
        await host.session.rest()
        host.ask_for("slow")
        await host.session.send("and now")
        await until_runs(host, "slow")
        receipt = host.session.cancel()
        assert [one.task for one in receipt.going_on] == [task]
        assert receipt.going_on[0].detail["what"] == "echo >up; read x <gate; echo RESULT"
        await receipt.settled()
        assert alive(mark)
        requests = len(host.provider.requests)
        gate.open()
        assert (await host.end_of(task)).status == "ok"
        assert len(host.provider.requests) == requests
        await host.session.send("and?")
        await host.session.rest()
        assert "RESULT" in str(host.provider.requests[-1].messages)
        assert alive(mark) == []


async def until_runs(host: Host, name: str) -> None:
    async for event in host.session.events():
        if event.type == "tool/start" and event.name == name:
            return


async def test_the_user_stops_a_task_politely_and_nothing_of_it_is_left(tmp_path, mark, log, up):
    async with hosted(tmp_path, log) as host:
        task = await host.begin("trap 'echo bye; exit 0' TERM; sleep 600 & setsid sleep 600 & echo >up; wait")
        await up.passed()
        receipt = host.session.stop_task(task)
        assert receipt.answer is Answer.APPLIED
        await receipt.settled()
        assert alive(mark) == []
        end = await host.end_of(task)
        assert end.status == "stopped"
        assert "was stopped by the user" in end.text
        assert "bye\n" in (await host.call("task_output", task=task)).text


async def test_the_model_stops_a_task_and_is_told_what_became_of_it(tmp_path, mark, log, up):
    async with hosted(tmp_path, log, grace_seconds=0.05) as host:
        task = await host.begin("trap '' TERM; echo working; echo >up; while :; do sleep 600; done")
        await up.passed()
        result = await host.call("task_stop", task=task)
        assert result.text.startswith(f"[Task {task} was stopped by a tool call after ")
        assert (result.status, result.is_error) == ("ok", False)
        assert alive(mark) == []
        output = (await host.call("task_output", task=task)).text
        assert output.startswith(f"[Task {task} was stopped by a tool call after ")
        assert "working\n" in output
        assert "[Killed by SIGKILL: pid " in output
        again = await host.call("task_stop", task=task)
        assert again.text.startswith(f"Task {task} does not run. Nothing was stopped.\n[Task {task} was stopped")
        assert again.is_error


async def test_a_stop_that_is_cancelled_while_it_waits_stops_all_the_same(tmp_path, mark, up, gate):
    async with hosted(tmp_path, grace_seconds=3600.0) as host:
        task = await host.begin("trap 'echo >up; read x <gate; exit' TERM; echo >up; while :; do sleep 0.01; done")
        await up.passed()
        host.ask_for("task_stop", task=task)
        await host.session.send("stop it")
        await up.passed()
        await host.session.cancel().settled()
        assert alive(mark)
        gate.open()
        assert (await host.end_of(task)).status == "stopped"
        assert alive(mark) == []


@pytest.mark.parametrize("name", ["task_output", "task_stop"])
async def test_a_task_that_never_was_is_told_as_such(tmp_path, name):
    async with hosted(tmp_path) as host:
        result = await host.call(name, task="k999")
        assert result.is_error
        assert "There is no task 'k999'" in result.text
        assert (await host.call("task_list")).text == "There are no tasks."


async def test_output_is_shown_while_it_runs_and_all_of_it_with_the_exit_code_after(tmp_path, log, gate):
    async with hosted(tmp_path, log) as host:
        task = await host.begin("echo one; echo two >&2; read x <gate; printf three; exit 7")
        output = await host.output_with(task, "two\n")
        assert output.startswith(f"[Task {task} runs since 2")
        assert "one\n" in output
        gate.open()
        await host.end_of(task)
        output = (await host.call("task_output", task=task)).text
        assert output.startswith(f"[Task {task} failed after ")
        assert output.endswith("three\n[Exit code 7]")


async def test_a_command_that_prints_nothing_is_told_as_such(tmp_path, log, gate):
    async with hosted(tmp_path, log) as host:
        task = await host.begin("read x <gate")
        assert (await host.call("task_output", task=task)).text.endswith("\n(no output so far)")
        gate.open()
        assert (await host.end_of(task)).text.endswith("bash: read x <gate\n(no output)")


async def test_a_notice_has_the_last_lines_and_the_output_has_the_rest(tmp_path, log):
    async with hosted(tmp_path, log) as host:
        task = await host.begin("echo first; seq 100000 102000; echo last")
        end = await host.end_of(task)
        assert len(end.text) < LAST_BYTES + 200
        assert "[Only the end of its output; task_output shows more]\n10" in end.text
        assert end.text.endswith("102000\nlast\n".strip())
        output = (await host.call("task_output", task=task)).text
        assert "\nfirst\n100000\n" in output
        assert output.endswith("\nlast\n")


async def test_leaving_the_session_ends_its_tasks_and_says_so(tmp_path, mark, log, up):
    async with hosted(tmp_path, log, grace_seconds=3600.0) as host:
        task = await host.begin("trap '' TERM; (setsid sleep 600 &); echo >up; while :; do sleep 600; done")
        await up.passed()
        assert len(alive(mark)) >= 2
    assert alive(mark) == []
    ends = [event for event in host.events() if isinstance(event, TaskEnded)]
    assert [(end.task, end.status) for end in ends] == [(task, "stopped")]
    assert "was stopped by the shutdown of this session" in ends[0].text


async def test_a_timeout_holds_for_a_task_too(tmp_path, mark, mock_clock):
    mock_clock.rate = 1.0
    async with hosted(tmp_path, guard=7200.0) as host:
        task = await host.begin("echo CRITICAL; exec sleep 600", timeout_seconds=3600)
        await host.output_with(task, "CRITICAL\n")
        mock_clock.jump(3600)
        end = await host.end_of(task)
        assert end.status == "error"
        assert "CRITICAL\n[Timed out after 36" in end.text
        assert alive(mark) == []
