"""Nothing that a call started outlives it, whatever it is and however call or kernel end (tiers with a keeper)."""

import json
import marshal
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
import trio.testing
from tests.tools.families import ALL, FAMILIES, KILL_KEEPER

from turnkernel.causes import Urgency
from turnkernel_tools import bash_tool, process, supervision, tree
from turnkernel_tools.containment import containment
from turnkernel_tools.keeping import supervisor as supervisor_program
from turnkernel_tools.probe import missing_for_namespace
from turnkernel_tools.process import NotStartedError, ProcessEnd, run_process

pytestmark = pytest.mark.skipif(
    supervision.missing() is not None, reason=f"{supervision.missing()}; Linux with a usual Python would run it"
)

# A guard against hanging only; no test depends on how long anything takes.
GUARD = 30.0
KERNEL = Path(__file__).with_name("kernel_process.py")

STOP_KEEPER = "grep -qx tk-keeper /proc/$PPID/comm && kill -STOP $PPID"
STOP_BOTH = (
    "read -r _ _ _ above _ </proc/$PPID/stat; grep -qx tk-keeper /proc/$PPID/comm && kill -STOP $above $PPID"
)


def of_all(families: Mapping[str, str]):
    return pytest.mark.parametrize("command", families.values(), ids=[name.replace(" ", "_") for name in families])


@pytest.fixture(params=["tree", "namespace"])
def tier(request, monkeypatch) -> str:
    """The containment that is wanted by all who don't say which."""
    if request.param == "namespace" and (why := missing_for_namespace()):
        pytest.skip(f"{why}; a machine that lets this user make one would run it")
    monkeypatch.setitem(run_process.__kwdefaults__, "tier", request.param)
    return request.param


@pytest.fixture(autouse=True)
def long_drain(monkeypatch) -> None:
    """A tool that has exited and left something is found draining, for as long as the test needs."""
    monkeypatch.setattr(process, "DRAIN_SECONDS", 3600.0)


@pytest.fixture
async def fresh(monkeypatch) -> AsyncIterator[None]:
    """As if there had been no call yet; the supervisor ends with the test."""
    monkeypatch.setattr(supervision, "_this", supervision._Process())
    yield
    supervision._leaving()


async def supervisor() -> supervision.Supervisor:
    running = await supervision.supervisor()
    assert running is not None
    return running


def read(path: str) -> bytes:
    return Path(path).read_bytes()


def has_ended(pid: str) -> bool:
    try:
        return b"\nState:\tZ" in read(f"/proc/{pid}/status")
    except FileNotFoundError:
        return True


async def children_of_the_supervisor() -> str:
    """Zombies too."""
    pid = (await supervisor()).pid
    return read(f"/proc/{pid}/task/{pid}/children").decode()


async def run(ctx, command: str, cwd: Path, *, guard: float = GUARD, **options) -> ProcessEnd:
    options = {"grace_seconds": 0.05, "on_output": ctx.emit, "ctx": ctx, "cwd": cwd} | options
    with trio.fail_after(guard):
        return await run_process(["bash", "-c", command], **options)


@asynccontextmanager
async def running(ctx, command: str, cwd: Path, **options):
    """A call that is cut; leaves when it is over."""

    async def body() -> None:
        with ctx.cut:
            try:
                await run(ctx, command, cwd, **options)
            finally:
                ctx.emit("over\n", "note")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(body)
        await ctx.saw("ready\n")
        yield


async def nothing_is_left(ctx) -> None:
    assert ctx.alive() == []
    assert ctx.survivors == []
    assert await children_of_the_supervisor() == ""


# ------------------------------------------------------------------------------------- every family, every ending

every_tier = pytest.mark.usefixtures("tier")


@every_tier
@pytest.mark.law("R1")
@of_all(ALL)
async def test_nothing_is_left_after_a_cancel(ctx, command, tmp_path):
    async with running(ctx, command, tmp_path):
        ctx.cancel()
    await nothing_is_left(ctx)


@every_tier
@pytest.mark.law("R1")
@of_all(ALL)
async def test_nothing_is_left_after_a_second_cancel_inside_the_grace(ctx, command, tmp_path):
    async with running(ctx, command, tmp_path, grace_seconds=3600.0):
        ctx.cancel()
        await ctx.until(lambda: bool(ctx.sections) or "over\n" in ctx.output)
        ctx.cancel(Urgency.NOW)
    await nothing_is_left(ctx)


@every_tier
@pytest.mark.law("R1")
@of_all(ALL)
async def test_nothing_is_left_after_a_cancel_that_is_urgent_at_once(ctx, command, tmp_path):
    async with running(ctx, command, tmp_path, grace_seconds=3600.0):
        ctx.cancel(Urgency.NOW)
    await nothing_is_left(ctx)


@every_tier
@pytest.mark.law("R1")
@of_all(FAMILIES)
async def test_nothing_is_left_after_a_timeout(ctx, command, tmp_path, mock_clock):
    mock_clock.rate = 1.0
    async with running(ctx, command, tmp_path, timeout_seconds=3600.0, guard=7200.0):
        mock_clock.jump(3600)
    await nothing_is_left(ctx)


@every_tier
@pytest.mark.law("R1")
@of_all(ALL)
async def test_nothing_is_left_after_the_command_has_exited(ctx, command, tmp_path, monkeypatch):
    monkeypatch.setattr(process, "DRAIN_SECONDS", 0.0)
    end = await run(ctx, f"({command}) & until [ -e r ]; do :; done; exit 0", tmp_path)
    assert end.ended_too or end.stopped
    await nothing_is_left(ctx)


@every_tier
async def test_what_is_said_through_another_process_after_the_command_has_exited_is_kept(ctx, tmp_path):
    late = "while kill -0 $$ 2>/dev/null; do :; done; sed 's/^/late /'"
    end = await run(ctx, f"exec > >({late}); echo words", tmp_path)
    assert (end.exit_code, ctx.output) == (0, "late words\n")
    await nothing_is_left(ctx)


@every_tier
async def test_what_is_said_through_another_process_at_a_cancel_is_kept(ctx, tmp_path):
    command = FAMILIES["one whose output passes through another"]
    async with running(ctx, command, tmp_path, grace_seconds=3600.0):
        ctx.cancel()
    assert "bye\n" in ctx.output


class Kernel:
    """A kernel in a process of its own; all that it starts bears a token."""

    def __init__(self) -> None:
        self.token = uuid.uuid4().hex
        self.seen: dict[int, bytes] = {}

    @asynccontextmanager
    async def started(self, how: str, command: str, cwd: Path, tier: str = "tree"):
        """Its process, when the command has said `ready`."""
        with trio.fail_after(GUARD):
            child = await trio.lowlevel.open_process(
                [sys.executable, str(KERNEL), how, command, tier],
                cwd=cwd,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "TURNKERNEL_TEST": self.token},
            )
            assert child.stdout is not None
            assert child.stderr is not None
            async with child.stdout, child.stderr:
                said = b""
                while b"ready" not in said:
                    piece = await child.stdout.receive_some()
                    assert piece, (said, await child.stderr.receive_some())
                    said += piece
                self.look()
                try:
                    yield child
                    await child.wait()
                finally:
                    child.kill()
                    await child.wait()

    def look(self) -> list[int]:
        """What of it is alive or has not been reaped by what it has started."""
        parents: dict[int, int] = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                stat = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
                environment = Path(f"/proc/{name}/environ").read_bytes()
            except OSError:
                continue
            pid, start = int(name), stat[19]
            if self.token.encode() in environment:
                self.seen[pid] = start
            if self.seen.get(pid) == start:
                parents[pid] = 0 if stat[0] != b"Z" else int(stat[1])
        # Zombies whose parent is gone are init's.
        return [pid for pid, parent in parents.items() if parent == 0 or parent in parents]

    async def gone(
        self, but: Callable[[list[int]], bool] = lambda left: not left, *, seconds: float = GUARD
    ) -> None:
        with trio.fail_after(seconds):
            while not but(self.look()):  # noqa: ASYNC110 - nobody tells of it
                await trio.sleep(0.002)


@pytest.fixture
def kernel():
    one = Kernel()
    yield one
    for pid in one.look():
        with suppress(ProcessLookupError):  # it has just gone by itself
            os.kill(pid, signal.SIGKILL)


@pytest.mark.law("R1")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@of_all(ALL)
async def test_nothing_is_left_when_the_kernel_is_killed(kernel, tier, number, command, tmp_path):
    async with kernel.started("waits", command, tmp_path, tier) as child:
        assert len(kernel.seen) >= 2  # the kernel and its supervisor at least
        os.kill(child.pid, number)
    assert child.returncode == -number
    await kernel.gone()


async def test_a_stopped_keeper_does_not_save_its_call_when_the_kernel_is_killed(kernel, tmp_path):
    command = f"touch r; echo ready; {STOP_KEEPER}; sleep 600"
    async with kernel.started("waits", command, tmp_path) as child:
        os.kill(child.pid, signal.SIGKILL)
    # Sooner than the supervisor gives up, which would wake the keeper.
    await kernel.gone(seconds=supervisor_program.END_SECONDS - 1)


# ----------------------------------------------------------------------------------------- the end of the kernel


@pytest.mark.parametrize(("how", "code"), [("returns", 0), ("raises", 1), ("_exit", 0)])
async def test_no_supervisor_stays_when_the_kernel_has_ended(kernel, how, code, tmp_path):
    async with kernel.started(how, "echo ready", tmp_path) as child:
        pass
    assert child.returncode == code
    if how != "_exit":
        assert kernel.look() == []  # it waits for the end of its supervisor
    await kernel.gone()


async def test_a_kernel_that_leaves_in_the_middle_of_a_call_leaves_nothing(kernel, tmp_path):
    async with kernel.started("_exit", FAMILIES["one in a session of its own"], tmp_path):
        pass
    await kernel.gone()


async def test_a_kernel_that_handles_sigterm_leaves_nothing_when_it_exits(kernel, tmp_path):
    async with kernel.started("handles", FAMILIES["one that ignores SIGTERM"], tmp_path) as child:
        os.kill(child.pid, signal.SIGTERM)
    assert child.returncode == 0
    assert kernel.look() == []


async def test_a_forked_child_of_the_kernel_does_not_keep_its_calls_alive(kernel, tmp_path):
    async with kernel.started("forks", "echo ready; sleep 600", tmp_path) as child:
        await kernel.gone(but=lambda seen: len(seen) == 5)  # kernel, its child, supervisor, keeper, bash or sleep
        os.kill(child.pid, signal.SIGKILL)
    await kernel.gone(but=lambda left: len(left) == 1)
    (forked,) = kernel.look()
    assert b"kernel_process" in read(f"/proc/{forked}/cmdline")


# ----------------------------------------------------------------------------------- keepers and supervisor killed


async def test_a_call_whose_keeper_is_killed_is_stopped_and_says_why(ctx, tmp_path):
    bash = bash_tool(tmp_path)
    output = await bash.run(ctx, {"command": f"echo ready; {KILL_KEEPER}; sleep 600"})
    assert (output.is_error, output.status) == (True, "stopped")
    assert "its keeper was killed by signal 9" in output.text
    await nothing_is_left(ctx)


async def test_a_killed_keeper_is_no_trouble_for_another_call(ctx, new_ctx, tmp_path):
    other = new_ctx()
    async with running(other, "echo ready; sleep 600", tmp_path):
        end = await run(ctx, f"{KILL_KEEPER}; sleep 600", tmp_path)
        assert end.stopped
        assert len(other.alive()) >= 1
        other.cancel()
    await nothing_is_left(ctx)


async def test_calls_whose_supervisor_is_killed_are_stopped_and_the_next_one_gets_another(new_ctx, tmp_path):
    first = await supervisor()
    ends: list[ProcessEnd] = []
    calls = [new_ctx() for _ in range(3)]

    async def call(ctx) -> None:
        ends.append(await run(ctx, FAMILIES["one in a session of its own"], tmp_path))

    async with trio.open_nursery() as nursery:
        for ctx in calls:
            nursery.start_soon(call, ctx)
        for ctx in calls:
            await ctx.saw("ready\n")
        os.kill(first.pid, signal.SIGKILL)
    assert [end.stopped for end in ends] == ["the supervisor of processes was killed"] * 3
    assert [ctx.alive() for ctx in calls] == [[], [], []]
    assert (await run(new_ctx(), "exit 4", tmp_path)).exit_code == 4
    assert (await supervisor()).pid != first.pid


async def test_what_has_killed_keeper_and_supervisor_is_found_by_its_mark(ctx, tmp_path, monkeypatch):
    monkeypatch.setattr(process, "DRAIN_SECONDS", 0.0)
    kill_both = (
        "read -r _ _ _ above _ </proc/$PPID/stat; grep -qx tk-keeper /proc/$PPID/comm && kill -9 $above $PPID"
    )
    end = await run(ctx, f"setsid sleep 600 & {kill_both}; sleep 600", tmp_path)
    assert end.stopped
    assert ctx.alive() == []
    await nothing_is_left(ctx)


@pytest.mark.parametrize("stop", [STOP_KEEPER, STOP_BOTH])
async def test_a_keeper_that_does_not_answer_is_killed(ctx, tmp_path, monkeypatch, stop):
    monkeypatch.setattr(tree, "KILL_SECONDS", 0.3)
    before = await supervisor()
    async with running(ctx, f"setsid sleep 600 & {stop}; echo keeper $PPID; echo ready; sleep 600", tmp_path):
        ctx.cancel()
    await nothing_is_left(ctx)
    (keeper,) = re.findall(r"keeper (\d+)", ctx.output)
    assert has_ended(keeper)
    assert (await supervisor() is before) == (stop is STOP_KEEPER)


def keepers_that_die_saying(word: str) -> str:
    """The supervisor's program with a change."""
    return f"""
import os, sys
sys.path.append(sys.argv[1])
from keeping import keeper, supervisor
say = keeper.say
def dying(channel, *report):
    if report[0] == "{word}":
        os.kill(os.getpid(), 9)
    say(channel, *report)
keeper.say = dying
supervisor.main()"""


async def test_a_keeper_killed_before_it_could_say_that_it_has_started_the_command(
    ctx, fresh, tmp_path, monkeypatch
):
    monkeypatch.setattr(supervision, "_PROGRAM", keepers_that_die_saying("started"))
    end = await run(ctx, "echo ready; sleep 600", tmp_path)
    assert (end.exit_code, end.stopped) == (None, "its keeper was killed by signal 9")
    await nothing_is_left(ctx)


async def test_a_keeper_killed_before_it_has_started_anything(ctx, fresh, tmp_path, monkeypatch):
    monkeypatch.setattr(supervision, "_PROGRAM", keepers_that_die_saying("starting"))
    with pytest.raises(NotStartedError, match="killed by signal 9"):
        await run(ctx, "touch marker", tmp_path)
    assert list(tmp_path.iterdir()) == []
    await nothing_is_left(ctx)


async def test_a_call_that_is_given_up_before_its_keeper_has_begun_starts_nothing(ctx, fresh, tmp_path):
    one = await supervisor()
    os.kill(one.pid, signal.SIGSTOP)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    paper = os.memfd_create("paper")
    os.write(paper, marshal.dumps(([b"/usr/bin/touch", b"marker"], os.fsencode(tmp_path), {}, False)))
    with theirs:
        await one.keep([theirs.fileno(), paper, paper, paper, paper])
    os.close(paper)
    ours.close()
    os.kill(one.pid, signal.SIGCONT)
    await run(ctx, "exit 0", tmp_path)  # orders are carried out one after the other
    with trio.fail_after(GUARD):
        while await children_of_the_supervisor():  # noqa: ASYNC110 - nobody tells of it
            await trio.sleep(0.002)
    assert list(tmp_path.iterdir()) == []


async def test_an_order_waits_while_there_are_too_many():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    one = supervision.Supervisor(None, ours)
    other = b"x" * 1000
    with ours, theirs, trio.fail_after(GUARD):
        with pytest.raises(BlockingIOError):
            while True:
                ours.send(other)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.keep, [0] * 5)
            await trio.testing.wait_all_tasks_blocked()
            said = other
            while said == other:
                await trio.lowlevel.wait_readable(theirs)
                said = theirs.recv(1000)
    assert marshal.loads(said) == ("keep", 1)


async def test_what_a_keeper_can_not_stop_is_named(ctx, fresh, tmp_path, monkeypatch):
    deaf = (
        "import sys; sys.path.append(sys.argv[1]); from keeping import ending, supervisor;"
        "ending.send = lambda *_: None; ending.LEFT_SECONDS = 0.05; supervisor.main()"
    )
    monkeypatch.setattr(supervision, "_PROGRAM", deaf)
    async with running(ctx, "echo ready; exec sleep 600", tmp_path):
        ctx.cancel()
    (pid,) = ctx.alive()
    assert ctx.survivors == [("process", f"pid {pid} sleep 600")]
    os.kill(pid, signal.SIGKILL)


# ------------------------------------------------------------------------------------------------------ the start


async def test_a_cancel_while_the_supervisor_is_started_loses_nothing(ctx, new_ctx, fresh, tmp_path, monkeypatch):
    starting = trio.Event()
    cancelled = threading.Event()
    starts: list[object] = []

    class SlowPopen(subprocess.Popen):
        def __init__(self, *args, **options) -> None:
            starts.append(args)
            trio.from_thread.run_sync(starting.set)
            cancelled.wait()
            super().__init__(*args, **options)

    monkeypatch.setattr(supervision.subprocess, "Popen", SlowPopen)

    async def body() -> None:
        with ctx.cut:
            await run(ctx, "touch marker", tmp_path)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(body)
        await starting.wait()
        ctx.cancel()
        cancelled.set()
    assert ctx.cut.cancelled_caught
    assert not (tmp_path / "marker").exists()
    assert (await run(new_ctx(), "exit 4", tmp_path)).exit_code == 4
    assert len(starts) == 1


async def test_many_calls_run_at_once(new_ctx, tmp_path):
    calls = [new_ctx() for _ in range(40)]
    async with trio.open_nursery() as nursery:
        for number, ctx in enumerate(calls):
            nursery.start_soon(run, ctx, f"echo {number}", tmp_path)
    assert [ctx.output for ctx in calls] == [f"{number}\n" for number in range(40)]
    assert await children_of_the_supervisor() == ""


async def test_runs_of_trio_in_one_process_share_a_supervisor(new_ctx, fresh, tmp_path):
    barrier = threading.Barrier(3)
    pids: list[int] = []

    async def main() -> None:
        barrier.wait()
        assert (await run(new_ctx(), "exit 4", tmp_path)).exit_code == 4
        pids.append((await supervisor()).pid)

    threads = [threading.Thread(target=trio.run, args=(main,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    barrier.wait()
    for thread in threads:
        await trio.to_thread.run_sync(thread.join)
    await main_after(new_ctx, tmp_path, pids)


async def main_after(new_ctx, tmp_path: Path, pids: list[int]) -> None:
    assert (await run(new_ctx(), "exit 4", tmp_path)).exit_code == 4
    assert pids == [(await supervisor()).pid] * 2


@every_tier
async def test_three_hundred_cancelled_calls_leave_everything_as_it_was(tier, tmp_path):
    """In an open session, with 128 descriptors to have open: descriptors, threads, trio tasks and zombies."""
    program = [sys.executable, str(KERNEL.with_name("cycles_program.py")), "300", tier]
    with trio.fail_after(4 * GUARD):
        done = await trio.run_process(program, cwd=tmp_path, capture_stdout=True)
    before, after = json.loads(done.stdout)
    assert after.pop("threads") <= before.pop("threads")  # one that has had nothing to do for long may have left
    assert after == before


async def test_a_command_and_an_environment_of_any_size_get_through(ctx, tmp_path):
    value = "x" * 100_000
    env = {**os.environ, **{f"BIG_{number}": value for number in range(8)}, "ODD": "\udcff"}
    end = await run(ctx, f"echo ${{#BIG_7}}; : {value}; printf %s $ODD | wc -c", tmp_path, env=env)
    assert (end.exit_code, ctx.output) == (0, "100000\n1\n")


async def test_a_relative_directory_is_the_kernels(ctx, tmp_path, monkeypatch):
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path)
    await run(ctx, "pwd", Path("below"))
    assert ctx.output == f"{tmp_path}/below\n"


async def test_a_process_has_the_signals_that_a_shell_expects(ctx, tmp_path):
    await run(ctx, "grep -E 'Sig(Ign|Blk)' /proc/self/status", tmp_path)
    assert [line.split()[1] for line in ctx.output.splitlines()] == ["0" * 16] * 2


async def test_neither_keeper_nor_supervisor_knows_our_keys(ctx, fresh, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-secret")
    await run(
        ctx, "exec 2>&1; read -r _ _ _ above _ </proc/$PPID/stat; cat /proc/{$PPID,$above}/environ; echo", tmp_path
    )
    assert "TURNKERNEL_" in ctx.output or ctx.output == "\n"
    assert "sk-secret" not in ctx.output


# ----------------------------------------------------------------------------------------------- what is in force


async def test_where_nothing_is_missing_the_tree_is_in_force_unless_less_is_wanted():
    assert containment() == "tree"
    assert containment("namespace") == ("tree" if missing_for_namespace() else "namespace")
    assert containment("group") == "group"


async def test_a_supervisor_that_can_not_be_started_is_told_and_the_group_is_in_force(
    ctx, new_ctx, fresh, tmp_path, monkeypatch
):
    monkeypatch.setattr(supervision, "_PROGRAM", "import sys; sys.exit(1)")
    end = await run(ctx, "echo ok; exit 4", tmp_path)
    assert end.exit_code == 4
    assert (
        ctx.output == "[Held by its process group and mark only: the supervisor of processes ended at once]\nok\n"
    )
    assert containment() == "group"
    again = new_ctx()
    async with running(again, "setsid bash -c 'echo ready; sleep 600; :' & wait", tmp_path):
        again.cancel()
    assert again.alive() == []
    assert again.output.startswith("[Held by")


async def test_where_something_is_missing_the_group_is_in_force_and_nothing_is_said(
    ctx, fresh, tmp_path, monkeypatch
):
    monkeypatch.setattr(supervision, "missing", lambda: "no subreapers")
    monkeypatch.setattr(sys.modules["turnkernel_tools.containment"], "missing", lambda: "no subreapers")
    assert containment() == "group"
    await run(ctx, "echo ok", tmp_path)
    assert ctx.output == "ok\n"
    assert supervision._this.running is None
