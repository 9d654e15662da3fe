"""Requests of Anthropic's Messages API. Pure; touches nothing.

A block is encoded from itself and its message alone (thinking: and the model that is asked), so what was sent
once is sent the same for ever and later blocks come after it (law C6); only cache marks move. The rules A01 to
A29 that it keeps are those of the vendor as seen in public: what it refuses, a session could never send again.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from turnkernel.messages import Block, Message, Opaque, Text, Thinking, ToolResultBlock, ToolUse
from turnkernel.provider import Request, ToolSpec

from .pairing import FILLER, PairingError, is_strict, paired
from .wire_json import scrubbed, text_of
from .wire_names import ANTHROPIC_IDS, tool_name

__all__ = ["anthropic_body", "anthropic_context"]

WIRE = "anthropic"
_THINKING = ("thinking", "redacted_thinking")
_MARKS = 2
"""How many of the last user messages have a cache mark: the last one writes, the one before it is sure to be
read. The wire allows four (rule A27)."""


def anthropic_context(
    request: Request, model: str, *, cache: bool = True, strict: bool | None = None
) -> dict[str, Any]:
    """`system` and `messages` as they are sent to `model`.

    Raises:
        PairingError: see `pairing.paired`.
    """
    sent: list[dict[str, Any]] = []
    for message in paired(request.messages, strict=strict):
        blocks = _encoded(message, model)
        if sent and sent[-1]["role"] == message.role:  # what stood between them could not be sent
            sent[-1]["content"] += blocks
        elif blocks:
            sent.append({"role": message.role, "content": blocks})
    if cache:
        for message in [message for message in sent if message["role"] == "user"][-_MARKS:]:
            message["content"][-1]["cache_control"] = {"type": "ephemeral"}
    return scrubbed({"system": request.system, "messages": sent})


def anthropic_body(
    request: Request,
    model: str,
    *,
    thinking: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
    cache: bool = True,
    strict: bool | None = None,
) -> dict[str, Any]:
    """The whole body of a streaming request.

    `thinking` is the wire's own setting of it; it is left out where the history would not allow it (rule A16).
    `extra` holds more fields, as they are.

    Raises:
        PairingError: see `pairing.paired`; also if the request ends with the assistant.
    """
    context = anthropic_context(request, model, cache=cache, strict=strict)
    messages: list[dict[str, Any]] = context["messages"]
    if not messages or messages[-1]["role"] == "assistant":
        if is_strict() if strict is None else strict:
            raise PairingError(["a request that does not end with the user"])
        messages.append({"role": "user", "content": [{"type": "text", "text": FILLER}]})
    body: dict[str, Any] = {"model": model, "max_tokens": request.max_tokens, "stream": True, "messages": messages}
    if context["system"].strip():
        body["system"] = context["system"]
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    if thinking is not None and not _lost_its_thinking(messages, request.messages, thinking):
        body["thinking"] = dict(thinking)
    return scrubbed({**body, **(extra or {})})


def _tool(tool: ToolSpec) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "input_schema": dict(tool.schema)}


def _encoded(message: Message, model: str) -> list[dict[str, Any]]:
    own = message.wire == WIRE and message.model == model
    blocks = [block for block in message.blocks if own or not isinstance(block, Thinking | Opaque)]
    lone = _without_their_other_half(blocks)
    encoded = [_block(block) for at, block in enumerate(blocks) if at not in lone and _can_go_back(block)]
    calls = [block for block in encoded if block["type"] == "tool_use"]
    said = [block for block in encoded if block["type"] != "tool_use"]
    while said and not calls and said[-1]["type"] in _THINKING:  # rule A21
        said.pop()
    return said + calls  # rule A23


def _can_go_back(block: Block) -> bool:
    """Thinking without its proof can't (rule A20), nor what does not even say what it is."""
    if isinstance(block, Thinking):
        return bool(block.signature or block.redacted)
    return not isinstance(block, Opaque) or bool(text_of(block.data.get("type")))


def _without_their_other_half(blocks: Sequence[Block]) -> set[int]:
    """Where blocks of server-side tools stand whose pair is not whole in this message, in order (rule A25)."""
    waiting: dict[str, int] = {}
    lone: set[int] = set()
    for at, block in enumerate(blocks):
        if isinstance(block, Opaque):
            kind = text_of(block.data.get("type"))
            if kind.endswith("tool_use"):
                lone.add(at)
                waiting[text_of(block.data.get("id"))] = at
            elif kind.endswith("tool_result"):
                asked = waiting.pop(text_of(block.data.get("tool_use_id")), None)
                lone.symmetric_difference_update({at if asked is None else asked})
    return lone


def _block(block: Block) -> dict[str, Any]:
    match block:
        case Text():
            return {"type": "text", "text": block.text}
        case Thinking(redacted=str(data)):
            return {"type": "redacted_thinking", "data": data}
        case Thinking():
            return {"type": "thinking", "thinking": block.text, "signature": block.signature}
        case ToolUse():
            ident, name = ANTHROPIC_IDS.map(block.id), tool_name(block.name)
            return {"type": "tool_use", "id": ident, "name": name, "input": dict(block.input)}
        case ToolResultBlock():
            result = {"type": "tool_result", "tool_use_id": ANTHROPIC_IDS.map(block.call), "content": block.text}
            return {**result, "is_error": True} if block.is_error else result
        case Opaque():
            return dict(block.data)


def _lost_its_thinking(
    sent: Sequence[Mapping[str, Any]], given: Sequence[Message], thinking: Mapping[str, Any]
) -> bool:
    """Whether results are being fed back to a message whose thinking is not there (rules A16, A18).

    With `enabled` the wire wants that message to begin with thinking. With `adaptive` it does not, but a message
    that has lost its own is no longer as the model gave it.
    """
    if len(sent) < 2 or sent[-1]["content"][0]["type"] != "tool_result":
        return False
    thinks = sent[-2]["content"][0]["type"] in _THINKING
    if thinking.get("type") != "adaptive":
        return not thinks
    last = next(message for message in reversed(given) if message.role == "assistant")
    return not thinks and any(isinstance(block, Thinking) for block in last.blocks)
