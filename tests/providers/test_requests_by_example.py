"""Requests, by example."""

from typing import Any

import pytest

from turnkernel.messages import Message, Opaque, Text, Thinking, ToolResultBlock, ToolUse
from turnkernel.provider import Request, ToolSpec
from turnkernel_providers.anthropic_request import anthropic_body, anthropic_context
from turnkernel_providers.openai_chat_request import dialect_of, openai_chat_body, openai_chat_context
from turnkernel_providers.wire_names import ANTHROPIC_IDS

CALL = ToolUse("c1", "ls", {})
RESULT = ToolResultBlock("c1", "ls", "out", is_error=False)
ENABLED = {"type": "enabled", "budget_tokens": 512}


def request_of(messages: list[Message], tools: list[ToolSpec] | None = None) -> Request:
    return Request("Be kind.", messages, tools or [], 1000)


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


THOUGHT = Thinking("Hm", "c2ln")


def test_an_anthropic_request_by_example() -> None:
    history = [
        Message("user", (Text("list"), Text("please"))),
        Message("assistant", (THOUGHT, Text("Let me."), ToolUse("f:0", "ls", {"p": "."})), "anthropic", "m"),
        Message("user", (ToolResultBlock("f:0", "ls", "denied", is_error=True), Text("and now?"))),
    ]
    tool = ToolSpec("ls", "Lists.", {"type": "object"})
    body = anthropic_body(request_of(history, [tool]), "m", thinking=ENABLED, extra={"temperature": 1})
    ident = ANTHROPIC_IDS.map("f:0")
    mark = {"cache_control": {"type": "ephemeral"}}
    assert body == {
        "model": "m",
        "max_tokens": 1000,
        "stream": True,
        "system": "Be kind.",
        "messages": [
            {
                "role": "user",
                "content": [text("list"), text("please", **mark)],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm", "signature": "c2ln"},
                    {"type": "text", "text": "Let me."},
                    {"type": "tool_use", "id": ident, "name": "ls", "input": {"p": "."}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": ident, "content": "denied", "is_error": True},
                    {"type": "text", "text": "and now?", **mark},
                ],
            },
        ],
        "tools": [{"name": "ls", "description": "Lists.", "input_schema": {"type": "object"}}],
        "thinking": ENABLED,
        "temperature": 1,
    }


def test_a_chat_request_by_example() -> None:
    use = ToolUse("c1", "ls", {"p": "."})
    history = [
        Message("user", (Text("list"), Text("please"))),
        Message("assistant", (Thinking("Hm"), Text("Let "), Text("me."), use), "openai-chat", "m"),
        Message("user", (ToolResultBlock("c1", "ls", "denied", is_error=True), Text("and now?"))),
    ]
    body = openai_chat_body(request_of(history), "m", dialect=dialect_of("api.openai.com"))
    called = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": '{"p":"."}'}}
    assert body == {
        "model": "m",
        "max_completion_tokens": 1000,
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": [text("list"), text("please")]},
            {"role": "assistant", "content": "Let me.", "reasoning_content": "Hm", "tool_calls": [called]},
            {"role": "tool", "tool_call_id": "c1", "content": "denied"},
            {"role": "user", "content": "and now?"},
        ],
    }


LOOP = [
    Message("user", (Text("go"),)),
    Message("assistant", (THOUGHT, ToolUse("c1", "ls", {})), "anthropic", "m"),
    Message("user", (RESULT,)),
]


@pytest.mark.parametrize(
    ("model", "thinking", "messages", "thinks"),
    [
        ("m", ENABLED, LOOP, True),
        ("other", ENABLED, LOOP, False),
        ("other", {"type": "adaptive"}, LOOP, False),
        ("other", ENABLED, [*LOOP, Message("assistant", (Text("done"),)), Message("user", (Text("more"),))], True),
        ("m", ENABLED, [LOOP[0], Message("assistant", (CALL,), "anthropic", "m"), LOOP[2]], False),
        ("m", {"type": "adaptive"}, [LOOP[0], Message("assistant", (CALL,), "anthropic", "m"), LOOP[2]], True),
    ],
)
def test_thinking_is_off_while_results_go_back_to_a_message_that_lost_its_own(
    model: str, thinking: dict[str, Any], messages: list[Message], thinks: bool
) -> None:
    assert ("thinking" in anthropic_body(request_of(messages), model, thinking=thinking)) == thinks


def test_a_message_of_nothing_but_lost_thinking_joins_its_neighbours() -> None:
    lost = Message("assistant", (THOUGHT,), "anthropic", "other")
    history = [Message("user", (Text("one"),)), lost, Message("user", (Text("two"),))]
    sent = anthropic_context(request_of(history), "m", cache=False)["messages"]
    assert sent == [{"role": "user", "content": [text("one"), text("two")]}]
    sent = openai_chat_context(request_of(history), "m", dialect=dialect_of("api.deepseek.com"))["messages"]
    assert sent == [{"role": "user", "content": "one\n\ntwo"}]


def test_a_server_tool_goes_back_with_both_halves_or_not_at_all() -> None:
    use = Opaque({"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}})
    result = Opaque({"type": "web_search_tool_result", "tool_use_id": "s1", "content": []})
    for blocks, kept in [
        ((use, result), 2),
        ((use,), 0),
        ((result,), 0),
        ((result, use), 0),
        ((use, result, use), 2),
    ]:
        message = Message("assistant", (*blocks, Text("ok")), "anthropic", "m")
        sent = anthropic_context(request_of([Message("user", (Text("go"),)), message]), "m")["messages"]
        assert len(sent[1]["content"]) == kept + 1
