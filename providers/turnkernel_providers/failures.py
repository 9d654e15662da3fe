"""What a failed request or stream was, as a `ProviderError`. Pure; touches nothing.

A server says what went wrong in many shapes: by status, by a type or a code in the body, inside a stream that
began with 200. Here they become one exception that says whether to try again and whether the context was too
long. The facts are from recorded errors of some fifteen vendors and from the vendors' own lists.
"""

import math
import re
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

import attrs

from turnkernel.errors import ProviderError
from turnkernel.text import clip, printable

from .wire_json import index_of, loads, table, text_of

__all__ = ["error_of_body", "error_of_event", "error_of_no_stream", "hide", "retry_after"]

_MOST_BYTES = 600
_SHORTEST_SECRET = 8
_TRY_AGAIN = frozenset({408, 409, 425, 429})

_TOO_LONG = re.compile(
    r"prompt (is )?too long|exceeds? (the )?context limit|max(imum)? context length|context_length_exceeded"
    r"|exceed_context_size|exceeds the available context size|exceeds the context window|too_many_prompt_tokens"
    r"|total length of all messages is too long|input token count .{0,40} only supports up to|request_too_large",
    re.IGNORECASE | re.DOTALL,
)
"""How vendors say that the context was too long; only one has a code of its own for it (rules A30, C14)."""

_LASTING = re.compile(
    r"invalid|authentication|permission|not_found|forbidden|unauthorized|billing|insufficient_quota|tool_use_failed"
    r"|unsupported|content_filter|too_large",
    re.IGNORECASE,
)
"""Types and codes of errors that the same request would meet again."""

_SECRET = re.compile(r"\b(sk|gsk|xai|key|pplx)-[A-Za-z0-9_-]{8,}|(?i:\bbearer\s+[^\s\"',]{8,})")


@attrs.frozen
class _Facts:
    text: str
    kinds: str
    """Type and code, whatever of them there is."""
    status: int | None


def hide(text: str, *secrets: str) -> str:
    """The text without these secrets and without anything that looks like an API key.

    Also without the halves of a secret that clipping may have left; what is shorter than 8 tells nothing.
    """
    for secret in secrets:
        for length in range(len(secret), _SHORTEST_SECRET - 1, -1):
            text = text.replace(secret[:length], "[secret]").replace(secret[-length:], "[secret]")
    return _SECRET.sub("[secret]", text)


def retry_after(value: str, now: datetime) -> float | None:
    """Seconds that a `retry-after` header asks to wait: a number, or an HTTP date (RFC 9110, 10.2.3)."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(value) - now).total_seconds()
        except (TypeError, ValueError, OverflowError):
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def error_of_body(status: int, body: str, wait: float | None = None) -> ProviderError:
    """The error of an HTTP answer that is no stream. `wait` is what it asked to wait."""
    try:
        facts = _facts(table(loads(body)))
    except ValueError:
        facts = _Facts("", "", None)
    said = f"HTTP {status} {facts.kinds}".rstrip()
    text = f"{said}: {facts.text or body.strip() or 'no body'}"
    lasting = "insufficient_quota" in facts.kinds
    retryable = (status in _TRY_AGAIN or status >= 500) and not lasting
    too_long = status == 413 or (status not in (401, 403, 404, 429) and _is_too_long(facts, body))
    return _error(text, retryable, too_long, status, wait)


def error_of_event(value: Mapping[str, Any]) -> ProviderError:
    """The error that a server put into a stream which had begun with 200.

    Retryable unless its type says that the request itself was at fault: what fails in the middle is mostly the
    server, and the kernel retries only while nothing was shown.
    """
    facts = _facts(value)
    said = f"error in the stream {facts.kinds}".rstrip()
    if facts.status is not None:
        retryable = facts.status in _TRY_AGAIN or facts.status >= 500
    else:
        retryable = _LASTING.search(facts.kinds) is None
    return _error(f"{said}: {facts.text or 'no text'}", retryable, _is_too_long(facts, ""), facts.status, None)


def _error(text: str, retryable: bool, too_long: bool, status: int | None, wait: float | None) -> ProviderError:
    kind = "context_limit" if too_long else "provider"
    short = clip(hide(printable(text)), _MOST_BYTES)
    return ProviderError(short, retryable=retryable and not too_long, retry_after=wait, status=status, kind=kind)


def _is_too_long(facts: _Facts, body: str) -> bool:
    return _TOO_LONG.search(f"{facts.kinds} {facts.text or body[:4096]}") is not None


def _facts(value: Mapping[str, Any]) -> _Facts:
    """Text, type and code, from where the vendors put them."""
    error = table(value.get("error")) or value
    text = text_of(error.get("message")) or text_of(value.get("error")) or text_of(value.get("detail"))
    if upstream := text_of(table(error.get("metadata")).get("raw")):  # OpenRouter: what the real vendor said
        text = f"{text} ({upstream})"
    kinds = [text_of(error.get("type")), text_of(error.get("code")) or text_of(value.get("code"))]
    codes = (error.get("code"), error.get("status_code"), value.get("code"), value.get("status_code"))
    status = next((code for code in map(_status, codes) if code is not None), None)
    return _Facts(text, " ".join(dict.fromkeys(kind for kind in kinds if kind)), status)


def _status(code: object) -> int | None:
    """The HTTP status that a code is, if it is one; some servers write it as text."""
    number = int(code) if isinstance(code, str) and re.fullmatch(r"[45]\d\d", code) else index_of(code)
    return number if number is not None and 400 <= number < 600 else None


def error_of_no_stream(content_type: str, body: str) -> ProviderError:
    """The error of an answer with 200 that is JSON or a page where a stream was asked for."""
    try:
        value = table(loads(body))
    except ValueError:
        value = table(None)
    if value.get("error"):
        return error_of_event(value)
    return _error(f"not an event stream but {content_type}: {body.strip() or 'nothing'}", False, False, None, None)
