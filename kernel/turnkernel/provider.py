"""The port through which model output comes in. attrs only, no trio.

A provider turns a `Request` into a wire's request and the wire's stream into `Delta`s and one `Finish`.
"""

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import attrs
from attrs.validators import ge, instance_of, lt

from .events import Delta, Stop
from .messages import Message

__all__ = ["Finish", "ModelEvent", "Provider", "Request", "RetryPolicy", "ToolSpec"]


@attrs.frozen
class ToolSpec:
    """What the model is told of a tool."""

    name: str
    description: str
    schema: Mapping[str, Any]
    """JSON Schema of the input, an object."""


@attrs.frozen
class Request:
    """One model request, independent of any wire."""

    system: str
    messages: Sequence[Message]
    """Starts and ends with a user message, roles alternate, every call answered (laws C1 to C3)."""
    tools: Sequence[ToolSpec]
    max_tokens: int


@attrs.frozen
class Finish:
    """The message is whole. The last thing a stream yields."""

    stop: Stop
    usage: Mapping[str, int] | None = None
    """Tokens, by name: `input_tokens`, `output_tokens` and what else the wire counts."""


ModelEvent = Delta | Finish


class Provider(Protocol):
    """Where model output comes from.

    Contract for implementations:

    - `stream(request)` returns an async context manager that gives an async iterator of model events. Leaving
      it closes the response, in bounded time, whatever the reason for leaving. When it has been left nothing of
      the request is alive: no trio task, no open response.
    - The iterator yields `Delta`s and then one `Finish`. A stream that ends without a `Finish` raises
      `ProviderError`; it never ends silently.
    - Thinking is given an `end` delta only when it is whole: signed, where the wire signs.
    - Fails with `ProviderError` only. Anything else is taken for a fault of the provider and ends the turn.
    - Every wait is a checkpoint and lets `trio.Cancelled` pass. No async generator holds a scope over a yield.
    - Does not retry: the kernel does, so that a retry is in the log before its wait.
    """

    @property
    def wire(self) -> str:
        """The wire's name: `anthropic`, `openai-chat`, `openai-responses` ..."""
        ...

    @property
    def model(self) -> str:
        """The model's name on that wire."""
        ...

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """Start a request; see the class for the contract."""
        ...


_SECONDS: Any = [instance_of((int, float)), ge(0), lt(math.inf)]


@attrs.frozen
class RetryPolicy:
    """When a failed request is made again. Only while nothing of it was shown. TypeError or ValueError for what
    is no number of times or seconds.
    """

    retries: int = attrs.field(default=2, validator=[instance_of(int), ge(0)])
    """How often at most, per step."""
    backoff_seconds: float = attrs.field(default=0.5, validator=_SECONDS)
    """The first wait; each later one is twice as long, up to 30 s."""
    longest_wait_seconds: float = attrs.field(default=600.0, validator=_SECONDS)
    """A server that asks for more is not waited for."""

    def wait(self, failed: int, retry_after: float | None) -> float | None:
        """Seconds to wait after the `failed`-th attempt (from 1), or None to give up.

        A server's `retry_after` is honoured when it is longer than ours, up to `longest_wait_seconds`.
        """
        if failed > self.retries or (retry_after or 0.0) > self.longest_wait_seconds:
            return None
        ours = min(self.backoff_seconds * 2.0 ** (failed - 1), 30.0)
        return max(ours, retry_after or 0.0)
