"""Each rule by which Anthropic's API refuses a history: a body that it takes, and one that it does not."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkernel_providers.strict_anthropic import check_anthropic
from turnkernel_providers.strict_openai_chat import check_openai_chat
from turnkernel_providers.strict_thinking import Thoughts, sign

Json = dict[str, Any]

MARK = {"cache_control": {"type": "ephemeral"}}


def text(words: str, **more: Any) -> Json:
    return {"type": "text", "text": words, **more}


def call(wire_id: str = "a", wire_input: Any = None, **more: Any) -> Json:
    return {
        "type": "tool_use",
        "id": wire_id,
        "name": "bash",
        "input": {} if wire_input is None else wire_input,
        **more,
    }


def result(wire_id: str = "a", content: Any = "ok", **more: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": wire_id, "content": content, **more}


def thought(words: str = "hm", **more: Any) -> Json:
    return {"type": "thinking", "thinking": words, "signature": sign("m", words), **more}


def user(*content: Any) -> Json:
    return {"role": "user", "content": list(content) or "hi"}


def said(*content: Any) -> Json:
    return {"role": "assistant", "content": list(content) or "yes"}


def body(*messages: Json, **more: Any) -> Json:
    return {"model": "m", "max_tokens": 9, "messages": list(messages), **more}


THINKS = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
UNANSWERED = (
    "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: {}. "
    "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
)

RULES: list[tuple[str, Json, Json, str]] = [
    (
        "A01",
        body(user(), said(text("go"), call("a"), call("b")), user(result("b"), result("a"), text("and"))),
        body(user(), said(call("a"), call("b")), user(result("a"))),
        UNANSWERED.format("b"),
    ),
    ("A01", body(user(), said(), user()), body(user(), said(call())), UNANSWERED.format("a")),
    (
        "A01",
        body(user(), said(call()), user(result())),
        body(user(), said(call()), user()),
        UNANSWERED.format("a"),
    ),
    (
        "A02",
        body(user(), said(call()), user(result(), text("more"))),
        body(user(), said(call()), user(text("more"), result())),
        UNANSWERED.format("a"),
    ),
    (
        "A02",
        body(user(), said(call("a"), call("b")), user(result("a"), result("b"), text("more"))),
        body(user(), said(call("a"), call("b")), user(result("a"), text("more"), result("b"))),
        UNANSWERED.format("b"),
    ),
    (
        "A03",
        body(user(), said(call()), user(result())),
        body(user(), said(), user(result("zz"))),
        "messages.2.content.0: unexpected `tool_use_id` found in `tool_result` blocks: zz. Each `tool_result` "
        "block must have a corresponding `tool_use` block in the previous message.",
    ),
    (
        "A03",
        body(user(), said(call()), user(result())),
        body(user(), said(call()), user(result()), said(), user(result())),
        "messages.4.content.0: unexpected `tool_use_id`",
    ),
    (
        "A04",
        body(user(), said(call("a"), call("b")), user(result("a"), result("b"))),
        body(user(), said(call("a"), call("a")), user(result("a"))),
        "messages.1.content.1: `tool_use` ids must be unique",
    ),
    (
        "A04",
        body(user(), said(call("a")), user(result("a")), said(call("b")), user(result("b"))),
        body(user(), said(call("a")), user(result("a")), said(call("a")), user(result("a"))),
        "messages.3.content.0: `tool_use` ids must be unique",
    ),
    (
        "A05",
        body(user(), said(call()), user(result())),
        body(user(), said(call()), user(result(), result())),
        "messages.2.content.1: each tool_use must have a single result. Found multiple `tool_result` blocks "
        "with id: a",
    ),
    (
        "A06",
        body(user(), said(call("call_x-9")), user(result("call_x-9"))),
        body(user(), said(call("functions.Bash:0")), user(result("functions.Bash:0"))),
        "messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'",
    ),
    ("A06", body(user()), body(user(), said(call("")), user(result(""))), "messages.1.content.0.tool_use.id"),
    (
        "A06",
        body(user()),
        body(user(), said(call("a\n")), user(result("a\n"))),
        "messages.1.content.0.tool_use.id",
    ),
    (
        "A07",
        body(user(), said(call("a", {"command": "ls"})), user(result())),
        body(user(), said(call("a", '{"cut')), user(result())),
        "messages.1.content.0.tool_use.input: Input should be a valid dictionary",
    ),
    (
        "A08",
        body(user(text("x"))),
        body(user(text(""), text("x"))),
        "messages: text content blocks must be non-empty",
    ),
    (
        "A08",
        body(user(), said(call()), user(result("a", [text("x")]))),
        body(user(), said(call()), user(result("a", [text("")]))),
        "messages: text content blocks must be non-empty",
    ),
    ("A08", body(user(), system=[text("x")]), body(user(), system=[text("")]), "system: text content blocks"),
    (
        "A09",
        body(user(text(" x "))),
        body(user(text(" \n"))),
        "messages: text content blocks must contain non-whitespace text",
    ),
    (
        "A10",
        body(user(), said(), user()),
        body(user(), {"role": "assistant", "content": []}, user()),
        "messages.1: all messages must have non-empty content except for the optional final assistant message",
    ),
    ("A10", body(user()), body({"role": "user", "content": ""}), "messages.0: all messages must have non-empty"),
    (
        "A11",
        body(user(), said(), user()),
        body(user(), said(text("and so "))),
        "messages: final assistant content cannot end with trailing whitespace",
    ),
    (
        "A12",
        body(user(), said(), user()),
        body(user(), said()),
        "This model does not support assistant message prefill. The conversation must end with a user message.",
    ),
    ("A13", body(user()), body(said(), user()), 'messages: first message must use the "user" role'),
    (
        "A14",
        body(user(text("a"), text("b"))),
        body(user(), user()),
        'messages: roles must alternate between "user" and "assistant", but found multiple "user" roles in a row',
    ),
    (
        "A14",
        body(user(), said(), user()),
        body(user(), said(), said(), user()),
        'found multiple "assistant" roles',
    ),
    (
        "A15",
        body(user(), system="be nice"),
        body({"role": "system", "content": "be nice"}, user()),
        'role "system"',
    ),
    (
        "A16",
        body(user(), said(thought(), call()), user(result()), **THINKS),
        body(user(), said(call()), user(result()), **THINKS),
        "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`. When "
        "`thinking` is enabled, a final `assistant` message must start with a thinking block",
    ),
    (
        "A16",
        body(user(), said(text("so"), call()), user(result()), said(), user(), **THINKS),
        body(user(), said(text("so"), call()), user(result()), **THINKS),
        "but found `text`",
    ),
    (
        "A17",
        body(user(), said(thought(), text("x")), user()),
        body(user(), said(thought(), text("x"))),
        "messages.1.content.0: When thinking is disabled, an `assistant` message in the final position cannot "
        "contain `thinking`. To use thinking blocks, enable `thinking` in your request.",
    ),
    (
        "A20",
        body(user(), said(thought(), text("x")), user()),
        body(user(), said({"type": "thinking", "thinking": "hm"}, text("x")), user()),
        "messages.1.content.0.thinking.signature: Field required",
    ),
    (
        "A20",
        body(user(), said(thought("", signature="s"), text("x")), user()),
        body(user(), said(thought(signature=""), text("x")), user()),
        "messages.1.content.0.thinking: each thinking block must contain thinking",
    ),
    (
        "A21",
        body(user(), said(thought(), text("x")), user()),
        body(user(), said(thought()), user()),
        "messages.1: The final block in an assistant message cannot be `thinking`.",
    ),
    (
        "A22",
        body(user(), said(call()), user(result("a", "", is_error=False))),
        body(user(), said(call()), user(result("a", "", is_error=True))),
        "messages.2.content.0.tool_result: content cannot be empty if `is_error` is true",
    ),
    (
        "A23",
        body(user(), said(text("x"), call()), user(result())),
        body(user(), said(call(), text("x")), user(result())),
        UNANSWERED.format("a"),
    ),
    (
        "A24",
        body(user(), said(call()), user(result())),
        body(user(call()), said(), user()),
        "messages.0: `tool_use` blocks can only be in `assistant` messages",
    ),
    (
        "A24",
        body(user(), said(call()), user(result())),
        body(user(), said(result()), user()),
        "messages.1: `tool_result` blocks can only be in `user` messages",
    ),
    (
        "A25",
        body(user(), said(SEARCH, FOUND, text("x")), user()),
        body(user(), said(FOUND, text("x")), user()),
        "messages.1.content.0: unexpected `tool_use_id` found in `web_search_tool_result` blocks: srvtoolu_1. "
        "Each `web_search_tool_result` block must have a corresponding `server_tool_use` block before it.",
    ),
    (
        "A25",
        body(user(), said(SEARCH, FOUND), user()),
        body(user(), said(SEARCH), user()),
        "messages.1: `web_search` tool use with id `srvtoolu_1` was found without a corresponding "
        "`web_search_tool_result` block",
    ),
    (
        "A26",
        body(user(text("half \U0001f680"))),
        body(user(text("half \ud83d"))),
        "The request body is not valid JSON: no low surrogate in string: line 1 column ",
    ),
    ("A26", body(user()), body(user(), said(call("a", {"\udc00": 1})), user(result())), "not valid JSON"),
    (
        "A27",
        body(user(*[text("x", **MARK)] * 2), system=[text("s", **MARK)], tools=[{"name": "t", **MARK}]),
        body(user(*[text("x", **MARK)] * 3), system=[text("s", **MARK)], tools=[{"name": "t", **MARK}]),
        "A maximum of 4 blocks with cache_control may be provided. Found 5.",
    ),
    (
        "A28",
        body(user(text("x", **MARK))),
        body(user(text("", **MARK))),
        "messages.0.content.0.text: cache_control cannot be set for empty text blocks",
    ),
    (
        "A28",
        body(user(), system=[text("x", **MARK)]),
        body(user(), system=[text("", **MARK)]),
        "system.0: cache_control cannot be set for empty text blocks",
    ),
    (
        "A29",
        body(user(), said(thought(), text("x", **MARK)), user()),
        body(user(), said(thought(**MARK), text("x")), user()),
        "messages.1.content.0.thinking.cache_control: Extra inputs are not permitted",
    ),
    ("A29", body(user()), body({**user(), "name": "x"}), "messages.0.name: Extra inputs are not permitted"),
    ("shape", body(user()), body(), "messages: at least one message is required"),
    ("shape", body(user()), body({"role": "tool", "content": "x"}), "messages.0.role: Input should be"),
    ("shape", body(user()), body({"role": "user"}), "messages.0.content: Field required"),
    ("shape", body(user()), body(user({"text": "x"})), "messages.0.content.0.type: Field required"),
]

NOT_IN_THE_BODY = {"A30", "A31"}
"""The window's size and the types of errors: nothing that a history could break."""
WITH_A_MEMORY = {"A18", "A19"}


@pytest.mark.parametrize(("rule", "taken", "refused", "words"), RULES)
def test_a_body_that_breaks_a_rule_is_refused_in_the_vendors_words(
    rule: str, taken: Json, refused: Json, words: str
) -> None:
    assert check_anthropic(taken) is None
    refusal = check_anthropic(refused)
    assert refusal is not None
    assert refusal.rule == rule
    assert words in refusal


def test_every_rule_has_a_body_here() -> None:
    every = {f"A{number:02}" for number in range(1, 32)}
    assert {rule for rule, *_ in RULES} - {"shape"} == every - NOT_IN_THE_BODY - WITH_A_MEMORY


def test_a_context_that_nobody_sends_may_be_empty_or_end_with_the_assistant() -> None:
    assert check_anthropic(body(), requesting=False) is None
    assert check_anthropic(body(user(), said(thought(), text("x "))), requesting=False) is None
    assert check_anthropic({"messages": [said()]}, requesting=False) is not None


# -------------------------------------------------------------------------------------------------- thinking


@pytest.fixture
def thoughts() -> Thoughts:
    made = Thoughts()
    made.remember("m", [thought("one"), {"type": "redacted_thinking", "data": "QQ=="}, thought("two")])
    made.remember("m", [thought("three")])
    return made


REDACTED = {"type": "redacted_thinking", "data": "QQ=="}


@pytest.mark.parametrize(
    ("blocks", "rule", "words"),
    [
        ([thought("one"), REDACTED, thought("two")], None, ""),
        ([thought("one"), REDACTED], None, ""),
        ([thought("unknown to this server, but signed")], None, ""),
        ([thought("one", thinking="won")], "A19", "messages.1.content.0: Invalid `signature` in `thinking` block"),
        ([thought("one", signature="c29tZSBvdGhlcg==")], "A19", "Invalid `signature`"),
        ([thought("one"), {**REDACTED, "data": "Qg=="}], "A19", "Invalid `data` in `redacted_thinking` block"),
        ([thought("one", signature=sign("other model", "one"))], "A19", "Invalid `signature`"),
        (
            [thought("two"), thought("one")],
            "A18",
            "messages.1.content.0: `thinking` or `redacted_thinking` blocks in",
        ),
        (
            [thought("two")],
            "A18",
            "the latest assistant message cannot be modified. These blocks must remain as they",
        ),
        ([thought("one"), thought("two")], "A18", "cannot be modified"),
        ([thought("one"), thought("three")], "A18", "cannot be modified"),
    ],
)
def test_thinking_comes_back_as_it_was_given_or_is_refused(
    thoughts: Thoughts, blocks: list[Json], rule: str | None, words: str
) -> None:
    refusal = check_anthropic(body(user(), said(*blocks, text("x")), user()), thoughts=thoughts)
    assert (refusal.rule if refusal else None) == rule
    assert words in (refusal or "")


def test_only_the_latest_message_must_have_all_its_thinking(thoughts: Thoughts) -> None:
    older = body(user(), said(thought("two"), text("x")), user(), said(), user())
    assert check_anthropic(older, thoughts=thoughts) is None
    assert check_anthropic(body(*older["messages"][:3]), thoughts=thoughts) is not None


# ------------------------------------------------------------------------------------------------ robustness

_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from(
        [
            "user",
            "assistant",
            "tool",
            "text",
            "tool_use",
            "tool_result",
            "thinking",
            "server_tool_use",
            "x_tool_result",
        ]
    )
)
_BLOCK_KEYS = [
    "role",
    "content",
    "type",
    "id",
    "input",
    "tool_use_id",
    "is_error",
    "text",
    "thinking",
    "signature",
]
_OTHER_KEYS = ["data", "cache_control", "name", "tool_calls", "tool_call_id", "function", "arguments"]
_KEYS = st.sampled_from([*_BLOCK_KEYS, *_OTHER_KEYS])
_JSON = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=6)
)


@given(st.lists(_JSON, max_size=4), _JSON, _JSON)
def test_no_body_makes_a_checker_raise(messages: list[Any], system: Any, tools: Any) -> None:
    made: Mapping[str, Any] = {"messages": messages, "system": system, "tools": tools, "thinking": tools}
    check_anthropic(made, thoughts=Thoughts())
    check_openai_chat(made)
