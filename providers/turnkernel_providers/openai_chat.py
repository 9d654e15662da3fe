"""The provider of Chat Completions, OpenAI's and the many compatible ones. Uses httpx and trio."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from turnkernel.provider import Request

from .http import ModelClient, ModelStream, Patience, never, open_client
from .keys import OPENAI_KEY, key_from
from .openai_chat_request import Dialect, dialect_of, openai_chat_body
from .openai_chat_stream import OpenAIChatDecoder
from .wire_json import written

__all__ = ["OpenAIChatProvider", "open_openai_chat"]

_URL = "https://api.openai.com/v1"


class OpenAIChatProvider:
    """See `turnkernel.Provider`, whose contract it keeps. Made by `open_openai_chat`."""

    def __init__(
        self,
        client: ModelClient,
        model: str,
        *,
        dialect: Dialect | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self._client = client
        self._model = model
        self._dialect = dialect or dialect_of(client.url.host)
        self._extra = extra

    def __repr__(self) -> str:
        return f"<OpenAIChatProvider {self._model!r} by {self._client!r}>"

    @property
    def wire(self) -> str:
        """`openai-chat`."""
        return OpenAIChatDecoder.wire

    @property
    def model(self) -> str:
        """The model's name."""
        return self._model

    def stream(self, request: Request) -> ModelStream:
        """Start a request when entered.

        Raises:
            PairingError: the context breaks the laws, under `TURNKERNEL_STRICT=1`.
        """
        body = openai_chat_body(request, self._model, dialect=self._dialect, extra=self._extra)
        decoder = OpenAIChatDecoder([tool.name for tool in request.tools])
        return self._client.stream("/chat/completions", written(body).encode(), decoder)


@asynccontextmanager
async def open_openai_chat(
    model: str,
    *,
    api_key: str | None = None,
    base_url: str = _URL,
    dialect: Dialect | None = None,
    extra: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    patience: Patience | None = None,
    outer_deadline: Callable[[], float] = never,
    transport: httpx.AsyncBaseTransport | None = None,
) -> AsyncGenerator[OpenAIChatProvider]:
    """A provider for `model`; its connections are closed at the end of the block.

    `base_url` is what stands before `/chat/completions`. The key is read from OPENAI_API_KEY unless given;
    servers other than the vendor's may do without. `dialect` says what the server wants otherwise than most
    (default: what is known of its host), `extra` holds more fields of every request, `headers` more headers,
    whose values are kept out of errors like the key.

    Raises:
        ValueError: no key where one is needed, or a `base_url` that is none.
    """
    key = key_from(api_key, OPENAI_KEY, needed=base_url == _URL)
    async with open_client(
        base_url,
        headers={**({"authorization": f"Bearer {key}"} if key else {}), **(headers or {})},
        secrets=(key, *(headers or {}).values()),
        patience=patience,
        outer_deadline=outer_deadline,
        transport=transport,
    ) as client:
        yield OpenAIChatProvider(client, model, dialect=dialect, extra=extra)
