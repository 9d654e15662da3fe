"""Answers that are no stream: which are worth another try, what is said of them, and that no secret is in it."""

import json
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkernel.errors import ProviderError
from turnkernel.messages import Message, Text
from turnkernel.provider import Request
from turnkernel_providers import KEY_VARIABLES, open_anthropic, open_openai_chat
from turnkernel_providers.failures import error_of_body, hide, retry_after

SHARED = Path(os.environ.get("TURNKERNEL_SHARED") or Path(__file__).parents[3] / "shared")
ERRORS = sorted(
    path for path in (SHARED / "wire" / "errors").glob("*__[0-9]*.json") if not path.name.endswith(".req.json")
)
HELLO = Request("", [Message("user", (Text("hello"),))], [], 100)
KEY = "q" + "7Zx9" * 10


async def failure(
    status: int, body: str | bytes = "", headers: Mapping[str, str] | None = None, *, key: str = KEY
) -> ProviderError:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, content=body, headers=headers)

    async with open_openai_chat(
        "m", base_url="http://x/v1", api_key=key, transport=httpx.MockTransport(answer)
    ) as provider:
        with pytest.raises(ProviderError) as caught:
            async with provider.stream(HELLO) as stream:
                async for _ in stream:
                    pass
    return caught.value


@pytest.mark.skipif(not ERRORS, reason="the recorded errors are not here; TURNKERNEL_SHARED names their folder")
@pytest.mark.parametrize("path", ERRORS, ids=lambda path: path.stem)
def test_a_recorded_error_is_told_by_its_status_and_its_text(path: Path) -> None:
    status = int(re.search(r"__(\d+)-", path.name)[1])  # type: ignore[index]
    error = error_of_body(status, path.read_text())
    too_long = "length-exceeded" in path.name and status != 429
    assert error.kind == ("context_limit" if too_long else "provider")
    assert error.retryable == (status == 429)
    assert error.status == status
    said = json.loads(path.read_text())
    said = said.get("error", said) if not isinstance(said.get("error"), str) else {"message": said["error"]}
    message = said.get("message") or said.get("detail")
    assert message[:40] in error.text


@pytest.mark.parametrize(
    "text",
    [
        "prompt is too long: 3333404 tokens > 200000 maximum",
        "input length and `max_tokens` exceed context limit: 190000 + 21333 > 200000",
        "This model's maximum context length is 4097 tokens. However, your messages resulted in 5000 tokens.",
        "request (6009 tokens) exceeds the available context size (4096 tokens), try increasing it",
        "The input token count is 32825 but model only supports up to 32768",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        "prompt too long; exceeded max context length by 1119046 tokens",
    ],
)
async def test_a_context_that_is_too_long_is_told_from_the_text(text: str) -> None:
    error = await failure(400, json.dumps({"error": {"message": text, "type": "invalid_request_error"}}))
    assert (error.kind, error.retryable) == ("context_limit", False)


@pytest.mark.parametrize(
    ("status", "retryable"),
    [
        *[(status, False) for status in (302, 400, 401, 403, 404, 422)],
        *[(status, True) for status in (408, 409, 429, 500, 502, 503, 504, 529)],
    ],
)
async def test_the_status_says_whether_to_try_again(status: int, retryable: bool) -> None:
    error = await failure(status, "<html>no</html>", {"content-type": "text/html"})
    assert (error.status, error.retryable, error.kind) == (status, retryable, "provider")
    assert "<html>no</html>" in error.text


async def test_a_quota_that_is_used_up_is_not_worth_another_try() -> None:
    body = json.dumps({"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}})
    assert not (await failure(429, body)).retryable


async def test_too_many_bytes_are_a_context_that_is_too_long() -> None:
    assert (await failure(413, "Request Entity Too Large")).kind == "context_limit"


# ------------------------------------------------------------------------------------------------- retry-after

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        ("Fri, 02 Jan 2026 03:04:35 GMT", 30.0),
        ("Fri, 02 Jan 2026 03:00:00 GMT", 0.0),
        ("soon", None),
        ("", None),
        ("nan", None),
        ("inf", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str, seconds: float | None) -> None:
    assert retry_after(value, NOW) == seconds


@given(st.text(max_size=40))
def test_no_retry_after_makes_it_raise(value: str) -> None:
    seconds = retry_after(value, NOW)
    assert seconds is None or seconds >= 0


async def test_the_wait_that_a_server_asks_for_is_passed_on() -> None:
    assert (await failure(429, "slow down", {"retry-after": "12"})).retry_after == 12.0
    assert (await failure(429, "slow down")).retry_after is None


# ---------------------------------------------------------------------------------------------------- no stream


async def test_json_where_a_stream_was_asked_for_is_a_failure_that_quotes_it() -> None:
    error = await failure(200, '{"choices": []}', {"content-type": "application/json; charset=utf-8"})
    assert '{"choices": []}' in error.text
    assert not error.retryable


async def test_an_error_as_json_with_200_is_that_error() -> None:
    error = await failure(200, '{"error": {"message": "busy", "code": 503}}', {"content-type": "application/json"})
    assert (error.retryable, error.status) == (True, 503)
    assert "busy" in error.text


async def test_a_page_where_a_stream_was_asked_for_is_a_failure_that_quotes_it() -> None:
    error = await failure(200, "<html>Log in first</html>", {"content-type": "text/html"})
    assert "Log in first" in error.text


async def test_a_body_of_another_type_with_no_event_in_it_is_a_failure_that_quotes_it() -> None:
    error = await failure(200, "upstream gone\n", {"content-type": "text/plain"})
    assert "upstream gone" in error.text


async def test_a_long_error_is_short_and_cannot_drive_a_terminal() -> None:
    error = await failure(500, "\x1b[2J" + "x" * 100_000)
    assert len(error.text) < 1000
    assert "\x1b" not in error.text


# ------------------------------------------------------------------------------------------------------ secrets


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (401, json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}."}}), {}),
        (500, f"authorization: Bearer {KEY}", {}),
        (500, "x" * 280 + KEY + "y" * 1000, {}),
        (500, "x" * 5000 + KEY + "y" * 280, {}),
        (200, f"<html>{KEY}</html>", {"content-type": "text/html"}),
        (200, f"{KEY}\n", {"content-type": "text/plain"}),
        (200, "z" * 230 + KEY + "z" * 900, {"content-type": "text/plain"}),
        (200, f'data: {{"error": "no {KEY}"}}\n\n', {"content-type": "text/event-stream"}),
    ],
)
async def test_a_key_that_a_server_sends_back_is_in_no_error(
    status: int, body: str, headers: Mapping[str, str]
) -> None:
    error = await failure(status, body, headers)
    said = f"{error} {error!r} {error.text} {error.__cause__!r}"
    assert not any(KEY[at : at + 8] in said for at in range(len(KEY) - 8))


def test_what_looks_like_a_key_is_hidden_and_a_short_word_is_not() -> None:
    assert hide("use sk-ant-REDACTED or Bearer abcdefgh12345, not test", "test") == (
        "use [secret] or [secret], not test"
    )


async def test_a_key_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in KEY_VARIABLES:
        monkeypatch.setenv(variable, KEY)
    async with open_anthropic("m") as one, open_openai_chat("m") as two:
        for provider in (one, two):
            shown = f"{provider!r} {provider.stream(HELLO)!r} {vars(provider)}"
            assert KEY not in shown
            assert "'m'" in shown
            assert KEY in str(provider.stream(HELLO)._request.headers.raw)


@pytest.mark.parametrize("bad", ["line\nbreak", "käy", "two words", "bell\x07"])
async def test_a_key_that_is_none_is_refused_without_quoting_it(bad: str) -> None:
    with pytest.raises(ValueError, match="characters") as caught:
        async with open_anthropic("m", api_key=bad):
            pass
    assert bad not in str(caught.value)


async def test_a_missing_key_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, opener in zip(KEY_VARIABLES, (open_anthropic, open_openai_chat), strict=True):
        monkeypatch.delenv(variable, raising=False)
        with pytest.raises(ValueError, match=variable):
            async with opener("m"):
                pass


@pytest.mark.parametrize("bad", ["ftp://x", "http://user:secret@x", "nonsense", "http://", "http://[::1"])
async def test_a_base_url_that_is_none_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="base URL") as caught:
        async with open_anthropic("m", base_url=bad):
            pass
    assert "secret" not in str(caught.value)


async def test_the_base_url_may_have_a_path_and_a_query() -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(str(request.url))
        return httpx.Response(500)

    for url in ("http://x/openai/v1/?api-version=1", "http://x/v1"):
        async with open_openai_chat("m", base_url=url, transport=httpx.MockTransport(answer)) as provider:
            with pytest.raises(ProviderError):
                await provider.stream(HELLO).__aenter__()
    assert seen == ["http://x/openai/v1/chat/completions?api-version=1", "http://x/v1/chat/completions"]
