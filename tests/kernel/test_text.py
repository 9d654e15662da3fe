"""Text made safe and short: surrogates, control bytes, and floods in bounded memory."""

import tracemalloc
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnkernel.text import Clip, clip, is_blank, printable, safe, scrub

ANY = st.text(st.characters(exclude_categories=[]), max_size=60)
"""Lone surrogates, NUL and every script."""


def cut_of(text: str) -> tuple[str, int, str]:
    """Head, bytes left out, and tail of a clipped text."""
    head, _, rest = text.partition("\n[... ")
    count, _, tail = rest.partition(" bytes left out ...]\n")
    return head, int(count), tail


# --------------------------------------------------------------------------------------------------- scrub


@pytest.mark.law("C3")
@given(ANY)
def test_scrubbed_text_can_be_encoded_and_is_changed_only_where_it_had_to_be(text):
    clean = scrub(text)
    assert clean.encode("utf-8").decode("utf-8") == clean
    assert scrub(clean) == clean
    if not any("\ud800" <= letter <= "\udfff" for letter in text):
        assert clean == text


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("\ud83d\ude00", "😀"),
        ("a\ud83d", "a\ufffd"),
        ("\ude00a", "\ufffda"),
        ("\ud83da", "\ufffda"),
        ("\ud83d\ud83d\ude00", "\ufffd😀"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("😀\ud800\U0010ffff", "😀\ufffd\U0010ffff"),
        ("\x00", "\x00"),
    ],
)
def test_a_surrogate_pair_is_joined_and_a_lone_one_replaced(text, clean):
    assert scrub(text) == clean


@pytest.mark.parametrize("text", ["", " ", "\t\n\r", "\u3000", "\xa0\u2028"])
def test_white_space_of_any_kind_is_blank(text):
    assert is_blank(text)


def test_a_word_is_not_blank():
    assert not is_blank("  a ")


# --------------------------------------------------------------------------------------- terminal control

BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
"""Bidirectional classes of the explicit formatting characters (UAX 9, table 4)."""
MARKS = "\u200e\u200f\u061c"
"""The implicit directional marks (UAX 9, 2.6)."""


def test_nothing_printable_can_drive_a_terminal_or_turn_the_reading_direction():
    everything = "".join(map(chr, range(0x11_0000)))
    shown = printable(everything)
    left = {letter for letter in shown if unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp")}
    assert left == {"\n", "\t"}
    assert not [hex(ord(one)) for one in set(shown) if unicodedata.bidirectional(one) in BIDI or one in MARKS]


@given(ANY)
def test_printable_text_stays_as_it_is(text):
    shown = printable(text)
    assert printable(shown) == shown
    shown.encode("utf-8")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x9b2J", "\\x9b2J"),
        ("a\rb", "a\\rb"),
        ("\u202etxt", "\\u202etxt"),
        ("\u061c", "\\u061c"),
        ("\x00\x7f", "\\x00\\x7f"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("测试 العربية é", "测试 العربية é"),
        ("\ud800", "\ufffd"),
    ],
)
def test_control_characters_are_shown_as_escapes(text, shown):
    assert printable(text) == shown


@given(ANY)
def test_output_made_safe_has_no_control_byte_but_line_ends_and_tabs(text):
    clean = safe(text)
    assert {letter for letter in clean if unicodedata.category(letter) in ("Cc", "Cs")} <= {"\n", "\r", "\t"}
    assert safe(clean) == clean


# ---------------------------------------------------------------------------------------------------- clip


@given(ANY, st.integers(0, 300))
def test_a_text_that_fits_is_not_cut(text, more):
    text = scrub(text)
    assert clip(text, len(text.encode()) + more) == text


@pytest.mark.parametrize("letter", ["é", "€", "😀"])
@pytest.mark.parametrize("before", range(6))
def test_a_letter_across_the_middle_does_not_cut_a_text_that_just_fits(letter, before):
    text = "a" * before + letter + "b" * (12 - before - len(letter.encode()))
    assert clip(text, len(text.encode())) == text


@given(st.lists(st.text(st.sampled_from("aé€😀\n"), max_size=40), max_size=40), st.integers(0, 40))
def test_a_cut_text_is_head_and_tail_with_every_byte_accounted_for(pieces, most):
    whole = "".join(pieces).encode()
    kept = Clip(most)
    for piece in pieces:
        kept.add(piece)
    assert kept.total == len(whole)
    text = kept.text()
    if len(whole) <= most:
        assert text.encode() == whole
        assert kept.cut == 0
        return
    head, count, tail = cut_of(text)
    assert whole.startswith(head.encode())
    assert whole.endswith(tail.encode())
    assert len(head.encode()) + count + len(tail.encode()) == len(whole)
    assert count == kept.cut > 0
    # A letter is four bytes at most, so no more than three are lost to a boundary on either side.
    assert most // 2 - 3 <= len(head.encode()) <= most // 2
    assert most - len(head.encode()) - 3 <= len(tail.encode()) <= most - len(head.encode())


@given(st.text(st.sampled_from("aé€😀"), max_size=200), st.integers(0, 60), st.data())
def test_what_is_kept_does_not_depend_on_the_pieces_nor_on_being_looked_at(text, most, data):
    kept, left = Clip(most), text
    while left:
        size = data.draw(st.integers(1, len(left)))
        kept.add(left[:size])
        left = left[size:]
        if data.draw(st.booleans()):
            kept.text()
            assert kept.total + len(left.encode()) == len(text.encode())
    assert kept.text() == clip(text, most)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["a", "é", "€uro ", "x" * 5000]), st.sampled_from([10, 1000, 9000]))
def test_a_flood_is_kept_as_if_it_had_come_at_once(piece, most):
    kept = Clip(most)
    for _ in range(20_000 // len(piece)):
        kept.add(piece)
    assert kept.text() == clip(piece * (20_000 // len(piece)), most)


@given(ANY, st.integers(0, 20))
def test_a_cut_text_can_always_be_encoded(text, most):
    clip(text, most).encode("utf-8")


def test_a_flood_of_small_pieces_costs_bounded_memory():
    most = 64 * 1024
    kept = Clip(most)
    tracemalloc.start()
    for _ in range(400_000):
        kept.add("é\n")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept.total == 1_200_000
    assert peak < 8 * most
