"""The one place that starts processes: how they end, by themselves and when they are told to."""

import os
import re
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trio
import trio.testing

from turnkernel.causes import Urgency
from turnkernel_tools import family, group, hold, process
from turnkernel_tools.group import Grouped
from turnkernel_tools.process import NotStartedError, ProcessEnd, run_process
from turnkernel_tools.tree import Kept

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="what is left alive is counted in /proc; a Linux machine would run it"
)

# A guard against hanging only; no test depends on how long anything takes.
GUARD = 20.0

only_group = pytest.mark.parametrize("tier", ["group"], indirect=True)


@pytest.fixture(params=["tree", "group"], autouse=True)
def tier(request, monkeypatch) -> str:
    """The containment that is wanted by all who don't say which."""
    monkeypatch.setitem(run_process.__kwdefaults__, "tier", request.param)
    return request.param


IGNORING = "trap '' TERM; echo ready; while :; do sleep 60; done"
DAEMON = f"""{sys.executable} -c 'import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("ready", flush=True); time.sleep(600)
    os._exit(0)
os.wait()'"""


async def run(ctx, command: str, **options) -> ProcessEnd:
    """Run a command of bash to its end, its output told to the context."""
    options = {"grace_seconds": 5.0, "cwd": Path.cwd()} | options
    with trio.fail_after(GUARD):
        return await run_process(["bash", "-c", command], ctx=ctx, on_output=ctx.emit, **options)


async def cut(ctx, command: str, *, after: str = "ready\n", urgency: Urgency = Urgency.POLITE, **options) -> None:
    """Run a command, and cancel it when it has said something."""
    returned = False

    async def body() -> None:
        nonlocal returned
        with ctx.cut:
            await run(ctx, command, **options)
            returned = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(body)
        await ctx.saw(after)
        ctx.cancel(urgency)
    assert not returned
    assert not ctx.held


def in_session(session: str) -> list[str]:
    """The pids of what is alive in a session."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if fields[3] == session and fields[0] not in "ZX":
                found.append(entry.name)
    return found


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


# ------------------------------------------------------------------------------------- by itself


async def test_a_process_tells_its_exit_code_and_both_streams(ctx):
    end = await run(ctx, "echo out; echo err >&2; exit 3")
    assert (end.exit_code, end.signal, end.timed_out, end.drained) == (3, None, False, True)
    assert sorted(ctx.said) == [("err\n", "stderr"), ("out\n", "stdout")]
    assert (ctx.alive(), ctx.held, ctx.survivors) == ([], [], [])


async def test_a_process_that_a_signal_killed_is_not_taken_for_a_success(ctx):
    end = await run(ctx, "kill -9 $$")
    assert (end.exit_code, end.signal) == (137, "SIGKILL")


async def test_a_program_that_is_not_there_is_told_and_leaves_no_descriptor(ctx):
    before = open_files()
    for argv, cwd in (["no-such-program"], Path.cwd()), (["true"], Path("/nowhere")), (["a\0b"], Path.cwd()):
        with pytest.raises(NotStartedError):
            await run_process(argv, ctx=ctx, cwd=cwd, on_output=ctx.emit)
    assert open_files() == before


@pytest.mark.parametrize(
    "command",
    [
        "echo ok; sleep 600 &",
        "sleep 600 </dev/null >/dev/null & echo ok",
        "sleep 600 </dev/null >/dev/null 2>&1 & echo ok",
        "(sleep 600 &) ; echo ok",
        "setsid sleep 600 & echo ok",
        "set -m; sleep 600 & echo ok",
        f"{DAEMON}; echo ok",
    ],
)
async def test_a_background_child_neither_holds_the_call_nor_outlives_it(ctx, command):
    end = await run(ctx, command)
    assert end.exit_code == 0
    assert "ok\n" in ctx.output
    assert ctx.alive() == []
    assert len(end.ended_too) == 1
    assert re.match(r"pid \d+ \S", end.ended_too[0])
    assert end.drained


async def test_the_last_bytes_before_the_exit_are_never_lost(new_ctx, monkeypatch):
    monkeypatch.setattr(process, "DRAIN_SECONDS", 0.0)  # not a moment for what others may still write
    for number in range(100):
        one = new_ctx()
        await run(one, f"sleep 600 & head -c 60000 /dev/zero | tr '\\0' x; echo end {number}")
        assert one.output == "x" * 60000 + f"end {number}\n"


async def test_a_character_cut_over_two_reads_is_put_together(ctx):
    # The second half is written only when the first has been read: the pipe is asked how much it holds.
    await run(
        ctx,
        f"""{sys.executable} -c '
import array, fcntl, os, termios
def write_and_wait(fd, data):
    os.write(fd, data)
    held = array.array("i", [1])
    while held[0]:
        fcntl.ioctl(fd, termios.FIONREAD, held)
write_and_wait(1, b"x \\xe2")
write_and_wait(2, b"\\xc3")
write_and_wait(1, b"\\x80\\x94 y")
os.write(2, b"\\xa4")'""",
    )
    streams = {name: "".join(text for text, stream in ctx.said if stream == name) for name in ("stdout", "stderr")}
    assert streams == {"stdout": "x — y", "stderr": "ä"}
    assert "�" not in ctx.output


async def test_a_character_that_never_got_whole_is_shown_as_such(ctx):
    await run(ctx, r"printf 'x \xe2'; kill -9 $$")
    assert ctx.output == "x �"


async def test_a_command_has_no_input_no_terminal_and_none_of_our_keys(ctx, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    monkeypatch.setenv("MY_KEY", "sk-secret")
    end = await run(ctx, "cat; cat /dev/tty; env", hidden={"MY_KEY"})
    assert end.exit_code == 0
    assert "/dev/tty: No such device" in ctx.output
    assert "sk-secret" not in ctx.output
    assert f"TURNKERNEL_CALL={ctx.call_id}." in ctx.output


async def test_a_call_inside_a_call_bears_both_marks(ctx, monkeypatch):
    monkeypatch.setenv("TURNKERNEL_CALL", "outer.1")
    await run(ctx, "echo $TURNKERNEL_CALL")
    assert ctx.output.startswith(f"outer.1 {ctx.call_id}.")


async def test_a_call_id_of_any_kind_is_no_trouble(new_ctx):
    ctx = new_ctx()
    ctx.call_id = "\0 \ud800=\n" + "x" * 1000
    end = await run(ctx, "echo ok")
    assert (end.exit_code, ctx.output) == (0, "ok\n")


async def test_three_hundred_processes_leave_no_descriptor_open(new_ctx):
    before = open_files()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(128, hard), hard))
    try:
        for _ in range(300):
            assert (await run(new_ctx(), "exit 0")).exit_code == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert open_files() == before


async def test_a_flood_lets_others_run(ctx):
    run_between = 0
    longest = in_a_row = 0

    async def other() -> None:
        nonlocal run_between, in_a_row
        while True:
            await trio.lowlevel.checkpoint()
            run_between += 1
            in_a_row = 0

    def show(text: str, stream: str) -> None:
        nonlocal longest, in_a_row
        assert len(text) <= 65536
        in_a_row += 1
        longest = max(longest, in_a_row)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        end = await run_process(
            ["bash", "-c", "yes | head -c 20000000; yes | head -c 20000000 >&2"],
            ctx=ctx,
            cwd=Path.cwd(),
            on_output=show,
        )
        nursery.cancel_scope.cancel()
    assert end.exit_code == 0
    assert run_between > 100
    assert longest <= 4  # two streams, at most one read each between two turns of the other task


# ------------------------------------------------------------------------------------- told to end


@pytest.mark.parametrize(
    "command",
    [
        "echo ready; sleep 600 | cat",
        "echo ready; sleep 600 & sleep 600 & wait",
        f"{DAEMON} & sleep 600",
        "setsid bash -c 'echo ready; sleep 600; :' & sleep 600",
        "set -m; sleep 600 & echo ready; wait",
    ],
)
async def test_nothing_of_a_cancelled_call_is_alive(ctx, command):
    await cut(ctx, command)
    assert ctx.alive() == []
    assert ctx.survivors == []
    assert "ready\n" in ctx.output
    assert "Killed" not in ctx.output  # SIGTERM was enough


async def test_a_process_without_the_mark_in_a_session_of_its_own_is_found_by_its_parent(ctx):
    await cut(ctx, "env -i setsid bash -c 'echo pid $$; echo ready; sleep 600; :' & wait")
    (pid,) = re.findall(r"pid (\d+)", ctx.output)
    assert in_session(pid) == []


async def test_what_is_born_in_the_grace_is_told_to_end_too(ctx):
    # Not bash: between its fork and the exec a SIGTERM to its child would be lost.
    await cut(
        ctx,
        f"""exec {sys.executable} -c '
import os, signal, time
def spawn(*_):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if os.fork() == 0:
        os.setsid()
        time.sleep(600)
    os._exit(0)
signal.signal(signal.SIGTERM, spawn)
print("ready", flush=True)
time.sleep(600)'""",
    )
    assert ctx.alive() == []
    assert "Killed" not in ctx.output


async def test_what_was_written_before_the_kill_is_read_although_there_is_no_time(ctx, tmp_path):
    def show(text: str, stream: str) -> None:
        ctx.emit(text, stream)
        if "ready" in text:
            ctx.cancel(Urgency.NOW)
            (tmp_path / "go").touch()
            while not (tmp_path / "written").exists():
                pass

    command = "echo ready; while [ ! -e go ]; do :; done; echo more; touch written; exec sleep 600"
    with ctx.cut, trio.fail_after(GUARD):
        await run_process(["bash", "-c", command], ctx=ctx, cwd=tmp_path, on_output=show)
    assert ctx.cut.cancelled_caught
    assert "ready\nmore\n" in ctx.output


async def test_a_process_that_was_stopped_ends_politely_too(ctx):
    await cut(
        ctx,
        "trap 'echo bye; exit 0' TERM;"
        "(while ! grep -q ') T ' /proc/$$/stat; do :; done; echo ready) & kill -STOP $$",
    )
    assert "bye\n" in ctx.output
    assert ctx.alive() == []


async def test_what_a_process_says_when_it_is_told_to_end_is_kept(ctx):
    await cut(
        ctx,
        "trap 'head -c 300000 /dev/zero |"
        'tr "\\0" x; echo bye; exit\' TERM; echo ready; while :; do sleep 0.1; done',
    )
    assert ctx.output.endswith("x" * 1000 + "bye\n")
    assert ctx.output.count("x") == 300000


async def test_a_process_that_ignores_sigterm_is_killed_after_the_grace(ctx):
    await cut(ctx, IGNORING, grace_seconds=0.05)
    assert ctx.alive() == []
    assert "Killed by SIGKILL" in ctx.output
    assert ctx.said[-1][1] == "note"


async def test_the_grace_ends_when_the_call_is_to_end_now(ctx):
    async def body() -> None:
        with ctx.cut:
            await run(ctx, IGNORING, grace_seconds=3600.0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(body)
        await ctx.saw("ready\n")
        ctx.cancel()
        await ctx.until(lambda: bool(ctx.sections))
        ctx.cancel(Urgency.NOW)
    assert ctx.alive() == []
    assert "Killed by SIGKILL" in ctx.output
    assert ctx.survivors == []


async def test_a_call_that_is_to_end_now_is_confirmed_all_the_same(ctx):
    await cut(ctx, f"{DAEMON} & {IGNORING}", urgency=Urgency.NOW, grace_seconds=3600.0)
    assert ctx.alive() == []
    assert ctx.survivors == []


async def test_a_cancel_while_the_output_is_drained_is_obeyed(ctx, monkeypatch):
    monkeypatch.setattr(process, "DRAIN_SECONDS", 3600.0)
    exit_seen = trio.Event()

    def telling(exited):
        async def wrapper(self) -> None:
            await exited(self)
            exit_seen.set()

        return wrapper

    for holds in Kept, Grouped:
        monkeypatch.setattr(holds, "exited", telling(holds.exited))

    async def body() -> None:
        with ctx.cut:
            await run(ctx, "sleep 600 & exit 0")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(body)
        await exit_seen.wait()
        await trio.testing.wait_all_tasks_blocked()  # output is all that is waited for
        ctx.cancel()
    assert ctx.cut.cancelled_caught
    assert ctx.alive() == []


async def test_a_cancel_before_the_start_starts_nothing(ctx, tmp_path):
    with ctx.cut:
        ctx.cancel()
        await run(ctx, "touch marker", cwd=tmp_path)
    assert ctx.cut.cancelled_caught
    assert list(tmp_path.iterdir()) == []


@only_group
async def test_a_cancel_while_the_process_is_being_started_loses_no_process(ctx, monkeypatch):
    before = open_files()
    starting = trio.Event()
    cancelled = threading.Event()

    class SlowPopen(subprocess.Popen):
        def __init__(self, *args, **options) -> None:
            trio.from_thread.run_sync(starting.set)
            cancelled.wait()
            super().__init__(*args, **options)

    monkeypatch.setattr(group.subprocess, "Popen", SlowPopen)

    async def body() -> None:
        with ctx.cut:
            await run(ctx, "sleep 600")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(body)
        await starting.wait()
        ctx.cancel()
        cancelled.set()
    assert ctx.cut.cancelled_caught
    assert ctx.alive() == []
    assert open_files() == before


async def test_a_family_that_forks_for_ever_is_ended(ctx):
    # A child forks the next one and leaves, each in a session of its own.
    await cut(
        ctx,
        f"""{sys.executable} -c '
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
while True:
    if os.fork() == 0:
        os.setsid()
        time.sleep(0.01)
    else:
        os._exit(0)' & sleep 600""",
        grace_seconds=0.05,
    )
    assert ctx.alive() == []


async def test_a_timeout_keeps_what_was_said_and_is_no_cancel(ctx, mock_clock):
    mock_clock.rate = 1.0
    ends: list[ProcessEnd] = []

    async def body() -> None:
        command = "trap 'exit 0' TERM; echo CRITICAL; while :; do sleep 0.01; done"
        ends.append(
            await run_process(
                ["bash", "-c", command], ctx=ctx, cwd=Path.cwd(), on_output=ctx.emit, timeout_seconds=3600
            )
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(body)
        await ctx.saw("CRITICAL\n")
        mock_clock.jump(3600)
    assert ends[0].timed_out
    assert ends[0].seconds >= 3600
    assert ctx.output.startswith("CRITICAL\n")
    assert ctx.alive() == []


async def test_a_sink_that_fails_ends_the_process_first(ctx):
    class SinkError(Exception):
        pass

    def fail(text: str, stream: str) -> None:
        raise SinkError

    with pytest.raises(ExceptionGroup) as caught:
        await run_process(["bash", "-c", "echo ready; sleep 600"], ctx=ctx, cwd=Path.cwd(), on_output=fail)
    assert caught.group_contains(SinkError)
    assert ctx.alive() == []


@only_group
async def test_what_can_not_be_stopped_is_named(ctx, monkeypatch):
    monkeypatch.setattr(hold, "KILL_SECONDS", 0.05)
    monkeypatch.setattr(family.MarkedFamily, "send", lambda *_: None)
    with pytest.warns(ResourceWarning, match="still running"):
        await cut(ctx, "echo ready; exec sleep 600", grace_seconds=0.05)
        import gc

        gc.collect()
    (pid,) = ctx.alive()
    ((kind, name),) = ctx.survivors
    assert kind == "process"
    assert name.startswith(f"pid {pid} ")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)  # noqa: ASYNC222 - it is dead


@only_group
async def test_without_proc_and_pidfd_the_process_group_is_ended(ctx, new_ctx, monkeypatch):
    monkeypatch.setattr(group, "family_of", lambda leader, mark, reap: family.GroupFamily(leader, reap))
    monkeypatch.setattr(group, "_pidfd", lambda pid: None)
    end = await run(ctx, "echo ok; exit 4")
    assert (end.exit_code, ctx.output) == (4, "ok\n")
    # One process each time: without /proc an orphan that init has not reaped yet can't be told from a living one.
    deaf = "import signal; signal.signal(15, signal.SIG_IGN); print(1, flush=True); signal.pause()"
    for command, after in ("echo ready; exec sleep 600", "ready\n"), (f"exec {sys.executable} -c '{deaf}'", "1\n"):
        one = new_ctx()
        await cut(one, command, after=after, grace_seconds=0.05)
        assert one.alive() == []
        assert one.survivors == []


async def test_a_process_whose_main_thread_is_gone_counts_as_alive(ctx):
    await cut(
        ctx,
        f"""exec {sys.executable} -c '
import ctypes, os, threading, time
def later():
    while " Z " not in open("/proc/self/stat").read():
        pass
    os.write(1, b"ready\\n")
    time.sleep(600)
threading.Thread(target=later).start()
ctypes.CDLL(None).pthread_exit(None)'""",
    )
    assert ctx.alive() == []
