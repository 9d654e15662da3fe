"""MCP servers as resources of a session, with real server processes: the SDK's own, and rude ones."""

import json
import logging
import os
import pty
import subprocess
import sys
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import pytest
import trio

from turnkernel import Gate
from turnkernel.events import ToolOutput, ToolResult, TurnEnd
from turnkernel.session import open_session
from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel.testing.scripted import ScriptedProvider
from turnkernel_tools import NotStartedError
from turnkernel_tools.agent import agent_tools

pytest.importorskip("mcp", reason="the MCP SDK is not installed; pip install 'turnkernel[mcp]' would run it")

from turnkernel_tools import mcp_pipes
from turnkernel_tools.mcp import McpServerError, mcp_server

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="what is left alive is found in /proc; a Linux machine would run it"
)

HERE = Path(__file__).parent
# A guard against hanging only; no test depends on how long anything takes.
GUARD = 60.0


def server(folder, how, *, program="mcp_server_program.py", name="t", **options):
    return mcp_server(name, [sys.executable, str(HERE / program), str(folder), how], **options)


def rude(folder, how, **options):
    return server(folder, how, program="mcp_rude_program.py", **options)


def alive(folder):
    """The command lines of the servers that have this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in line and b"_program.py" in line:
                found.append(line)
    return found


async def no_longer(pid):
    """Wait until a process is gone."""
    with trio.fail_after(GUARD):
        while runs(pid):  # noqa: ASYNC110 - nobody tells of it
            await trio.sleep(0.002)


def runs(pid):
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def call(name, **input):
    return ReplyCall(f"call_{name}", f"t_{name}", input)


@asynccontextmanager
async def a_session(*replies, resources, **options):
    provider = ScriptedProvider([one if isinstance(one, Reply) else Reply(calls=one) for one in replies])
    with trio.fail_after(GUARD):
        async with open_session(None, provider=provider, resources=resources, **options) as session:
            yield session


async def until(session, kind):
    async for event in session.events():
        if isinstance(event, kind):
            return event
    raise AssertionError("the session ended without it")


def events(session, kind):
    found, journal = [], session._kernel.journal
    while some := journal.records_from(len(found) + 1):
        found += some
    return [record.event for record in found if isinstance(record.event, kind)]


def results(session):
    return {result.name.removeprefix("t_"): (result.status, result.text) for result in events(session, ToolResult)}


@pytest.fixture(autouse=True)
def nothing_left(tmp_path, caplog):
    """Nothing is left of a server, and the SDK has nothing to say to a person."""
    yield
    assert alive(tmp_path) == []
    assert [
        record.getMessage() for record in caplog.get_records("call") if record.levelno >= logging.WARNING
    ] == []


# -------------------------------------------------------------------------------------------------- calls


async def test_the_tools_of_a_server_are_the_sessions_and_a_calls_result_is_its_text(tmp_path, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    monkeypatch.setenv("OTHER_TOKEN", "secret")
    monkeypatch.setenv("TURNKERNEL_CALL", "outer.1")
    tested = server(tmp_path, "well", cwd=tmp_path, env={"LANG": "C.UTF-8", "OPENAI_API_KEY": "secret"})
    calls = [call("echo", text="zwölf"), call("fail"), call("picture"), call("flood", mebibytes=8), call("who")]
    async with a_session(calls, Reply(text="Good."), resources=[tested]) as session:
        tools = session._kernel.tools
        assert list(tools)[:2] == ["t_echo", "t_slow"]
        echo = tools["t_echo"]
        assert (echo.description, echo.effect, echo.concurrency) == ("Say it again.", "effect", "exclusive")
        assert echo.schema["properties"]["text"]["type"] == "string"
        assert tools["t_with_dots"].own_name == "with.dots"
        await session.send("go")
        await session.rest()
        said = results(session)
    who = json.loads(said.pop("who")[1])
    assert said == {
        "echo": ("ok", "zwölf"),
        "fail": ("error", "Error executing tool fail"),
        "picture": ("ok", "Here:\n[Image, image/png, 4 bytes: not shown]"),
        "flood": ("ok", "said"),
    }
    # A session of its own: no signal of the terminal that the kernel has is for it.
    assert who["session"] != os.getsid(0)
    assert who["cwd"] == str(tmp_path)
    assert "secret" not in who["env"].values()
    assert (who["env"]["LANG"], who["env"]["TURNKERNEL_CALL"].split()[0]) == ("C.UTF-8", "outer.1")
    await no_longer(who["child"])


@pytest.mark.law("R5")
async def test_a_cancelled_call_is_stopped_its_server_told_and_the_connection_goes_on(tmp_path):
    calls = [[call("slow")], [call("until_cancelled"), call("echo", text="on")], Reply(text="Good.")]
    async with a_session(*calls, resources=[server(tmp_path, "well")]) as session:
        await session.send("go")
        assert (await until(session, ToolOutput)).text == "waiting (1/3)\n"
        settled = await session.cancel().settled()
        assert settled.outcome == "aborted"
        await session.send("go on")
        await session.rest()
        said = results(session)
    status, text = said.pop("slow")
    assert status == "stopped"
    assert "waiting (1/3)" in text
    assert said == {"until_cancelled": ("ok", "it was cancelled"), "echo": ("ok", "on")}


async def test_a_call_that_takes_too_long_is_told_to_its_server(tmp_path):
    calls = [[call("hold"), call("echo", text="on")], Reply(text="Good.")]
    async with a_session(*calls, resources=[rude(tmp_path, "late", timeout=0.5)]) as session:
        await session.send("go")
        await session.rest()
        said = results(session)
        assert (said["hold"][0], said["echo"]) == ("timed_out", ("ok", "on"))
        assert (tmp_path / "told").exists()  # servers read in order


async def test_an_answer_that_comes_after_the_cancel_is_dropped(tmp_path, capfd):
    calls = [[call("hold")], [call("echo", text="on")], Reply(text="Good.")]
    async with a_session(*calls, resources=[rude(tmp_path, "late")]) as session:
        await session.send("go")
        await until(session, ToolOutput)
        await session.cancel().settled()
        await session.send("go on")
        await session.rest()
        (progress,) = events(session, ToolOutput)
        assert progress.text == "1\n"
        said = results(session)
        assert (said["hold"][0], said["echo"]) == ("stopped", ("ok", "on"))
        assert len(events(session, ToolResult)) == 2
    assert capfd.readouterr() == ("", "")


async def test_a_server_that_does_not_read_holds_up_no_cancel(tmp_path, monkeypatch):
    monkeypatch.setattr(mcp_pipes, "MOST_WAITING", 100_000)
    long = call("echo", text="x" * 90_000)  # more than a pipe takes (pipe(7))
    resources = [rude(tmp_path, "deaf", grace_seconds=0.1)]
    async with a_session([long], [long], Reply(text="I see."), resources=resources) as session:
        await session.send("go")
        (connection,) = {tool.call.__self__ for tool in session._kernel.tools.values()}
        while " 0 bytes wait" in repr(connection.input):  # noqa: ASYNC110 - nobody tells of it
            await trio.sleep(0.002)
        with trio.fail_after(4):  # the SDK would wait 5 seconds for room
            await session.cancel().settled()
        await session.send("and more")
        await session.rest()
        first, second = events(session, ToolResult)
        assert first.status == "stopped"
        assert (second.status, second.text) == (
            "error",
            "The MCP server t does not read what it is sent. The call was not made.",
        )


async def test_what_is_no_answer_is_an_error(tmp_path):
    async with a_session([call("echo")], Reply(text="Hm."), resources=[rude(tmp_path, "garbled")]) as session:
        await session.send("go")
        await session.rest()
        assert results(session)["echo"] == (
            "error",
            "The MCP server t answered with an error: the server's answer is not a JSON-RPC response (-32700)",
        )


async def test_what_is_said_of_progress_when_the_call_is_over_is_dropped(tmp_path):
    calls = [ReplyCall(f"call_{number}", "t_echo", {"text": "so far"}) for number in range(20)]
    async with a_session(calls, Reply(text="Good."), resources=[rude(tmp_path, "hasty")]) as session:
        await session.send("go")
        await session.rest()
        assert [result.text for result in events(session, ToolResult)] == ["so far"] * 20
        order = [event.call for event in events(session, ToolOutput | ToolResult)]
        assert order == sorted(order, key=lambda call: int(call.removeprefix("call_")))


async def test_what_is_no_message_is_passed_over(tmp_path):
    calls = [call("echo", text="still here")]
    async with a_session(calls, Reply(text="Good."), resources=[rude(tmp_path, "noisy")]) as session:
        await session.send("go")
        await session.rest()
        assert results(session)["echo"] == ("ok", "still here")


# --------------------------------------------------------------------------------- a server that ends


async def test_a_call_in_which_its_server_dies_says_so_and_so_do_later_ones(tmp_path):
    calls = [[call("die")], [call("echo", text="x")], Reply(text="I see.")]
    async with a_session(*calls, resources=[server(tmp_path, "well")]) as session:
        await session.send("go")
        await session.rest()
        assert results(session) == {
            "die": (
                "error",
                "The MCP server t ended in the call, which may have had effects: it ended with exit code 3.\n"
                "It said:\nI am dying",
            ),
            "echo": (
                "error",
                "The MCP server t is not running, nothing was done: it ended with exit code 3. It is not started "
                "again in this session.\nIt said:\nI am dying",
            ),
        }


async def test_a_server_that_asks_without_end_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(mcp_pipes, "MOST_UNREAD", 10)
    async with a_session([call("echo")], Reply(text="Hm."), resources=[rude(tmp_path, "chatty")]) as session:
        await session.send("go")
        await session.rest()
        status, text = results(session)["echo"]
        assert status == "error"
        assert "it was ended: it sent 10 messages that could not be read in time" in text


async def test_a_message_without_end_ends_its_server(tmp_path, monkeypatch):
    monkeypatch.setattr(mcp_pipes, "MOST_LINE", 10_000)
    calls = [call("echo", text="x" * 20_000)]
    async with a_session(calls, Reply(text="Hm."), resources=[rude(tmp_path, "well")]) as session:
        await session.send("go")
        await session.rest()
        assert "it was ended: it sent a message of more than 10000 characters" in results(session)["echo"][1]


# ---------------------------------------------------------------------------------------- coming up


@pytest.mark.parametrize(
    ("started", "why"),
    [
        (lambda folder: rude(folder, "silent", start_seconds=0.2), "it has not answered within 0.2 s"),
        (lambda folder: rude(folder, "old"), "Unsupported protocol version from the server: 1999-01-01"),
        (lambda folder: rude(folder, "endless"), "its list of tools has more than 100 pages"),
        (
            lambda folder: rude(folder, "broken"),
            "it ended with exit code 3\nIt said:\nno configuration found in /nowhere",
        ),
    ],
    ids=["silent", "old", "endless", "broken"],
)
async def test_a_server_that_does_not_come_up_is_told_and_nothing_is_left_of_it(tmp_path, started, why):
    with pytest.raises(McpServerError) as told:
        async with a_session(resources=[started(tmp_path)]):
            raise AssertionError("it came up")
    assert str(told.value) == f"MCP server 't' ({sys.executable}) did not come up: {why}"


async def test_a_program_that_can_not_be_started_is_told(tmp_path):
    with pytest.raises(McpServerError) as told:
        async with a_session(resources=[mcp_server("t", ["/nowhere/server", "--key", "secret"])]):
            raise AssertionError("it came up")
    missing = "[Errno 2] No such file or directory: '/nowhere/server'"
    assert (
        str(told.value) == f"MCP server 't' (/nowhere/server) did not come up: it could not be started: {missing}"
    )
    assert not isinstance(told.value, NotStartedError)


async def test_when_the_second_server_does_not_come_up_the_first_is_closed(tmp_path):
    first = rude(tmp_path, "well", grace_seconds=GUARD)
    second = mcp_server("u", ["/nowhere/server"])
    with pytest.raises(McpServerError, match="'u'"):
        async with a_session(resources=[first, second]):
            raise AssertionError("it came up")
    assert (tmp_path / "input ended").exists()
    assert alive(tmp_path) == []


async def test_a_cancel_while_a_server_comes_up_leaves_nothing(tmp_path):
    async with trio.open_nursery() as nursery:

        async def opens():
            async with a_session(resources=[rude(tmp_path, "silent", grace_seconds=GUARD)]):
                raise AssertionError("it came up")

        nursery.start_soon(opens)
        while not alive(tmp_path):  # noqa: ASYNC110 - nobody tells of it
            await trio.sleep(0.002)
        nursery.cancel_scope.cancel()
    assert alive(tmp_path) == []


def test_a_name_that_no_tool_can_begin_with_is_refused():
    for name in ("", "a b", "ä", "x" * 33):
        with pytest.raises(ValueError, match="the name of an MCP server"):
            mcp_server(name, ["server"])


# ------------------------------------------------------------------------------------------ leaving


@pytest.mark.law("R1")
@pytest.mark.parametrize("way", ["left", "host", "raised"])
async def test_a_server_ends_at_the_end_of_its_input_however_its_session_is_left(tmp_path, way):
    resources = [rude(tmp_path, "well", grace_seconds=GUARD)]
    with trio.CancelScope() as host, nullcontext() if way != "raised" else pytest.raises(KeyError):
        async with a_session(resources=resources):
            if way == "raised":
                raise KeyError
            if way == "host":
                host.cancel()
                await trio.sleep_forever()
    assert alive(tmp_path) == []
    assert (tmp_path / "input ended").exists()


@pytest.mark.law("R1")
@pytest.mark.parametrize("way", ["left", "host"])
async def test_a_server_that_will_not_end_is_killed(tmp_path, way):
    with trio.CancelScope() as host:
        async with a_session(resources=[rude(tmp_path, "stubborn", grace_seconds=0.5)]):
            assert alive(tmp_path)
            if way == "host":
                host.cancel()
                await trio.sleep_forever()
    assert alive(tmp_path) == []
    assert (tmp_path / "input ended").exists()


@pytest.mark.law("R1", "R8")
async def test_the_hosts_cancel_in_the_middle_of_a_call_leaves_no_server(tmp_path):
    resources = [rude(tmp_path, "stubborn", grace_seconds=0.5)]
    with trio.CancelScope() as host:
        async with a_session([call("hold")], resources=resources) as session:
            await session.send("go")
            await until(session, ToolOutput)
            host.cancel()
            await trio.sleep_forever()
    assert alive(tmp_path) == []
    assert (tmp_path / "told").exists()
    assert results(session)["hold"][0] == "stopped"
    assert [end.outcome for end in events(session, TurnEnd)] == ["aborted"]


async def test_children_share_a_connection_and_one_that_dies_first_does_not_harm_it(tmp_path):
    models = {
        "root": [
            Reply(
                calls=[ReplyCall("first", "agent", {"prompt": "a"}), ReplyCall("second", "agent", {"prompt": "b"})]
            ),
            Reply(calls=[call("echo", text="the root")]),
            Reply(text="Good."),
        ],
        "first": [Reply(calls=[call("slow")])],
        "second": [
            Reply(calls=[call("until_cancelled"), call("echo", text="the second")]),
            Reply(text="Both done."),
        ],
    }
    providers = {name: ScriptedProvider(replies) for name, replies in models.items()}
    agents = agent_tools(provider=providers.__getitem__, gate=Gate)
    async with open_session(
        None, provider=providers["root"], tools=agents, resources=[server(tmp_path, "well", grace_seconds=GUARD)]
    ) as session:
        await session.send("go")
        while "first" not in session.children:  # noqa: ASYNC110 - nobody tells of it
            await trio.sleep(0.002)
        await until(session.children["first"], ToolOutput)
        session.cancel_call("first")
        await session.rest()
        said = {result.call: (result.status, result.text) for result in events(session, ToolResult)}
        assert said["first"][0] == "stopped"
        assert said["second"] == ("ok", "Both done.")
        assert said["call_echo"] == ("ok", "the root")
        assert alive(tmp_path)
    assert (tmp_path / "left").exists()
    assert alive(tmp_path) == []


# ------------------------------------------------------------------------- a kernel that ends, a terminal


class Kernel:
    """A kernel in a process of its own, with a server."""

    def __init__(self, folder, how, **options) -> None:
        program = [
            sys.executable,
            str(HERE / "mcp_kernel_program.py"),
            str(folder),
            how,
            *options.pop("words", ()),
        ]
        self.process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True, **options)

    async def says(self):
        return (await trio.to_thread.run_sync(self.process.stdout.readline)).strip()

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.mark.law("R1")
async def test_a_server_dies_with_a_kernel_that_is_killed(tmp_path):
    kernel = Kernel(tmp_path, "stubborn")
    who = json.loads(await kernel.says())
    assert await kernel.says() == "waiting"
    kernel.end()
    await no_longer(who["pid"])
    await no_longer(who["child"])


async def test_a_terminals_interrupt_stops_the_call_and_not_the_server(tmp_path):
    controller, terminal = pty.openpty()
    kernel = Kernel(tmp_path, "well", words=["terminal"], stdin=terminal, start_new_session=True)
    try:
        before = json.loads(await kernel.says())
        assert await kernel.says() == "waiting"
        os.write(controller, b"\x03")
        assert (await kernel.says()).startswith("[Stopped] t_slow was stopped by the user")
        after = json.loads(await kernel.says())
        assert after["pid"] == before["pid"]
        assert await trio.to_thread.run_sync(kernel.process.wait) == 0
    finally:
        kernel.end()
        os.close(controller)
        os.close(terminal)


def test_where_there_is_no_sdk_it_is_said_what_to_install():
    program = "import sys; sys.modules['mcp'] = None; import turnkernel_tools.mcp"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "2.1.1 or later: pip install 'turnkernel[mcp]'" in ran.stderr


def test_only_who_asks_for_it_loads_the_sdk():
    program = "import sys, turnkernel_tools; print([name for name in ('mcp', 'anyio') if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
