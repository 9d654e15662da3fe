"""What an MCP server says, as tools and as text, and its pipes. No server."""

import json
import os
import re

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("mcp", reason="the MCP SDK is not installed; pip install 'turnkernel[mcp]' would run it")

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage

from turnkernel_tools.mcp_pipes import ServerInput, ServerOutput, read_message, written
from turnkernel_tools.mcp_tools import mcp_tools, output, tool_names


async def nobody(ctx, tool, input):
    raise AssertionError


def offered(*tools, trust_hints=False):
    return mcp_tools("files", tools, call=nobody, trust_hints=trust_hints, timeout=None)


def a_tool(name="read", **options):
    return types.Tool(name=name, input_schema={"type": "object", "x-kept": [1]}, **options)


# ------------------------------------------------------------------------------------------------- names


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=80), unique=True))
def test_every_name_is_one_that_wires_take_and_no_two_are_the_same(own_names):
    fit = tool_names("files", own_names)
    assert list(fit) == own_names
    assert len(set(fit.values())) == len(own_names)
    assert all(re.fullmatch(r"files_[A-Za-z0-9_-]{0,58}", name) for name in fit.values())
    assert fit == tool_names("files", reversed(own_names))


def test_a_name_that_fits_is_kept_and_one_that_does_not_is_told():
    plain, dotted, crossed, long = offered(a_tool(), a_tool("a.b"), a_tool("a/b"), a_tool("x" * 80))
    assert (plain.name, plain.description) == ("files_read", "The tool 'read' of files.")
    assert dotted.name != crossed.name
    assert re.fullmatch(r"files_a_b_[0-9a-f]{8}", dotted.name)
    assert dotted.description == "(The server files calls it 'a.b'.)"
    assert len(long.name) == 64
    assert [tool.own_name for tool in (dotted, crossed)] == ["a.b", "a/b"]


def test_of_two_tools_with_one_name_the_first_is_taken():
    tools = offered(a_tool(description="one"), a_tool("other"), a_tool(description="two"))
    assert [(tool.name, tool.description) for tool in tools] == [
        ("files_read", "one"),
        ("files_other", "The tool 'other' of files."),
    ]


def test_the_schema_goes_on_as_it_came():
    (tool,) = offered(a_tool(description=" Read it.\n"))
    assert (tool.schema, tool.description) == ({"type": "object", "x-kept": [1]}, "Read it.")


# ----------------------------------------------------------------------------------------------- effects


@pytest.mark.parametrize(
    ("hints", "trusted"),
    [
        ({"read_only_hint": True, "idempotent_hint": True}, ("read_only", "shared")),
        ({"read_only_hint": False, "idempotent_hint": True}, ("idempotent", "exclusive")),
        ({"destructive_hint": False}, ("effect", "exclusive")),
        (None, ("effect", "exclusive")),
    ],
)
def test_what_a_server_says_of_its_effects_counts_where_it_is_trusted(hints, trusted):
    tool = a_tool(annotations=None if hints is None else types.ToolAnnotations(**hints))
    assert [(one.effect, one.concurrency) for one in offered(tool, trust_hints=True)] == [trusted]
    assert [(one.effect, one.concurrency) for one in offered(tool)] == [("effect", "exclusive")]


# ----------------------------------------------------------------------------------------------- results


def result(*blocks, **options):
    return output(types.CallToolResult.model_validate({"content": blocks} | options))


def test_what_is_no_text_is_named():
    said = result(
        {"type": "text", "text": "one\ntwo"},
        {"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"},
        {"type": "audio", "data": "aGVsbG8h", "mimeType": "audio/wav"},
        {"type": "resource_link", "uri": "file:///a", "name": "a", "mimeType": "text/plain"},
        {"type": "resource", "resource": {"uri": "file:///b", "text": "inside"}},
        {"type": "resource", "resource": {"uri": "file:///c", "blob": "aGVsbA=="}},
    )
    assert not said.is_error
    assert said.text.splitlines() == [
        "one",
        "two",
        "[Image, image/png, 5 bytes: not shown]",
        "[Audio, audio/wav, 6 bytes: not shown]",
        "[Resource file:///a: a, text/plain]",
        "[Resource file:///b]",
        "inside",
        "[Resource file:///c, bytes, 4 bytes: not shown]",
    ]


def test_structured_content_is_shown_where_there_is_no_text():
    assert result(structuredContent={"größe": 3}).text == '{"größe": 3}'
    assert result({"type": "text", "text": "three"}, structuredContent={"size": 3}).text == "three"
    assert result({"type": "text", "text": " "}).text == "(no output)"


def test_a_tools_own_failure_is_an_error():
    failed = result({"type": "text", "text": "no such file"}, isError=True)
    assert (failed.text, failed.is_error) == ("no such file", True)


# ---------------------------------------------------------------------------------------------- messages

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = ("jsonrpc", "id", "method", "params", "result", "error")


@given(st.dictionaries(st.sampled_from(KEYS), JSON | st.sampled_from(["2.0", 1, {}])) | JSON)
def test_no_line_of_a_server_is_more_than_can_be_read(value):
    message = read_message(json.dumps(value))
    answer = isinstance(value, dict) and "method" not in value and type(value.get("id")) in (int, str)
    assert message is not None or not answer


@pytest.mark.parametrize("line", ["", "[" * 100_000, "9" * 5000, "Listening\r", '{"jsonrpc": "2.0"}', "[1]"])
def test_what_is_no_message_is_none(line):
    assert read_message(line) is None


def test_a_lone_surrogate_goes_out_as_it_is_and_comes_in_as_something_that_can_be_told():
    sent = types.JSONRPCRequest(jsonrpc="2.0", id=1, method="tools/call", params={"a": "\ud800 😀"})
    assert json.loads(written(sent)) == {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": sent.params}
    came = read_message('{"jsonrpc": "2.0", "id": 1, "result": {"\\uD800": "\\ud83d\\ude00 \\udc00"}}')
    assert came == types.JSONRPCResponse(jsonrpc="2.0", id=1, result={"\ufffd": "😀 \ufffd"})


async def test_what_is_sent_is_in_the_pipe_at_once_and_the_rest_when_there_is_room():
    sent = types.JSONRPCNotification(jsonrpc="2.0", method="a", params={"b": "x" * 100_000})
    given = ServerInput()
    try:
        await given.send(SessionMessage(sent))
        os.set_blocking(given.read_end, False)
        came = os.read(given.read_end, 1 << 20)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(given.pump)
            while len(came) < len(written(sent)):
                await trio.lowlevel.wait_readable(given.read_end)
                came += os.read(given.read_end, 1 << 20)
            assert came == written(sent)
            given.close()  # ends the pump
        assert os.read(given.read_end, 1) == b""
        with pytest.raises(anyio.ClosedResourceError):
            await given.send(SessionMessage(sent))
    finally:
        given.close()
        os.close(given.read_end)


def test_a_message_may_come_in_pieces_and_words_between():
    out = ServerOutput()
    try:
        for piece in ("Hello", "\n", '{"jsonrpc": "2.0", "id": 1, "re', 'sult": {}}', "\n\n  \nbye", "\n"):
            out.hear(piece, "stdout")
        out.hear("warning\n", "stderr")
        assert out.stream.receive_nowait().message == types.JSONRPCResponse(jsonrpc="2.0", id=1, result={})
        assert out.said == "Hello\nbye\nwarning\n"
    finally:
        out.close()
        out.stream.close()
