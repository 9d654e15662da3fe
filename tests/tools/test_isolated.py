"""Functions in processes of their own: what they return, raise, print, and how they are ended."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from tests.tools import functions_in_processes as functions

from turnkernel.causes import Urgency
from turnkernel.events import ToolResult
from turnkernel.session import open_session
from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel.testing.scripted import ScriptedProvider
from turnkernel.tool import Tool, ToolContext, ToolOutput
from turnkernel_tools import isolated, probe, supervision, tool
from turnkernel_tools.isolated import FunctionFailedError

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="what is left alive is counted in /proc; a Linux machine would run it"
)

# A guard against hanging only; no test depends on how long anything takes.
GUARD = 30.0


async def call(one: Tool, ctx: Any, **input: Any) -> ToolOutput:
    with trio.fail_after(GUARD):
        return await one.run(ctx, input)


# ------------------------------------------------------------------------------------------------- by itself


async def test_it_is_a_tool_like_any_other(ctx):
    assert isinstance(functions.add, Tool)
    assert (functions.add.name, functions.add.description, functions.add.timeout) == ("add", "Adds.", 60.0)
    assert functions.add.schema["required"] == ["left"]
    assert await call(functions.add, ctx, left=1) == ToolOutput("3")
    assert await call(functions.plain_tool, ctx, left=4) == ToolOutput("4")
    assert (functions.plain_tool.name, ctx.alive(), ctx.held) == ("other", [], [])


async def test_inputs_are_of_the_types_that_its_annotations_say(ctx):
    output = await call(functions.types, ctx, pair={"left": 1, "right": "red"}, words=["ä", "z"])
    assert output.text == '{"pair":"Pair(left=1, right=<Color.RED: \'red\'>)","words":["ä","z"]}'


async def test_a_bad_input_starts_nothing(ctx, monkeypatch):
    monkeypatch.setattr(isolated, "run_process", None)
    output = await call(functions.add, ctx, left="one")
    assert output.is_error
    assert "left" in output.text


async def test_what_it_prints_is_the_output_of_the_call_and_it_has_no_input(ctx):
    output = await call(functions.speaks, ctx)
    pid, given = output.text.split()
    assert int(pid) != os.getpid()
    assert given == "''"
    streams = {name: "".join(text for text, stream in ctx.said if stream == name) for name in ("stdout", "stderr")}
    assert streams == {"stdout": "out\n", "stderr": "err\n"}


async def test_it_may_make_its_own_result(ctx):
    assert await call(functions.own_output, ctx) == ToolOutput("not so good", is_error=True)


async def test_it_has_none_of_our_keys(ctx, monkeypatch, tmp_path):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    (tmp_path / "looks.py").write_text("import os\ndef look() -> str: return repr(dict(os.environ))\n")
    monkeypatch.syspath_prepend(tmp_path)
    import looks

    output = await call(tool(isolation="process")(looks.look), ctx)
    assert "sk-secret" not in output.text
    assert "TURNKERNEL_CALL" in output.text


async def test_a_thread_that_it_leaves_ends_with_it(ctx):
    assert (await call(functions.leaves_a_thread, ctx)).text == "returned"
    assert ctx.alive() == []


# ----------------------------------------------------------------------------------------------- its failures


async def test_what_it_raises_is_raised_here_by_its_name(ctx):
    with pytest.raises(FunctionFailedError, match=r"^no such thing$") as caught:
        await call(functions.raises, ctx, text="no such thing")
    assert type(caught.value).__name__ == "FileNotFoundError"


async def test_a_result_that_can_not_be_said_is_a_failure(ctx):
    with pytest.raises(FunctionFailedError) as caught:
        await call(functions.unsayable, ctx)
    assert type(caught.value).__name__ in ("TypeError", "JSONEncodeError")


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("exit", "ended with exit code 7"),
        ("sys.exit", "ended with exit code 3"),
        ("segfault", "was killed by SIGSEGV"),
        ("kill", "was killed by SIGKILL"),
    ],
)
async def test_the_death_of_its_process_is_told(ctx, how, told):
    with pytest.raises(FunctionFailedError, match=f"its process {told} before it had returned"):
        await call(functions.leaves, ctx, how=how)
    assert ctx.output.startswith("last words\n")
    assert ctx.alive() == []


@pytest.mark.skipif(supervision.missing() is not None, reason="only where there are keepers")
async def test_one_that_kills_its_keeper_is_stopped(ctx):
    output = await call(functions.kills_its_keeper, ctx)
    assert (output.is_error, output.status) == (True, "stopped")
    assert "its keeper was killed" in output.text


async def test_a_python_that_can_not_be_started_is_told(ctx, monkeypatch):
    monkeypatch.setattr(isolated.sys, "executable", "/no/such/python")
    with pytest.raises(FunctionFailedError, match="could not be started"):
        await call(functions.add, ctx, left=1)


async def test_the_model_is_told_of_an_exception_as_of_any_other():
    provider = ScriptedProvider(
        [Reply(calls=[ReplyCall("call_1", "raises", {"text": "no such thing"})]), Reply(text="I see.")]
    )
    with trio.fail_after(GUARD):
        async with open_session(None, provider=provider, tools=[functions.raises]) as session:
            await session.send("go")
            async for event in session.events():
                if isinstance(event, ToolResult):
                    break
    assert event.status == "error"
    assert "FileNotFoundError: no such thing" in event.text


# --------------------------------------------------------------------------------------------- told to end


@pytest.mark.law("R1")
@pytest.mark.parametrize("urgency", [Urgency.POLITE, Urgency.NOW])
@pytest.mark.parametrize("tier", ["tree", "namespace", "group"])
async def test_a_cancel_ends_it_with_all_that_it_started(ctx, tier, urgency):
    if tier == "namespace" and (why := probe.missing_for_namespace()):
        pytest.skip(f"{why}; a machine that lets this user make one would run it")
    one = attrs.evolve(functions.blocks, tier=tier)
    returned = False

    async def body() -> None:
        nonlocal returned
        with ctx.cut:
            await call(one, ctx, deaf=urgency is Urgency.NOW)
            returned = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(body)
        await ctx.saw("ready\n")
        assert len(ctx.alive()) == 2
        ctx.cancel(urgency)
    assert not returned
    assert (ctx.alive(), ctx.survivors, ctx.held) == ([], [], [])


# ------------------------------------------------------------------------------------------------- what can be


def in_a_closure():
    def inside() -> None:
        """Made anew each time."""

    return inside


async def waits() -> None:
    """Async."""


def with_context(ctx: ToolContext) -> None:
    """Takes the context."""


class Holder:
    def method(self: int) -> None:
        """Not at the top."""


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (in_a_closure(), "made while the program runs"),
        (lambda: None, "made while the program runs"),
        (waits, "is async"),
        (with_context, "takes a ToolContext"),
        (Holder.method, "not at the top of its module"),
        (str.upper, "only run a function of a module"),
    ],
)
def test_what_a_process_can_not_run_is_refused_at_once(function, why):
    with pytest.raises(TypeError, match=why):
        tool(isolation="process", name="one")(function)


def test_another_isolation_is_refused():
    with pytest.raises(ValueError, match=r"isolation must be one of process, not 'proces'"):
        tool(isolation="proces")(functions.plain)


SCRIPT = """
import sys
from pathlib import Path
import trio
from turnkernel_tools import tool
from tests.tools.conftest import FakeContext

def double(number: int) -> int:
    "Doubles."
    return 2 * number

if __name__ == "__main__":
    try:
        made = tool(isolation="process")(double)
    except TypeError as error:
        print(error)
    else:
        print(trio.run(made.run, FakeContext(), {"number": 21}).text)
"""


@pytest.mark.parametrize("how", ["script", "module", "command"])
def test_a_function_of_a_program_runs_where_the_program_can_be_imported_again(tmp_path, how):
    (tmp_path / "program.py").write_text(SCRIPT)
    arguments = {"script": ["program.py"], "module": ["-m", "program"], "command": ["-c", SCRIPT]}[how]
    root = Path(__file__).parents[2]
    path = os.pathsep.join(str(root / name) for name in ("kernel", "tools", "."))
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=GUARD,
    )
    wanted = (
        "double is in a __main__ that is no file: another process can't import it" if how == "command" else "42"
    )
    assert done.stdout.strip() == wanted, done.stderr
