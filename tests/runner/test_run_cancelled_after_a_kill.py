"""A run that is cancelled between the death of its kernel and the next life leaves no process, as at any time."""

import secrets
from pathlib import Path

import pytest
import trio

from turnkernel_demo.builtin import load_builtin
from turnkernel_demo.runner import play_for_real
from turnkernel_demo.tail import writer_of

MARK = "TURNKERNEL_CANCELLED_RUN_TEST"


def marked(mark: str) -> list[str]:
    """What was started in an environment with this mark and is alive."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in process.joinpath("environ").read_bytes():
                found.append(process.joinpath("cmdline").read_text("utf-8", "replace").replace("\0", " "))
        except OSError:
            continue  # gone, or not ours
    return found


@pytest.mark.law("R1")
@pytest.mark.skipif(
    not Path("/proc/locks").exists(), reason="no list of locks tells of the kernel's life; Linux has it"
)
async def test_a_run_that_is_cancelled_right_after_its_kernel_was_killed_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = secrets.token_hex(8)
    monkeypatch.setenv(MARK, mark)
    log, root = tmp_path / "log", tmp_path / "root"
    root.mkdir()

    async def play() -> None:
        await play_for_real(load_builtin("kill-in-a-tool"), log=log, root=root)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(play)
            # The lock tells of the kernel's life; nothing else does from outside.
            while writer_of(log) is None:  # noqa: ASYNC110
                await trio.sleep(0.005)
            while writer_of(log) is not None:  # noqa: ASYNC110
                await trio.sleep(0.005)
            nursery.cancel_scope.cancel()
    assert marked(mark) == []
