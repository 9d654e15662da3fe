"""Whether a server of Chat Completions would refuse a request body, and with which words. Pure; touches nothing.

Many vendors speak this wire; the checker refuses what any of them does (DeepSeek's and Mistral's own demands on
reasoning and on nine-character ids left out), in the words of the one that does. Stricter than api.openai.com,
on purpose: A09 and A10 (blank and empty messages), A12 (ends with the assistant), A13, A14 (roles alternate),
C09 (arguments are a JSON object).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .strict import Refusal, blank, listed, lone_surrogates, table, text_of

__all__ = ["check_openai_chat"]

Json = Mapping[str, Any]

_ROLES = ("system", "assistant", "user", "function", "tool", "developer")
_MOST_ID = 40
_MOST_NAME = 64


def check_openai_chat(body: Json, *, requesting: bool = True) -> Refusal | None:
    """The first rule that a request body breaks, as a vendor's error text, or None.

    Looks at `messages` and `tools` only; the latter may be absent. `requesting=False` asks about a context that
    nobody is sending yet: it may be empty or end with the assistant.
    """
    return next(_refusals(body, requesting), None)


def _refusals(body: Json, requesting: bool) -> Iterator[Refusal]:
    messages = [table(message) for message in listed(body.get("messages"))]
    yield from lone_surrogates(body)
    for k, tool in enumerate(listed(body.get("tools"))):
        name = text_of(table(table(tool).get("function")).get("name"))
        if len(name) > _MOST_NAME:
            yield Refusal("C08", _too_long(f"tools[{k}].function.name", _MOST_NAME, name))
    for i, message in enumerate(messages):
        yield from _message(i, message)
    yield from _pairs(messages)
    yield from _roles(messages)
    if requesting:
        yield from _ending(messages)


def _too_long(field: str, most: int, value: str) -> str:
    wanted = f"Expected a string with maximum length {most}, but got a string with length {len(value)} instead."
    return f"Invalid '{field}': string too long. {wanted}"


def _empty_array(field: str) -> str:
    wanted = "Expected an array with minimum length 1, but got an empty array instead."
    return f"Invalid '{field}': empty array. {wanted}"


def _message(i: int, message: Json) -> Iterator[Refusal]:
    role = message.get("role")
    if role not in _ROLES:
        known = "'system', 'assistant', 'user', 'function', 'tool', and 'developer'"
        yield Refusal("shape", f"Invalid value: '{role}'. Supported values are: {known}.")
    if message.get("tool_calls") == []:
        yield Refusal("C04", _empty_array(f"messages[{i}].tool_calls"))
    calls = listed(message.get("tool_calls"))
    yield from _content(i, message, bool(calls))
    for k, call in enumerate(calls):
        yield from _call(i, k, table(call))


def _content(i: int, message: Json, has_calls: bool) -> Iterator[Refusal]:
    role, content = message.get("role"), message.get("content")
    if content is None:
        if not has_calls:
            yield Refusal("C06", "Invalid value for 'content': expected a string, got null.")
        return
    if content == []:
        yield Refusal("C05", _empty_array(f"messages[{i}].content"))
    if role not in ("user", "assistant") or (content == "" and has_calls):
        return
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else listed(content)
    for part in parts:
        block = table(part)
        if block.get("type") == "text" and blank(block.get("text")):
            empty = f"the message at position {i} with role '{role}' must not be empty"
            yield Refusal("A09" if block.get("text") else "A10", f"Invalid request: {empty}")


def _call(i: int, k: int, call: Json) -> Iterator[Refusal]:
    wire_id = text_of(call.get("id"))
    if not wire_id:
        yield Refusal("shape", f"Missing required parameter: 'messages[{i}].tool_calls[{k}].id'.")
    if len(wire_id) > _MOST_ID:
        yield Refusal("C07", _too_long(f"messages[{i}].tool_calls[{k}].id", _MOST_ID, wire_id))
    if not _is_object(table(call.get("function")).get("arguments")):
        at = f"messages.{i}.tool_calls.{k}.function.arguments"
        yield Refusal("C09", f"{at}: arguments must be a valid JSON object string")


def _is_object(arguments: object) -> bool:
    try:
        return isinstance(json.loads(text_of(arguments)), dict)
    except (ValueError, RecursionError):
        return False


def _pairs(messages: Sequence[Json]) -> Iterator[Refusal]:
    """C01 to C03: tool messages follow their call at once, one each; no id is used twice."""
    taken: set[str] = set()
    waiting: list[str] = []
    open_calls = False
    for i, message in enumerate(messages):
        if message.get("role") == "tool":
            wire_id = text_of(message.get("tool_call_id"))
            if wire_id in waiting:
                waiting.remove(wire_id)
            elif open_calls and wire_id in taken:
                yield _duplicate(i, wire_id)
            else:
                must = "must be a response to a preceeding message with 'tool_calls'."
                yield Refusal("C02", f"messages with role 'tool' {must}")
            continue
        yield from _unanswered(waiting)
        waiting = []
        for call in listed(message.get("tool_calls")):
            wire_id = text_of(table(call).get("id"))
            if wire_id in taken:
                yield _duplicate(i, wire_id)
            taken.add(wire_id)
            waiting.append(wire_id)
        open_calls = bool(waiting)
    yield from _unanswered(waiting)


def _duplicate(i: int, wire_id: str) -> Refusal:
    return Refusal("C03", f"Duplicate value for 'tool_call_id' of {wire_id} in message[{i}]")


def _unanswered(waiting: Sequence[str]) -> Iterator[Refusal]:
    if waiting:
        must = "must be followed by tool messages responding to each 'tool_call_id'."
        found = f"The following tool_call_ids did not have response messages: {', '.join(waiting)}"
        yield Refusal("C01", f"An assistant message with 'tool_calls' {must} {found}")


def _roles(messages: Sequence[Json]) -> Iterator[Refusal]:
    """The user's side (user, or a run of tool messages and then user) and the assistant take turns."""
    must = "Conversation roles must alternate user/assistant/user/assistant/..."
    before: object = None
    for message in messages:
        role = message.get("role")
        if role in ("user", "assistant"):
            if before is None and role == "assistant":
                yield Refusal("A13", must)
            elif role == before:
                yield Refusal("A14", must)
        if role in ("user", "assistant", "tool"):
            before = role


def _ending(messages: Sequence[Json]) -> Iterator[Refusal]:
    if not messages:
        yield Refusal("shape", _empty_array("messages"))
    elif messages[-1].get("role") not in ("user", "tool"):
        wanted = "Expected last role User or Tool (or Assistant with prefix True) for serving"
        yield Refusal("A12", f"{wanted} but got {messages[-1].get('role')}")
