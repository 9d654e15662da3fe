"""Each rule by which servers of Chat Completions refuse a history: a body that they take, and one they do not."""

from typing import Any

import pytest

from turnkernel_providers.strict_openai_chat import check_openai_chat

Json = dict[str, Any]


def user(content: Any = "hi") -> Json:
    return {"role": "user", "content": content}


def said(content: Any = "yes", **more: Any) -> Json:
    return {"role": "assistant", "content": content, **more}


def call(wire_id: str = "a", arguments: Any = "{}") -> Json:
    return {"id": wire_id, "type": "function", "function": {"name": "bash", "arguments": arguments}}


def calling(*calls: Json, content: Any = None) -> Json:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def result(wire_id: str = "a", content: Any = "ok") -> Json:
    return {"role": "tool", "tool_call_id": wire_id, "content": content}


def body(*messages: Json, **more: Any) -> Json:
    return {"model": "m", "messages": list(messages), **more}


def named(name: str) -> Json:
    return {"tools": [{"type": "function", "function": {"name": name, "parameters": {}}}]}


SYSTEM = {"role": "system", "content": "be nice"}
UNANSWERED = (
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
    "The following tool_call_ids did not have response messages: "
)
EMPTY_ARRAY = "empty array. Expected an array with minimum length 1, but got an empty array instead."

RULES: list[tuple[str, Json, Json, str]] = [
    (
        "C01",
        body(SYSTEM, user(), calling(call("a"), call("b")), result("b"), result("a"), user()),
        body(user(), calling(call("a"), call("b")), result("a"), user()),
        f"{UNANSWERED}b",
    ),
    ("C01", body(user()), body(user(), calling(call())), f"{UNANSWERED}a"),
    ("C01", body(user()), body(user(), calling(call()), user(), result()), f"{UNANSWERED}a"),
    (
        "C02",
        body(user(), calling(call()), result()),
        body(user(), said(), result()),
        "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
    ),
    ("C02", body(user()), body(user(), calling(call()), result(), user(), result()), "messages with role 'tool'"),
    (
        "C03",
        body(user(), calling(call("a")), result("a"), calling(call("b")), result("b")),
        body(user(), calling(call("a")), result("a"), calling(call("a")), result("a")),
        "Duplicate value for 'tool_call_id' of a in message[3]",
    ),
    ("C03", body(user()), body(user(), calling(call(), call()), result()), "'tool_call_id' of a in message[1]"),
    ("C03", body(user()), body(user(), calling(call()), result(), result()), "'tool_call_id' of a in message[3]"),
    (
        "C04",
        body(user(), said(), user()),
        body(user(), said(tool_calls=[]), user()),
        f"Invalid 'messages[1].tool_calls': {EMPTY_ARRAY}",
    ),
    (
        "C05",
        body(user(), said([{"type": "text", "text": "x"}]), user()),
        body(user(), said([]), user()),
        f"Invalid 'messages[1].content': {EMPTY_ARRAY}",
    ),
    (
        "C06",
        body(user(), calling(call()), result()),
        body(user(), said(None), user()),
        "Invalid value for 'content': expected a string, got null.",
    ),
    ("C06", body(user(), calling(call(), content=""), result()), body(user(None)), "expected a string, got null."),
    ("C06", body(user()), body(user(), {"role": "assistant"}, user()), "expected a string, got null."),
    (
        "C07",
        body(user(), calling(call("x" * 40)), result("x" * 40)),
        body(user(), calling(call("x" * 41)), result("x" * 41)),
        "Invalid 'messages[1].tool_calls[0].id': string too long. Expected a string with maximum length 40, but "
        "got a string with length 41 instead.",
    ),
    (
        "C08",
        body(user(), **named("x" * 64)),
        body(user(), **named("x" * 65)),
        "Invalid 'tools[0].function.name': string too long. Expected a string with maximum length 64, but got a "
        "string with length 65 instead.",
    ),
    (
        "C09",
        body(user(), calling(call("a", '{"command": "ls"}')), result()),
        body(user(), calling(call("a", '{"command": "l')), result()),
        "messages.1.tool_calls.0.function.arguments: arguments must be a valid JSON object string",
    ),
    ("C09", body(user()), body(user(), calling(call("a", "[1]")), result()), "must be a valid JSON object string"),
    ("C09", body(user()), body(user(), calling(call("a", "")), result()), "must be a valid JSON object string"),
    ("C09", body(user()), body(user(), calling(call("a", {})), result()), "must be a valid JSON object string"),
    ("A09", body(user(" x ")), body(user(" \n")), "position 0 with role 'user' must not be empty"),
    (
        "A10",
        body(user(), said(), user()),
        body(user(), said(""), user()),
        "position 1 with role 'assistant' must not",
    ),
    (
        "A10",
        body(user()),
        body(user([{"type": "text", "text": ""}])),
        "position 0 with role 'user' must not be empty",
    ),
    ("A12", body(user(), said(), user()), body(user(), said()), "Expected last role User or Tool"),
    ("A13", body(SYSTEM, user()), body(SYSTEM, said(), user()), "Conversation roles must alternate"),
    ("A14", body(user(), said(), user()), body(user(), user()), "Conversation roles must alternate"),
    (
        "A14",
        body(user(), calling(call()), result(), user()),
        body(user(), calling(call()), result(), user(), user()),
        "Conversation roles must alternate",
    ),
    ("A14", body(user()), body(user(), said(), said(), user()), "Conversation roles must alternate"),
    ("A26", body(user("\U0001f680")), body(user("half \ud83d")), "no low surrogate in string: line 1 column "),
    ("shape", body(user()), body(), "empty array"),
    (
        "shape",
        body(user()),
        body({"role": "robot", "content": "x"}),
        "Invalid value: 'robot'. Supported values are:",
    ),
    ("shape", body(user()), body(user(), calling(call("")), result("")), "'messages[1].tool_calls[0].id'"),
]


@pytest.mark.parametrize(("rule", "taken", "refused", "words"), RULES)
def test_a_body_that_breaks_a_rule_is_refused_in_a_vendors_words(
    rule: str, taken: Json, refused: Json, words: str
) -> None:
    assert check_openai_chat(taken) is None
    refusal = check_openai_chat(refused)
    assert refusal is not None
    assert refusal.rule == rule
    assert words in refusal


def test_every_rule_of_the_common_wire_has_a_body_here() -> None:
    # C10 to C13 are one vendor's own, C14 is about the window's size.
    assert {rule for rule, *_ in RULES if rule.startswith("C")} == {f"C{number:02}" for number in range(1, 10)}


def test_a_context_that_nobody_sends_may_be_empty_or_end_with_the_assistant() -> None:
    assert check_openai_chat(body(), requesting=False) is None
    assert check_openai_chat(body(user(), said()), requesting=False) is None
    assert check_openai_chat(body(said()), requesting=False) is not None
