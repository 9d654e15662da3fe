"""Calls in streams of Chat Completions, in all the ways in which servers send them."""

import pytest
from tests.providers.chat_streams import (
    DONE,
    END,
    HI_SAID,
    ONE,
    TWO,
    call,
    called,
    calls,
    chunk,
    decode,
    sse,
    whole,
)

from turnkernel.events import Delta
from turnkernel_providers.openai_chat_stream import OpenAIChatDecoder

# ------------------------------------------------------------------------------------------------------- calls


@pytest.mark.parametrize("start", [0, 1, 5])
def test_indexes_may_start_anywhere_and_pieces_may_interleave(start: int) -> None:
    pieces = [
        calls(call(start, "a", "ls", ""), call(start + 1, "b", "cat", "")),
        calls(call(start, arguments='{"p"')),
        calls(call(start + 1, arguments='{"q"')),
        calls(call(start, arguments=": 1}")),
        calls(call(start + 1, arguments=": 2}")),
    ]
    assert called(sse(*pieces, chunk("tool_calls")) + DONE) == [ONE, TWO]


def test_a_missing_index_with_an_id_is_a_call_of_its_own() -> None:
    assert called(sse(calls(whole(None, ONE)), calls(whole(None, TWO)), chunk("tool_calls"))) == [ONE, TWO]


@pytest.mark.parametrize("ident", ["", None])
def test_whole_calls_without_index_and_id_are_told_apart(ident: str | None) -> None:
    wanted = [("", *ONE[1:]), ("", *TWO[1:])]
    one, two = whole(None, ONE, ident), whole(None, TWO, ident)
    assert called(sse(calls(one), calls(two), chunk("tool_calls"))) == wanted
    assert called(sse(calls(one, two, finish="tool_calls"))) == wanted


def test_a_whole_call_stays_whole_when_white_space_follows_it() -> None:
    pieces = [calls(whole(0, ONE)), calls(call(0, arguments="\n")), calls(call(0, name="cat", arguments=TWO[2]))]
    assert called(sse(*pieces, chunk("tool_calls"))) == [("a", "ls", ONE[2] + "\n"), ("", *TWO[1:])]


def test_two_equal_calls_without_index_and_id_are_two() -> None:
    one = whole(None, ONE, "")
    assert called(sse(calls(one), calls(one), chunk("tool_calls"))) == [("", *ONE[1:])] * 2


def test_one_index_for_every_call_is_told_apart_by_the_ids() -> None:
    assert called(sse(calls(whole(0, ONE)), calls(whole(0, TWO)), chunk("tool_calls"))) == [ONE, TWO]
    pieces = [calls(call(0, "a", "ls", "")), calls(call(0, arguments=ONE[2])), calls(call(0, "b", "cat", ""))]
    assert called(sse(*pieces, calls(call(0, arguments=TWO[2])), chunk("tool_calls"))) == [ONE, TWO]


def test_one_id_under_two_indexes_with_the_name_repeated_is_one_call() -> None:
    pieces = [calls(call(1, "a", "ls", '{"p"')), calls(call(0, "a", "ls", ": 1}"))]
    assert called(sse(*pieces, chunk("tool_calls"))) == [ONE]


def test_one_id_for_two_whole_calls_is_two_calls() -> None:
    pieces = [calls(whole(0, ONE)), calls(call(1, "a", "cat", '{"q": 2}'))]
    assert called(sse(*pieces, chunk("tool_calls"))) == [ONE, ("a", "cat", '{"q": 2}')]


def test_arguments_at_an_index_where_nothing_began_belong_to_the_last_call() -> None:
    pieces = [calls(call(0, "a", "ls", "")), calls(call(1, arguments='{"p"')), calls(call(1, arguments=": 1}"))]
    assert called(sse(*pieces, chunk("tool_calls"))) == [ONE]


@pytest.mark.parametrize("later", [None, ""])
def test_an_id_that_is_empty_later_is_not_overwritten(later: str | None) -> None:
    pieces = [
        calls(call(0, "a", "ls")),
        *(calls({**call(0, arguments=text), "id": later}) for text in ('{"p"', ": 1}")),
    ]
    assert called(sse(*pieces, chunk("tool_calls"))) == [ONE]


def test_an_id_may_come_late() -> None:
    pieces = [calls(call(0, "", "ls")), calls(call(0, "a")), calls(call(0, arguments=ONE[2]))]
    assert called(sse(*pieces, chunk("tool_calls"))) == [ONE]


def test_null_fields_are_nothing() -> None:
    begun = {"index": 0, "id": "a", "type": "function", "function": {"name": "ls", "arguments": None}}
    later = {"index": 0, "id": None, "type": None, "function": {"name": None, "arguments": ONE[2]}}
    assert called(sse(calls(begun), calls(later), chunk("tool_calls", tool_calls=None))) == [ONE]


def test_arguments_may_be_an_object() -> None:
    assert called(sse(calls(call(0, "a", "ls", {"p": 1}), finish="tool_calls"))) == [("a", "ls", '{"p":1}')]


def test_arguments_that_never_came_are_empty_and_the_call_is_whole() -> None:
    assert called(sse(calls(call(0, "a", "ls", "")), chunk("tool_calls"))) == [("a", "ls", "")]


def test_arguments_that_were_cut_leave_the_call_open() -> None:
    events, failure = decode(sse(calls(call(0, "a", "ls", '{"p"'))))
    assert events == [Delta(0, "call", call="a", name="ls"), Delta(0, "input", '{"p"')]
    assert failure is not None


def test_arguments_stream_as_they_come() -> None:
    decoder = OpenAIChatDecoder(["ls"])
    assert decoder.feed(sse(calls(call(0, "a", "ls", "")))) == []
    assert decoder.feed(sse(calls(call(0, arguments='{"p"')))) == [
        Delta(0, "call", call="a", name="ls"),
        Delta(0, "input", '{"p"'),
    ]
    assert decoder.feed(sse(calls(call(0, arguments=": 1}")))) == [Delta(0, "input", ": 1}")]


def test_an_empty_list_of_calls_is_no_call() -> None:
    assert decode(sse(chunk(content="Hi", tool_calls=[]), chunk(tool_calls=[{}, None, 1]), END))[0][:-1] == HI_SAID


# ------------------------------------------------------------------------------------------------------- names

TOOLS = ("read_file", "edit_existing_file", "edit", "ls", "aa")


@pytest.mark.parametrize(
    ("pieces", "name"),
    [
        ([("edit_ex", ""), ("isting_file", ""), (None, "{}")], "edit_existing_file"),
        ([("edit_ex", ""), ("isting_file", "{}")], "edit_existing_file"),
        ([("edit", "{"), ("_existing_file", "}")], "edit_existing_file"),
        ([("edit", "{"), (None, "}")], "edit"),
        ([("read_file", "{"), ("read_file", "}")], "read_file"),
        ([("read_file", ""), ("read_file", ""), ("read_file", "{}")], "read_file"),
        ([("read", ""), ("read_file", ""), ("", "{}")], "read_file"),
        ([("a", ""), ("a", "{}")], "aa"),
        ([(None, "{"), (None, "}"), ("ls", "")], "ls"),
        ([("unknown_tool", "{"), ("unknown_tool", "}")], "unknown_tool"),
    ],
)
def test_names_may_be_split_repeated_or_late(pieces: list[tuple[str | None, str]], name: str) -> None:
    first, *rest = [call(0, "a" if at == 0 else None, n, a) for at, (n, a) in enumerate(pieces)]
    assert called(sse(calls(first), *map(calls, rest), chunk("tool_calls")), TOOLS) == [("a", name, "{}")]


def test_calls_are_given_in_their_order_also_when_a_name_is_late() -> None:
    pieces = [calls(call(0, "a", arguments=ONE[2])), calls(whole(1, TWO)), calls(call(0, name="ls"))]
    assert called(sse(*pieces, chunk("tool_calls")), ("ls", "cat")) == [ONE, TWO]
