"""Work that outlives its kernel: whatever happens to whom, it is found again, or nothing of it runs."""

import json
import os
import signal
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from tests.tools.families import ALL, KILL_KEEPER

from turnkernel_tools import detached, hold, supervision
from turnkernel_tools.detached import Detached, Ended, Lost, Running, start_detached
from turnkernel_tools.hold import NotStartedError
from turnkernel_tools.keeping import folder as facts

pytestmark = pytest.mark.skipif(
    supervision.missing() is not None, reason=f"{supervision.missing()}; Linux with a usual Python would run it"
)

# A guard against hanging only; no test depends on how long anything takes.
GUARD = 30.0


class Work:
    """One piece of work, and a look into /proc for what bears its mark or has its folder in the command line."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "work"
        self.id = f"task_{uuid.uuid4().hex}"

    async def start(self, command: str, **options) -> Detached:
        options = {"grace_seconds": 3600.0} | options
        with trio.fail_after(GUARD):
            return await start_detached(
                ["bash", "-c", command], self.folder, work_id=self.id, cwd=self.root, **options
            )

    def alive(self) -> list[int]:
        """Processes with the mark, zombies not being counted."""
        return [pid for pid in pids() if f"{self.id}.".encode() in read(pid, "environ")]

    def keepers(self) -> list[int]:
        return [pid for pid in pids() if os.fsencode(self.folder) in read(pid, "cmdline")]

    async def says(self, text: str) -> None:
        await until(lambda: text in Detached(self.folder).output().text())


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and state_of(int(name)) not in ("", "Z")]


def state_of(pid: int) -> str:
    text = read(pid, "stat").decode(errors="replace")
    return text.rpartition(")")[2].split()[0] if text else ""


def read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


async def until(condition) -> None:
    with trio.fail_after(GUARD):
        while not condition():  # noqa: ASYNC110 - nobody tells of it
            await trio.sleep(0.005)


@pytest.fixture
def work(tmp_path) -> Iterator[Work]:
    one = Work(tmp_path)
    yield one
    for pid in [*one.keepers(), *one.alive()]:
        with suppress(ProcessLookupError):  # it has just gone by itself
            os.kill(pid, signal.SIGKILL)


async def terminate(found: Detached) -> Ended:
    with trio.fail_after(GUARD):
        state = await found.terminate()
    assert isinstance(state, Ended)
    return state


async def ended(found: Detached) -> Ended:
    with trio.fail_after(GUARD):
        state = await found.exited()
    assert isinstance(state, Ended)
    return state


# ----------------------------------------------------------------------------------------------------- by itself


async def test_it_runs_to_its_end_and_says_how_that_was(work):
    found = await work.start("echo out; echo err >&2; pwd; cat; exit 3")
    end = await ended(found)
    assert (end.exit_code, end.signal, end.stopped, end.timed_out, end.failed) == (3, None, False, False, None)
    assert found.output().text() == f"out\nerr\n{work.root}\n"
    assert (work.alive(), work.keepers()) == ([], [])


async def test_a_signal_that_killed_it_is_told(work):
    end = await ended(await work.start("kill -9 $$"))
    assert (end.exit_code, end.signal) == (137, "SIGKILL")


async def test_what_it_leaves_is_ended_with_it(work):
    end = await ended(await work.start("(setsid sleep 600 &); exit 0"))
    assert len(end.ended_too) == 1
    assert end.ended_too[0].endswith(" sleep 600")
    assert work.alive() == []


async def test_its_folder_is_ours_alone_and_holds_all_that_is_known(work):
    await ended(await work.start("echo words"))
    assert stat.S_IMODE(work.folder.stat().st_mode) == 0o700
    assert {path.name for path in work.folder.iterdir()} == {"keeper", "tool", "end", "output.head"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in work.folder.iterdir()} == {0o600}


async def test_it_has_none_of_our_keys_and_neither_has_its_keeper(work, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("MY_KEY", "sk-secret")
    found = await work.start("env; tr '\\0' '\\n' </proc/$PPID/environ; cat /dev/tty", hidden={"MY_KEY"})
    await ended(found)
    assert "sk-secret" not in found.output().text()
    assert f"TURNKERNEL_CALL={work.id}." in found.output().text()
    assert "No such device" in found.output().text()


async def test_a_flood_fills_no_disk_and_can_be_read_meanwhile(work):
    found = await work.start("yes", most_bytes=10_000)
    await until(lambda: found.output().cut > 1_000_000)
    (keeper,) = work.keepers()
    os.kill(keeper, signal.SIGSTOP)  # so that all its files are of one moment
    await until(lambda: state_of(keeper) == "T")
    assert sum(path.stat().st_size for path in work.folder.glob("output.*")) <= 10_000
    await found.kill()
    assert set(found.output().text().splitlines()[:100]) == {"y"}


async def test_a_program_that_is_not_there_is_told_now_and_later(work):
    with pytest.raises(NotStartedError, match=r"No such file or directory.*no-such-program"):
        await start_detached(["no-such-program"], work.folder, work_id=work.id, cwd=work.root)
    end = await ended(Detached.find(work.folder))
    assert end.exit_code is None
    assert "no-such-program" in str(end.failed)


async def test_where_there_are_no_keepers_it_is_refused(work, monkeypatch):
    monkeypatch.setattr(detached, "missing", lambda: "no subreapers here")
    with pytest.raises(NotStartedError, match="no subreapers here"):
        await work.start("touch marker")
    assert list(work.root.iterdir()) == []


async def test_a_folder_is_for_one_piece_of_work(work):
    await ended(await work.start("echo first"))
    with pytest.raises(NotStartedError, match="used, or looked for, before"):
        await work.start("echo second")
    assert Detached.find(work.folder).output().text() == "first\n"


async def test_a_cancel_before_the_start_starts_nothing_and_one_in_it_loses_nothing(work, monkeypatch):
    with trio.CancelScope() as scope:
        scope.cancel()
        await work.start("touch marker")
    assert scope.cancelled_caught
    assert (work.keepers(), work.alive()) == ([], [])

    start = detached._start

    def slow(*args):
        trio.from_thread.run_sync(scope.cancel)
        return start(*args)

    monkeypatch.setattr(detached, "_start", slow)
    with trio.CancelScope() as scope:
        found = await work.start("echo ready; exec sleep 600")
        assert isinstance(found.state(), Running)
    await found.kill()


# ------------------------------------------------------------------------------------------------- told to end


@pytest.mark.law("R1")
@pytest.mark.parametrize("how", ["terminate", "kill"])
@pytest.mark.parametrize("command", ALL.values(), ids=[name.replace(" ", "_") for name in ALL])
async def test_nothing_of_it_is_left(work, command, how):
    if KILL_KEEPER in command:
        command = "exec " + command.replace(KILL_KEEPER, ":")  # what that does is told below
    # What has left something behind would be ended a moment after it has exited.
    found = await work.start(f"({command}) & wait; exec sleep 600", grace_seconds=0.05)
    await work.says("ready\n")
    if how == "kill":
        assert await found.kill() == []
    else:
        await terminate(found)
    end = await ended(found)
    assert (end.timed_out, end.stopped) == (False, True)
    assert (work.alive(), work.keepers()) == ([], [])


async def test_it_is_ended_when_its_time_is_up(work):
    found = await work.start("setsid sleep 600 & echo ready; wait", timeout_seconds=0.0)
    end = await ended(found)
    assert (end.timed_out, end.stopped, end.exit_code) == (True, False, 143)
    assert work.alive() == []


async def test_it_ends_politely_when_it_is_asked_to(work):
    found = await work.start("trap 'echo bye; exit 9' TERM; echo ready; while :; do sleep 0.01; done")
    await work.says("ready\n")
    end = await terminate(found)
    assert (end.exit_code, end.stopped, end.killed) == (9, True, [])
    assert "bye\n" in found.output().text()


async def test_a_kill_cuts_the_grace(work):
    found = await work.start("trap 'echo told' TERM; echo ready; while :; do sleep 0.01; done")
    await work.says("ready\n")
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(found.terminate)
            await work.says("told\n")
            scope.cancel()
    assert isinstance(found.state(), Running)  # who waited has gone, the order stands
    assert await found.kill() == []
    assert len((await ended(found)).killed) >= 1


async def test_a_kill_is_confirmed_although_everything_is_cancelled(work):
    found = await work.start("echo ready; exec sleep 600")
    with trio.CancelScope() as scope:
        scope.cancel()
        assert await found.kill() == []
    assert isinstance(found.state(), Ended)
    assert work.alive() == []


# --------------------------------------------------------------------------------------- the death of the kernel

KERNEL = """
import json, sys
from pathlib import Path
sys.path[:0] = json.loads(sys.argv[1])
import trio
from turnkernel_tools import detached
program, folder, work_id, root, command = sys.argv[2:]
detached._PROGRAM = program or detached._PROGRAM
async def main():
    await detached.start_detached(["bash", "-c", command], Path(folder), work_id=work_id, cwd=Path(root))
    print("started", flush=True)
    await trio.sleep_forever()
trio.run(main)"""

STOPPING = """
import os, signal, sys
sys.path.append(sys.argv[1])
from keeping import detached, folder
def stop_before(module, name):
    function = getattr(module, name)
    def stopping(*args, **options):
        setattr(module, name, function)
        os.kill(os.getpid(), signal.SIGSTOP)
        return function(*args, **options)
    setattr(module, name, stopping)
{instant}
detached.main()"""

INSTANTS = {
    "before it has a keeper": "stop_before(os, 'fork')",
    "before its keeper has a place": "stop_before(folder, 'claim')",
    "before it is started": "stop_before(detached, 'read_order')",
    "before its pid is written": "stop_before(folder, 'write')",
    "before its start is reported": "stop_before(detached, 'say')",
}


def kernel(work: Work, program: str, command: str) -> subprocess.Popen[bytes]:
    arguments = [json.dumps(sys.path), program, os.fspath(work.folder), work.id, os.fspath(work.root), command]
    return subprocess.Popen(
        [sys.executable, "-c", KERNEL, *arguments], stdout=subprocess.PIPE, start_new_session=True
    )


@pytest.mark.parametrize("instant", INSTANTS.values(), ids=[name.replace(" ", "_") for name in INSTANTS])
async def test_whenever_the_kernel_is_killed_either_nothing_runs_or_it_is_found(work, instant):
    command = "touch marker; echo ready; exec sleep 600"
    with kernel(work, STOPPING.format(instant=instant), command) as one:
        await until(lambda: any(state_of(pid) == "T" for pid in work.keepers() if pid != one.pid))
        one.kill()
        one.wait()
    found = Detached.find(work.folder)
    state = found.state()
    for pid in work.keepers():
        os.kill(pid, signal.SIGCONT)
    if isinstance(state, Lost):
        assert state.never_started
        await until(lambda: work.keepers() == [])
        assert not (work.root / "marker").exists()
        assert found.state() == state
        return
    assert isinstance(state, Running)
    await work.says("ready\n")
    running = found.state()
    assert isinstance(running, Running)
    assert work.alive() == [running.pid]
    await terminate(found)
    assert (work.alive(), work.keepers()) == ([], [])


async def test_where_there_is_no_folder_nothing_was_started(work):
    assert Detached.find(work.folder).state() == Lost(never_started=True)
    assert not work.folder.exists()


async def test_who_is_found_before_the_start_does_not_start(work):
    work.folder.mkdir()
    found = Detached.find(work.folder)
    assert found.state() == Lost(never_started=True)
    with pytest.raises(NotStartedError, match="looked for, before"):
        await work.start("touch marker")
    assert await found.kill() == []
    await until(lambda: work.keepers() == [])
    assert not (work.root / "marker").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
async def test_it_outlives_the_kernel_and_is_found_with_all_that_it_says(work, number):
    with kernel(work, "", "echo ready; until [ -e go ]; do sleep 0.01; done; echo done; exit 5") as one:
        assert one.stdout is not None
        assert one.stdout.readline() == b"started\n"
        os.killpg(one.pid, number)
        one.wait()
    found = Detached.find(work.folder)
    assert isinstance(found.state(), Running)
    (work.root / "go").touch()
    assert (await ended(found)).exit_code == 5
    assert found.output().text() == "ready\ndone\n"


# ------------------------------------------------------------------------------------------ the death of a keeper


async def test_work_whose_keeper_was_killed_is_lost_and_what_it_left_is_ended(work):
    found = await work.start("(setsid sleep 600 &); echo ready; exec sleep 600")
    await work.says("ready\n")
    state = found.state()
    assert isinstance(state, Running)
    os.kill(state.keeper, signal.SIGKILL)
    with trio.fail_after(GUARD):
        assert await found.exited() == Lost(never_started=False)
    assert len(work.alive()) == 2
    assert await found.kill() == []
    assert work.alive() == []


async def test_a_keeper_that_was_stopped_is_woken_by_an_order(work):
    found = await work.start("until [ -e go ]; do sleep 0.01; done; kill -STOP $PPID; exec sleep 600")
    (work.root / "go").touch()
    await until(lambda: any(state_of(pid) == "T" for pid in work.keepers()))
    await terminate(found)
    assert work.alive() == []


async def test_a_keeper_that_does_not_answer_is_killed_and_what_it_held_too(work, monkeypatch):
    deaf = """
import sys; sys.path.append(sys.argv[1])
from keeping import detached
detached.Orders._take = lambda *_: None
detached.main()"""
    monkeypatch.setattr(detached, "_PROGRAM", deaf)
    monkeypatch.setattr(hold, "KILL_SECONDS", 0.3)
    found = await work.start("(env -i setsid sleep 600 &); echo ready; exec sleep 600")
    await work.says("ready\n")
    await until(lambda: len(below(work)) == 2)
    processes = below(work)
    assert await found.kill() == []
    assert found.state() == Lost(never_started=False)
    assert work.alive() == []
    await until(lambda: all(state_of(pid) in ("", "Z") for pid in processes))


def below(work: Work) -> list[int]:
    """The children of the keeper, also those without a mark."""
    (keeper,) = work.keepers()
    return [int(pid) for pid in read(keeper, f"task/{keeper}/children").split()]


async def test_a_pid_that_is_another_processes_now_is_left_alone(work):
    bystander = await trio.lowlevel.open_process(["sleep", "600"])
    try:
        for name in (facts.KEEPER, facts.TOOL):
            work.folder.mkdir(exist_ok=True)
            fact = {"pid": bystander.pid, "start": 1, "here": facts.here(), "mark": f"{work.id}.1"}
            facts.write(os.fspath(work.folder), name, fact)
        found = Detached.find(work.folder)
        assert found.state() == Lost(never_started=False)
        assert await found.terminate() == Lost(never_started=False)
        assert await found.kill() == []
        assert bystander.poll() is None
    finally:
        bystander.kill()
        await bystander.wait()


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"pid": 1}'])
async def test_a_claim_that_is_not_whole_is_a_loss(work, content):
    work.folder.mkdir()
    (work.folder / facts.KEEPER).write_bytes(content)
    assert isinstance(Detached.find(work.folder).state(), Lost)


async def test_another_boot_is_another_machine(work):
    found = await work.start("exec sleep 600")
    claim = facts.read(os.fspath(work.folder), facts.KEEPER)
    assert claim is not None
    facts.write(os.fspath(work.folder), facts.KEEPER, {**claim, "here": ["another", claim["here"][1]]})
    assert found.state() == Lost(never_started=False)
    facts.write(os.fspath(work.folder), facts.KEEPER, claim)
    assert isinstance(found.state(), Running)
    await found.kill()
