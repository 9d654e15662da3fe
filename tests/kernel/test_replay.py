"""The context as a fold of the log: the same events, the same messages, and what was sent stands."""

from collections.abc import Sequence

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernel.histories import folded, histories, numbered, opening

from turnkernel.codec import decode, encode
from turnkernel.events import (
    Event,
    InboxCanceled,
    InboxConsumed,
    InboxQueued,
    ModelMessage,
    StepEnd,
    StepStart,
    TaskEnded,
    TaskStarted,
    ToolCall,
    ToolResult,
    TurnEnd,
    TurnStart,
)
from turnkernel.messages import Message, Opaque, Text, Thinking, ToolResultBlock, ToolUse
from turnkernel.replay import Context, for_model
from turnkernel.testing.laws import check_messages

REMINDER = "<system-reminder>\nx\n</system-reminder>"


def turn(number: int, *events: Event, item: str | None = None) -> list[Event]:
    """A turn that claims an item that was queued just before it, with these events in it."""
    name, item = f"t{number}", item or f"i{number}"
    queued = [InboxQueued(item, "prompt", f"words {number}")]
    return [*queued, TurnStart(name), InboxConsumed(item, name, f"{name}.s1"), *events]


def step(name: str, *blocks, stop="end_turn", note: str | None = None, results=()) -> list[Event]:
    """A whole step: request, message, the results in the order given, end."""
    turn = name.split(".")[0]
    return [
        StepStart(turn, name, "anthropic", "m"),
        ModelMessage(turn, name, "anthropic", "m", blocks, stop),
        *results,
        StepEnd(turn, name, note),
    ]


def result(call: str, text: str) -> ToolResult:
    return ToolResult("t1", call, "bash", "ok", False, text)


def context_of(*events: Event) -> Context:
    return folded(numbered([opening(), *events]))[1]


def shape(context: Context) -> list[tuple[str, list[str]]]:
    """Roles, and the words of their blocks."""
    return [
        (message.role, [getattr(block, "text", None) or getattr(block, "id", "?") for block in message.blocks])
        for message in context.messages
    ]


# ---------------------------------------------------------------------------------------- what stands where


@pytest.mark.law("C1")
def test_words_and_answers_alternate():
    context = context_of(
        *turn(1, *step("t1.s1", Text("one")), TurnEnd("t1", "completed")),
        *turn(2, *step("t2.s1", Text("two")), TurnEnd("t2", "completed")),
    )
    assert shape(context) == [
        ("user", ["words 1"]),
        ("assistant", ["one"]),
        ("user", ["words 2"]),
        ("assistant", ["two"]),
    ]


@pytest.mark.law("C2")
def test_results_stand_in_model_order_and_before_any_words_of_the_user():
    uses = (ToolUse("c1", "bash", {}), ToolUse("c2", "bash", {}))
    steer = InboxQueued("i9", "steer", "and quickly")
    context = context_of(
        *turn(1, *step("t1.s1", *uses, results=[steer, result("c2", "second"), result("c1", "first")])),
        InboxConsumed("i9", "t1", "t1.s2"),
    )
    assert shape(context)[-1] == ("user", ["first", "second", "and quickly"])
    assert check_messages(context.messages) == []


def test_a_turn_that_left_nothing_is_joined_by_the_next_words():
    context = context_of(
        *turn(1, StepStart("t1", "t1.s1", "w", "m"), StepEnd("t1", "t1.s1"), TurnEnd("t1", "failed", "provider")),
        *turn(2),
    )
    assert shape(context) == [("user", ["words 1", "words 2"])]


def test_a_message_without_a_block_is_no_message():
    context = context_of(*turn(1, *step("t1.s1"), TurnEnd("t1", "completed")), *turn(2))
    assert shape(context) == [("user", ["words 1", "words 2"])]


def test_the_reminder_stands_before_the_new_words_and_after_results_once():
    uses = (ToolUse("c1", "bash", {}),)
    context = context_of(
        *turn(
            1, *step("t1.s1", *uses, results=[result("c1", "stopped")]), TurnEnd("t1", "aborted", reminder="R1")
        ),
        *turn(2, *step("t2.s1", Text("two")), TurnEnd("t2", "completed")),
        *turn(3),
    )
    assert shape(context)[2:] == [
        ("user", ["stopped", "R1", "words 2"]),
        ("assistant", ["two"]),
        ("user", ["words 3"]),
    ]


def test_two_turns_that_were_cut_before_the_user_spoke_again_are_both_told():
    context = context_of(
        InboxQueued("i9", "prompt", "kept"),
        *turn(1, TurnEnd("t1", "aborted", reminder="R1")),
        TurnStart("t2"),
        TurnEnd("t2", "aborted", reminder="R2"),
        *turn(3),
    )
    assert shape(context) == [("user", ["words 1", "R1\nR2", "words 3"])]


def test_nothing_is_told_of_an_item_that_was_dropped():
    context = context_of(InboxQueued("i9", "prompt", "secret"), InboxCanceled("i9", "cancel"), *turn(1))
    assert shape(context) == [("user", ["words 1"])]


def test_what_is_only_queued_is_not_in_the_context():
    assert context_of(InboxQueued("i9", "prompt", "later")).messages == ()


def test_a_notice_is_told_when_it_is_consumed_in_the_words_of_its_event():
    task = [TaskStarted("k1", "c", "server", "session"), TaskEnded("k1", "k1.end", "server", "ok", "It ended.")]
    context = context_of(*task, *turn(1), InboxConsumed("k1.end", "t1", "t1.s1"))
    assert shape(context) == [("user", ["words 1", "It ended."])]


def test_a_providers_pause_is_followed_by_words_of_the_user():
    context = context_of(*turn(1, *step("t1.s1", Text("hm"), stop="pause_turn", note="Continue.")))
    assert shape(context) == [("user", ["words 1"]), ("assistant", ["hm"]), ("user", ["Continue."])]


def test_a_message_keeps_the_wire_and_model_that_said_it():
    message = context_of(*turn(1, *step("t1.s1", Text("one")))).messages[1]
    assert (message.wire, message.model) == ("anthropic", "m")


# ------------------------------------------------------------------------------------------- as a fold of a log


@pytest.mark.law("C6")
@settings(max_examples=50, deadline=None)
@given(histories())
def test_folding_twice_and_folding_what_was_read_give_the_same(records):
    context = folded(records)[1]
    read = [decode(encode(record)[:-1]) for record in records]
    assert folded(read)[1].messages == context.messages
    assert repr(folded(read)[1]) == repr(context)


@pytest.mark.law("C6", "C1", "C2")
@settings(max_examples=50, deadline=None)
@given(histories())
def test_what_was_sent_stands_and_all_that_comes_later_comes_after_it(records):
    sent: tuple[Message, ...] = ()
    context = Context()
    for record in records:
        context.apply(record)
        now = tuple(context.messages)
        for place, old in enumerate(sent):
            new = now[place]
            assert (new.role, new.wire, new.model) == (old.role, old.wire, old.model)
            assert new.blocks[: len(old.blocks)] == old.blocks
            assert place == len(sent) - 1 or new == old
        if isinstance(record.event, StepStart):
            sent = now
            assert now[-1].role == "user"
            assert check_messages(now) == []


@pytest.mark.law("C6")
@settings(max_examples=50, deadline=None)
@given(histories())
def test_messages_that_were_asked_for_stay_as_they_were_whatever_is_said_later(records):
    context = Context()
    seen: list[tuple[Sequence[Message], tuple[Message, ...]]] = []
    for record in records:
        context.apply(record)
        seen.append((context.messages, tuple(context.messages)))
    for view, then in seen:
        assert view == then
        assert len(view) == len(then)
        assert list(view) == [view[place] for place in range(len(view))] == list(then)
        assert list(reversed(view)) == list(reversed(then))
        assert (view[1:], view[-2:], view[::-1]) == (then[1:], then[-2:], then[::-1])
        for place in (len(then), -len(then) - 1):
            with pytest.raises(IndexError):
                view[place]


@settings(max_examples=40, deadline=None)
@given(histories())
def test_only_the_types_that_it_says_move_it(records):
    full, sparing = Context(), Context()
    for record in records:
        full.apply(record)
        if record.event.type in Context.types:
            sparing.apply(record)
    assert full.messages == sparing.messages


@settings(max_examples=30, deadline=None)
@given(histories(), st.data())
def test_a_copy_goes_its_own_way(records, data):
    cut = data.draw(st.integers(0, len(records)))
    context = folded(records[:cut])[1]
    messages, size = context.messages, context.size
    copy = context.copy()
    for record in records[cut:]:
        copy.apply(record)
    assert (context.messages, context.size) == (messages, size)
    assert copy.messages == folded(records)[1].messages
    assert copy.size == folded(records)[1].size


def test_the_size_is_an_estimate_that_grows_with_every_block():
    context = context_of(*turn(1))
    assert (context.size, context.tokens) == (len("words 1"), 2)
    blocks = (Thinking("hm", "sig"), Text("12345"), ToolUse("c", "ab", {}))
    more = context_of(*turn(1, *step("t1.s1", *blocks)[:2]))
    assert more.size == len("words 1") + len("hmsig") + 5 + len("ab{}")


# -------------------------------------------------------------------------------------------------- for a model

SAID = Message("assistant", (Thinking("hm", "sig"), Text("So"), ToolUse("c1", "bash", {})), "anthropic", "m")
ASKED = Message("user", (Text("go"),))
ANSWERED = Message("user", (ToolResultBlock("c1", "bash", "ok", False),))


@pytest.mark.law("C4")
def test_thinking_goes_back_whole_to_the_wire_and_model_that_made_it_and_to_no_other():
    messages = (ASKED, SAID, ANSWERED)
    assert for_model(messages, "anthropic", "m") == messages
    for wire, model in (("anthropic", "m2"), ("openai-chat", "m")):
        assert [type(block) for block in for_model(messages, wire, model)[1].blocks] == [Text, ToolUse]


@pytest.mark.law("C1", "C3")
def test_a_message_that_another_wire_does_not_understand_is_left_out_and_its_neighbours_joined():
    foreign = Message("assistant", (Opaque({"type": "x"}),), "anthropic", "m")
    messages = (ASKED, foreign, Message("user", (Text("and?"),)))
    assert for_model(messages, "anthropic", "m") == messages
    assert for_model(messages, "openai-chat", "m") == (Message("user", (Text("go"), Text("and?"))),)


@pytest.mark.law("C1", "C2", "C3", "C4", "C6")
@settings(max_examples=50, deadline=None)
@given(histories(), st.sampled_from([("anthropic", "m1"), ("openai-chat", "m2"), ("openai-responses", "m3")]))
def test_every_request_fits_every_model_and_the_next_one_adds_to_it(records, model):
    sent: tuple[Message, ...] = ()
    context = Context()
    for record in records:
        context.apply(record)
        if not isinstance(record.event, StepStart):
            continue
        now = for_model(context.messages, *model)
        assert check_messages(now) == []
        for message in now:
            if message.role == "assistant" and (message.wire, message.model) != model:
                assert not any(isinstance(block, Thinking | Opaque) for block in message.blocks)
        for old, new in zip(sent, now, strict=False):
            assert new.blocks[: len(old.blocks)] == old.blocks
        sent = now


def test_a_context_can_be_folded_from_the_middle_of_a_turn():
    events = turn(1, *step("t1.s1", ToolUse("c1", "bash", {}), results=[ToolCall("t1", "c1", "bash")])[:3])
    assert shape(context_of(*events)) == [("user", ["words 1"]), ("assistant", ["c1"])]


def test_frozen_messages_are_not_changed_in_place():
    context = context_of(*turn(1))
    before = context.messages
    kept = attrs.evolve(before[0])
    for record in numbered([InboxQueued("i9", "steer", "more"), InboxConsumed("i9", "t1", "t1.s1")]):
        context.apply(record)
    assert before[0] == kept
    assert len(context.messages[0].blocks) == 2
