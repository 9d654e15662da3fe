"""The file tools: whole or nothing, and never outside the root."""

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from turnkernel.causes import Urgency
from turnkernel.tool import ToolOutput
from turnkernel_tools import edit_file_tool, files, read_file_tool, replace, write_file_tool
from turnkernel_tools.confined import RefusedError, Root

IS_ROOT = os.geteuid() == 0


@pytest.fixture
def root(tmp_path) -> Path:
    """The directory that the tools are confined to; `outside` is beside it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    made = tmp_path / "root"
    made.mkdir()
    return made


@pytest.fixture
def outside(root) -> Path:
    return root.parent / "outside"


@pytest.fixture
def read(ctx, root):
    async def use(path: str) -> ToolOutput:
        return await read_file_tool(root).run(ctx, {"path": path})

    return use


@pytest.fixture
def write(ctx, root):
    async def use(path: str, content: str = "new") -> ToolOutput:
        return await write_file_tool(root).run(ctx, {"path": path, "content": content})

    return use


@pytest.fixture
def edit(ctx, root):
    async def use(path: str, old: str, new: str) -> ToolOutput:
        return await edit_file_tool(root).run(ctx, {"path": path, "old": old, "new": new})

    return use


def everything(directory: Path) -> dict[str, Any]:
    """Every name beneath a directory, with what is there."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() and not path.is_symlink() else None
        for path in sorted(directory.rglob("*"))
    }


# ------------------------------------------------------------------------------------------------- read


async def test_a_file_is_read_as_it_is(read, root):
    (root / "a").write_bytes("ä\r\n\tb\n".encode())
    assert await read("a") == ToolOutput("ä\r\n\tb\n")
    assert await read(str(root / "a")) == ToolOutput("ä\r\n\tb\n")


async def test_an_empty_file_is_told_as_one(read, root):
    (root / "a").touch()
    output = await read("a")
    assert (output.text, output.is_error) == ("[a: 0 bytes, nothing to see]", False)


async def test_a_file_that_is_not_there_is_an_error_that_names_it(read):
    assert await read("no/such") == ToolOutput("no/such: No such file or directory", is_error=True)


async def test_a_large_file_is_cut_between_characters_and_that_is_told(read, root, monkeypatch):
    monkeypatch.setattr(files, "READ_BYTES", 4)
    (root / "a").write_text("aääb")
    assert (await read("a")).text == "aä\n[The file has 6 bytes; the first 4 are shown]"


async def test_a_binary_file_is_told_and_not_shown(read, root):
    (root / "a").write_bytes(b"\x7fELF\0\1")
    assert await read("a") == ToolOutput("a: a binary file of 6 bytes; not shown", is_error=True)


async def test_what_is_not_utf8_is_shown_as_such_and_told(read, root):
    (root / "a").write_bytes(b"a\xffb\n")
    output = await read("a")
    assert output.text == "a�b\n[The file is not all UTF-8; what is not is shown as U+FFFD]"
    assert not output.is_error
    (root / "b").write_text("a�b\n")  # the character itself is nothing wrong
    assert (await read("b")).text == "a�b\n"


# ------------------------------------------------------------------------------------------------ write


async def test_a_file_is_written_and_the_directories_it_is_in(write, root):
    output = await write("x/y/z", "text ä\n")
    assert output == ToolOutput("Wrote x/y/z: 8 bytes, a new file.")
    assert everything(root) == {"x": None, "x/y": None, "x/y/z": "text ä\n".encode()}
    assert await write("x/y/z", "") == ToolOutput("Wrote x/y/z: 0 bytes.")
    assert everything(root) == {"x": None, "x/y": None, "x/y/z": b""}


async def test_a_new_file_has_the_mode_that_the_umask_says(write, root):
    old = os.umask(0o027)
    try:
        await write("a")
    finally:
        os.umask(old)
    assert stat.S_IMODE((root / "a").stat().st_mode) == 0o640


@pytest.mark.parametrize("named", [False, True])
async def test_mode_and_owner_are_kept(write, root, monkeypatch, named):
    if named:
        monkeypatch.setattr(replace.sys, "platform", "other")
    (root / "a").write_text("old")
    (root / "a").chmod(0o4751)
    if IS_ROOT:
        os.chown(root / "a", 65534, 65534)
        (root / "a").chmod(0o4751)
    before = (root / "a").stat()
    assert not (await write("a", "new")).is_error
    after = (root / "a").stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert everything(root) == {"a": b"new"}


async def test_an_owner_that_can_not_be_kept_leaves_the_file_alone(write, root, monkeypatch):
    (root / "a").write_text("old")
    real = os.fstat

    def of_another(fd: int) -> Any:
        found = real(fd)
        fields = list(found)
        fields[4] += 1
        return os.stat_result(fields)

    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(replace.os, "fstat", of_another)
    monkeypatch.setattr(replace.os, "fchown", refused)
    output = await write("a")
    assert output == ToolOutput("a: belongs to another user or group; that could not be kept", is_error=True)
    assert everything(root) == {"a": b"old"}


async def test_a_read_only_file_is_not_replaced(write, root, monkeypatch):
    (root / "a").write_text("old")
    (root / "a").chmod(0o444)
    if IS_ROOT:  # whom the system would let
        monkeypatch.setattr(replace.os, "access", lambda *_, **__: False)
    assert await write("a") == ToolOutput("a: is not writable", is_error=True)
    assert everything(root) == {"a": b"old"}


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("step", ["write", "fsync", "link", "rename"])
async def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(write, root, monkeypatch, step, named):
    if named:
        monkeypatch.setattr(replace.sys, "platform", "other")
    elif sys.platform != "linux":
        pytest.skip("files without a name are Linux's; a Linux machine would run it")
    if step == "link" and named:
        step = "rename"
    (root / "a").write_text("old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(replace.os, step, full)
    assert await write("a") == ToolOutput("a: No space left on device", is_error=True)
    assert everything(root) == {"a": b"old"}


async def test_a_lone_surrogate_is_refused_before_anything_is_done(write, edit, root):
    (root / "a").write_text("old")
    for output in (await write("a", "x\ud800"), await edit("a", "old", "\udfff"), await write("b\ud800", "x")):
        assert output.is_error
        assert "lone surrogate" in output.text
    assert everything(root) == {"a": b"old"}


# ------------------------------------------------------------------------------------------------- edit


async def test_one_piece_is_replaced_and_every_other_byte_stays(edit, root):
    (root / "a").write_bytes(b"one\r\n\xff two\xc3\xb6\nthree")
    assert await edit("a", "twoö", "2 ä") == ToolOutput("Edited a at line 2.")
    assert (root / "a").read_bytes() == b"one\r\n\xff 2 \xc3\xa4\nthree"


@pytest.mark.parametrize(
    ("old", "told"),
    [
        ("zzz", "`old` does not occur in it"),
        ("one", "`old` occurs 3 times in it, at lines 1, 2, 4;"),
        ("aa", "`old` occurs 2 times in it, at lines 3, 3;"),  # overlapping
        ("", "Nothing to change"),
        ("new", "Nothing to change"),
    ],
)
async def test_a_piece_that_does_not_occur_once_changes_nothing(edit, root, old, told):
    (root / "a").write_text("one\none\naaa\none new\n")
    output = await edit("a", old, "new")
    assert output.is_error
    assert told in output.text
    assert (root / "a").read_text() == "one\none\naaa\none new\n"


async def test_many_occurrences_are_counted_and_the_first_ones_told(edit, root):
    (root / "a").write_text("x\n" * 1000)
    assert "1000 times in it, at lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ...;" in (await edit("a", "x", "y")).text


async def test_a_file_too_large_to_edit_is_left_alone(edit, root, monkeypatch):
    monkeypatch.setattr(files, "EDIT_BYTES", 3)
    (root / "a").write_text("long")
    assert (await edit("a", "l", "L")).text == "a: over 3 bytes, too large to edit"
    assert (root / "a").read_text() == "long"


async def test_editing_does_not_make_a_file(edit, root):
    assert (await edit("x/a", "old", "new")).is_error
    assert everything(root) == {}


# ----------------------------------------------------------------------------------------------- inside


@pytest.fixture
def links(root, outside) -> Path:
    """Every kind of link that leads out, and some that stay in."""
    (root / "dir").mkdir()
    (root / "dir" / "a").write_text("inside")
    made = {
        "file_out": outside / "secret",
        "dir_out": outside,
        "relative_out": "../outside",
        "through_dir_out": "dir/../../outside/secret",
        "chain_out": "dir_out/secret",
        "new_out": outside / "new",
        "beside": f"{root}-not",
        "file_in": "dir/a",
        "dir_in": "dir",
        "absolute_in": root / "dir" / "a",
        "new_in": "dir/new",
        "loop": "loop",
    }
    for name, target in made.items():
        (root / name).symlink_to(target)
    return root


LEADS_OUT = [
    "../outside/secret",
    "dir/../../outside/secret",
    "..",
    "/etc/passwd",
    "file_out",
    "dir_out/secret",
    "relative_out/secret",
    "through_dir_out",
    "chain_out",
    "new_out",
    "dir_in/../../outside/secret",
    "beside/secret",
]


@pytest.mark.parametrize("path", LEADS_OUT)
async def test_nothing_outside_the_root_is_read_or_written(links, outside, read, write, edit, path):
    before = everything(links.parent)
    for output in (await read(path), await write(path), await edit(path, "secret", "known")):
        assert output.is_error
        assert output.text.startswith(f"{path}: leads out of ")
    assert everything(links.parent) == before


async def test_an_absolute_path_beside_the_root_is_outside(links, outside, read):
    for path in (str(outside / "secret"), f"{links}-not/secret", f"{links}/../outside/secret"):
        assert "leads out of" in (await read(path)).text


async def test_a_link_that_stays_inside_is_followed_and_kept(links, read, write, edit):
    assert await read("file_in") == ToolOutput("inside")
    assert await read("dir_in/a") == ToolOutput("inside")
    assert await read("dir_in/../dir_in/./a") == ToolOutput("inside")
    assert not (await write("absolute_in", "written")).is_error
    assert not (await edit("file_in", "written", "edited")).is_error
    assert (links / "dir" / "a").read_text() == "edited"
    assert not (await write("new_in", "fresh")).is_error
    assert (links / "dir" / "new").read_text() == "fresh"
    assert all((links / name).is_symlink() for name in ("file_in", "dir_in", "absolute_in", "new_in"))


async def test_a_link_to_itself_is_refused(links, read):
    assert await read("loop") == ToolOutput("loop: too many symbolic links", is_error=True)


async def test_a_root_that_is_reached_through_a_link_is_itself(ctx, root, tmp_path):
    (root / "a").write_text("inside")
    alias = tmp_path / "alias"
    alias.symlink_to(root)
    tool = read_file_tool(alias)
    for path in ("a", str(alias / "a"), str(root / "a")):
        assert (await tool.run(ctx, {"path": path})).text == "inside"


@pytest.mark.parametrize("path", ["", "a\0b", "\ud800"])
async def test_what_is_no_path_is_refused(read, write, root, path):
    for output in (await read(path), await write(path)):
        assert output.is_error
        assert "not a path" in output.text
    assert everything(root) == {}


async def test_a_name_too_long_is_an_error(write, root):
    assert (await write("x" * 300)).is_error
    assert everything(root) == {}


@pytest.mark.parametrize("path", [".", "dir", "dir/", "dir/..", "pipe", "socket", "device"])
async def test_what_is_no_regular_file_is_refused_without_waiting_for_it(links, read, write, edit, path):
    os.mkfifo(links / "pipe")
    with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(links):
        made.bind("socket")  # a whole path may be too long for a socket's name
    if path == "device":
        if not IS_ROOT:
            pytest.skip("making a device is for root; running as root would run it")
        os.mknod(links / "device", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    before = everything(links.parent)
    for output in (await read(path), await write(path), await edit(path, "a", "b")):
        assert output.is_error
        assert output.text.startswith(f"{path}: is ")
    assert everything(links.parent) == before


async def test_a_directory_that_becomes_a_link_under_the_walk_does_not_lead_out(links, outside, monkeypatch):
    walk = Root(links)
    real = os.open

    def swapped(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "dir":
            (links / "dir").rename(links / "moved")
            (links / "dir").symlink_to(outside)
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", swapped)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        walk.place("dir/secret")


async def test_a_file_that_becomes_a_pipe_or_a_link_under_the_walk_is_not_read(links, outside):
    for replacement in ("pipe", "link"):
        (links / "b").write_text("inside")
        with Root(links).place("b") as place:
            (links / "b").unlink()
            if replacement == "pipe":
                os.mkfifo(links / "b")
            else:
                (links / "b").symlink_to(outside / "secret")
            place.status = lambda: None  # type: ignore[method-assign] # as if it had been looked at before
            with pytest.raises((RefusedError, OSError)):
                place.open_to_read()
        (links / "b").unlink()


async def test_no_descriptor_stays_open(links, read, write, edit):
    before = len(os.listdir("/dev/fd"))
    for path in [*LEADS_OUT, "dir/a", "file_in", "loop", "none/such", ".", "dir"]:
        await read(path)
        await edit(path, "inside", "inside!")
        await edit(path, "inside!", "inside")
    await write("new/dir/file")
    assert len(os.listdir("/dev/fd")) == before


# ----------------------------------------------------------------------------------------------- cancel


@pytest.mark.parametrize("urgency", list(Urgency))
async def test_a_cancel_in_a_write_leaves_the_new_file_and_says_so(ctx, root, monkeypatch, urgency):
    (root / "a").write_text("old")
    begun, go = threading.Event(), threading.Event()
    real = os.fsync

    def slow(fd: int) -> None:
        begun.set()
        go.wait()
        real(fd)

    monkeypatch.setattr(replace.os, "fsync", slow)
    outputs: list[ToolOutput] = []

    async def body() -> None:
        with ctx.cut:
            outputs.append(await write_file_tool(root).run(ctx, {"path": "a", "content": "new"}))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(body)
        await trio.to_thread.run_sync(begun.wait)
        ctx.cancel(urgency)
        go.set()
    assert outputs == [ToolOutput("Wrote a: 3 bytes.")]
    assert everything(root) == {"a": b"new"}
    assert [reason for reason, _ in ctx.sections] == ["replacing a"]


async def test_a_call_that_is_to_end_now_does_not_begin_to_write(ctx, root):
    (root / "a").write_text("old")
    with ctx.cut:
        ctx.cancel(Urgency.NOW)
        await write_file_tool(root).run(ctx, {"path": "a", "content": "new"})
    assert ctx.cut.cancelled_caught
    assert everything(root) == {"a": b"old"}


WRITER = """
import sys
from pathlib import Path
from turnkernel_tools.confined import Root
from turnkernel_tools.replace import replace_file
contents = [letter * 3_000_000 for letter in (b"o", b"n")]
print("ready", flush=True)
number = 0
while True:
    number += 1
    with Root(Path(sys.argv[1])).place("a") as place:
        replace_file(place, contents[number % 2])
    print(number, flush=True)
"""


@pytest.mark.skipif(
    sys.platform != "linux", reason="files without a name are Linux's; a Linux machine would run it"
)
def test_a_kernel_killed_while_it_writes_leaves_the_old_file_or_the_new(root):
    (root / "a").write_bytes(b"o" * 3_000_000)
    for kill_after in range(1, 9):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(root)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert writer.stdout is not None
        with writer, writer.stdout:
            for _ in range(kill_after):
                writer.stdout.readline()
            writer.send_signal(signal.SIGKILL)  # it is in the next write
        (content,) = {everything(root).pop("a")}
        assert content in (b"o" * 3_000_000, b"n" * 3_000_000)
        assert list(everything(root)) == ["a"]
