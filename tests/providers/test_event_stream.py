"""The decoder of event streams: the framing that real servers and networks give it."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkernel_providers import sse
from turnkernel_providers.sse import EventStreamDecoder, ServerSentEvent

HARD = 'event: x\ndata: {"a":"é€😀\u2028\x0c"}\n\n: ping\n\ndata:1\ndata: 2\n\n'
HARD_EVENTS = [ServerSentEvent("x", '{"a":"é€😀\u2028\x0c"}'), ServerSentEvent("message", "1\n2")]


def decode(data: bytes, size: int) -> tuple[list[ServerSentEvent], str]:
    decoder = EventStreamDecoder()
    events = [event for at in range(0, len(data), size) for event in decoder.feed(data[at : at + size])]
    decoder.eof()
    return events, decoder.strange


@pytest.mark.parametrize("size", [1, 2, 3, 7, 31, 1000])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_every_line_end_and_split_gives_the_same_events(size: int, end: str, bom: bytes) -> None:
    data = bom + HARD.replace("\n", end).encode()
    assert decode(data, size) == (HARD_EVENTS, "")


def test_an_event_is_there_with_the_last_byte_of_its_empty_line_also_when_that_is_cr() -> None:
    decoder = EventStreamDecoder()
    assert decoder.feed(b"data: 1\r") == []
    assert decoder.feed(b"\r") == [ServerSentEvent("message", "1")]
    assert decoder.feed(b"\n") == []


def test_a_byte_order_mark_in_the_middle_is_text() -> None:
    assert decode("data: \ufeffx\n\n".encode(), 1)[0] == [ServerSentEvent("message", "\ufeffx")]


def test_an_event_without_data_is_none() -> None:
    assert decode(b"event: error\n\nid: 3\n\ndata:\n\ndata: 1\n\n", 1) == ([ServerSentEvent("message", "1")], "")


def test_lines_that_are_no_field_are_remembered() -> None:
    events, strange = decode(b'error: {"detail":"failed to decode"}\n\n{"error": 1}\n\ndata: 1\n\n', 5)
    assert events == [ServerSentEvent("message", "1")]
    assert strange == 'error: {"detail":"failed to decode"}\n{"error": 1}'


def test_the_event_that_the_end_cut_off_is_no_event_and_is_remembered() -> None:
    assert decode(b'data: 1\n\ndata: {"last":1}\nda', 4) == (
        [ServerSentEvent("message", "1")],
        '{"last":1}\nda',
    )


def test_bytes_that_are_no_utf_8_become_replacement_characters_and_are_remembered() -> None:
    assert decode(b"data: \xff!\n\n", 1) == ([ServerSentEvent("message", "\ufffd!")], "data: \ufffd!")


def test_what_is_remembered_is_bounded() -> None:
    _, strange = decode(b"".join(b"junk %d %s\n" % (n, b"x" * 5000) for n in range(50)), 4096)
    assert len(strange) < 10_000
    assert "junk 49" in strange


@pytest.mark.parametrize("data", [b"data: " + b"x" * 200, b"data: " + b"x" * 60 + b"\n", b"data: 12345678\n" * 20])
def test_an_event_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sse, "MOST_EVENT_BYTES", 50)
    decoder = EventStreamDecoder()
    decoder.feed(data)
    assert decoder.overlong
    assert decoder.feed(b"\n\n") == []


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=6))
def test_any_bytes_give_the_same_at_any_split(data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    decoder = EventStreamDecoder()
    events = [event for a, b in pairwise(edges) for event in decoder.feed(data[a:b])]
    decoder.eof()
    assert (events, decoder.strange) == decode(data, len(data) or 1)


LINES = st.sampled_from(
    ["data: a", "data:b", "data", "event: x", ": c", "id: 1", "retry: 5", "zzz", "", "\ufeffdata: q"]
)


@given(st.lists(LINES, max_size=20), st.sampled_from(["\n", "\r\n", "\r"]), st.integers(1, 9))
def test_lines_mean_the_same_whatever_ends_them(lines: list[str], end: str, size: int) -> None:
    text = "".join(f"{line}\n" for line in lines)
    assert decode(text.replace("\n", end).encode(), size) == decode(text.encode(), 10_000)
