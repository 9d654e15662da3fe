"""The tool bash: what the model is told of a command."""

import sys

import pytest
import trio
import trio.testing

import turnkernel_tools
from turnkernel.tool import Tool, ToolOutput
from turnkernel_tools import bash_tool, standard_tools

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="what is left alive is counted in /proc; a Linux machine would run it"
)


@pytest.fixture
def bash(tmp_path) -> Tool:
    return bash_tool(tmp_path, grace_seconds=5.0)


async def test_output_and_error_output_come_back(ctx, bash):
    output = await bash.run(ctx, {"command": "echo one; echo two >&2"})
    assert sorted(output.text.splitlines()) == ["one", "two"]
    assert (output.is_error, output.status) == (False, None)
    assert sorted(ctx.said) == [("one\n", "stdout"), ("two\n", "stderr")]


async def test_a_command_starts_in_the_root(ctx, bash, tmp_path):
    assert (await bash.run(ctx, {"command": "pwd -P"})).text == f"{tmp_path.resolve()}\n"


async def test_a_command_that_says_nothing_is_told_as_such(ctx, bash):
    assert await bash.run(ctx, {"command": "true"}) == ToolOutput("(no output)")


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("printf x; exit 3", "x\n[Exit code 3]"),
        ("grep none /dev/null", "[Exit code 1]"),
        ("kill -9 $$", "[The command was killed by SIGKILL (137)]"),
        ("bash -c 'kill -9 $$'; exit $?", "killed by SIGKILL (137)"),
        ("kill -SEGV $$", "[The command was killed by SIGSEGV (139)]"),
        ("exit 128", "[Exit code 128]"),
        ("exit 250", "[Exit code 250]"),
    ],
)
async def test_a_command_that_fails_is_an_error_that_says_how(ctx, bash, command, told):
    output = await bash.run(ctx, {"command": command})
    assert output.is_error
    assert output.text.endswith(told) or told in output.text.splitlines()[-1]
    assert output.status is None


async def run_into_timeout(ctx, bash: Tool, clock: trio.testing.MockClock, command: str) -> ToolOutput:
    """Run a command, and let an hour pass when it has said that it is ready."""
    outputs: list[ToolOutput] = []

    async def body() -> None:
        outputs.append(await bash.run(ctx, {"command": command, "timeout_seconds": 3600}))

    clock.rate = 1.0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(body)
        await ctx.saw("ready\n")
        clock.jump(3600)
    return outputs[0]


async def test_a_timeout_is_told_as_one_with_what_was_printed(ctx, bash, mock_clock):
    output = await run_into_timeout(ctx, bash, mock_clock, "echo CRITICAL; echo ready; exec sleep 600")
    assert output.text.startswith("CRITICAL\nready\n[Timed out after 36")
    assert (output.is_error, output.status) == (True, "timed_out")
    assert ctx.alive() == []


async def test_a_command_that_exits_well_at_its_timeout_has_timed_out_all_the_same(ctx, bash, mock_clock):
    command = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done"
    output = await run_into_timeout(ctx, bash, mock_clock, command)
    assert (output.is_error, output.status) == (True, "timed_out")


async def test_what_ran_on_in_the_background_is_ended_and_told(ctx, bash):
    output = await bash.run(ctx, {"command": "sleep 600 & echo hi"})
    first, note = output.text.splitlines()
    assert (first, output.is_error) == ("hi", False)
    assert note.startswith("[Left running by the command and ended with it: pid ")
    assert "sleep 600" in note
    assert ctx.alive() == []


async def test_a_cancel_passes_with_the_output_in_the_log(ctx, bash):
    async with trio.open_nursery() as nursery:

        async def body() -> None:
            with ctx.cut:
                await bash.run(ctx, {"command": "echo line 1; sleep 600 | cat"})

        nursery.start_soon(body)
        await ctx.saw("line 1\n")
        ctx.cancel()
    assert ctx.cut.cancelled_caught
    assert ctx.alive() == []


async def test_a_flood_is_kept_in_bounded_memory_with_head_and_tail(ctx, bash):
    output = await bash.run(ctx, {"command": "echo first; yes | head -c 5000000; echo last"})
    assert len(output.text.encode()) <= 32 * 1024
    assert output.text.startswith("first\n")
    assert output.text.endswith("last\n")
    assert "left out" in output.text


@pytest.mark.parametrize(
    "input",
    [
        {},
        {"command": 1},
        {"command": "touch marker", "timeout_seconds": 0},
        {"command": "touch marker", "timeout_seconds": "1"},
        {"command": "touch marker", "timeout_seconds": -1, "background": True},
        {"command": "touch marker", "background": "yes"},
        {"command": "touch marker", "cwd": "/"},
        {"command": "touch marker \0"},
        {"command": "touch marker \ud800"},
        {"command": "touch marker #" + "x" * 3_000_000},
    ],
)
async def test_a_bad_input_runs_nothing(ctx, bash, tmp_path, input):
    assert (await bash.run(ctx, input)).is_error
    assert list(tmp_path.iterdir()) == []
    assert ctx.held == []


async def test_keys_named_by_the_host_are_hidden_too(ctx, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_SECRET", "sk-secret")
    tool = bash_tool(tmp_path, hidden=["MY_SECRET"])
    assert "sk-secret" not in (await tool.run(ctx, {"command": "env"})).text


def test_the_standard_tools_are_those_of_the_scenarios(tmp_path):
    tools = {tool.name: tool for tool in standard_tools(tmp_path)}
    assert {name: list(tool.schema["properties"]) for name, tool in tools.items()} == {
        "bash": ["command", "timeout_seconds", "background"],
        "read_file": ["path"],
        "write_file": ["path", "content"],
        "edit_file": ["path", "old", "new"],
        "ask_user": ["question", "options"],
        "task_list": [],
        "task_output": ["task"],
        "task_stop": ["task"],
    }
    assert {name: (tool.effect, tool.concurrency) for name, tool in tools.items()} == {
        "bash": ("effect", "exclusive"),
        "read_file": ("read_only", "shared"),
        "write_file": ("effect", "exclusive"),
        "edit_file": ("effect", "exclusive"),
        "ask_user": ("read_only", "shared"),
        "task_list": ("read_only", "shared"),
        "task_output": ("read_only", "shared"),
        "task_stop": ("idempotent", "exclusive"),
    }
    assert all(isinstance(tool, Tool) and tool.description for tool in tools.values())


def test_the_public_page_is_complete():
    for name in turnkernel_tools.__all__:
        assert getattr(turnkernel_tools, name) is not None
    imported = {
        name
        for name, value in vars(turnkernel_tools).items()
        if getattr(value, "__module__", "").startswith("turnkernel_tools") and not name.startswith("_")
    }
    assert imported | {"Tier"} == set(turnkernel_tools.__all__)  # a type alias does not tell where it is from
