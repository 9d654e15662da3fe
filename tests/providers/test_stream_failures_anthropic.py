"""How streams of Anthropic's wire break, each way by a minimal stream: what is shown, and how it ends."""

import pytest
from tests.providers.anthropic_streams import (
    CALL,
    CALL_SAID,
    HI,
    HI_SAID,
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
from turnkernel_providers.anthropic_stream import AnthropicDecoder


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
