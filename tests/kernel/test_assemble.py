"""Deltas to blocks: what a whole, a cut and a broken stream leave (laws C2 to C4)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnkernel.assemble import INTERRUPTED, assemble
from turnkernel.codec import decode, encode
from turnkernel.events import Delta, ModelDelta, ModelMessage, Record
from turnkernel.ids import call_id
from turnkernel.messages import Message, Opaque, Text, Thinking, ToolResultBlock, ToolUse
from turnkernel.testing.laws import check_messages
from turnkernel.text import is_blank


def text(block: int, *pieces: str) -> list[Delta]:
    return [Delta(block, "text", piece) for piece in pieces]


def thinking(block: int, words: str, signature: str | None = None, *, whole: bool = True) -> list[Delta]:
    deltas = [Delta(block, "thinking", words)]
    deltas += [Delta(block, "signature", signature)] if signature is not None else []
    return deltas + [Delta(block, "end")] * whole


def call(block: int, id: str, *pieces: str, name: str = "bash", whole: bool = True) -> list[Delta]:
    deltas = [Delta(block, "call", call=id, name=name), *(Delta(block, "input", piece) for piece in pieces)]
    return deltas + [Delta(block, "end")] * whole


def opaque(block: int, data: str = '{"type":"server_tool_use"}', *, whole: bool = True) -> list[Delta]:
    return [Delta(block, "opaque", data)] + [Delta(block, "end")] * whole


def cut(*deltas: list[Delta], taken: tuple[str, ...] = ()):
    return assemble([one for part in deltas for one in part], cut=True, taken=taken)


def whole(*deltas: list[Delta], taken: tuple[str, ...] = ()):
    return assemble([one for part in deltas for one in part], cut=False, taken=taken)


RUN = ToolUse("c1", "bash", {"a": 1})


# --------------------------------------------------------------------------------------- what a cut one leaves


def test_cut_text_stays_and_is_marked():
    assert cut(text(0, "Let ", "me ")) == (Text("Let me  [interrupted]"),)


def test_the_mark_is_on_the_last_text_only():
    assert cut(text(0, "one"), [Delta(0, "end")], text(1, "two")) == (Text("one"), Text("two" + INTERRUPTED))


@pytest.mark.law("C3")
def test_blank_text_is_dropped_before_the_mark_is_put():
    assert cut(text(0, "word"), text(1, " \n")) == (Text("word" + INTERRUPTED),)
    assert cut(text(0, "", " \n\t\u3000")) == ()


def test_a_call_whose_input_was_cut_leaves_nothing():
    assert cut(call(0, "c1", '{"a": ', whole=False)) == ()
    assert cut(call(0, "c1", '{"a": 1}', whole=False)) == (), "what parses may still be the half of something"
    assert cut(call(0, "c1", whole=False)) == (), "nor is one without any input a call without arguments"


def test_a_whole_call_stays_after_the_text():
    assert cut(call(0, "c1", '{"a":', "1}"), text(1, "and")) == (Text("and" + INTERRUPTED), RUN)


def test_of_two_calls_the_whole_one_stays():
    assert cut(call(0, "c1", '{"a":1}'), call(1, "c2", "{", whole=False)) == (RUN,)


@pytest.mark.law("C4")
def test_whole_signed_thinking_before_text_or_a_whole_call_stays_first():
    assert cut(thinking(0, "hm", "sig"), text(1, "So")) == (Thinking("hm", "sig"), Text("So" + INTERRUPTED))
    assert cut(thinking(0, "hm", "sig"), call(1, "c1", '{"a":1}')) == (Thinking("hm", "sig"), RUN)


@pytest.mark.law("C4")
def test_whole_thinking_with_nothing_after_it_goes():
    assert cut(thinking(0, "hm", "sig")) == ()
    assert cut(thinking(0, "hm", "sig"), call(1, "c1", '{"a', whole=False)) == ()
    assert cut(thinking(0, "hm", "sig"), text(1, " ")) == ()
    assert cut(text(0, "a"), thinking(1, "hm", "sig")) == (Text("a" + INTERRUPTED),)


@pytest.mark.law("C4")
def test_cut_thinking_goes():
    assert cut(thinking(0, "hm", whole=False)) == ()
    assert cut(thinking(0, "hm", "si", whole=False), text(1, "So")) == (Text("So" + INTERRUPTED),)
    assert cut([Delta(0, "redacted", "x")], text(1, "So")) == (Text("So" + INTERRUPTED),)


def test_nothing_leaves_nothing():
    assert cut() == whole() == ()


def test_a_cut_message_keeps_no_block_of_the_servers_own():
    assert cut(opaque(0), text(1, "So")) == (Text("So" + INTERRUPTED),)


# ---------------------------------------------------------------------------------------------- whole messages


def test_a_whole_message_bears_no_mark():
    assert whole(text(0, "Done.")) == (Text("Done."),)


def test_blocks_stand_in_the_order_in_which_they_first_appear_and_calls_come_last():
    deltas = [Delta(5, "text", "a"), Delta(2, "text", "b"), Delta(5, "text", "c"), *call(1, "c1", '{"a":1}')]
    assert whole(deltas) == (Text("ac"), Text("b"), RUN)
    assert whole(call(0, "c1", '{"a":1}'), text(1, "after")) == (Text("after"), RUN)


@pytest.mark.law("C4")
def test_thinking_is_kept_byte_for_byte_and_never_last():
    words = " \n hm\u200b "
    assert whole(thinking(0, words, "sig"), text(1, "a")) == (Thinking(words, "sig"), Text("a"))
    assert whole(thinking(0, words), text(1, "a")) == (Thinking(words), Text("a"))
    assert whole(text(0, "a"), thinking(1, words, "sig")) == (Text("a"),)
    assert whole(thinking(0, words, "sig")) == ()


@pytest.mark.law("C4")
def test_thinking_that_is_not_whole_does_not_go_back_though_the_message_is():
    assert whole(thinking(0, "hm", whole=False), text(1, "a")) == (Text("a"),)


@pytest.mark.law("C4")
def test_thinking_with_nothing_in_it_goes_and_a_signature_alone_is_something():
    assert whole(thinking(0, ""), text(1, "a")) == (Text("a"),)
    assert whole(thinking(0, "", ""), text(1, "a")) == (Text("a"),)
    assert whole([Delta(0, "redacted", ""), Delta(0, "end")], text(1, "a")) == (Text("a"),)
    assert whole(thinking(0, "", "sig"), text(1, "a")) == (Thinking("", "sig"), Text("a"))


def test_an_empty_signature_is_none():
    assert whole(thinking(0, "hm", ""), text(1, "a")) == (Thinking("hm"), Text("a"))


def test_encrypted_thinking_is_kept_as_it_came():
    assert whole([Delta(0, "redacted", "ZW5j"), Delta(0, "end")], text(1, "a")) == (
        Thinking("", redacted="ZW5j"),
        Text("a"),
    )


@pytest.mark.law("C3")
@pytest.mark.parametrize(
    "raw", ["[]", "null", '"x"', '{"a": 1', "{'a': 1}", '{"a": NaN}', '{"a":' * 300 + "1" + "}" * 300]
)
def test_an_input_that_is_no_object_is_an_empty_one_with_what_came_beside_it(raw):
    assert whole(call(0, "c1", raw)) == (ToolUse("c1", "bash", {}, raw=raw),)
    assert cut(call(0, "c1", raw)) == (ToolUse("c1", "bash", {}, raw=raw),)


def test_a_call_without_any_input_is_one_without_arguments():
    assert whole(call(0, "c1")) == whole(call(0, "c1", "", " ")) == (ToolUse("c1", "bash", {}),)


@pytest.mark.law("C2")
def test_ids_that_repeat_or_are_empty_are_made_unique():
    blocks = whole(
        *(call(number, id) for number, id in enumerate(["c1", "c1", "", "", "new"])), taken=("c1", "c1_2")
    )
    assert [block.id for block in blocks if isinstance(block, ToolUse)] == [
        "c1_3",
        "c1_4",
        "call_1",
        "call_2",
        "new",
    ]


def test_an_id_that_would_be_made_up_may_be_the_wires_own():
    blocks = whole(*(call(number, id) for number, id in enumerate(["c1_2", "c1", "c1"])))
    assert [block.id for block in blocks if isinstance(block, ToolUse)] == ["c1_2", "c1", "c1_3"]


def test_a_block_of_the_servers_own_is_given_back_as_it_came():
    assert whole(opaque(0, '{"type":"x","n":[1]}'), text(1, "a")) == (Opaque({"type": "x", "n": [1]}), Text("a"))


@pytest.mark.parametrize("data", ["", "[]", "{", "{}", '{"a":' * 300 + "1" + "}" * 300])
def test_a_block_of_the_servers_own_that_is_no_object_is_a_fault(data):
    with pytest.raises(ValueError, match="no JSON object"):
        whole(opaque(0, data))
    assert cut(opaque(0, data)) == ()


def test_a_surrogate_pair_that_two_fragments_share_is_joined():
    assert whole(text(0, "\ud83d", "\ude00")) == (Text("😀"),)
    assert whole(text(0, "a\ud83d")) == (Text("a\ufffd"),)
    assert whole(call(0, "\ud800", '{"a":"\ud800"}', name="\udfff")) == (
        ToolUse("\ufffd", "\ufffd", {"a": "\ufffd"}),
    )


# ----------------------------------------------------------------------------------------------- any deltas

PARTS = st.sampled_from(["text", "thinking", "signature", "redacted", "call", "input", "end"])
SAID = st.sampled_from(["", " ", "a", "\ud83d", "\ude00", "{", '{"a":', "1}", "{}", "\x00"]) | st.text(max_size=3)
DELTAS = st.lists(
    st.builds(
        Delta,
        st.integers(0, 4),
        PARTS,
        SAID,
        call=st.sampled_from([None, "", "c1", "c2", "t1"]),
        name=st.sampled_from([None, "", "bash"]),
    ),
    max_size=25,
)


@pytest.mark.law("C1", "C2", "C3", "C4")
@given(DELTAS, st.booleans())
def test_whatever_comes_the_blocks_are_fit_for_a_context(deltas, is_cut):
    blocks = assemble(deltas, cut=is_cut, taken={"t1"})
    calls = [block for block in blocks if isinstance(block, ToolUse)]
    assert blocks[len(blocks) - len(calls) :] == tuple(calls), "calls come last"
    assert "t1" not in {one.id for one in calls}
    context = [Message("user", (Text("go"),))]
    if blocks:
        context.append(Message("assistant", blocks))
    if calls:
        context.append(Message("user", tuple(ToolResultBlock(one.id, one.name, "x", False) for one in calls)))
    assert check_messages(context) == []


@given(DELTAS)
def test_what_a_cut_message_leaves_is_a_part_of_what_the_whole_one_says(deltas):
    left, said = cut(deltas), whole(deltas)
    # But for the ids: those that are made up count the calls that are there.
    calls = [(one.name, one.input, one.raw) for one in said if isinstance(one, ToolUse)]
    for one in left:
        if isinstance(one, ToolUse):
            calls = calls[calls.index((one.name, one.input, one.raw)) + 1 :]
    words = [one.text.removesuffix(INTERRUPTED) for one in left if isinstance(one, Text)]
    assert words == [one.text for one in said if isinstance(one, Text)]
    assert not any(is_blank(one) for one in words)


@pytest.mark.law("C6")
@settings(deadline=None)
@given(DELTAS, st.booleans())
def test_a_message_put_together_again_from_its_log_is_the_same(deltas, is_cut):
    logged = [
        ModelDelta(
            "t1", "t1.s1", one.block, one.part, one.text.encode("utf-8", "replace").decode(), one.call, one.name
        )
        for one in deltas
    ]
    read = [decode(encode(Record(1, 1, 0.0, one))[:-1]).event for one in logged]
    blocks = assemble(logged, cut=is_cut, taken=())
    assert assemble(read, cut=is_cut, taken=()) == blocks
    message = ModelMessage("t1", "t1.s1", "w", "m", blocks, "cut" if is_cut else "end_turn")
    assert decode(encode(Record(1, 1, 0.0, message))[:-1]).event == message


def test_an_id_that_a_model_repeats_for_ever_is_made_unique_without_counting_through_all():
    looked = []

    class Counted(set):
        def __contains__(self, item):
            looked.append(item)
            return super().__contains__(item)

    taken = Counted()
    for _ in range(2000):
        looked.clear()
        taken.add(call_id("call_0", taken))
        assert len(looked) < 15
    assert len(taken) == 2000
    assert {"call_0", "call_0_2", "call_0_9"} < taken
