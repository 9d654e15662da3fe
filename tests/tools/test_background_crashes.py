"""What a kernel that ends, in whatever way, leaves of its tasks, and what the next opening makes of it."""

import fcntl
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from tests.tools.task_sessions import GUARD, Host, alive, hosted

from turnkernel.events import TaskEnded, TaskStarted
from turnkernel_tools import supervision
from turnkernel_tools.keeping.capped import read_output

pytestmark = pytest.mark.skipif(
    supervision.missing() is not None, reason=f"{supervision.missing()}; Linux with a usual Python would run it"
)

KERNEL = Path(__file__).with_name("task_kernel.py")

# All that the command starts holds this open, so its other end tells when everything is gone.
HOLD = "exec 9>held; "


class Held:
    """Tells when no process of a command is left."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    async def gone(self) -> None:
        with trio.fail_after(GUARD):
            await trio.lowlevel.wait_readable(self.fd)
        assert os.read(self.fd, 1) == b""


@pytest.fixture
def held(tmp_path) -> Iterator[Held]:
    one = Held(tmp_path / "held")
    yield one
    os.close(one.fd)


class Kernel:
    """A kernel in a process of its own that has begun a task."""

    def __init__(self, root: Path, lifetime: str, command: str, **options) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(KERNEL), str(root / "log.jsonl"), lifetime, command],
            cwd=root,
            **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE} | options,
        )

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())
        self._process.stdin.flush()

    def says(self, word: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().decode().strip() == word

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def ends(self) -> None:
        assert self._process.wait(GUARD) == 0
        self._process.communicate()


@pytest.fixture
def kernel(tmp_path, mark):
    """Begins one; the test kills it, or this does."""
    made: list[Kernel] = []

    def begin(lifetime: str, command: str, **options) -> Kernel:
        made.append(Kernel(tmp_path, lifetime, command, **options))
        made[-1].says("begun")
        return made[-1]

    yield begin
    for one in made:
        with suppress(ValueError):  # its pipes are closed: it was killed by the test
            one.kill()


def only_task(host: Host) -> TaskStarted:
    (found,) = [event for event in host.events() if isinstance(event, TaskStarted)]
    return found


def ends(host: Host) -> list[TaskEnded]:
    return [event for event in host.events() if isinstance(event, TaskEnded)]


def folder_of(root: Path) -> Path:
    (found,) = (root / "log.jsonl.d").iterdir()
    return found


async def written(root: Path, words: str) -> None:
    """Until they are in the file: what is still in the pipe when its reader is killed is lost."""
    with trio.fail_after(GUARD):
        while words not in read_output(folder_of(root)).text():  # noqa: ASYNC110 - nobody tells of it
            await trio.sleep(0.005)


# ------------------------------------------------------------------------------------------------ lifetime session


async def test_a_killed_kernel_leaves_nothing_of_a_session_task_and_the_next_opening_calls_it_lost(
    tmp_path, mark, kernel, held, up
):
    running = kernel("session", f"{HOLD} trap '' TERM; (setsid sleep 600 &); echo words; echo >up; sleep 600")
    await up.passed()
    await written(tmp_path, "words")
    running.kill()
    await held.gone()
    assert alive(mark) == []
    async with hosted(tmp_path, tmp_path / "log.jsonl") as host:
        task = only_task(host).task
        (end,) = ends(host)
        assert (end.task, end.status, end.synthetic) == (task, "lost", True)
        assert host.session.status().tasks == ()
        await host.session.rest()
        assert host.provider.requests == []  # nobody is asked to go on with it
        assert (await host.call("task_list")).text.startswith(f"[Task {task} is lost: ")
        output = (await host.call("task_output", task=task)).text
        assert output.startswith(f"[Task {task} is lost: ")
        assert output.endswith("\nwords\n")
        stop = await host.call("task_stop", task=task)
        assert stop.is_error
        assert f"Task {task} does not run. Nothing was stopped." in stop.text
        assert len(ends(host)) == 1


@pytest.mark.parametrize("lifetime", ["session", "detached"])
async def test_a_task_that_the_user_stopped_stays_stopped_over_a_crash(tmp_path, kernel, held, up, lifetime):
    running = kernel(lifetime, f"{HOLD} echo >up; sleep 600")
    await up.passed()
    running.tell("stop")
    running.says("stopping")
    running.says("stopped")
    running.kill()
    await held.gone()
    async with hosted(tmp_path, tmp_path / "log.jsonl", background=lifetime) as host:
        (end,) = ends(host)
        assert end.status == "stopped"
        assert "was stopped by the user" in end.text
        await host.session.rest()
        assert (host.session.status().tasks, host.provider.requests) == ((), [])


async def test_a_terminals_interrupt_reaches_no_task(tmp_path, mark, kernel, up, gate):
    controller, terminal = pty.openpty()
    running = kernel(
        "session",
        "echo >up; read x <gate; echo >up; sleep 600",
        stdin=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: take_terminal(terminal),
    )
    await up.passed()
    running.tell("command")
    running.says("running")
    os.write(controller, b"\x03")
    running.says("cancelled")
    assert len(alive(mark)) >= 2  # the kernel and the task
    gate.open()
    await up.passed()
    running.kill()
    for fd in (controller, terminal):
        os.close(fd)


def take_terminal(fd: int) -> None:
    """In the child: make this the controlling terminal, whose Ctrl-C goes to the whole foreground."""
    fcntl.ioctl(fd, termios.TIOCSCTTY, 0)


# ----------------------------------------------------------------------------------------------- lifetime detached


@pytest.mark.parametrize("ends_first", [True, False], ids=["ended_meanwhile", "still_running"])
@pytest.mark.parametrize("how", ["kill", "leave"])
async def test_a_detached_task_is_found_again_and_its_end_told_once(
    tmp_path, mark, kernel, held, up, gate, how, ends_first
):
    running = kernel("detached", f"{HOLD} echo one; echo >up; read x <gate; echo two; exit 3")
    await up.passed()
    if how == "kill":
        running.kill()
    else:
        running.tell("leave")
        running.ends()
    assert alive(mark)
    if ends_first:
        gate.open()
        await held.gone()
    async with hosted(tmp_path, tmp_path / "log.jsonl", background="detached") as host:
        task = only_task(host).task
        if not ends_first:
            assert host.session.status().tasks == (task,)
            listed = (await host.call("task_list")).text
            assert listed.startswith(f"[Task {task} runs since 2")
            assert "and goes on when this session ends] bash: exec 9>held; echo one" in listed
            assert "\none\n" in (await host.call("task_output", task=task)).text
            gate.open()
        end = await host.end_of(task)
        assert (end.status, end.synthetic) == ("error", False)
        assert end.text.startswith(f"[Task {task} failed] bash: ")
        assert end.text.endswith("\none\ntwo\n[Exit code 3]")
        output = (await host.call("task_output", task=task)).text
        assert output.endswith("\none\ntwo\n[Exit code 3]")
    assert alive(mark) == []
    async with hosted(tmp_path, tmp_path / "log.jsonl", background="detached") as host:
        assert len(ends(host)) == 1


async def test_a_detached_task_is_let_go_of_again_and_again_and_then_stopped(tmp_path, mark, kernel, held, up):
    running = kernel("detached", f"{HOLD} trap '' TERM; (setsid sleep 600 &); echo >up; sleep 600; sleep 600")
    await up.passed()
    running.kill()
    for _ in range(2):
        async with hosted(tmp_path, tmp_path / "log.jsonl", background="detached") as host:
            assert len(host.session.status().tasks) == 1
        assert ends(host) == []
        assert len(alive(mark)) >= 2
    # Whatever tasks it makes itself: it ends what was detached.
    async with hosted(tmp_path, tmp_path / "log.jsonl", background="session", grace_seconds=0.05) as host:
        task = only_task(host).task
        result = await host.call("task_stop", task=task)
        assert result.text.startswith(f"[Task {task} was stopped by a tool call]")
        await held.gone()
        assert alive(mark) == []
        assert "[Killed by SIGKILL: pid " in (await host.call("task_output", task=task)).text
        assert [end.status for end in ends(host)] == ["stopped"]


async def test_a_stop_that_a_crash_overtook_is_told_as_a_stop(tmp_path, kernel, held, up):
    running = kernel(
        "detached", f"{HOLD} trap 'echo >up; exec sleep 600' TERM; echo >up; while :; do sleep 0.01; done"
    )
    await up.passed()
    running.tell("stop")
    running.says("stopping")
    await up.passed()
    running.kill()
    await held.gone()
    async with hosted(tmp_path, tmp_path / "log.jsonl", background="detached") as host:
        end = await host.end_of(only_task(host).task)
        assert end.status == "stopped"


async def test_all_tasks_are_stopped_in_the_instant_of_the_opening(tmp_path, mark, kernel, held, up):
    running = kernel("detached", f"{HOLD} echo >up; sleep 600")
    await up.passed()
    running.kill()
    async with hosted(tmp_path, tmp_path / "log.jsonl", background="detached") as host:
        await host.session.stop_all().settled()
        assert alive(mark) == []
        assert [end.status for end in ends(host)] == ["stopped"]


async def test_a_timeout_holds_without_a_kernel(tmp_path, mark, held, up):
    async with hosted(tmp_path, tmp_path / "log.jsonl", background="detached") as host:
        task = await host.begin(f"{HOLD} echo >up; sleep 600", timeout_seconds=0.3)
        await up.passed()
    await held.gone()
    async with hosted(tmp_path, tmp_path / "log.jsonl", background="detached") as host:
        end = await host.end_of(task)
        assert end.status == "error"
        assert "[Timed out after 0.3 s" in end.text


async def test_a_kernel_that_is_killed_while_it_starts_one_leaves_it_found_or_never_started(
    tmp_path, mark, kernel
):
    kernel("detached", "echo words; sleep 600").kill()
    async with hosted(tmp_path, tmp_path / "log.jsonl", background="detached", grace_seconds=0.05) as host:
        task = only_task(host).task
        await host.call("task_stop", task=task)
        end = await host.end_of(task)
        assert end.status in ("lost", "stopped")
        assert ("it was never started" in end.text) == (end.status == "lost")
        assert alive(mark) == []
        if end.status == "lost":
            assert (await host.call("task_output", task=task)).text.endswith("(no output so far)")


async def test_a_task_whose_keeper_was_killed_is_lost_and_what_it_left_is_ended(tmp_path, mark, kernel, held, up):
    running = kernel("detached", f"{HOLD} echo words; echo >up; sleep 600")
    await up.passed()
    await written(tmp_path, "words")
    running.kill()
    os.kill(json.loads((folder_of(tmp_path) / "keeper").read_bytes())["pid"], signal.SIGKILL)
    assert alive(mark)
    async with hosted(tmp_path, tmp_path / "log.jsonl", background="detached") as host:
        end = await host.end_of(only_task(host).task)
        assert end.status == "lost"
        assert "its keeper was killed; what it left is ended" in end.text
        await held.gone()
        assert alive(mark) == []
        assert "words\n" in (await host.call("task_output", task=end.task)).text


async def test_a_recycled_pid_is_never_touched(tmp_path, mark, kernel, held, up):
    running = kernel("detached", f"{HOLD} echo >up; sleep 600")
    await up.passed()
    running.kill()
    file = folder_of(tmp_path) / "keeper"
    fact = json.loads(file.read_bytes())
    os.kill(fact["pid"], signal.SIGKILL)
    stranger = subprocess.Popen(["sleep", "600"], env={})
    file.write_text(json.dumps({**fact, "pid": stranger.pid}))
    try:
        async with hosted(tmp_path, tmp_path / "log.jsonl", background="detached") as host:
            task = only_task(host).task
            await host.session.stop_all().settled()
            assert [(end.task, end.status) for end in ends(host)] == [(task, "lost")]
            stop = await host.call("task_stop", task=task)
            assert f"Task {task} does not run. Nothing was stopped." in stop.text
        await held.gone()
        assert alive(mark) == []
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


async def test_a_log_without_the_files_of_its_task_calls_it_lost_and_touches_nothing(
    tmp_path, mark, kernel, held, up, gate
):
    running = kernel("detached", f"{HOLD} echo >up; read x <gate")
    await up.passed()
    running.kill()
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(tmp_path / "log.jsonl", tmp_path / "elsewhere")
    async with hosted(tmp_path, tmp_path / "elsewhere" / "log.jsonl", background="detached") as host:
        end = await host.end_of(only_task(host).task)
        assert end.status == "lost"
        assert "it was never started" in end.text
    assert alive(mark)
    gate.open()
    await held.gone()


async def test_a_detached_task_needs_a_log_to_be_found_by(tmp_path, mark, up):
    async with hosted(tmp_path, None, background="detached") as host:
        task = await host.begin("echo >up; sleep 600")
        await up.passed()
        assert host.started(task).lifetime == "session"
    assert alive(mark) == []


async def test_what_cannot_be_started_is_told(tmp_path, mark):
    for lifetime in ("session", "detached"):
        async with hosted(tmp_path / "nowhere", tmp_path / f"{lifetime}.jsonl", background=lifetime) as host:
            end = await host.end_of(await host.begin("true"))
            assert end.status == "error"
            assert "The command could not be started: " in end.text
