"""How streams of Anthropic's wire break, each way by a minimal stream: what is shown, and how it ends."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnkernel.errors import ProviderError
from turnkernel.events import Delta
from turnkernel.provider import Finish, ModelEvent
from turnkernel_providers.anthropic_stream import AnthropicDecoder

Json = dict[str, Any]


def sse(*events: Json) -> bytes:
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


def start(ident: str = "msg_1", **message: Any) -> Json:
    return {"type": "message_start", "message": {"id": ident, "usage": {"input_tokens": 3}, **message}}


def opened(index: int | None, kind: str, **fields: Any) -> Json:
    place = {} if index is None else {"index": index}
    return {"type": "content_block_start", "content_block": {"type": kind, **fields}, **place}


def delta(index: int | None, kind: str, **fields: Any) -> Json:
    place = {} if index is None else {"index": index}
    return {"type": "content_block_delta", "delta": {"type": kind, **fields}, **place}


def said(index: int | None, text: str) -> Json:
    return delta(index, "text_delta", text=text)


def closed(index: int | None) -> Json:
    return {"type": "content_block_stop"} if index is None else {"type": "content_block_stop", "index": index}


def stopped(reason: str | None = "end_turn") -> Json:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 5}}


STOP: Json = {"type": "message_stop"}
PING: Json = {"type": "ping"}
HI = (opened(0, "text", text=""), said(0, "Hi"), closed(0))
CALL = (
    opened(1, "tool_use", id="t1", name="ls", input={}),
    delta(1, "input_json_delta", partial_json=""),
    delta(1, "input_json_delta", partial_json='{"a"'),
    delta(1, "input_json_delta", partial_json=": 1}"),
    closed(1),
)
HI_SAID = [Delta(0, "text", "Hi"), Delta(0, "end")]
CALL_SAID = [
    Delta(1, "call", call="t1", name="ls"),
    Delta(1, "input", '{"a"'),
    Delta(1, "input", ": 1}"),
    Delta(1, "end"),
]
USAGE = {"input_tokens": 3, "output_tokens": 5}


def decode(data: bytes, *, ended: bool = True) -> tuple[list[ModelEvent], ProviderError | None]:
    """Decode in one piece; assert that byte by byte gives the same."""
    outcomes: list[tuple[list[ModelEvent], ProviderError | None]] = []
    for size in (1, len(data) or 1):
        decoder = AnthropicDecoder()
        events = [event for at in range(0, len(data), size) for event in decoder.feed(data[at : at + size])]
        outcomes.append((events + (decoder.eof() if ended else []), decoder.failure))
    assert outcomes[0][0] == outcomes[1][0]
    assert str(outcomes[0][1]) == str(outcomes[1][1])
    return outcomes[0]


def test_a_whole_message_is_given_whole() -> None:
    events, failure = decode(sse(start(), PING, *HI, *CALL, stopped("tool_use"), STOP))
    assert failure is None
    assert events == [*HI_SAID, *CALL_SAID, Finish("tool_use", USAGE)]


def test_an_end_without_stop_reason_is_a_failure() -> None:
    events, failure = decode(sse(start(), *HI))
    assert events == HI_SAID
    assert failure is not None
    assert failure.retryable


def test_a_stop_reason_with_every_block_closed_is_enough() -> None:
    assert decode(sse(start(), *HI, stopped())) == ([*HI_SAID, Finish("end_turn", USAGE)], None)


def test_a_stop_reason_with_a_block_open_is_not_enough() -> None:
    events, failure = decode(sse(start(), *HI, *CALL[:-1], stopped("tool_use")))
    assert events == [*HI_SAID, *CALL_SAID[:-1]]
    assert failure is not None


def test_the_last_word_with_a_call_open_is_a_failure() -> None:
    events, failure = decode(sse(start(), *HI, *CALL[:-1], stopped("tool_use"), STOP))
    assert events == [*HI_SAID, *CALL_SAID[:-1]]
    assert failure is not None


def test_the_last_word_closes_text() -> None:
    assert decode(sse(start(), *HI[:-1], stopped(), STOP)) == ([*HI_SAID, Finish("end_turn", USAGE)], None)


def test_the_last_word_without_a_stop_reason_is_a_failure() -> None:
    """A gateway that reached max_tokens ends so; to call it whole would pass a cut message for a whole one."""
    events, failure = decode(sse(start(), *HI, stopped(None), STOP))
    assert events == HI_SAID
    assert failure is not None


def test_an_error_event_after_content_comes_after_that_content() -> None:
    error = {"type": "error", "error": {"details": None, "type": "overloaded_error", "message": "Overloaded"}}
    events, failure = decode(sse(start(), *HI, error, *CALL))
    assert events == HI_SAID
    assert failure is not None
    assert failure.retryable
    assert "overloaded_error" in failure.text
    assert "Overloaded" in failure.text


@pytest.mark.parametrize(
    ("kind", "retryable"),
    [
        ("overloaded_error", True),
        ("api_error", True),
        ("rate_limit_error", True),
        ("invalid_request_error", False),
        ("authentication_error", False),
        ("not_found_error", False),
    ],
)
def test_an_error_as_the_first_event_says_whether_to_try_again(kind: str, retryable: bool) -> None:
    events, failure = decode(sse({"type": "error", "error": {"type": kind, "message": "no"}}))
    assert events == []
    assert failure is not None
    assert failure.retryable == retryable


def test_a_context_that_is_too_long_is_told_from_the_text() -> None:
    error = {"type": "invalid_request_error", "message": "prompt is too long: 3333404 tokens > 200000 maximum"}
    _, failure = decode(sse({"type": "error", "error": error}))
    assert failure is not None
    assert (failure.kind, failure.retryable) == ("context_limit", False)


def test_a_line_that_is_no_event_is_reported_when_the_stream_ends_without_its_end() -> None:
    _, failure = decode(sse(start(), *HI) + b'error: {"detail":"failed to decode"}\n\n')
    assert failure is not None
    assert "failed to decode" in failure.text


def test_pings_and_comments_are_no_progress() -> None:
    decoder = AnthropicDecoder()
    decoder.feed(sse(start(), opened(0, "text", text="")))
    before = decoder.progress
    decoder.feed(sse(PING, said(0, "")) + b": ping\n\n: OPENROUTER PROCESSING\n\n")
    assert decoder.progress == before
    decoder.feed(sse(said(0, "x")))
    assert decoder.progress > before


def test_what_comes_after_the_last_word_means_nothing() -> None:
    decoder = AnthropicDecoder()
    events = decoder.feed(sse(start(), *HI, stopped(), STOP, *CALL, start("msg_2")))
    assert events == [*HI_SAID, Finish("end_turn", USAGE)]
    assert decoder.finished
    assert decoder.feed(sse(*CALL)) == decoder.eof() == []
    assert decoder.failure is None


def test_a_second_generation_spliced_into_the_first_is_a_failure() -> None:
    events, failure = decode(sse(start(), *HI, *CALL[:3], start("msg_2"), *HI, stopped(), STOP))
    assert events == [*HI_SAID, *CALL_SAID[:2]]
    assert failure is not None
    assert failure.retryable


def test_a_block_that_begins_inside_another_is_a_failure() -> None:
    events, failure = decode(sse(start(), *HI[:2], opened(0, "text", text=""), said(0, "again"), closed(0)))
    assert events == HI_SAID[:1]
    assert failure is not None


def test_the_same_message_start_twice_is_one() -> None:
    events = [*HI_SAID, Finish("end_turn", USAGE)]
    assert decode(sse(start(), start(), HI[0], start(), *HI[1:], stopped(), STOP)) == (events, None)


def test_arguments_that_never_came_are_empty_and_the_call_is_whole() -> None:
    events, failure = decode(sse(start(), CALL[0], CALL[1], CALL[4], stopped("tool_use"), STOP))
    assert events == [Delta(0, "call", call="t1", name="ls"), Delta(0, "end"), Finish("tool_use", USAGE)]
    assert failure is None


def test_arguments_that_were_cut_leave_the_call_open() -> None:
    events, failure = decode(sse(start(), CALL[0], CALL[1]))
    assert events == [Delta(0, "call", call="t1", name="ls")]
    assert failure is not None


def test_the_whole_input_may_stand_in_the_beginning_of_the_block() -> None:
    block = opened(0, "tool_use", id="t1", name="ls", input={"a": "é"})
    events, _ = decode(sse(start(), block, closed(0), stopped("tool_use"), STOP))
    assert events[:3] == [Delta(0, "call", call="t1", name="ls"), Delta(0, "input", '{"a":"é"}'), Delta(0, "end")]


@pytest.mark.parametrize("index", [1, 7, None])
def test_blocks_are_numbered_as_they_appear_whatever_their_index(index: int | None) -> None:
    data = sse(start(), opened(index, "text"), said(index, "Hi"), closed(index), stopped(), STOP)
    assert decode(data) == ([*HI_SAID, Finish("end_turn", USAGE)], None)


def test_one_index_for_every_block_is_told_apart_by_their_ends() -> None:
    again = [{**event, "index": 0} for event in CALL]
    events, failure = decode(sse(start(), *HI, *again, stopped("tool_use"), STOP))
    assert failure is None
    assert events == [*HI_SAID, *CALL_SAID, Finish("tool_use", USAGE)]


def test_the_end_of_a_block_that_is_repeated_closes_no_other() -> None:
    events, failure = decode(sse(start(), *HI, CALL[0], closed(0), *CALL[1:], stopped("tool_use"), STOP))
    assert failure is None
    assert events == [*HI_SAID, *CALL_SAID, Finish("tool_use", USAGE)]


def test_text_without_the_beginning_of_its_block_is_text() -> None:
    data = sse(start(), said(0, "Hi"), closed(0), stopped(), STOP)
    assert decode(data) == ([*HI_SAID, Finish("end_turn", USAGE)], None)


@pytest.mark.parametrize(
    "event",
    [
        delta(5, "input_json_delta", partial_json="{}"),
        delta(0, "text_delta", text="late"),
        {"type": "content_block_delta"},
    ],
)
def test_a_delta_without_its_block_is_a_failure(event: Json) -> None:
    events, failure = decode(sse(start(), *HI, event, stopped(), STOP))
    assert events == HI_SAID
    assert failure is not None


def test_a_delta_of_another_kind_than_its_block_is_a_failure() -> None:
    _, failure = decode(sse(start(), CALL[0], said(1, "text in a call")))
    assert failure is not None


def test_an_event_that_is_no_json_is_a_failure_and_not_a_gap() -> None:
    events, failure = decode(
        sse(start(), *HI[:2]) + b'data: {"type": "content_blo\n\n' + sse(closed(0), stopped(), STOP)
    )
    assert events == HI_SAID[:1]
    assert failure is not None


def test_a_body_that_is_no_event_stream_is_a_failure_that_quotes_it() -> None:
    events, failure = decode(b"<html><body>502 Bad Gateway sk-ant-REDACTED</body></html>")
    assert events == []
    assert failure is not None
    assert "502 Bad Gateway" in failure.text
    assert "sk-ant" not in failure.text


def test_nothing_at_all_is_a_failure() -> None:
    events, failure = decode(b"")
    assert events == []
    assert failure is not None
    assert failure.retryable


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


@settings(deadline=None, max_examples=300)
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
