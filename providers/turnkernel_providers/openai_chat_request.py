"""Requests of Chat Completions, OpenAI's and the compatible ones. Pure; touches nothing.

As on every wire a message is encoded from itself alone, so that what was sent once stays (law C6). A user
message of one text is a string; more texts are parts, because a text that was sent must not change when another
joins it. Vendors that take strings only get them joined (their `Dialect` says so): there the law holds of the
words, not of the string around them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from turnkernel.messages import Message, Text, Thinking, ToolResultBlock, ToolUse
from turnkernel.provider import Request, ToolSpec

from .pairing import FILLER, PairingError, is_strict, paired
from .wire_json import scrubbed, written
from .wire_names import CHAT_IDS, MISTRAL_IDS, IdRule, tool_name

__all__ = ["COMMON", "Dialect", "dialect_of", "openai_chat_body", "openai_chat_context"]

WIRE = "openai-chat"


@attrs.frozen
class Dialect:
    """What a vendor's Chat Completions want otherwise."""

    only_strings: bool = False
    """A content is a string, never a list of parts."""
    thinking_field: str | None = "reasoning_content"
    """Where a model's own thinking goes back; None where the vendor refuses the field."""
    thinking_filler: str | None = None
    """What stands there in a message that has none; None: the field is left out."""
    limit_field: str = "max_tokens"
    """How the limit of tokens is called."""
    ids: IdRule = CHAT_IDS
    """Which call ids it takes."""
    counts: bool = True
    """Whether it is asked to send token counts."""


COMMON = Dialect()
"""What most servers take."""

_DIALECTS: Mapping[str, Dialect] = {
    "api.openai.com": Dialect(limit_field="max_completion_tokens"),
    # Refuses lists (G:BerriAI/litellm#6642, G:QwenLM/qwen-code#2320); in thinking mode it wants the field in every
    # message (rule C10) and takes no empty one (G:NousResearch/hermes-agent#18263).
    "api.deepseek.com": Dialect(only_strings=True, thinking_filler=" "),
    # Refuse the field (G:janhq/jan#8136, G:Kilo-Org/kilocode#10375).
    "api.groq.com": Dialect(thinking_field=None),
    "api.cerebras.ai": Dialect(thinking_field=None),
    # Rule C11.
    "api.mistral.ai": Dialect(thinking_field=None, ids=MISTRAL_IDS, counts=False),
}


def dialect_of(host: str) -> Dialect:
    """The dialect that is known of a vendor's host."""
    return _DIALECTS.get(host, COMMON)


def openai_chat_context(
    request: Request, model: str, *, dialect: Dialect = COMMON, strict: bool | None = None
) -> dict[str, Any]:
    """`system`, and as `messages` what comes after the system message, as they are sent to `model`.

    Raises:
        PairingError: see `pairing.paired`.
    """
    sent: list[dict[str, Any]] = []
    for message in paired(request.messages, strict=strict):
        if message.role == "assistant":
            sent += _assistant(message, model, dialect)
        else:
            sent += _results(message, dialect)
            _add_texts(sent, [block.text for block in message.blocks if isinstance(block, Text)], dialect)
    return scrubbed({"system": request.system, "messages": sent})


def openai_chat_body(
    request: Request,
    model: str,
    *,
    dialect: Dialect = COMMON,
    extra: Mapping[str, Any] | None = None,
    strict: bool | None = None,
) -> dict[str, Any]:
    """The whole body of a streaming request. `extra` holds more fields, as they are.

    Raises:
        PairingError: see `pairing.paired`; also if the request ends with the assistant.
    """
    context = openai_chat_context(request, model, dialect=dialect, strict=strict)
    messages: list[dict[str, Any]] = context["messages"]
    if not messages or messages[-1]["role"] == "assistant":
        if is_strict() if strict is None else strict:
            raise PairingError(["a request that does not end with the user"])
        messages.append({"role": "user", "content": FILLER})
    if context["system"].strip():
        messages = [{"role": "system", "content": context["system"]}, *messages]
    body: dict[str, Any] = {"model": model, dialect.limit_field: request.max_tokens, "stream": True}
    if dialect.counts:
        body["stream_options"] = {"include_usage": True}
    body["messages"] = messages
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    return scrubbed({**body, **(extra or {})})


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.schema)}
    return {"type": "function", "function": function}


def _assistant(message: Message, model: str, dialect: Dialect) -> list[dict[str, Any]]:
    """The message, or nothing if nothing of it can be sent."""
    content = _content(message)
    calls = [_call(block, dialect.ids) for block in message.blocks if isinstance(block, ToolUse)]
    if not content and not calls:
        return []
    encoded: dict[str, Any] = {"role": "assistant", "content": content}
    if dialect.thinking_field is not None:
        own = message.wire == WIRE and message.model == model
        thinking = "".join(block.text for block in message.blocks if isinstance(block, Thinking)) if own else ""
        if given := thinking or dialect.thinking_filler:
            encoded[dialect.thinking_field] = given
    if calls:
        encoded["tool_calls"] = calls
    return [encoded]


def _content(message: Message) -> str:
    """All words in one string: texts side by side are one text in pieces, others are paragraphs."""
    content = ""
    beside = True
    for block in message.blocks:
        if isinstance(block, Text):
            content += block.text if beside else f"\n\n{block.text}"
        beside = isinstance(block, Text) or not content
    return content


def _call(use: ToolUse, ids: IdRule) -> dict[str, Any]:
    function = {"name": tool_name(use.name), "arguments": written(dict(use.input))}
    return {"id": ids.map(use.id), "type": "function", "function": function}


def _results(message: Message, dialect: Dialect) -> list[dict[str, Any]]:
    results = [block for block in message.blocks if isinstance(block, ToolResultBlock)]
    return [{"role": "tool", "tool_call_id": dialect.ids.map(each.call), "content": each.text} for each in results]


def _add_texts(sent: list[dict[str, Any]], texts: Sequence[str], dialect: Dialect) -> None:
    """The user's words, joined to a user message that stands last because nothing between them could be sent."""
    if not texts:
        return
    if sent and sent[-1]["role"] == "user":
        before: str | list[dict[str, Any]] = sent.pop()["content"]
        known = [before] if isinstance(before, str) else [part["text"] for part in before]
        texts = [*known, *texts]
    content: str | list[dict[str, Any]] = "\n\n".join(texts)
    if len(texts) > 1 and not dialect.only_strings:
        content = [{"type": "text", "text": text} for text in texts]
    sent.append({"role": "user", "content": content})
