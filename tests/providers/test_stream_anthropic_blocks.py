"""Blocks, stops and characters in streams of Anthropic's wire, and streams of any JSON."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.providers.anthropic_streams import (
    CALL,
    HI,
    PING,
    STOP,
    USAGE,
    Json,
    closed,
    decode,
    delta,
    opened,
    said,
    sse,
    start,
    stopped,
)

from turnkernel.events import Delta
from turnkernel.provider import Finish

# --------------------------------------------------------------------------------------------------- thinking

THINKING = (
    opened(0, "thinking", thinking="", signature=""),
    delta(0, "thinking_delta", thinking="Hm"),
    delta(0, "signature_delta", signature="c2ln"),
    closed(0),
)


def test_signed_thinking_is_whole() -> None:
    events, _ = decode(sse(start(), *THINKING, stopped(), STOP))
    assert events[:-1] == [Delta(0, "thinking", "Hm"), Delta(0, "signature", "c2ln"), Delta(0, "end")]


def test_thinking_without_its_signature_never_ends() -> None:
    events, _ = decode(sse(start(), *THINKING[:2], THINKING[3], stopped(), STOP))
    assert events[:-1] == [Delta(0, "thinking", "Hm")]


def test_thinking_that_the_server_keeps_to_itself_is_whole_by_its_signature() -> None:
    events, _ = decode(sse(start(), THINKING[0], *THINKING[2:], stopped(), STOP))
    assert events[:-1] == [Delta(0, "thinking", ""), Delta(0, "signature", "c2ln"), Delta(0, "end")]


def test_redacted_thinking_is_given_whole() -> None:
    events, _ = decode(
        sse(start(), opened(0, "redacted_thinking", data="b3Bh"), closed(0), *CALL, stopped(), STOP)
    )
    assert events[:2] == [Delta(0, "redacted", "b3Bh"), Delta(0, "end")]


# ------------------------------------------------------------------------------------------------ other blocks


def test_a_server_tool_is_given_whole_when_it_ends() -> None:
    use = (
        opened(0, "server_tool_use", id="s1", name="web_search", input={}),
        delta(0, "input_json_delta", partial_json='{"query":'),
        delta(0, "input_json_delta", partial_json=' "x"}'),
    )
    assert decode(sse(start(), *use))[0] == []
    events, _ = decode(sse(start(), *use, closed(0), stopped(), STOP))
    first, end, finish = events
    assert isinstance(first, Delta)
    assert json.loads(first.text) == {
        "type": "server_tool_use",
        "id": "s1",
        "name": "web_search",
        "input": {"query": "x"},
    }
    assert [end, finish] == [Delta(0, "end"), Finish("end_turn", USAGE)]


def test_a_server_tool_whose_input_is_no_json_is_left_out() -> None:
    use = (opened(0, "server_tool_use", id="s1"), delta(0, "input_json_delta", partial_json='{"query'), closed(0))
    assert decode(sse(start(), *use, stopped(), STOP)) == ([Finish("end_turn", USAGE)], None)


def test_the_deltas_of_an_unknown_block_are_added_to_it() -> None:
    block = (
        opened(0, "compaction", content=None),
        delta(0, "compaction_delta", content="a"),
        delta(0, "compaction_delta", content="b"),
        closed(0),
    )
    first = decode(sse(start(), *block, stopped(), STOP))[0][0]
    assert isinstance(first, Delta)
    assert json.loads(first.text) == {"type": "compaction", "content": "ab"}


def test_what_a_message_said_before_its_stream_began_is_given_too() -> None:
    block = {"type": "tool_use", "id": "t1", "name": "ls", "input": {"a": 1}}
    events, failure = decode(sse(start(content=[block], stop_reason="tool_use"), STOP))
    assert failure is None
    assert events == [
        Delta(0, "call", call="t1", name="ls"),
        Delta(0, "input", '{"a":1}'),
        Delta(0, "end"),
        Finish("tool_use", {"input_tokens": 3}),
    ]


# ------------------------------------------------------------------------------------------------ stop reasons


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("end_turn", "end_turn"),
        ("stop_sequence", "end_turn"),
        ("max_tokens", "max_tokens"),
        ("model_context_window_exceeded", "max_tokens"),
        ("refusal", "refusal"),
        ("pause_turn", "pause_turn"),
        ("tool_use", "end_turn"),
        ("something_new", "end_turn"),
    ],
)
def test_stop_reasons_without_a_call(reason: str, stop: str) -> None:
    events, _ = decode(sse(start(), *HI, stopped(reason), STOP))
    assert events[-1] == Finish(stop, USAGE)  # type: ignore[arg-type]


def test_a_message_that_reached_its_limit_says_so_also_when_it_has_calls() -> None:
    events, _ = decode(sse(start(), *CALL, stopped("max_tokens"), STOP))
    assert events[-1] == Finish("max_tokens", USAGE)


# -------------------------------------------------------------------------------------------------- surrogates


def test_a_character_that_was_cut_in_two_is_joined() -> None:
    events, _ = decode(
        sse(start(), opened(0, "text"), said(0, "a\ud83d"), said(0, "\ude00b"), closed(0), stopped(), STOP)
    )
    assert events[:-1] == [Delta(0, "text", "a"), Delta(0, "text", "\U0001f600b"), Delta(0, "end")]


def test_half_a_character_is_replaced() -> None:
    events, _ = decode(
        sse(start(), opened(0, "text"), said(0, "a\udc00"), said(0, "b\ud83d"), closed(0), stopped(), STOP)
    )
    shown = "".join(event.text for event in events if isinstance(event, Delta))
    assert shown == "a\ufffdb\ufffd"


# ------------------------------------------------------------------------------------------------------ any JSON

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
# fmt: off
FIELDS = st.sampled_from(
    [
        "type", "index", "delta", "content_block", "message", "id", "usage", "content", "text", "thinking",
        "signature", "data", "name", "input", "partial_json", "stop_reason", "error",
    ]
)
TYPES = st.sampled_from(
    [
        "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
        "message_stop", "error", "ping", "text", "tool_use", "thinking", "redacted_thinking",
        "server_tool_use", "text_delta", "input_json_delta", "signature_delta",
    ]
)
# fmt: on
WILD = st.recursive(
    JSON | TYPES | st.integers(0, 2),
    lambda inner: st.dictionaries(FIELDS, inner, max_size=5) | st.lists(inner, max_size=2),
    max_leaves=12,
)
EVENTS = st.fixed_dictionaries(
    {"type": TYPES},
    optional={"index": st.integers(0, 2), "delta": WILD, "content_block": WILD, "message": WILD, "usage": WILD},
)
GOOD = st.sampled_from([start(), *HI, *CALL, *THINKING, stopped(), stopped("tool_use"), STOP, PING])


@settings(deadline=None, max_examples=200)
@given(st.lists(EVENTS | GOOD, max_size=12), st.integers(0, 400))
def test_no_stream_makes_the_decoder_raise_and_every_stream_has_an_outcome(events: list[Json], cut: int) -> None:
    data = sse(*events)
    given, failure = decode(data[: len(data) - cut] if cut < len(data) else data)
    finished = bool(given) and isinstance(given[-1], Finish)
    assert finished == (failure is None)
    assert all(isinstance(event, Delta) for event in given[:-1])
    for event in given:
        if isinstance(event, Delta):
            event.text.encode()  # no lone surrogate
