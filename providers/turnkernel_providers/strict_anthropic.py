"""Whether Anthropic's Messages API would refuse a request body, and with which words. Pure; touches nothing.

The texts are the API's own, from public bug reports. Stricter than the API of today, on purpose, because other
servers of the wire still refuse it or because laws C1 to C3 promise better: A09 (any blank text block), A10,
A12 (on every model), A13, A14, A15, A21 (in every message), A23, and A25 for a server tool that waits.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .strict import Refusal, blank, listed, lone_surrogates, table, text_of
from .strict_thinking import Thoughts, is_thinking

__all__ = ["check_anthropic"]

Json = Mapping[str, Any]

_ID = re.compile(r"[a-zA-Z0-9_-]+")
_MOST_CACHE_MARKS = 4
_FIELDS = {
    "text": {"type", "text", "citations", "cache_control"},
    "thinking": {"type", "thinking", "signature"},
    "redacted_thinking": {"type", "data"},
    "tool_use": {"type", "id", "name", "input", "caller", "cache_control"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "cache_control"},
}
"""What may stand in a block of a kind. Kinds that are not here may hold anything."""


def check_anthropic(body: Json, *, thoughts: Thoughts | None = None, requesting: bool = True) -> Refusal | None:
    """The first rule that a request body breaks, as the vendor's error text, or None.

    Looks at `messages`, `system`, `tools` and `thinking` only; the last three may be absent. With `thoughts`,
    thinking that the server did not give to `model` is refused (A18, A19). `requesting=False` asks about a
    context that nobody is sending yet: it may be empty or end with the assistant.
    """
    return next(_refusals(body, thoughts, requesting), None)


def _refusals(body: Json, thoughts: Thoughts | None, requesting: bool) -> Iterator[Refusal]:
    messages = [table(message) for message in listed(body.get("messages"))]
    yield from lone_surrogates(body)
    yield from _cache_marks(body)
    yield from _system(listed(body.get("system")))
    yield from _roles(messages)
    for i, message in enumerate(messages):
        yield from _message(i, message)
    yield from _pairs(messages)
    if thoughts is not None:
        yield from _signatures(text_of(body.get("model")), messages, thoughts)
    enabled = table(body.get("thinking")).get("type")
    yield from _open_loop(messages, enabled == "enabled")
    if requesting:
        yield from _ending(messages, enabled in ("enabled", "adaptive"))


def _blocks(message: Json) -> Sequence[Json]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [table(block) for block in listed(content)]


def _of_kind(kind: str, blocks: Sequence[Json]) -> list[Json]:
    return [block for block in blocks if block.get("type") == kind]


def _cache_marks(body: Json) -> Iterator[Refusal]:
    places: list[object] = [*listed(body.get("system")), *listed(body.get("tools"))]
    for message in listed(body.get("messages")):
        for block in _blocks(table(message)):
            places += [block, *listed(block.get("content"))]
    marks = sum(1 for place in places if table(place).get("cache_control"))
    if marks > _MOST_CACHE_MARKS:
        yield Refusal("A27", f"A maximum of 4 blocks with cache_control may be provided. Found {marks}.")


def _system(blocks: Sequence[object]) -> Iterator[Refusal]:
    for j, block in enumerate(blocks):
        yield from _text(f"system.{j}", "system", table(block))


def _roles(messages: Sequence[Json]) -> Iterator[Refusal]:
    before: object = None
    for i, message in enumerate(messages):
        role = message.get("role")
        if role == "system":
            why = 'The Messages API accepts a top-level `system` parameter, not "system" as an input message role.'
            yield Refusal("A15", f'messages: Unexpected role "system". {why}')
        elif role not in ("user", "assistant"):
            yield Refusal("shape", f"messages.{i}.role: Input should be 'user' or 'assistant'")
        elif before is None and role == "assistant":
            yield Refusal("A13", 'messages: first message must use the "user" role')
        elif role == before:
            why = f'but found multiple "{role}" roles in a row'
            yield Refusal("A14", f'messages: roles must alternate between "user" and "assistant", {why}')
        before = role


def _message(i: int, message: Json) -> Iterator[Refusal]:
    blocks = _blocks(message)
    for field in sorted(message.keys() - {"role", "content"}):
        yield Refusal("A29", f"messages.{i}.{field}: Extra inputs are not permitted")
    if "content" not in message:
        yield Refusal("shape", f"messages.{i}.content: Field required")
    elif not message["content"]:
        why = "all messages must have non-empty content except for the optional final assistant message"
        yield Refusal("A10", f"messages.{i}: {why}")
    elif not isinstance(message["content"], str | list):
        yield Refusal("shape", f"messages.{i}.content: Input should be a valid list")
    for j, block in enumerate(blocks):
        yield from _block(f"messages.{i}.content.{j}", i, message.get("role"), block)
    if message.get("role") == "assistant":
        yield from _order(i, blocks)
        yield from _server_tools(i, blocks)


def _block(at: str, i: int, role: object, block: Json) -> Iterator[Refusal]:
    kind = block.get("type")
    if not isinstance(kind, str):
        yield Refusal("shape", f"{at}.type: Field required")
        return
    for field in sorted(block.keys() - _FIELDS.get(kind, block.keys())):
        yield Refusal("A29", f"{at}.{kind}.{field}: Extra inputs are not permitted")
    if kind == "text":
        yield from _text(f"{at}.text", "messages", block)
    elif kind == "tool_use":
        if role != "assistant":
            yield Refusal("A24", f"messages.{i}: `tool_use` blocks can only be in `assistant` messages")
        yield from _id(f"{at}.tool_use.id", block.get("id"))
        if not isinstance(block.get("input"), dict):
            yield Refusal("A07", f"{at}.tool_use.input: Input should be a valid dictionary")
    elif kind == "tool_result":
        if role != "user":
            yield Refusal("A24", f"messages.{i}: `tool_result` blocks can only be in `user` messages")
        yield from _result(at, block)
    elif kind == "thinking":
        yield from _thinking(at, block)


def _text(at: str, whose: str, block: Json) -> Iterator[Refusal]:
    if block.get("type") != "text":
        return
    if not block.get("text"):
        if block.get("cache_control"):
            yield Refusal("A28", f"{at}: cache_control cannot be set for empty text blocks")
        yield Refusal("A08", f"{whose}: text content blocks must be non-empty")
    elif blank(block["text"]):
        yield Refusal("A09", f"{whose}: text content blocks must contain non-whitespace text")


def _id(at: str, wire_id: object) -> Iterator[Refusal]:
    if not _ID.fullmatch(text_of(wire_id)):
        yield Refusal("A06", f"{at}: String should match pattern '^[a-zA-Z0-9_-]+$'")


def _result(at: str, block: Json) -> Iterator[Refusal]:
    yield from _id(f"{at}.tool_result.tool_use_id", block.get("tool_use_id"))
    if block.get("is_error") and not block.get("content"):
        yield Refusal("A22", f"{at}.tool_result: content cannot be empty if `is_error` is true")
    for k, part in enumerate(listed(block.get("content"))):
        yield from _text(f"{at}.tool_result.content.{k}.text", "messages", table(part))


def _thinking(at: str, block: Json) -> Iterator[Refusal]:
    for field in ("signature", "thinking"):
        if not isinstance(block.get(field), str):
            yield Refusal("A20", f"{at}.thinking.{field}: Field required")
    if block.get("signature") == "":
        yield Refusal("A20", f"{at}.thinking: each thinking block must contain thinking")


def _order(i: int, blocks: Sequence[Json]) -> Iterator[Refusal]:
    if blocks and is_thinking(blocks[-1]):
        yield Refusal("A21", f"messages.{i}: The final block in an assistant message cannot be `thinking`.")
    calls = _of_kind("tool_use", blocks)
    if calls and blocks[-len(calls) :] != calls:
        yield _unanswered("A23", i, [text_of(call.get("id")) for call in calls])


def _server_tools(i: int, blocks: Sequence[Json]) -> Iterator[Refusal]:
    waiting: dict[str, str] = {}
    for j, block in enumerate(blocks):
        kind = text_of(block.get("type"))
        if kind in ("server_tool_use", "mcp_tool_use"):
            waiting[text_of(block.get("id"))] = text_of(block.get("name"))
        elif kind.endswith("_tool_result"):
            wire_id = text_of(block.get("tool_use_id"))
            if waiting.pop(wire_id, None) is None:
                found = f"messages.{i}.content.{j}: unexpected `tool_use_id` found in `{kind}` blocks: {wire_id}."
                must = f"Each `{kind}` block must have a corresponding `server_tool_use` block before it."
                yield Refusal("A25", f"{found} {must}")
    for wire_id, name in waiting.items():
        without = f"was found without a corresponding `{name}_tool_result` block"
        yield Refusal("A25", f"messages.{i}: `{name}` tool use with id `{wire_id}` {without}")


def _unanswered(rule: str, i: int, ids: Sequence[str]) -> Refusal:
    found = "`tool_use` ids were found without `tool_result` blocks immediately after"
    must = "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
    return Refusal(rule, f"messages.{i}: {found}: {', '.join(ids)}. {must}")


def _pairs(messages: Sequence[Json]) -> Iterator[Refusal]:
    """A01 to A05: every call has one result, first in the next message; no id is used twice."""
    taken: set[str] = set()
    asked: list[str] = []
    for i, message in enumerate(messages):
        yield from _answers(i, asked, _blocks(message))
        asked = []
        for j, block in enumerate(_blocks(message)):
            if block.get("type") == "tool_use":
                wire_id = text_of(block.get("id"))
                if wire_id in taken:
                    yield Refusal("A04", f"messages.{i}.content.{j}: `tool_use` ids must be unique")
                taken.add(wire_id)
                asked.append(wire_id)
    if asked:
        yield _unanswered("A01", len(messages) - 1, asked)


def _answers(i: int, asked: Sequence[str], blocks: Sequence[Json]) -> Iterator[Refusal]:
    answered: set[str] = set()
    late: list[str] = []
    first_other = next((j for j, block in enumerate(blocks) if block.get("type") != "tool_result"), len(blocks))
    for j, block in enumerate(blocks):
        if block.get("type") != "tool_result":
            continue
        at, wire_id = f"messages.{i}.content.{j}", text_of(block.get("tool_use_id"))
        if wire_id not in asked:
            must = "Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
            found = f"unexpected `tool_use_id` found in `tool_result` blocks: {wire_id}"
            yield Refusal("A03", f"{at}: {found}. {must}")
        if wire_id in answered:
            found = f"Found multiple `tool_result` blocks with id: {wire_id}"
            yield Refusal("A05", f"{at}: each tool_use must have a single result. {found}")
        answered.add(wire_id)
        if j > first_other:
            late.append(wire_id)
    if missing := [wire_id for wire_id in asked if wire_id not in answered]:
        yield _unanswered("A01", i - 1, missing)
    if late:
        yield _unanswered("A02", i - 1, late)


def _signatures(model: str, messages: Sequence[Json], thoughts: Thoughts) -> Iterator[Refusal]:
    latest = max((i for i, message in enumerate(messages) if message.get("role") == "assistant"), default=-1)
    for i, message in enumerate(messages):
        thinking = [(j, block) for j, block in enumerate(_blocks(message)) if is_thinking(block)]
        for j, block in thinking:
            if not thoughts.genuine(model, block):
                proof = "signature" if block["type"] == "thinking" else "data"
                why = f"Invalid `{proof}` in `{block['type']}` block"
                yield Refusal("A19", f"messages.{i}.content.{j}: {why}")
        if i == latest and thinking and not thoughts.in_order(model, [block for _, block in thinking]):
            found = "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified."
            must = "These blocks must remain as they were in the original response."
            yield Refusal("A18", f"messages.{i}.content.{thinking[0][0]}: {found} {must}")


def _open_loop(messages: Sequence[Json], enabled: bool) -> Iterator[Refusal]:
    """A16: while results are being fed back, the message that asked for them begins with its thinking."""
    if not enabled or len(messages) < 2 or not _of_kind("tool_result", _blocks(messages[-1])):
        return
    blocks = _blocks(messages[-2])
    if blocks and not is_thinking(blocks[0]):
        at = f"messages.{len(messages) - 2}.content.0.type"
        yield Refusal("A16", f"{at}: {_NO_THINKING_FIRST.format(text_of(blocks[0].get('type')))}")


_NO_THINKING_FIRST = (
    "Expected `thinking` or `redacted_thinking`, but found `{}`. When `thinking` is enabled, a final "
    "`assistant` message must start with a thinking block (preceeding the lastmost set of `tool_use` and "
    "`tool_result` blocks). We recommend you include thinking blocks from previous turns. To avoid this "
    "requirement, disable `thinking`. Please consult our documentation at "
    "https://docs.claude.com/en/docs/build-with-claude/extended-thinking"
)


def _ending(messages: Sequence[Json], thinks: bool) -> Iterator[Refusal]:
    if not messages:
        yield Refusal("shape", "messages: at least one message is required")
        return
    if messages[-1].get("role") != "assistant":
        return
    blocks = _blocks(messages[-1])
    for j, block in enumerate(blocks):
        if is_thinking(block) and not thinks:
            found = "an `assistant` message in the final position cannot contain `thinking`."
            must = "To use thinking blocks, enable `thinking` in your request."
            yield Refusal(
                "A17", f"messages.{len(messages) - 1}.content.{j}: When thinking is disabled, {found} {must}"
            )
    last = text_of(blocks[-1].get("text")) if blocks else ""
    if last != last.rstrip():
        yield Refusal("A11", "messages: final assistant content cannot end with trailing whitespace")
    must = "The conversation must end with a user message."
    yield Refusal("A12", f"This model does not support assistant message prefill. {must}")
