"""One model request and the calls it asked for.

A stream is read to its end before any of its calls runs, so a stream that breaks or is retried has started
nothing. What a cut stream leaves is made by the turn's closers from the deltas, as after a crash.
"""

import attrs
import trio

from .assemble import assemble
from .cancel import Authority
from .dispatch import Dispatch, Folds
from .errors import ProviderError
from .events import (
    Delta,
    Error,
    ModelDelta,
    ModelMessage,
    ModelRetry,
    StepEnd,
    StepStart,
    ToolResult,
)
from .faults import apart, errors_of, in_words, is_ours
from .inbox import steers
from .kernel import Kernel
from .messages import ToolUse
from .provider import Finish, Request, ToolSpec
from .repair import Ending
from .text import clip, safe
from .wording import CallFacts

__all__ = ["Step"]


@attrs.define
class Step:
    """One step of the running turn. `run` returns how the turn ends here, or None if it may go on."""

    kernel: Kernel
    folds: Folds
    authority: Authority
    more: bool = False
    """After `run`: whether the model is owed another request."""

    async def run(self) -> Ending | None:
        """Steers, request, message, calls, end. Cancelled, it leaves what is open to the turn's closers."""
        kernel, turn = self.kernel, self.authority.turn
        await trio.lowlevel.checkpoint_if_cancelled()
        provider = kernel.provider
        # The first step's input was consumed with `turn/start`.
        consumed = steers(kernel.grammar)
        step = kernel.grammar.next_step()
        kernel.append(*consumed, StepStart(turn, step, provider.wire, provider.model))
        refusal = self._over_limit()
        if refusal is not None:
            return refusal
        failed = await self._request(step)
        if failed is not None:
            return failed
        open_step = kernel.grammar.step
        assert open_step is not None
        assert open_step.message is not None
        message = open_step.message
        uses = [block for block in message.blocks if isinstance(block, ToolUse)]
        if message.stop == "refusal":
            return Ending("refused")
        note = None
        if message.stop == "max_tokens":
            if not uses:
                return Ending("failed", "output_limit", (_output_limit(message),))
            self._refuse_for_length(uses)
        elif uses:
            await Dispatch(kernel, self.folds, uses).run()
        elif message.stop == "pause_turn":
            note = kernel.wording.pause()
        kernel.append(StepEnd(turn, step, note))
        self.more = bool(uses) or note is not None
        return None

    def _over_limit(self) -> Ending | None:
        limit, tokens = self.kernel.settings.context_tokens, self.kernel.context.tokens
        if limit is None or tokens <= limit:
            return None
        text = f"the context has about {tokens} tokens, the limit is {limit}; nothing was sent"
        return Ending("failed", "context_limit", (Error("ContextLimit", text, "request"),))

    def _refuse_for_length(self, uses: list[ToolUse]) -> None:
        kernel = self.kernel
        for use in uses:
            text = kernel.wording.result("output_limit", CallFacts(use.name))
            kernel.append(ToolResult(self.authority.turn, use.id, use.name, "output_limit", True, text))

    # -------------------------------------------------------------------------------------------- request

    async def _request(self, step: str) -> Ending | None:
        """Make the request, again after a wait while nothing of it was shown. None once the message is there."""
        kernel, turn = self.kernel, self.authority.turn
        request = Request(
            kernel.settings.system,
            kernel.context.messages,
            [ToolSpec(tool.name, tool.description, tool.schema) for tool in kernel.tools.values()],
            kernel.settings.max_tokens,
        )
        attempt = 1
        while True:
            failure = await self._attempt(step, request)
            if failure is None:
                return None
            error = Error(failure.type, failure.text, "provider")
            await self._unless_cancelled(error)
            wait = None
            open_step = kernel.grammar.step
            assert open_step is not None
            if open_step.message is not None:
                # The message was whole; only what came after it failed.
                self.authority.errors.append(error)
                return None
            if failure.retryable and not open_step.deltas:
                wait = kernel.settings.retry.wait(attempt, failure.retry_after)
            if wait is None:
                code = "context_limit" if failure.kind == "context_limit" else "provider"
                return Ending("failed", code, (error,))
            kernel.append(ModelRetry(turn, step, attempt, wait, failure.text))
            await trio.sleep(wait)
            attempt += 1

    async def _unless_cancelled(self, error: Error) -> None:
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled:
            self.authority.errors.append(error)
            raise

    async def _attempt(self, step: str, request: Request) -> "_Failure | None":
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            await self._stream(step, request)
        except ProviderError as error:
            return _Failure("ProviderError", safe(error.text), error.retryable, error.retry_after, error.kind)
        except Exception as error:
            if is_ours(error, self.kernel.journal):
                raise
            # Whatever a provider raises ends the turn, told in the log.
            found = errors_of(error, "provider")
            if len(found) == 1:
                return _Failure(found[0].type, found[0].text)
            return _Failure(type(error).__name__, in_words(error))
        except BaseExceptionGroup as group:
            cancelled, rest = apart(group)
            if cancelled is None or rest is None or is_ours(rest, self.kernel.journal):
                raise
            self.authority.errors += errors_of(rest, "provider")
            raise cancelled from None
        return None

    async def _stream(self, step: str, request: Request) -> None:
        kernel, turn = self.kernel, self.authority.turn
        try:
            async with kernel.provider.stream(request) as events:
                async for event in events:
                    if isinstance(event, Finish):
                        # No checkpoint between the last word and its record.
                        self._message(step, event)
                        break
                    kernel.append(_delta(turn, step, event))
                    # What was in hand is kept; what a provider has buffered behind it is not shown any more.
                    await trio.lowlevel.checkpoint_if_cancelled()
        finally:
            self.authority.mark("stream_closed")
        open_step = kernel.grammar.step
        if open_step is not None and open_step.message is None:
            raise ProviderError("the stream ended before the message did", retryable=True)

    def _message(self, step: str, finish: Finish) -> None:
        kernel, provider = self.kernel, self.kernel.provider
        open_step = kernel.grammar.step
        assert open_step is not None
        blocks = assemble(open_step.deltas, cut=False, taken=kernel.grammar.call_ids)
        kernel.append(
            ModelMessage(
                self.authority.turn, step, provider.wire, provider.model, blocks, finish.stop, finish.usage
            )
        )


@attrs.frozen
class _Failure:
    type: str
    text: str
    retryable: bool = False
    retry_after: float | None = None
    kind: str = "provider"


def _delta(turn: str, step: str, delta: Delta) -> ModelDelta:
    return ModelDelta(turn, step, delta.block, delta.part, delta.text, delta.call, delta.name)


def _output_limit(message: ModelMessage) -> Error:
    return Error("OutputLimit", f"the message reached its length limit ({clip(str(message.usage), 200)})", "model")
