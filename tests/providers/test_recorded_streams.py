"""Recorded streams of real vendors, decoded at many splits, against what the vendors' own SDKs made of them."""

import hashlib
import json
import os
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnkernel.errors import ProviderError
from turnkernel.events import Delta
from turnkernel.provider import Finish, ModelEvent
from turnkernel_providers.anthropic_stream import AnthropicDecoder
from turnkernel_providers.decoding import WireDecoder, stop_of
from turnkernel_providers.openai_chat_stream import OpenAIChatDecoder

SHARED = Path(os.environ.get("TURNKERNEL_SHARED") or Path(__file__).parents[3] / "shared")
GOLDEN = SHARED / "wire" / "GOLDEN.jsonl"

if not GOLDEN.exists():
    pytest.skip("the recorded streams are not here; TURNKERNEL_SHARED names their folder", allow_module_level=True)

RECORDS = {record["file"]: record for record in map(json.loads, GOLDEN.read_text().splitlines())}
ANTHROPIC = [file for file in RECORDS if file.startswith("anthropic/")]
CHAT = [file for file in RECORDS if file.startswith("openai-chat/")]

UNFINISHED = "openai-chat/gpustack__rllm-chat-with-extended-thinking-gp-ing-content-when-available-0.sse"
"""llama.cpp gave up in the middle: an `error:` line and no end."""


def decoder_of(file: str) -> WireDecoder:
    return AnthropicDecoder() if file.startswith("anthropic/") else OpenAIChatDecoder()


def split(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def decode(file: str, pieces: Iterable[bytes]) -> tuple[list[ModelEvent], ProviderError | None]:
    decoder = decoder_of(file)
    events = [event for piece in pieces for event in decoder.feed(piece)]
    return events + decoder.eof(), decoder.failure


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def blocks_of(events: list[ModelEvent]) -> list[dict[str, Any]]:
    """A fold of its own, naive on purpose."""
    blocks: dict[int, dict[str, Any]] = {}
    for event in events:
        if isinstance(event, Delta):
            block = blocks.setdefault(event.block, {"parts": [], "ended": False})
            block["parts"].append(event.part)
            block["ended"] |= event.part == "end"
            block[event.part] = block.get(event.part, "") + event.text
            if event.part == "call":
                block["id"], block["name"] = event.call, event.name
    return list(blocks.values())


def check_anthropic(golden: dict[str, Any], events: list[ModelEvent]) -> None:
    finish = events[-1]
    assert isinstance(finish, Finish)
    calls = any(block["type"] == "tool_use" for block in golden["blocks"])
    assert finish.stop == stop_of(golden["stop_reason"], calls=calls)
    assert finish.usage is not None
    assert (finish.usage["input_tokens"], finish.usage["output_tokens"]) == (golden["in_tok"], golden["out_tok"])
    wanted = [block for block in golden["blocks"] if block.get("len") != 0]
    found = blocks_of(events)
    assert len(found) == len(wanted)
    for block, want in zip(found, wanted, strict=True):
        assert block["ended"]
        if want["type"] == "text":
            assert (sha(block["text"]), len(block["text"])) == (want["text_sha"], want["len"])
        elif want["type"] == "thinking":
            assert (sha(block["thinking"]), len(block["signature"])) == (want["thinking_sha"], want["sig_len"])
        elif want["type"] == "tool_use":
            called = (block["id"], block["name"], json.loads(block.get("input") or "{}"))
            assert called == (want["id"], want["name"], want["input"])
        else:
            opaque = json.loads(block["opaque"])
            assert {name: opaque[name] for name in want} == want


def check_chat(golden: dict[str, Any], events: list[ModelEvent]) -> None:
    finish = events[-1]
    assert isinstance(finish, Finish)
    if "sdk_error" in golden:  # the SDK could not read it; what is in it is tested by hand below
        return
    choice = golden["choices"][0]
    found = blocks_of(events)
    texts = [block["text"] for block in found if "text" in block]
    if finish.stop != "refusal":
        assert finish.stop == stop_of(choice["finish"], calls=bool(choice["tool_calls"]))
        if choice["content_sha"] is not None:
            known = choice["content_len"]  # of Mistral's lists of parts the SDK knows the plain tail only
            assert sha("".join(texts)[-known:] if known else "") == choice["content_sha"]
            assert "mistral" in golden["file"] or len("".join(texts)) == known
    calls = [(block["id"], block["name"], block.get("input", "")) for block in found if "call" in block]
    assert calls == [(call["id"], call["name"], call["arguments"]) for call in choice["tool_calls"]]
    assert all(block["ended"] for block in found)
    if golden["usage"]:
        assert finish.usage is not None
        assert finish.usage["input_tokens"] == golden["usage"]["prompt_tokens"]
        assert finish.usage["output_tokens"] == golden["usage"]["completion_tokens"]


@pytest.mark.parametrize("file", ANTHROPIC)
def test_a_recorded_anthropic_stream_says_what_the_sdk_made_of_it(file: str) -> None:
    events, failure = decode(file, [(SHARED / "wire" / file).read_bytes()])
    assert failure is None
    check_anthropic(RECORDS[file], events)


@pytest.mark.parametrize("file", [file for file in CHAT if file != UNFINISHED])
def test_a_recorded_chat_stream_says_what_the_sdk_made_of_it(file: str) -> None:
    events, failure = decode(file, [(SHARED / "wire" / file).read_bytes()])
    assert failure is None
    check_chat(RECORDS[file], events)


def test_a_recorded_stream_that_ended_in_an_error_line_reports_that_line() -> None:
    events, failure = decode(UNFINISHED, [(SHARED / "wire" / UNFINISHED).read_bytes()])
    assert not any(isinstance(event, Finish) for event in events)
    assert failure is not None
    assert "increasing context size or reducing parallel" in failure.text


@pytest.mark.parametrize("file", [*ANTHROPIC, *CHAT])
def test_a_recorded_stream_is_the_same_at_any_split(file: str) -> None:
    data = (SHARED / "wire" / file).read_bytes()
    whole = decode(file, [data])[0]
    assert decode(file, split(data, 31))[0] == whole
    if len(data) < 8000:
        assert decode(file, split(data, 1))[0] == whole


SMALL = [file for file in [*ANTHROPIC, *CHAT] if (SHARED / "wire" / file).stat().st_size < 40_000]


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(SMALL), st.lists(st.integers(0, 40_000), max_size=12))
def test_a_recorded_stream_is_the_same_at_drawn_splits(file: str, cuts: list[int]) -> None:
    data = (SHARED / "wire" / file).read_bytes()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in pairwise(edges)]
    assert decode(file, pieces)[0] == decode(file, [data])[0]


TERMINALS = (b'"stop_reason":"', b'"stop_reason": "', b'"finish_reason":"', b'"finish_reason": "', b"[DONE]")


def cuts(data: bytes) -> list[int]:
    """Every byte of a short stream; of a longer one the bytes around the ends of its events and some between."""
    if len(data) < 1500:
        return list(range(len(data)))
    ends = [at for at in range(len(data) - 1) if data[at : at + 2] in (b"\n\n", b"\n\r")]
    near = {at + step for at in ends for step in (-1, 0, 1, 2, 3)}
    return sorted(at for at in near.union(range(0, len(data), 97)) if at < len(data))


@pytest.mark.parametrize("file", [file for file in SMALL if (SHARED / "wire" / file).stat().st_size < 4000])
def test_a_stream_cut_anywhere_never_finishes_too_early(file: str) -> None:
    data = (SHARED / "wire" / file).read_bytes()
    if (earliest := min((data.find(mark) for mark in TERMINALS if mark in data), default=-1)) < 0:
        pytest.fail("no terminal in the stream")
    whole = decode(file, [data])[0]
    for at in cuts(data):
        check_cut(file, whole, at > earliest, *decode(file, [data[:at]]))


def check_cut(
    file: str, whole: list[ModelEvent], may_finish: bool, events: list[ModelEvent], failure: ProviderError | None
) -> None:
    finished = bool(events) and isinstance(events[-1], Finish)
    assert finished == (failure is None)
    deltas = [event for event in events if isinstance(event, Delta)]
    if finished:
        assert may_finish
        assert deltas == [event for event in whole if isinstance(event, Delta)]
    else:
        assert deltas == whole[: len(deltas)]
        unsigned = [block for block in blocks_of(events) if "thinking" in block and "signature" not in block]
        assert not (file.startswith("anthropic/") and any(block["ended"] for block in unsigned))


def test_the_streams_that_no_sdk_could_read_are_read() -> None:
    found = {
        file.split("/")[1]: [
            (block["id"], block["name"], block["input"]) for block in blocks_of(events) if "call" in block
        ]
        for file, record in RECORDS.items()
        if "sdk_error" in record
        for events in [decode(file, [(SHARED / "wire" / file).read_bytes()])[0]]
    }
    writer = "writer__oll-writer-async-chat-tool-call-request-with-no-content-0.sse"
    assert found["mistral__vai-mistral-tool-call.sse"] == [
        ("gSIMJiOkT", "weather", '{"location": "San Francisco"}')
    ]
    assert found["vercel-anthropic-fallback-tool-call.sse"] == [
        ("toolu_sanitized", "read_file", '{"path": "a.txt"}')
    ]
    assert found[writer] == [
        ("chatcmpl-tool-a31f1a5690b14b7daf0e78d2a2d23da2", "get_weather", '{"location": "Zakopane"}')
    ]
    many = found["writer__oll-writer-async-chat-multiple-tool-call-requests-0.sse"]
    assert len(many) == 7
    assert all(json.loads(arguments) for _, _, arguments in many)
