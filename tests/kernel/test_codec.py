"""Lines of the log: what is written can be read as it was, and what is no record is refused with a reason."""

import json
import re
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernel.any_event import ANYTHING, any_event, events_of, json_values

from turnkernel.codec import (
    BadLineError,
    block_to_json,
    cleaned,
    crc,
    decode,
    encode,
    event_fields,
    parse_object,
    passed_over,
)
from turnkernel.events import (
    EVENT_TYPES,
    AskOpened,
    ModelDelta,
    ModelMessage,
    ModelRetry,
    PassedOver,
    Record,
    SessionOpen,
    TaskStarted,
    ToolCheckpoint,
    ToolOutput,
    ToolResult,
    ToolStart,
    TurnStart,
)
from turnkernel.messages import Opaque, Text, Thinking, ToolUse
from turnkernel.text import scrub

START = Record(7, 1, 1.204, ToolStart("t1", "call_1", "bash", {"command": "ls"}, "effect"))


def line(body: str) -> bytes:
    """A line of the log with the right crc over any body; `body` begins with a key's quote."""
    return b'{"crc":"%08x",%s' % (zlib.crc32(body.encode()), body.encode())


def reason(data: bytes) -> str:
    with pytest.raises(BadLineError) as refused:
        decode(data)
    return str(refused.value)


def nested(levels: int) -> str:
    """The text of an object with so many levels of nesting."""
    return '{"a":' * (levels - 1) + "{}" + "}" * (levels - 1)


# ---------------------------------------------------------------------------------------------- round trip


@pytest.mark.parametrize("name", EVENT_TYPES)
@settings(max_examples=25, deadline=None)
@given(st.data(), st.integers(1, 2**63), st.integers(1, 10**6), st.floats(0, 1e9))
def test_an_event_of_every_type_is_read_as_it_was_written(name, data, seq, epoch, t):
    record = Record(seq, epoch, t, data.draw(events_of(name)))
    written = encode(record)
    assert written.endswith(b"}\n")
    assert written.count(b"\n") == 1, "a record is one line whatever is in it"
    again = decode(written[:-1])
    assert again == record
    assert encode(again) == written


@settings(max_examples=60, deadline=None)
@given(any_event(ANYTHING))
def test_an_event_with_lone_surrogates_can_be_cleaned_and_is_then_read_as_it_was_written(event):
    mended = cleaned(event)
    again = decode(encode(Record(1, 1, 0.0, mended))[:-1]).event
    assert again == mended
    text = json.dumps(event_fields(mended), ensure_ascii=False)
    assert scrub(text) == text


@settings(max_examples=40, deadline=None)
@given(any_event())
def test_an_event_without_lone_surrogates_is_clean_already(event):
    assert cleaned(event) == event


def test_a_lone_surrogate_is_not_written_as_it_is():
    with pytest.raises(TypeError):
        encode(Record(1, 1, 0.0, ToolOutput("t1", "c", "stdout", "\ud800")))


def test_the_format_is_the_documented_one():
    body = (
        b'"seq":7,"epoch":1,"t":1.204,"type":"tool/start","turn":"t1","call":"call_1","name":"bash",'
        b'"input":{"command":"ls"},"effect":"effect"}'
    )
    assert encode(START) == b'{"crc":"%08x",' % zlib.crc32(body) + body + b"\n"


@settings(max_examples=40, deadline=None)
@given(any_event())
def test_the_crc_is_of_the_bytes_from_the_first_key_to_the_closing_brace(event):
    written = encode(Record(3, 2, 0.5, event))
    found = re.fullmatch(rb'\{"crc":"([0-9a-f]{8})",("seq":.*\})\n', written, re.DOTALL)
    assert found is not None
    assert found[1].decode() == crc(found[2]) == f"{zlib.crc32(found[2]):08x}"
    assert list(json.loads(written))[:5] == ["crc", "seq", "epoch", "t", "type"]


def test_a_field_that_has_its_default_is_left_out():
    fields = event_fields(SessionOpen("s", "w", "power"))
    assert fields == {"session": "s", "wall": "w", "durability": "power"}
    assert event_fields(ModelDelta("t1", "t1.s1", 0, "end")) == {
        "turn": "t1",
        "step": "t1.s1",
        "block": 0,
        "part": "end",
    }


@pytest.mark.parametrize(
    ("block", "written"),
    [
        (Text("a"), {"type": "text", "text": "a"}),
        (Thinking("a", "sig"), {"type": "thinking", "text": "a", "signature": "sig"}),
        (ToolUse("c", "n", {}), {"type": "tool_use", "id": "c", "name": "n", "input": {}}),
        (Opaque({"type": "x"}), {"type": "opaque", "data": {"type": "x"}}),
    ],
)
def test_a_block_is_written_with_its_kind(block, written):
    assert block_to_json(block) == written


def test_bytes_that_are_no_record_are_named_by_place_length_and_crc():
    assert passed_over(12, b"garbage") == PassedOver(12, 7, f"{zlib.crc32(b'garbage'):08x}")


# ------------------------------------------------------------------------------------------------- refusals


def test_every_flipped_bit_is_found():
    good = encode(START)[:-1]
    for place in range(len(good)):
        for bit in range(8):
            bad = bytearray(good)
            bad[place] ^= 1 << bit
            with pytest.raises(BadLineError):
                decode(bytes(bad))


def test_every_cut_line_is_refused():
    good = encode(START)[:-1]
    for end in range(len(good)):
        with pytest.raises(BadLineError):
            decode(good[:end])
        with pytest.raises(BadLineError):
            decode(good[end + 1 :])


@given(st.binary(max_size=60))
def test_bytes_of_any_kind_are_a_record_or_are_refused(data):
    for candidate in (data, b'{"crc":"%08x",%s' % (zlib.crc32(data), data)):
        with pytest.raises(BadLineError):
            decode(candidate)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not a record"),
        (b"Dear diary,", "not a record"),
        (b'{"seq":1}', "not a record"),
        (b'{"crc":"00000000","seq":1}', "its crc does not match"),
        (encode(START)[:-1].upper(), "not a record"),
        (line('"seq":1}}'), "no record"),
        (line('"seq":1,"epoch":1,"t":0.0}'), "'type'"),
        (line('"seq":1,"epoch":1,"t":0.0,"type":"turn/begin"}'), "unknown event type 'turn/begin'"),
        (line('"seq":1,"epoch":1,"t":0.0,"type":["turn/start"]}'), "unknown event type"),
        (line('"seq":"1","epoch":1,"t":0.0,"type":"turn/start","turn":"t1"}'), "must be numbers"),
        (line('"seq":true,"epoch":1,"t":0.0,"type":"turn/start","turn":"t1"}'), "must be numbers"),
        (line('"seq":1.0,"epoch":1,"t":0.0,"type":"turn/start","turn":"t1"}'), "must be numbers"),
        (line('"seq":1,"epoch":null,"t":0.0,"type":"turn/start","turn":"t1"}'), "must be numbers"),
        (line('"seq":1,"epoch":1,"t":"soon","type":"turn/start","turn":"t1"}'), "must be numbers"),
        (line('"seq":1,"epoch":1,"t":0.0,"type":"turn/start"}'), "missing @ turn/start.turn"),
        (line('"seq":1,"epoch":1,"t":0.0,"type":"turn/start","turn":null}'), "@ turn/start.turn"),
        (line('"seq":1,"epoch":1,"t":0.0,"type":"turn/start","turn":7}'), "@ turn/start.turn"),
        (line('"seq":1,"epoch":1,"t":0.0,"type":"turn/end","turn":"t1","outcome":"won"}'), "@ turn/end.outcome"),
        (
            line('"seq":1,"epoch":1,"t":0.0,"type":"step/end","turn":"t1","step":"s","synthetic":"false"}'),
            "@ step/end.synthetic",
        ),
        (
            line('"seq":1,"epoch":1,"t":0.0,"type":"model/retry","turn":"t","step":"s","attempt":1,"wait":null}'),
            "@ model/retry.wait",
        ),
    ],
)
def test_a_line_that_is_no_record_is_refused_with_the_reason(data, why):
    assert why in reason(data)


def test_bytes_that_are_not_utf_8_are_refused_though_their_crc_is_right():
    body = b'"seq":1,"epoch":1,"t":0.0,"type":"turn/start","turn":"\xff"}'
    assert "no record" in reason(b'{"crc":"%08x",%s' % (zlib.crc32(body), body))


BAD_FIELDS = [
    ModelRetry("t1", "t1.s1", 1, float("inf"), "the server said so"),
    ModelRetry("t1", "t1.s1", 1, float("nan"), "the server said so"),
    ToolResult("t1", "c", "n", "finished", False, "a status that there is not"),  # type: ignore[arg-type]
    ToolResult("t1", "c", "n", "ok", False, None),  # type: ignore[arg-type]
    ToolResult("t1", "c", "n", "ok", False, "x", float("inf")),
    ModelDelta("t1", "t1.s1", 0, "text", None),  # type: ignore[arg-type]
    ModelDelta("t1", "t1.s1", "0", "text", ""),  # type: ignore[arg-type]
    ModelDelta("t1", "t1.s1", True, "text", ""),
    ModelDelta("t1", "t1.s1", 0, "words", ""),  # type: ignore[arg-type]
    ModelDelta("t1", "t1.s1", 2**64, "text", ""),
    ModelMessage("t1", "t1.s1", "w", "m", (Text("a"),), "end_turn", {"cost": 0.0012}),  # type: ignore[dict-item]
    ModelMessage("t1", "t1.s1", "w", "m", (Text("a"),), "end_turn", {"details": None}),  # type: ignore[dict-item]
    ModelMessage("t1", "t1.s1", "w", "m", (Opaque(["a list"]),), "end_turn"),  # type: ignore[arg-type]
    ToolStart("t1", "c", "n", ["no object"], "effect"),  # type: ignore[arg-type]
    ToolStart("t1", "c", "n", {"a": 2**64}, "effect"),
    ToolCheckpoint("t1", "c", "n", "key", object()),
    ToolOutput("t1", "c", "stdout", b"bytes"),  # type: ignore[arg-type]
    AskOpened("t1", "c", "a1", "question", "sure?", (1, 2)),  # type: ignore[arg-type]
    TaskStarted("k1", "c", "n", "forever"),  # type: ignore[arg-type]
    TurnStart(None),  # type: ignore[arg-type]
]
"""What providers, tools and hooks that break their contract bring."""


@pytest.mark.law("L7")
@pytest.mark.parametrize("event", BAD_FIELDS, ids=lambda event: event.type)
def test_what_could_not_be_read_again_is_never_written(event):
    with pytest.raises(TypeError):
        encode(Record(1, 1, 0.0, event))
    with pytest.raises(TypeError):
        encode(Record(1, 1, 0.0, cleaned(event)))


# --------------------------------------------------------------------------------------------- parse_object


@pytest.mark.law("C3")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", {}),
        (" \n\t", {}),
        ("{}", {}),
        (' {"a": [1, -0.5, true, null, "x"]} \n', {"a": [1, -0.5, True, None, "x"]}),
        ('{"a":1,"a":2}', {"a": 2}),
        ('{"a":"\\ud83d\\ude00"}', {"a": "😀"}),
        ('{"a":18446744073709551615,"b":-9223372036854775808}', {"a": 2**64 - 1, "b": -(2**63)}),
        ('{"a":10000000000000000000000}', {"a": 10**22}),
        ('{"id":"123456789012345678901234567890"}', {"id": "123456789012345678901234567890"}),
        ('{"a":0.12345678901234567890123}', {"a": 0.12345678901234567890123}),
        ('{"a":1e308}', {"a": 1e308}),
    ],
)
def test_the_object_that_a_text_is(text, value):
    assert parse_object(text) == value


@pytest.mark.law("C3")
@pytest.mark.parametrize(
    "text",
    [
        "null",
        "[]",
        '"{}"',
        "3",
        "{",
        '{"a": 1',
        '{"a": "cut',
        "{} x",
        "{}{}",
        "\ufeff{}",
        "{'a': 1}",
        '{"a": 1,}',
        '{"a": NaN}',
        '{"a": Infinity}',
        '{"a": 1e400}',
        '{"a": "\\ud800"}',
        '{"a": "line\nbreak"}',
        '{"a": "\x00"}',
        '{"a": 01}',
        '{"a": 18446744073709551617}',
        '{"a": -9223372036854775809}',
        '{"a": [{"b": 123456789012345678901234567890}]}',
        '{"a": ' + "9" * 5000 + "}",
        nested(255),
        nested(1025),
        "[" * 100_000,
        '{"a":' * 100_000,
    ],
    ids=lambda text: text[:24],
)
def test_a_text_that_is_no_object_or_one_that_could_not_be_kept_exactly_is_refused(text):
    assert parse_object(text) is None


def test_a_number_that_would_be_rounded_is_refused_and_one_that_is_exact_is_not():
    assert parse_object('{"a": 36893488147419103232}') == {"a": 2**65}
    assert parse_object('{"a": 36893488147419103233}') is None


@pytest.mark.law("C3")
@given(st.integers(1, 300))
def test_an_input_that_is_taken_can_be_logged_however_deep_it_is(levels):
    value = parse_object(nested(levels))
    if value is None:
        assert levels > 200
        return
    for event in (
        ModelMessage("t1", "t1.s1", "w", "m", (ToolUse("c", "n", value),), "tool_use"),
        ToolStart("t1", "c", "n", value, "effect"),
    ):
        assert decode(encode(Record(1, 1, 0.0, event))[:-1]).event == event


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=5), json_values(st.text(max_size=5)), max_size=4), st.booleans())
def test_any_object_that_json_writes_is_taken_as_it_is(value, ascii_only):
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert parse_object(text) == value or not text.strip()


@given(st.text(st.sampled_from('{}[]",:\\ud8 0019e.-ntrufalse\n'), max_size=20))
def test_what_is_taken_is_what_json_reads(text):
    value = parse_object(text)
    if value is not None:
        assert value == (json.loads(text) if text.strip() else {})
