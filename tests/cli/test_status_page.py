"""docs/status.md says what the status is: its states, its fields, every change of state that a log shows (D2)."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

import attrs
import pytest
import trio

from turnkernel import Gate, open_session
from turnkernel.events import Record
from turnkernel.grammar import Grammar
from turnkernel.observe import CallStatus, State, Status, StatusFold
from turnkernel.store import MemoryStore
from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel.testing.scripted import ScriptedProvider, ScriptedTool

from .conftest import cut_after, records_of

PAGE = (Path(__file__).parents[2] / "docs" / "status.md").read_text("utf-8")


def rows(first_heading: str) -> list[list[str]]:
    """The rows of the table whose first column is headed so."""
    lines = PAGE.splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith(f"| {first_heading} |"))
    table: list[list[str]] = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return table


def ticked(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def test_the_page_has_every_state_once() -> None:
    assert [name for row in rows("`state`") for name in ticked(row[0])] == list(get_args(State))


def test_the_page_names_every_field_of_the_status() -> None:
    named = set(ticked(PAGE))
    assert {field.name for field in attrs.fields(Status)} <= named
    assert "seconds" in named
    assert {"asked", "taken", "running"} <= named, "the states of a call"
    assert {field.name for field in attrs.fields(CallStatus)} == {"call", "name", "state", "seconds"}


def changes(records: Iterable[Record]) -> list[tuple[str, str, str]]:
    """Every change of state: from, the event's type, to."""
    grammar, fold = Grammar(), StatusFold()
    found: list[tuple[str, str, str]] = []
    state = "rest"
    for record in records:
        grammar.apply(record)
        fold.apply(record)
        now = fold.status(grammar, record.t).state
        if now != state:
            found.append((state, record.event.type, now))
        state = now
    return found


def on_the_page(change: tuple[str, str, str]) -> bool:
    before, event, after = change
    for row in rows("from"):
        begins = ticked(row[0]) or ["streaming", "calling", "asking", "stopping"]
        if before in begins and event in ticked(row[1]) and after in ticked(row[2]):
            return True
    return False


async def asked_and_cancelled(store: MemoryStore) -> None:
    """A call that is allowed, one that is denied, then a stop, then a turn that is stopped in its text."""
    replies = [
        Reply(calls=[ReplyCall("call_1", "slow"), ReplyCall("call_2", "slow")]),
        Reply(calls=[ReplyCall("call_3", "slow", {"again": True})]),
        Reply(text="a b c", fault="stall", after_bytes=8),
    ]
    tool = ScriptedTool("slow", concurrency="exclusive")
    gate = Gate(approve=lambda name, input: True)
    async with open_session(store, provider=ScriptedProvider(replies), tools=[tool], gate=gate) as session:
        await session.send("go")
        asks = 0
        async for event in session.events():
            if event.type == "ask/opened":
                asks += 1
                if asks == 3:
                    session.cancel()
                    break
                session.answer(event.ask, "allow" if asks == 1 else "deny")
        await session.rest()
        await session.send("go on")
        async for record in session.records(0):
            if record.event.type == "model/delta" and record.event.turn == "t2":
                session.cancel()
                break
        await session.rest()
        await session.send("and now?")
        await session.rest()


@pytest.fixture(scope="module")
def asked_bytes() -> bytes:
    store = MemoryStore()
    trio.run(asked_and_cancelled, store)
    return store.read(0, store.size)


def recovered(data: bytes) -> Sequence[Record]:
    """The log as the next opening leaves it."""
    store = MemoryStore(data)

    async def main() -> None:
        async with open_session(store, provider=ScriptedProvider([])):
            pass

    trio.run(main)
    return records_of(store.read(0, store.size))


@pytest.mark.law("D2")
def test_every_change_of_state_that_a_log_shows_is_on_the_page(asked_bytes: bytes, closed_bytes: bytes) -> None:
    seen = changes(records_of(asked_bytes)) + changes(records_of(closed_bytes))
    for after in ("turn/start", "model/message", "ask/opened"):
        seen += changes(recovered(cut_after(asked_bytes, after)))
    assert {after for _, _, after in seen} == set(get_args(State)), "a state was never reached"
    assert [change for change in seen if not on_the_page(change)] == []


def test_every_change_on_the_page_is_one_that_a_log_shows(asked_bytes: bytes, closed_bytes: bytes) -> None:
    seen = changes(records_of(asked_bytes)) + changes(records_of(closed_bytes))
    seen += changes(recovered(cut_after(asked_bytes, "ask/opened")))
    for row in rows("from"):
        assert any(event in ticked(row[1]) and after in ticked(row[2]) for _, event, after in seen), (
            f"no log shows {row}"
        )
