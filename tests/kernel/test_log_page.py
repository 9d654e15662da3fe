"""docs/log.md says what the code does, as far as that can be asked. Law: L7."""

import re
from pathlib import Path

import pytest

from turnkernel.codec import decode, encode
from turnkernel.events import PassedOver, Salvaged, SessionOpen
from turnkernel.store import RESERVE_BYTES, MemoryStore

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "log.md").read_text()


@pytest.mark.law("L7")
def test_the_line_of_the_page_is_a_record_to_the_byte():
    [line] = re.findall(r"^\{\"crc\".*\}$", PAGE, re.MULTILINE)
    assert encode(decode(line.encode())) == line.encode() + b"\n"


def test_the_fields_the_page_names_are_there():
    opening = SessionOpen("s", "w", "power", passed_over=(PassedOver(1, 2, "x"),), salvaged=Salvaged("r", "f", 3))
    assert opening.passed_over[0].offset == 1
    for name in ("passed_over", "salvaged", "durability"):
        assert f"`{name}`" in PAGE
        assert hasattr(opening, name)


def test_the_reserve_and_the_name_of_what_is_kept_aside_are_as_the_page_says():
    assert f"{RESERVE_BYTES // 1024} KiB are held" in PAGE
    store = MemoryStore(b"good\nbad")
    assert re.fullmatch(r"\.salvaged-5-[0-9a-f]{8}", store.keep_aside(5))


def test_the_files_the_page_speaks_of_exist():
    for path in re.findall(r"`(tests/[^`]*)`", PAGE):
        assert (Path(__file__).resolve().parents[2] / path).exists(), path
