"""A record is one plain line, whatever was said in it."""

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkernel.events import (
    EVENT_TYPES,
    AskClosed,
    AskOpened,
    Delta,
    Error,
    Event,
    InboxQueued,
    ModelDelta,
    ModelMessage,
    ModelRetry,
    Record,
    SessionClose,
    SessionOpen,
    ToolOutput,
    ToolResult,
    ToolStart,
    TurnEnd,
)
from turnkernel.messages import Text, Thinking, ToolUse
from turnkernel.testing.replies import Reply, ReplyCall, model_events
from turnkernel_demo.plain import as_json, cell_width, fit, one_line, quoted, word
from turnkernel_demo.render import line, lines

BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
MARKS = {"\u200e", "\u200f", "\u061c"}

# What terminals obey, first: arbitrary text seldom has it.
DRIVING = [
    "\x1b[2J",
    "\x1b]0;title\x07",
    "\x9b1A",
    "\r",
    "\n",
    "\x0b",
    "\x0c",
    "\x85",
    "\u2028",
    "\u202e",
    "\u061c",
]
WILD = st.lists(st.sampled_from(DRIVING) | st.text(max_size=4) | st.just("\ud800"), max_size=6).map("".join)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WILD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WILD, inner, max_size=3),
    max_leaves=6,
)
TABLE = st.dictionaries(WILD, JSON, max_size=3)
BLOCK = st.builds(Text, WILD) | st.builds(Thinking, WILD, WILD) | st.builds(ToolUse, WILD, WILD, TABLE)
FIELDS: dict[Any, st.SearchStrategy[Any]] = {
    str: WILD,
    str | None: st.none() | WILD,
    Sequence[str]: st.lists(WILD, max_size=3),
    Mapping[str, Any]: TABLE,
    Mapping[str, Any] | None: st.none() | TABLE,
    Any: JSON,
    Sequence[Error]: st.lists(st.builds(Error, WILD, WILD, WILD), max_size=2),
}


def events_of(kind: Any) -> st.SearchStrategy[Any]:
    """Events of one type with wild text in every field."""
    chosen = {field.name: FIELDS[field.type] for field in kind.__attrs_attrs__ if field.type in FIELDS}
    if kind is ModelMessage:
        chosen["blocks"] = st.lists(BLOCK, max_size=3)
    return st.builds(kind, **chosen)


EVENT: st.SearchStrategy[Event] = st.one_of([events_of(kind) for kind in EVENT_TYPES.values()])
RECORD = st.builds(Record, st.integers(1, 10**9), st.integers(1, 99), st.floats(0, 1e7), EVENT)


def assert_harmless(text: str, width: int) -> None:
    assert text.splitlines() in ([text], [])
    for char in text:
        assert unicodedata.category(char) not in ("Cc", "Cs", "Zl", "Zp"), ascii(text)
        assert unicodedata.bidirectional(char) not in BIDI, ascii(text)
        assert char not in MARKS, ascii(text)
    assert cell_width(text) <= width
    assert len(text) <= 4 * width + 1


@given(RECORD, st.integers(1, 200))
def test_no_record_can_drive_the_terminal_or_break_its_line(record: Record, width: int) -> None:
    assert_harmless(line(record, width), width)


@given(st.lists(RECORD, max_size=8), st.booleans())
def test_no_fold_can_drive_the_terminal_or_break_its_line(records: list[Record], fold: bool) -> None:
    for text in lines(records, 80, fold=fold):
        assert_harmless(text, 80)


@given(WILD)
def test_text_for_a_terminal_is_harmless_in_every_form(text: str) -> None:
    for shown in (one_line(text), quoted(text), word(text), as_json({text: text})):
        assert_harmless(shown, cell_width(shown))


@given(WILD, st.integers(1, 40))
def test_a_text_that_fits_is_not_cut_and_one_that_does_not_is_told(text: str, width: int) -> None:
    shown = one_line(text)
    cut = fit(shown, width)
    if cut != shown:
        assert cell_width(shown) > width or len(shown) > 4 * width
        assert cut.endswith("…")
        assert shown.startswith(cut[:-1])
    assert cell_width(cut) <= width


def test_a_pile_of_combining_marks_costs_no_unbounded_line() -> None:
    assert len(fit("a" + "\u0301" * 100_000, 80)) <= 321


def at(seq: int, event: Event) -> Record:
    return Record(seq, 1, 1.204, event)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (ToolStart("t1", "call_1", "bash", {"command": "sleep 300"}, "effect"),
         'tool/start      call_1 bash {"command": "sleep 300"}'),
        (ToolOutput("t1", "call_1", "stdout", "line\n\x1b[2J"), 'tool/output     call_1 stdout "line\\n\\x1b[2J"'),
        (ToolResult("t1", "call_1", "bash", "unknown", True, "who knows", synthetic=True),
         'tool/result     (closer) call_1 bash unknown "who knows"'),
        (ToolResult("t1", "call_1", "bash", "ok", False, "done", seconds=0.25),
         'tool/result     call_1 bash ok 0.250 s "done"'),
        (ToolStart("t1", "call_1", 'ok 0.1 s "x"', {}, "effect"),
         'tool/start      call_1 "ok 0.1 s \\"x\\"" {}'),
        (TurnEnd("t1", "failed", "provider", (Error("OSError", "gone", "call call_1"),)),
         'turn/end        t1 failed(provider) OSError in "call call_1": "gone"'),
        (TurnEnd("t1", "aborted", reminder="<system-reminder>"),
         'turn/end        t1 aborted reminder "<system-reminder>"'),
        (InboxQueued("i2", "prompt", "Run the tests."), 'inbox/queued    i2 prompt "Run the tests."'),
        (ModelRetry("t1", "t1.s1", 1, 0.05, "HTTP 503"),
         'model/retry     attempt 1 failed, again in 0.05 s: "HTTP 503"'),
        (ModelMessage("t1", "t1.s1", "anthropic", "m", (Text("Yes."), ToolUse("c", "bash", {"a": 1})), "tool_use"),
         'model/message   tool_use text "Yes." | call c bash {"a": 1}'),
        (AskOpened("t1", "c", "a7", "question", "npm or yarn?", ("npm", "yarn")),
         'ask/opened      a7 c question "npm or yarn?" ["npm", "yarn"]'),
        (AskClosed("t1", "c", "a7", "deny", "no"), 'ask/closed      a7 c deny "no"'),
        (SessionOpen("s", "2026-01-02T03:04:05Z", "power", "tree"),
         "session/open    s 2026-01-02T03:04:05Z power tree"),
        (SessionClose(), "session/close"),
    ],
)  # fmt: skip
def test_a_record_reads_like_this(event: Event, expected: str) -> None:
    assert line(at(7, event)) == f"   7    1.204  {expected}"


def deltas(reply: Reply) -> list[Record]:
    said = [event for event in model_events(reply) if isinstance(event, Delta)]
    return [
        at(seq, ModelDelta("t1", "t1.s1", one.block, one.part, one.text, one.call, one.name))
        for seq, one in enumerate(said, 5)
    ]


def test_the_deltas_of_one_block_fold_into_one_line() -> None:
    reply = Reply(thinking="Hm, well.", text="Let me see.", calls=[ReplyCall("c", "bash", {"command": "ls"})])
    records = [*deltas(reply), at(40, SessionClose())]
    assert [text[15:] for text in lines(records)] == [
        'model/delta     thinking (5-8, whole) "Hm, well."',
        'model/delta     text (9-12, whole) "Let me see."',
        'model/delta     call c bash (13-16, whole) "{\\"command\\":\\"ls\\"}"',
        "session/close",
    ]


def test_a_block_that_was_cut_does_not_fold_as_whole() -> None:
    records = deltas(Reply(text="Let me see."))[:2]
    assert [text[15:] for text in lines(records)] == ['model/delta     text (5-6) "Let me "']


def test_nothing_is_folded_that_was_not_asked_to_be() -> None:
    records = deltas(Reply(text="Let me see."))
    assert list(lines(records, fold=False)) == [line(record) for record in records]
    assert len(list(lines(records[:1]))) == 1
