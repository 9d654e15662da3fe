"""docs/scenarios.md says every key, default and word of the format, and its examples come out as they say."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import attrs
import pytest
import trio

from turnkernel.causes import Answer
from turnkernel.events import EVENT_TYPES, Outcome, ResultStatus
from turnkernel.testing.actions import VERBS
from turnkernel.testing.replies import Fault, ReplyCall
from turnkernel.wording import WORDINGS
from turnkernel_demo.checks import REAL_TOOLS
from turnkernel_demo.convert import FILE_KEYS
from turnkernel_demo.load import loads, with_options
from turnkernel_demo.played import Played
from turnkernel_demo.report import judge
from turnkernel_demo.runner import play_for_real
from turnkernel_demo.scenario import (
    LONGEST,
    RUN_LIMIT,
    Act,
    Do,
    Expect,
    Scenario,
    ScenarioReply,
    SessionTable,
    ToolScript,
    ToolsTable,
    User,
)
from turnkernel_demo.values import ACTIONS
from turnkernel_demo.virtual import play_virtually

PAGE = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text("utf-8")
TABLES: Mapping[str, type[Any]] = {
    "The file itself": Scenario,
    "session": SessionTable,
    "user": User,
    "reply": ScenarioReply,
    "A call": ReplyCall,
    "tool": ToolScript,
    "act": Act,
    "tools": ToolsTable,
    "expect": Expect,
}
EXAMPLES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def rows(heading: str) -> list[list[str]]:
    """The rows of the first table under a heading."""
    found = re.search(rf"^##+ {re.escape(heading)}\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, heading
    lines = [line for line in found[1].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def words_of(heading: str) -> list[str]:
    return [row[0].strip("`") for row in rows(heading)]


def default_of(field: Any) -> str:
    """A default as the page writes it."""
    value = field.default.factory() if isinstance(field.default, attrs.Factory) else field.default  # type: ignore[arg-type]
    if value is attrs.NOTHING:
        return "required"
    if value is None or attrs.has(type(value)):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    return "`[]`" if value == () else f"`{value}`"


@pytest.mark.parametrize("heading", TABLES)
def test_a_table_of_the_page_has_every_key_with_its_default_and_no_other(heading: str) -> None:
    cls = TABLES[heading]
    fields = {FILE_KEYS.get(field.name, field.name): field for field in attrs.fields(cls)}
    said = {row[0].strip("`"): row[2] for row in rows(heading)}
    assert list(said) == words_of(heading), "a key stands there twice"
    assert set(said) == set(fields)
    arrays = ("user", "reply", "tool", "act") if cls is Scenario else ()
    assert {key: text for key, text in said.items() if key not in arrays} == {
        key: default_of(field) for key, field in fields.items() if key not in arrays
    }


def test_the_page_has_every_word_that_a_value_may_be() -> None:
    assert words_of("Verbs") == list(get_args(Do))
    assert words_of("Steps") == list(ACTIONS) == list(VERBS)
    assert words_of("Faults") == list(get_args(Fault))
    assert words_of("The tools") == list(REAL_TOOLS)
    means = {row[0].strip("`"): f"{row[1]} {row[3]}" for row in rows("expect")}
    for key, words in (("results", get_args(ResultStatus)), ("outcomes", get_args(Outcome)), ("answers", Answer)):
        assert re.findall(r"`(\w+)`", means[key]) == [str(word) for word in words]
    assert re.findall(r"`(\w+)`", rows("session")[5][1]) == list(WORDINGS)


def test_the_page_has_the_words_of_every_key_that_takes_one_of_a_few() -> None:
    for heading, cls in TABLES.items():
        takes = {row[0].strip("`"): re.findall(r"`([\w-]+)`", row[1]) for row in rows(heading)}
        for field in attrs.fields(cls):
            key = FILE_KEYS.get(field.name, field.name)
            words = [word for word in get_args(field.type) if isinstance(word, str)]
            if words and key not in ("do", "stop", "fault"):
                assert takes[key] == words, (heading, key)


def test_the_page_has_the_bounds_of_times() -> None:
    assert f"({LONGEST})" in PAGE
    assert f"at least {RUN_LIMIT.least}" in rows("The file itself")[3][1]


def test_the_events_that_the_page_names_are_there() -> None:
    named = set(re.findall(r'"([a-z]+/[a-z]+)"', PAGE))
    assert named <= set(EVENT_TYPES)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_of_the_page_comes_out_as_it_says(tmp_path: Path, number: int) -> None:
    scenario = with_options(loads(EXAMPLES[number]), "example")
    assert scenario.expect.outcomes is not None

    async def play() -> Played:
        with trio.fail_after(60):
            return await play_for_real(scenario, log=tmp_path / "session.log", root=tmp_path)

    result = judge(play_virtually(scenario) if scenario.virtual else trio.run(play))
    assert (list(result.unmet), list(result.notes)) == ([], [])
