"""Requests from random histories: what goes out keeps every rule, and what was sent once stays.

Two checkers judge: the strict ones of the model server, which know the vendors' rules and nothing of the
encoders, and the small ones here, for what only the sender can know (laws C4, C5, C6).
"""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnkernel.messages import Message, Opaque, Text, Thinking, ToolResultBlock, ToolUse
from turnkernel.provider import Request, ToolSpec
from turnkernel_providers.anthropic_request import anthropic_body, anthropic_context
from turnkernel_providers.context import messages_of
from turnkernel_providers.openai_chat_request import dialect_of, openai_chat_body
from turnkernel_providers.pairing import NO_RESULT, PairingError, paired
from turnkernel_providers.strict_anthropic import check_anthropic
from turnkernel_providers.strict_openai_chat import check_openai_chat
from turnkernel_providers.wire_json import scrubbed, written
from turnkernel_providers.wire_names import ANTHROPIC_IDS, CHAT_IDS, MISTRAL_IDS, IdRule

few = settings(max_examples=40, deadline=None)
many = settings(max_examples=100, deadline=None)

WORDS = st.text(min_size=1, max_size=12).filter(str.strip) | st.sampled_from(["a\ud83d", "\udc00b", " x ", "é\n"])
IDS = st.sampled_from(
    ["call_1", "functions.Bash:0", "x" * 60, "ü", "tk_" + "a" * 24, "a b", "toolu_01Ab-_", "1" * 40]
)
NAMES = st.sampled_from(["bash", "read.file", "", "n" * 100, "é"])
LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS
JSON = st.recursive(
    LEAF, lambda it: st.lists(it, max_size=2) | st.dictionaries(WORDS, it, max_size=2), max_leaves=4
)
INPUTS = st.dictionaries(WORDS, JSON, max_size=3)
ORIGINS = st.sampled_from(
    [("anthropic", "m"), ("anthropic", "other"), ("openai-chat", "m"), ("openai-responses", "m"), (None, None)]
)


@st.composite
def said(draw: Any, *, whole: bool) -> list[Any]:
    """What an assistant said, without its calls."""
    signature = st.text(alphabet="abc=", min_size=1, max_size=6)
    thinking = st.builds(Thinking, WORDS, signature | st.none(), st.none())
    redacted = st.builds(Thinking, st.just(""), st.none(), signature)
    use = st.builds(lambda n: Opaque({"type": "server_tool_use", "id": f"s{n}", "name": "w"}), st.integers(0, 2))
    result = st.builds(lambda n: Opaque({"type": "w_tool_result", "tool_use_id": f"s{n}"}), st.integers(0, 2))
    text = st.builds(Text, WORDS if whole else WORDS | st.sampled_from(["", " \n"]))
    return draw(st.lists(text | thinking | redacted | use | result | st.just(Opaque({"type": "new"})), max_size=4))


@st.composite
def lawful(draw: Any) -> list[Message]:
    """A history that keeps laws C1 to C3 and may end with either side."""
    messages: list[Message] = []
    taken: set[str] = set()
    calls: list[ToolUse] = []
    for _ in range(draw(st.integers(1, 4))):
        results = [ToolResultBlock(use.id, use.name, draw(WORDS), draw(st.booleans())) for use in calls]
        texts = draw(st.lists(st.builds(Text, WORDS), min_size=0 if results else 1, max_size=3))
        messages.append(Message("user", (*results, *texts)))
        ids = [ident for ident in draw(st.lists(IDS, max_size=3, unique=True)) if ident not in taken]
        taken.update(ids)
        calls = [ToolUse(ident, draw(NAMES), draw(INPUTS)) for ident in ids]
        wire, model = draw(ORIGINS)
        blocks = [*draw(said(whole=True)), *calls]
        messages.append(Message("assistant", tuple(blocks or [Text("ok")]), wire, model))
    if calls or draw(st.booleans()):
        results = [ToolResultBlock(use.id, use.name, draw(WORDS), draw(st.booleans())) for use in calls]
        messages.append(Message("user", (*results, *([] if results else [Text("go on")]))))
    return messages


@st.composite
def anything(draw: Any) -> list[Message]:
    """A history that may break every law."""
    result = st.builds(ToolResultBlock, IDS, NAMES, WORDS | st.just(""), st.booleans())
    text = st.builds(Text, WORDS | st.sampled_from(["", " \n"]))
    use = st.builds(ToolUse, IDS | st.just(""), NAMES, INPUTS | st.sampled_from([[], None, {"x": float("nan")}]))
    messages: list[Message] = []
    for _ in range(draw(st.integers(0, 6))):
        if draw(st.booleans()):
            messages.append(Message("user", tuple(draw(st.lists(result | text, max_size=4)))))
        else:
            blocks = [*draw(said(whole=False)), *draw(st.lists(use | text, max_size=3))]
            messages.append(Message("assistant", tuple(blocks), *draw(ORIGINS)))
    return messages


def request_of(messages: list[Message], tools: list[ToolSpec] | None = None) -> Request:
    return Request("Be kind.", messages, tools or [], 1000)


# ---------------------------------------------------------------------------------------------------- checkers


def flat(context: dict[str, Any]) -> list[Any]:
    """A context as the list of its blocks, cache marks left out."""
    blocks: list[Any] = []
    for message in context["messages"]:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for part in parts:
            block = {key: value for key, value in part.items() if key != "cache_control"}
            blocks.append((message["role"], message.get("tool_call_id"), block))
        blocks += [(message["role"], "call", call) for call in message.get("tool_calls", ())]
    return blocks


def marks(context: dict[str, Any]) -> list[tuple[str, bool, str]]:
    """Of each cache mark: role, whether it is on the message's last block, kind of the block."""
    return [
        (message["role"], block is message["content"][-1], block["type"])
        for message in context["messages"]
        for block in message["content"]
        if "cache_control" in block
    ]


def thoughts(messages: list[Message], wire: str, model: str) -> list[tuple[str, str | None, str | None]]:
    """The thinking that may go back, byte for byte, in its order."""
    return [
        (block.text, block.signature, block.redacted)
        for message in messages
        if (message.wire, message.model) == (wire, model)
        for block in message.blocks
        if isinstance(block, Thinking)
    ]


def is_subsequence(found: list[Any], allowed: list[Any]) -> bool:
    rest = iter(allowed)
    return all(any(item == other for other in rest) for item in found)


ENABLED = {"type": "enabled", "budget_tokens": 512}

# ----------------------------------------------------------------------------------------------------- pairing


@few
@given(lawful())
def test_a_lawful_history_needs_no_mending(messages: list[Message]) -> None:
    assert list(paired(messages, strict=True)) == messages


@few
@given(anything())
def test_a_mended_history_is_lawful_and_mending_is_done_once(messages: list[Message]) -> None:
    mended = paired(messages, strict=False)
    assert paired(mended, strict=True) == mended


@few
@given(anything())
def test_mending_loses_no_word(messages: list[Message]) -> None:
    after = "\0".join(
        getattr(block, "text", "") for message in paired(messages, strict=False) for block in message.blocks
    )
    for message in messages:
        for block in message.blocks:
            if isinstance(block, Text | ToolResultBlock):
                assert block.text.strip() in after


CALL = ToolUse("c1", "ls", {})
RESULT = ToolResultBlock("c1", "ls", "out", is_error=False)
ASKED = [Message("user", (Text("go"),)), Message("assistant", (CALL,), "anthropic", "m")]


@pytest.mark.parametrize(
    "messages",
    [
        ASKED,
        [*ASKED, Message("user", (Text("next"),))],
        [*ASKED, Message("user", (Text("next"), RESULT))],
        [*ASKED, Message("user", (RESULT, RESULT))],
        [*ASKED, Message("user", (RESULT,)), Message("user", (Text("next"),))],
        [Message("user", (RESULT,))],
        [Message("user", (Text(" "),))],
        [Message("assistant", (Text("hello"),))],
        [*ASKED, Message("user", (RESULT,)), Message("assistant", (CALL,)), Message("user", (RESULT,))],
        [ASKED[0], Message("assistant", (CALL, Text("late"))), Message("user", (RESULT,))],
        [ASKED[0], Message("assistant", ())],
        [ASKED[0], Message("assistant", (ToolUse("c1", "ls", "cut"),)), Message("user", (RESULT,))],  # type: ignore[arg-type]
    ],
)
def test_what_breaks_the_laws_is_an_error_when_that_is_asked_for(
    messages: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNKERNEL_STRICT", "1")
    with pytest.raises(PairingError):
        paired(messages)
    with pytest.raises(PairingError):
        messages_of(request_of(messages), "openai-chat", "m")
    monkeypatch.setenv("TURNKERNEL_STRICT", "0")
    assert paired(messages)


def test_an_orphan_result_becomes_plain_text_and_a_missing_one_says_so() -> None:
    late = ToolResultBlock("gone", "cat", "it was 42", is_error=False)
    mended = paired([*ASKED, Message("user", (late,))], strict=False)
    missing, orphan = mended[-1].blocks
    assert missing == ToolResultBlock("c1", "ls", NO_RESULT, is_error=True)
    assert orphan == Text("[Result of an earlier call of cat]\nit was 42")


# --------------------------------------------------------------------------------------------------- anthropic


@many
@given(lawful() | anything(), st.sampled_from([None, ENABLED, {"type": "adaptive"}]))
def test_an_anthropic_request_keeps_every_rule(messages: list[Message], thinking: dict[str, Any] | None) -> None:
    body = anthropic_body(request_of(messages), "m", thinking=thinking, strict=False)
    body = json.loads(written(body))
    assert check_anthropic(body) is None
    found = marks(body)
    assert len(found) <= 4
    assert all(role == "user" and is_last and kind != "thinking" for role, is_last, kind in found)
    replayed = [
        (block.get("thinking", ""), block.get("signature"), block.get("data"))
        for message in body["messages"]
        for block in message["content"]
        if block["type"] in ("thinking", "redacted_thinking")
    ]
    allowed = [tuple(map(scrubbed, thought)) for thought in thoughts(messages, "anthropic", "m")]
    assert is_subsequence(replayed, allowed)
    names = [block["name"] for _, _, block in flat(body) if block["type"] == "tool_use"]
    assert all(re.fullmatch("[A-Za-z0-9_-]{1,64}", name) for name in names)
    assert all(signature or data for _, signature, data in replayed)


@few
@given(lawful())
def test_signed_thinking_of_a_message_with_words_or_calls_is_replayed(messages: list[Message]) -> None:
    sent = [block for _, _, block in flat(anthropic_context(request_of(messages), "m"))]
    for message in messages:
        if message.role == "assistant" and (message.wire, message.model) == ("anthropic", "m"):
            last = message.blocks[-1]
            for block in message.blocks if isinstance(last, Text | ToolUse) else ():
                if isinstance(block, Thinking) and block.signature:
                    wanted = {"type": "thinking", "thinking": block.text, "signature": block.signature}
                    assert scrubbed(wanted) in sent


# -------------------------------------------------------------------------------------------------------- chat


@many
@given(
    lawful() | anything(), st.sampled_from(["api.openai.com", "api.deepseek.com", "api.mistral.ai", "localhost"])
)
def test_a_chat_request_keeps_every_rule(messages: list[Message], host: str) -> None:
    dialect = dialect_of(host)
    body = json.loads(written(openai_chat_body(request_of(messages), "m", dialect=dialect, strict=False)))
    assert check_openai_chat(body) is None
    assert body["messages"][0]["role"] == "system"
    for message in body["messages"]:
        content = message["content"]
        assert isinstance(content, str) or (message["role"] == "user" and not dialect.only_strings)
        assert message.get("tool_calls") != []
        for call in message.get("tool_calls", ()):
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
            assert re.fullmatch("[A-Za-z0-9_-]{1,64}", call["function"]["name"])
            assert host != "api.mistral.ai" or re.fullmatch("[A-Za-z0-9]{9}", call["id"])
    fields = [m["reasoning_content"] for m in body["messages"] if "reasoning_content" in m]
    assistants = sum(message["role"] == "assistant" for message in body["messages"])
    if host == "api.deepseek.com":
        assert len(fields) == assistants
    allowed = {
        scrubbed("".join(block.text for block in message.blocks if isinstance(block, Thinking)))
        for message in messages
        if (message.wire, message.model) == ("openai-chat", "m")
    }
    assert all(field in allowed or (host == "api.deepseek.com" and field == " ") for field in fields)


# -------------------------------------------------------------------------------------------------------- both


@many
@given(lawful(), st.sampled_from(["anthropic", "openai-chat"]), st.data())
def test_what_was_sent_once_stays_and_the_rest_comes_after_it(
    messages: list[Message], wire: str, data: Any
) -> None:
    whole = flat(messages_of(request_of(messages), wire, "m"))
    for n, message in enumerate(messages):
        if message.role == "user":
            kept = data.draw(st.integers(1, len(message.blocks)))
            results = sum(isinstance(block, ToolResultBlock) for block in message.blocks)
            cut = Message("user", message.blocks[: max(kept, results)])
            before = flat(messages_of(request_of([*messages[:n], cut]), wire, "m"))
            assert whole[: len(before)] == before


@few
@given(lawful(), st.sampled_from(["anthropic", "openai-chat"]))
def test_the_same_history_gives_the_same_bytes(messages: list[Message], wire: str) -> None:
    one, two = (written(messages_of(request_of(messages), wire, "m")) for _ in range(2))
    assert one == two


@few
@given(lawful(), st.sampled_from(["anthropic", "openai-chat"]))
def test_a_context_that_nobody_sends_may_end_with_the_assistant(messages: list[Message], wire: str) -> None:
    context = messages_of(request_of(messages), wire, "m")
    assert list(context) == ["system", "messages"]
    check = {"anthropic": check_anthropic, "openai-chat": check_openai_chat}[wire]
    assert check(context, requesting=False) is None


@few
@given(
    st.lists(st.text(), min_size=2, max_size=30, unique=True),
    st.sampled_from([ANTHROPIC_IDS, CHAT_IDS, MISTRAL_IDS]),
)
def test_ids_stay_different_also_when_one_looks_like_the_replacement_of_another(
    ids: list[str], rule: IdRule
) -> None:
    ids += [rule.map(ident) for ident in ids]
    ids += [rule.map(ident) for ident in ids]
    distinct = set(ids)
    assert len({rule.map(ident) for ident in distinct}) == len(distinct)
    assert all(re.fullmatch(rule.allowed, rule.map(ident)) for ident in distinct)


def test_a_wire_that_there_is_not_is_named() -> None:
    with pytest.raises(ValueError, match="no such wire: 'telex'; there are anthropic, openai-chat"):
        messages_of(request_of([]), "telex", "m")
