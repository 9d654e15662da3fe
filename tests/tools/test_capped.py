"""Output in files of bounded size: what is read is what was written, without the middle."""

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkernel_tools.keeping import capped
from turnkernel_tools.keeping.capped import CappedWriter, Output, read_output

MOST = 64


def numbered(count: int) -> bytes:
    """Bytes by which any part can be placed."""
    return b"".join(b"%07d\n" % number for number in range(count // 8 + 1))[:count]


def on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


@given(pieces=st.lists(st.integers(0, 200), max_size=20), most=st.integers(4, 300))
def test_head_and_tail_are_what_was_written_and_the_cut_is_told(tmp_path_factory, pieces, most):
    folder = tmp_path_factory.mktemp("output")
    whole = numbered(sum(pieces))
    writer = CappedWriter(folder, most)
    done = 0
    for size in pieces:
        writer.write(whole[done : done + size])
        done += size
        output = read_output(folder)
        assert on_disk(folder) <= most
        assert len(output.head) + output.cut + len(output.tail) == done == writer.written
        assert output.head == whole[: len(output.head)]
        assert output.tail == whole[done - len(output.tail) : done]
        assert output.cut == 0 or len(output.head) == most // 4
        assert output.cut == 0 or len(output.tail) >= max(1, (most - most // 4) // 2)
    writer.close()


def test_little_output_is_whole(tmp_path):
    writer = CappedWriter(tmp_path, MOST)
    assert read_output(tmp_path) == Output(b"", 0, b"")
    writer.write(b"words")
    assert read_output(tmp_path).text() == "words"
    writer.close()


def test_a_folder_that_is_not_there_has_no_output(tmp_path):
    assert read_output(tmp_path / "nowhere") == Output(b"", 0, b"")


def test_the_text_says_what_was_cut_and_has_no_half_characters():
    assert Output("häuse".encode()[:2], 5, "öl".encode()[1:]).text() == "h�\n[5 bytes cut]\n�l"
    assert Output("ö".encode()[:1], 0, "ö".encode()[1:]).text() == "ö"


def test_nobody_else_may_read_it(tmp_path):
    writer = CappedWriter(tmp_path, MOST)
    writer.write(numbered(200))
    writer.close()
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_output_is_never_written_over(tmp_path):
    CappedWriter(tmp_path, MOST).close()
    with pytest.raises(FileExistsError):
        CappedWriter(tmp_path, MOST)


def test_it_can_be_read_while_it_is_written(tmp_path):
    """A reader sees one moment: all before the tail's end is told, either as text or as a number."""
    stopping = threading.Event()
    whole = numbered(100_000)

    def write() -> None:
        for start in range(0, 100_000, 1000):
            writer.write(whole[start : start + 1000])
        stopping.set()

    writer = CappedWriter(tmp_path, 4096)
    thread = threading.Thread(target=write)
    thread.start()
    seen = 0
    while not stopping.is_set():
        output = read_output(tmp_path)
        now = len(output.head) + output.cut + len(output.tail)
        assert now >= seen
        assert output.cut >= 0
        assert output.head == whole[: len(output.head)]
        assert output.tail == whole[now - len(output.tail) : now]
        seen = now
    thread.join()
    writer.close()
    assert read_output(tmp_path).tail.endswith(whole[-1000:])


@pytest.mark.parametrize("missing", [1, 2])
def test_after_a_crash_between_two_segments_it_can_be_read(tmp_path, missing):
    writer = CappedWriter(tmp_path, MOST)
    writer.write(numbered(200))
    writer.close()
    tails = sorted(tmp_path.glob("output.tail.*"), key=lambda path: int(path.suffix[1:]))
    for path in tails[:missing]:
        path.unlink()
    output = read_output(tmp_path)
    whole = numbered(200)
    if missing == 1:
        assert len(output.head) + output.cut + len(output.tail) == 200
        assert output.tail
        assert whole.endswith(output.tail)
    else:
        assert output == Output(whole[:16], 0, b"")


def test_a_full_disk_loses_output_and_stops_nobody(tmp_path, monkeypatch):
    writer = CappedWriter(tmp_path, MOST)
    whole = numbered(400)
    writer.write(whole[:100])
    before = read_output(tmp_path)
    write = os.write
    room = 10

    def full(fd: int, data: memoryview) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = write(fd, data[: min(room, len(data))])
        room -= done
        return done

    monkeypatch.setattr(capped.os, "write", full)
    for start in range(100, 200, 10):
        writer.write(whole[start : start + 10])
    assert writer.error is not None
    kept = read_output(tmp_path)
    assert kept.head == before.head
    assert whole[:110].endswith(kept.tail)  # the tail stays as it was when the disk was full
    assert kept.tail
    monkeypatch.undo()
    writer.write(whole[200:210])
    after = read_output(tmp_path)
    assert (after.tail, len(after.head) + after.cut) == (whole[200:210], 200)
    writer.close()


def test_a_flood_stays_bounded_and_is_not_held_up(tmp_path):
    program = """
import sys
sys.path.append(sys.argv[1])
from keeping.capped import CappedWriter
writer = CappedWriter(sys.argv[2], 100_000)
while data := sys.stdin.buffer.read1(65536):
    writer.write(data)
print(writer.written)"""
    room = Path(capped.__file__).parents[1]
    done = subprocess.run(
        f"yes | head -c 300000000 | '{sys.executable}' -I -S -c '{program}' '{room}' '{tmp_path}'",
        shell=True,
        capture_output=True,
        check=True,
    )
    assert done.stdout == b"300000000\n"
    assert on_disk(tmp_path) <= 100_000
    output = read_output(tmp_path)
    assert len(output.head) + output.cut + len(output.tail) == 300_000_000
