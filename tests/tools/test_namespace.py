"""The containment tier `namespace`: what it holds that `tree` does not, and what it changes for a tool."""

import os
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from turnkernel.causes import Urgency
from turnkernel_tools import containment, probe, standalone, supervision
from turnkernel_tools.process import NotStartedError, ProcessEnd, run_process

pytestmark = pytest.mark.skipif(
    probe.missing_for_namespace() is not None,
    reason=f"{probe.missing_for_namespace()}; a machine that lets this user make one would run it",
)

# A guard against hanging only; no test depends on how long anything takes.
GUARD = 30.0


async def run(ctx, command: str, *, guard: float = GUARD, **options) -> ProcessEnd:
    options = {
        "grace_seconds": 5.0,
        "on_output": ctx.emit,
        "ctx": ctx,
        "cwd": Path("/"),
        "tier": "namespace",
    } | options
    with trio.fail_after(guard):
        return await run_process(["bash", "-c", command], **options)


def running(argument: str) -> list[int]:
    """Who has this among the words of its command line, zombies not being counted; whatever it has cleared."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if argument.encode() in words:
                found.append(int(entry.name))
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


class Hidden:
    """Processes that have cleared their environment and left their session, known by an odd number of seconds."""

    def __init__(self) -> None:
        self.seconds = f"{600 + uuid.uuid4().int % 10**6 / 10**6:.6f}"
        self.command = (
            f"(env -i setsid sleep {self.seconds} &); env -i setsid sleep {self.seconds} & echo ready; wait"
        )

    def alive(self) -> list[int]:
        return running(self.seconds)


@pytest.fixture
def hidden():
    one = Hidden()
    yield one
    for pid in one.alive():
        with suppress(ProcessLookupError):  # it has just gone by itself
            os.kill(pid, signal.SIGKILL)


async def there(hidden: Hidden) -> tuple[int, int]:
    """Keeper and supervisor, when both of the processes run."""
    with trio.fail_after(GUARD):
        while len(hidden.alive()) < 2:  # noqa: ASYNC110 - nobody tells of it
            await trio.sleep(0.002)
    above = hidden.alive()[0]
    while name(above) != "tk-keeper":
        above = parent(above)
    return above, parent(above)


@pytest.fixture
async def fresh(monkeypatch):
    """As if there had been no call yet; the supervisor ends with the test."""
    monkeypatch.setattr(supervision, "_this", supervision._Process())
    yield
    supervision._leaving()


# ------------------------------------------------------------------------------------------------- what it holds


@pytest.mark.law("R1")
async def test_nothing_is_left_when_keeper_and_supervisor_are_killed_at_once(ctx, fresh, hidden):
    ends: list[ProcessEnd] = []

    async def call() -> None:
        ends.append(await run(ctx, hidden.command))
        assert hidden.alive() == []  # confirmed, and not only about to end

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        keeper, supervisor = await there(hidden)
        os.kill(supervisor, signal.SIGSTOP)  # so that it has no moment to do anything about it
        os.kill(keeper, signal.SIGKILL)
        os.kill(supervisor, signal.SIGKILL)
    assert "killed" in (ends[0].stopped or "")
    assert ctx.survivors == []


@pytest.mark.law("R1")
async def test_nothing_is_left_when_kernel_keeper_and_supervisor_are_killed_at_once(hidden, tmp_path):
    kernel = Path(__file__).with_name("kernel_process.py")
    child = await trio.lowlevel.open_process(
        [sys.executable, str(kernel), "waits", hidden.command, "namespace"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
    )
    try:
        keeper, supervisor = await there(hidden)
        for pid in (child.pid, supervisor):
            os.kill(pid, signal.SIGSTOP)
        for pid in (keeper, supervisor, child.pid):
            os.kill(pid, signal.SIGKILL)
    finally:
        child.kill()
        await child.wait()
    with trio.fail_after(GUARD):
        while hidden.alive():  # noqa: ASYNC110 - nobody is left who could tell
            await trio.sleep(0.002)


# Outside of a namespace what follows would end all that the user runs, so it looks first where it is.
KILL_ALL = "grep -qx tk-init /proc/1/comm && [ $$ = 2 ] || exit 99; kill -9 -1; kill -9 1"


async def test_a_tool_can_signal_nobody_outside(ctx, new_ctx):
    bystander = await trio.lowlevel.open_process(["sleep", "600"])
    other = new_ctx()
    try:
        async with trio.open_nursery() as nursery:

            async def beside() -> None:
                with other.cut:
                    await run(other, "echo ready; exec sleep 600")

            nursery.start_soon(beside)
            await other.saw("ready\n")
            end = await run(ctx, f"sleep 600 & {KILL_ALL}; kill -9 {bystander.pid}; echo there; exit 3")
            assert (end.exit_code, end.stopped) == (3, None)
            assert "No such process" in ctx.output
            assert "there\n" in ctx.output
            assert bystander.returncode is None
            assert len(other.alive()) == 1
            other.cancel()
    finally:
        bystander.kill()
        await bystander.wait()
    assert bystander.returncode == -signal.SIGKILL


# --------------------------------------------------------------------------------------------- what a tool sees


async def test_a_tool_sees_its_own_processes_by_their_own_numbers(ctx):
    await run(ctx, "echo $$ $PPID; cd /proc; echo [0-9]*; read -r name <$$/comm; echo $name")
    assert ctx.output == "2 1\n1 2\nbash\n"


async def test_the_pid_that_is_told_is_the_one_outside(ctx):
    async def body() -> None:
        with ctx.cut:
            await run(ctx, "echo ready; exec sleep 600")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(body)
        await ctx.saw("ready\n")
        (pid,) = ctx.alive()
        assert [name.split()[:2] for _, name in ctx.held] == [["pid", str(pid)]]
        ctx.cancel()


async def test_what_its_processes_leave_is_reaped(ctx):
    await run(
        ctx,
        "for i in $(seq 50); do (exec true &); done; while :; do"
        " states=$(cat /proc/[0-9]*/stat 2>/dev/null | cut -d' ' -f3 | sort -u | tr -d '\\n');"
        " case $states in *Z*) ;; *) echo none; exit;; esac; done",
    )
    assert ctx.output == "none\n"


# ------------------------------------------------------------------------------------------------- how it ends


@pytest.mark.parametrize(
    ("command", "code", "by"),
    [
        ("exit 3", 3, None),
        ("kill -9 $$", 137, "SIGKILL"),
        ("kill -TERM $$", 143, "SIGTERM"),
        ("exit 137", 137, None),
    ],
)
async def test_its_exit_is_told_as_without(ctx, command, code, by):
    end = await run(ctx, command)
    assert (end.exit_code, end.signal) == (code, by)


async def test_a_program_that_is_not_there_is_told(ctx):
    with pytest.raises(NotStartedError, match="no-such-program"):
        await run_process(["no-such-program"], ctx=ctx, cwd=Path("/"), on_output=ctx.emit, tier="namespace")


@pytest.mark.parametrize(
    ("command", "code", "last"),
    [
        ("trap 'echo bye; exit 9' TERM; echo ready; while :; do sleep 0.01; done", 9, "bye\n"),
        ("echo ready; exec sleep 600", 143, ""),
        ("trap '' TERM; echo ready; while :; do sleep 600; done", 137, "[Killed by SIGKILL: "),
    ],
)
async def test_a_command_that_is_told_to_end_says_how_it_did(
    ctx, fresh, command, code, last, mock_clock, monkeypatch
):
    patient = (
        "import sys; sys.path.append(sys.argv[1]); from keeping import ending, supervisor;"
        "ending.INIT_SECONDS = 3600.0; supervisor.main()"
    )
    monkeypatch.setattr(supervision, "_PROGRAM", patient)
    mock_clock.rate = 1.0
    ends: list[ProcessEnd] = []

    async def body() -> None:
        grace = 0.05 if code == 137 else 3600.0
        ends.append(await run(ctx, command, timeout_seconds=3600.0, grace_seconds=grace, guard=7200.0))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(body)
        await ctx.saw("ready\n")
        mock_clock.jump(3600)
    assert ends[0].timed_out
    assert ends[0].exit_code == code
    assert last in ctx.output
    assert ctx.alive() == []


async def test_at_urgency_now_everything_is_killed_and_confirmed(ctx, hidden):
    async def body() -> None:
        with ctx.cut:
            await run(ctx, f"trap '' TERM; {hidden.command}", grace_seconds=3600.0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(body)
        await there(hidden)
        ctx.cancel(Urgency.NOW)
    assert hidden.alive() == []
    assert (ctx.alive(), ctx.survivors) == ([], [])


# ------------------------------------------------------------------------------------------- what is in force


async def test_a_namespace_that_can_not_be_made_after_all_is_told_and_the_tree_is_in_force(
    ctx, fresh, monkeypatch
):
    refusing = """
import sys; sys.path.append(sys.argv[1])
from keeping import namespace, supervisor
def refuse():
    raise OSError(28, "No space left on device")
namespace.unshare = refuse
supervisor.main()"""
    monkeypatch.setattr(supervision, "_PROGRAM", refusing)
    end = await run(ctx, "sleep 600 & echo $PPID; exit 4")
    note, number = ctx.output.splitlines()
    assert (note, end.exit_code) == (
        "[Held without a PID namespace: [Errno 28] No space left on device]",
        4,
    )
    assert int(number) > 1
    assert len(end.ended_too) == 1


async def test_an_init_that_fails_is_told(ctx, fresh, monkeypatch):
    failing = """
import sys; sys.path.append(sys.argv[1])
from keeping import namespace, supervisor
def fail():
    raise RuntimeError
namespace._mount_proc = fail
supervisor.main()"""
    monkeypatch.setattr(supervision, "_PROGRAM", failing)
    end = await run(ctx, "exit 4")
    assert (end.exit_code, end.stopped) == (None, "the init of its PID namespace has failed")


async def test_where_none_can_be_made_the_tree_is_in_force_and_nothing_is_said(ctx, monkeypatch):
    why = "Operation not permitted"
    for module in ("containment", "process"):
        module = sys.modules[f"turnkernel_tools.{module}"]
        monkeypatch.setattr(module, "missing_for_namespace", lambda: why, raising=False)

        async def soon() -> str:
            return why

        monkeypatch.setattr(module, "missing_for_namespace_soon", soon, raising=False)
    assert containment("namespace") == "tree"
    await run(ctx, "echo $PPID")
    assert int(ctx.output) > 1


@pytest.mark.parametrize(
    "program", ["print('no'); raise SystemExit", "raise SystemExit(3)", "import os; os.abort()"]
)
def test_a_trial_that_does_not_succeed_is_a_no(program, monkeypatch):
    monkeypatch.setattr(probe, "_PROGRAM", program)
    probe._missing.cache_clear()
    try:
        assert probe.missing_for_namespace()
    finally:
        probe._missing.cache_clear()


AS_NOBODY = """
import marshal, os, signal, socket, sys
sys.path.append(sys.argv[1])
from keeping import below, keeper, namespace
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
paper = os.memfd_create("paper")
command = b"id -u; echo $$; (setsid sleep 600 &); trap 'exit 5' TERM; kill $$"
os.write(paper, marshal.dumps(([b"bash", b"-c", command], b"/", {b"PATH": os.environb[b"PATH"]}, True)))
if os.fork() == 0:
    ours.close()
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    below.prctl(4, 1)  # PR_SET_DUMPABLE, as it is for who has been somebody else from the start
    below.prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
    for number in signal.SIGTERM, signal.SIGCHLD:
        signal.signal(number, lambda *_: None)
    null = os.open("/dev/null", os.O_RDWR)
    keeper.Keeper(theirs.fileno(), os.getppid()).run(paper, (null, os.dup(1), os.dup(2)))
    os._exit(0)
theirs.close()
while report := ours.recv(65536):
    what, *said = marshal.loads(report)
    os.write(1, f"{what} {said if what == 'exited' else len(said[0]) if what == 'told' else ''}\\n".encode())
    if what == "exited":
        ours.send(b"T")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else; others test it with all tests here")
def test_a_user_without_rights_takes_a_user_namespace_too():
    done = subprocess.run(
        standalone.python(AS_NOBODY), capture_output=True, text=True, timeout=GUARD, check=True, cwd="/"
    )
    said = done.stdout.splitlines()
    assert sorted(said) == sorted(
        ["starting ", "inside ", "started ", "65534", "2", "exited [5]", "told 1", "gone "]
    ), done.stderr
