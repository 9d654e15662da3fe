"""How streams of Chat Completions break, each way by a minimal stream: what is shown, and how it ends."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.providers.chat_streams import (
    COUNTED,
    DONE,
    END,
    HI,
    HI_SAID,
    ONE,
    USAGE,
    Json,
    call,
    called,
    calls,
    chunk,
    decode,
    sse,
    whole,
)

from turnkernel.events import Delta
from turnkernel.provider import Finish
from turnkernel_providers.openai_chat_stream import OpenAIChatDecoder

# ------------------------------------------------------------------------------------------------- how it ends


def test_a_whole_message_is_given_whole() -> None:
    assert decode(sse(HI, END, COUNTED) + DONE) == ([*HI_SAID, Finish("end_turn", USAGE)], None)


def test_a_finish_reason_is_enough() -> None:
    assert decode(sse(HI, END)) == ([*HI_SAID, Finish("end_turn")], None)


def test_an_end_without_a_finish_reason_is_a_failure() -> None:
    events, failure = decode(sse(HI))
    assert events == HI_SAID[:1]
    assert failure is not None
    assert failure.retryable


@pytest.mark.parametrize("data", [sse(HI) + DONE, sse(HI, COUNTED), sse(HI, COUNTED) + DONE])
def test_done_or_a_chunk_of_usage_alone_stands_for_a_finish_reason_that_is_never_sent(data: bytes) -> None:
    events, failure = decode(data)
    assert failure is None
    assert events[:-1] == HI_SAID


def test_usage_beside_a_choice_or_before_the_first_word_stands_for_nothing() -> None:
    first: Json = {"choices": [], "prompt_filter_results": [], "usage": {"prompt_tokens": 3}}
    events, failure = decode(sse(first, chunk(content="Hi", usage={"prompt_tokens": 3})))
    assert events == HI_SAID[:1]
    assert failure is not None


def test_without_a_finish_reason_a_call_counts_only_when_its_arguments_are_whole() -> None:
    begun = calls(call(0, "a", "ls", '{"p": 1'))
    rest = calls(call(0, arguments="}"))
    assert called(sse(begun, rest) + DONE) == [("a", "ls", '{"p": 1}')]
    for data in (
        sse(begun) + DONE,
        sse(begun, COUNTED),
        sse(calls(call(0, "a", "ls", ""))) + DONE,
        sse(begun, rest),
    ):
        events, failure = decode(data)
        assert not any(isinstance(event, Finish) for event in events)
        assert failure is not None


def test_done_without_a_word_is_a_failure() -> None:
    events, failure = decode(DONE)
    assert events == []
    assert failure is not None


def test_what_comes_after_done_means_nothing() -> None:
    assert decode(sse(HI, END) + DONE + sse(HI, {"error": {"message": "late"}}) + b": ping\n\n") == (
        [*HI_SAID, Finish("end_turn")],
        None,
    )


@pytest.mark.parametrize("nothing", ["", None])
def test_an_empty_finish_reason_is_none(nothing: Any) -> None:
    events, failure = decode(sse(chunk(nothing, content="Hi"), chunk(nothing)))
    assert events == HI_SAID[:1]
    assert failure is not None


def test_a_finish_reason_and_its_usage_may_come_twice() -> None:
    last = chunk("stop", usage={"prompt_tokens": 3, "completion_tokens": 5})
    assert decode(sse(HI, END, last) + DONE) == ([*HI_SAID, Finish("end_turn", USAGE)], None)


def test_usage_on_every_chunk_is_not_added_up() -> None:
    running = [
        chunk(content=c, usage={"prompt_tokens": 3, "completion_tokens": n}) for n, c in enumerate("Hi!", 3)
    ]
    events, _ = decode(sse(*running, END) + DONE)
    assert events[-1] == Finish("end_turn", USAGE)


def test_groq_puts_its_usage_elsewhere() -> None:
    events, _ = decode(sse(HI, {**END, "x_groq": {"usage": COUNTED["usage"]}}) + DONE)
    assert events[-1] == Finish("end_turn", USAGE)


# ---------------------------------------------------------------------------------------------------- failures


def test_an_error_is_seen_before_the_choices_beside_it() -> None:
    error = {"error": {"code": 502, "message": "Upstream is gone"}, **chunk("length", content="more")}
    events, failure = decode(sse(HI, error) + DONE)
    assert events == HI_SAID[:1]
    assert failure is not None
    assert (failure.retryable, failure.status) == (True, 502)
    assert "Upstream is gone" in failure.text


def test_an_error_event_of_any_shape_is_a_failure() -> None:
    events, failure = decode(
        sse(HI) + b'event: error\ndata: {"message": "tool call failed", "status_code": 400}\n\n'
    )
    assert events == HI_SAID[:1]
    assert failure is not None
    assert (failure.retryable, failure.status) == (False, 400)
    assert "tool call failed" in failure.text


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        ({"message": "Slow down", "code": 429}, True),
        ({"message": "Slow down", "code": "429"}, True),
        ({"message": "Slow down", "type": "rate_limit_exceeded"}, True),
        ({"message": "Overloaded", "type": "overloaded_error"}, True),
        ({"message": "Who are you", "code": 401}, False),
        ({"message": "Pay first", "code": "insufficient_quota"}, False),
        ({"message": "Bad call", "type": "invalid_request_error", "code": "tool_use_failed"}, False),
        ("just a text", True),
    ],
)
def test_an_error_in_the_stream_says_whether_to_try_again(error: Any, retryable: bool) -> None:
    _, failure = decode(sse({"error": error}))
    assert failure is not None
    assert failure.retryable == retryable


@pytest.mark.parametrize("reason", ["error", "network_error", "insufficient_system_resource"])
def test_a_finish_reason_that_names_a_failure_is_one(reason: str) -> None:
    events, failure = decode(sse(HI, chunk(reason)) + DONE)
    assert events == HI_SAID[:1]
    assert failure is not None


def test_a_bare_json_line_is_reported_when_the_stream_ends_without_its_end() -> None:
    _, failure = decode(sse(HI) + b'{"error": "out of memory"}\n')
    assert failure is not None
    assert "out of memory" in failure.text


def test_a_chunk_that_is_no_json_is_a_failure_and_not_a_gap() -> None:
    events, failure = decode(sse(HI) + b'data: {"choices": [\n\n' + sse(END) + DONE)
    assert events == HI_SAID[:1]
    assert failure is not None


def test_data_that_is_no_object_is_passed_over() -> None:
    assert decode(b"data: ping\n\ndata: 1\n\n" + sse(HI, END)) == ([*HI_SAID, Finish("end_turn")], None)


def test_empty_deltas_are_no_progress() -> None:
    decoder = OpenAIChatDecoder()
    decoder.feed(sse(HI, calls(call(0, "a", "ls"))))
    before = decoder.progress
    decoder.feed(sse(chunk(content="", role="assistant"), chunk(), calls(call(0, arguments=""))) + b": KEEP\n\n")
    assert decoder.progress == before
    decoder.feed(sse(calls(call(0, arguments="{"))))
    assert decoder.progress > before


# ----------------------------------------------------------------------------------------- thinking, text, stops


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_thinking_ends_when_something_else_begins(field: str) -> None:
    data = sse(
        chunk(**{field: "Hm"}, content=""), chunk(**{field: "."}), HI, calls(whole(0, ONE)), chunk("tool_calls")
    )
    events, _ = decode(data)
    assert events == [
        Delta(0, "thinking", "Hm"),
        Delta(0, "thinking", "."),
        Delta(0, "end"),
        Delta(1, "text", "Hi"),
        Delta(1, "end"),
        Delta(2, "call", call="a", name="ls"),
        Delta(2, "input", ONE[2]),
        Delta(2, "end"),
        Finish("tool_use"),
    ]


def test_thinking_that_was_cut_does_not_end() -> None:
    assert decode(sse(chunk(reasoning="Hm")))[0] == [Delta(0, "thinking", "Hm")]


def test_thinking_that_comes_under_both_names_is_thought_once() -> None:
    events, _ = decode(sse(chunk(reasoning="Hm", reasoning_content="Hm"), HI, END))
    assert events[0:2] == [Delta(0, "thinking", "Hm"), Delta(0, "end")]


def test_content_may_be_a_list_of_parts() -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}
    events, _ = decode(sse(chunk(content=[thought, {"type": "text", "text": "Hi"}]), END))
    assert events[:-1] == [Delta(0, "thinking", "Hm"), Delta(0, "end"), Delta(1, "text", "Hi"), Delta(1, "end")]


def test_a_refusal_is_text_and_a_stop_of_its_own() -> None:
    events, _ = decode(sse(chunk(refusal="I'm "), chunk(refusal="sorry"), END))
    assert events == [Delta(0, "text", "I'm "), Delta(0, "text", "sorry"), Delta(0, "end"), Finish("refusal")]


def test_only_the_first_of_several_choices_is_heard() -> None:
    other = {"index": 1, "delta": {"content": "Yo"}, "finish_reason": "length"}
    data = sse(HI, {"choices": [other]}, {"choices": [other, *END["choices"]]})
    assert decode(data) == ([*HI_SAID, Finish("end_turn")], None)


def test_an_answer_that_is_no_stream_but_one_event_is_heard() -> None:
    message = {"choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}]}
    assert decode(sse(message)) == ([*HI_SAID, Finish("end_turn")], None)


@pytest.mark.parametrize(
    ("reason", "with_calls", "stop"),
    [
        ("stop", False, "end_turn"),
        ("stop", True, "tool_use"),
        ("tool_calls", True, "tool_use"),
        ("tool_calls", False, "end_turn"),
        ("length", True, "max_tokens"),
        ("model_length", False, "max_tokens"),
        ("MAX_TOKENS", False, "max_tokens"),
        ("content_filter", False, "refusal"),
        ("something_new", False, "end_turn"),
    ],
)
def test_finish_reasons(reason: str, with_calls: bool, stop: str) -> None:
    before = [calls(whole(0, ONE))] if with_calls else [HI]
    assert decode(sse(*before, chunk(reason)))[0][-1] == Finish(stop)  # type: ignore[arg-type]


def test_a_character_that_was_cut_in_two_is_joined_also_in_arguments() -> None:
    data = sse(
        chunk(content="a\ud83d"),
        chunk(content="\ude00b\ud83d"),
        calls(call(0, "a", "ls", '{"p": "\ud83d')),
        calls(call(0, arguments='\ude00\udc00"}')),
        chunk("tool_calls"),
    )
    events, _ = decode(data)
    text = "".join(event.text for event in events if isinstance(event, Delta) and event.part == "text")
    given = "".join(event.text for event in events if isinstance(event, Delta) and event.part == "input")
    assert text == "a\U0001f600b\ufffd"
    assert json.loads(given) == {"p": "\U0001f600\ufffd"}


# ------------------------------------------------------------------------------------------------------ any JSON

FIELDS = st.sampled_from(
    [
        "choices",
        "index",
        "delta",
        "message",
        "content",
        "reasoning",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "id",
    ]
)
LEAF = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "{}", "{", "a", "stop", "text"])
)
WILD = st.recursive(
    LEAF,
    lambda inner: st.dictionaries(FIELDS, inner, max_size=4) | st.lists(inner, max_size=3),
    max_leaves=10,
)
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "index": st.integers(0, 2) | WILD,
        "id": st.sampled_from(["", "a", "b"]) | WILD,
        "function": st.fixed_dictionaries(
            {}, optional={"name": st.sampled_from(["ls", "cat"]) | WILD, "arguments": WILD}
        ),
    },
)
CHUNK = st.builds(lambda entries: calls(*entries), st.lists(ENTRY, max_size=3))
GOOD = st.sampled_from([HI, END, COUNTED, chunk("tool_calls"), calls(whole(0, ONE)), chunk(reasoning="Hm")])


@settings(deadline=None, max_examples=200)
@given(
    st.lists(GOOD | CHUNK | st.dictionaries(FIELDS, WILD, max_size=3), max_size=8),
    st.booleans(),
    st.integers(0, 200),
)
def test_no_stream_makes_the_decoder_raise_and_every_stream_has_an_outcome(
    chunks: list[Json], done: bool, cut: int
) -> None:
    data = sse(*chunks) + (DONE if done else b"")
    given, failure = decode(data[: len(data) - cut] if cut < len(data) else data, ("ls",))
    finished = bool(given) and isinstance(given[-1], Finish)
    assert finished == (failure is None)
    assert all(isinstance(event, Delta) for event in given[:-1])
    begun: set[int] = set()
    for event in given:
        if isinstance(event, Delta):
            event.text.encode()  # no lone surrogate
            assert event.part not in ("input", "end") or event.block in begun
            begun.add(event.block)
