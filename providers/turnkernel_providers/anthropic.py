"""The provider of Anthropic's Messages API, and of servers that speak it. Uses httpx and trio."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from turnkernel.provider import Request

from .anthropic_request import anthropic_body
from .anthropic_stream import AnthropicDecoder
from .http import ModelClient, ModelStream, Patience, never, open_client
from .keys import ANTHROPIC_KEY, key_from
from .wire_json import written

__all__ = ["AnthropicProvider", "open_anthropic"]

_URL = "https://api.anthropic.com"
_VERSION = "2023-06-01"


class AnthropicProvider:
    """See `turnkernel.Provider`, whose contract it keeps. Made by `open_anthropic`."""

    def __init__(
        self,
        client: ModelClient,
        model: str,
        *,
        thinking: Mapping[str, Any] | None = None,
        cache: bool = True,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self._client = client
        self._model = model
        self._thinking = thinking
        self._cache = cache
        self._extra = extra

    def __repr__(self) -> str:
        return f"<AnthropicProvider {self._model!r} by {self._client!r}>"

    @property
    def wire(self) -> str:
        """`anthropic`."""
        return AnthropicDecoder.wire

    @property
    def model(self) -> str:
        """The model's name."""
        return self._model

    def stream(self, request: Request) -> ModelStream:
        """Start a request when entered.

        Raises:
            PairingError: the context breaks the laws, under `TURNKERNEL_STRICT=1`.
        """
        body = anthropic_body(request, self._model, thinking=self._thinking, extra=self._extra, cache=self._cache)
        return self._client.stream("/v1/messages", written(body).encode(), AnthropicDecoder())


@asynccontextmanager
async def open_anthropic(
    model: str,
    *,
    api_key: str | None = None,
    base_url: str = _URL,
    thinking: Mapping[str, Any] | None = None,
    cache: bool = True,
    extra: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    patience: Patience | None = None,
    outer_deadline: Callable[[], float] = never,
    transport: httpx.AsyncBaseTransport | None = None,
) -> AsyncGenerator[AnthropicProvider]:
    """A provider for `model`; its connections are closed at the end of the block.

    `base_url` is what stands before `/v1/messages`. The key is read from ANTHROPIC_API_KEY unless given; servers
    other than the vendor's may do without. `thinking` is the wire's own setting
    (`{"type": "enabled", "budget_tokens": 2048}`), `extra` more fields of every request, `headers` more headers,
    whose values are kept out of errors like the key. `cache=False` sends no cache marks.

    Raises:
        ValueError: no key where one is needed, or a `base_url` that is none.
    """
    key = key_from(api_key, ANTHROPIC_KEY, needed=base_url == _URL)
    all_headers = {"anthropic-version": _VERSION, **({"x-api-key": key} if key else {}), **(headers or {})}
    async with open_client(
        base_url.rstrip("/").removesuffix("/v1"),
        headers=all_headers,
        secrets=(key, *(headers or {}).values()),
        patience=patience,
        outer_deadline=outer_deadline,
        transport=transport,
    ) as client:
        yield AnthropicProvider(client, model, thinking=thinking, cache=cache, extra=extra)
