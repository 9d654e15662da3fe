"""Logs of sessions with agents on the command line, and openings that can't have a child's log."""

import json

import pytest
import trio
from click.testing import CliRunner
from tests.tools.agent_sessions import (
    Children,
    Models,
    agents,
    asks,
    call,
    logged,
    results,
    session_of,
    slow,
    until,
)

from turnkernel import open_session
from turnkernel.events import SessionOpen
from turnkernel.store import MemoryStore
from turnkernel.testing import check_log
from turnkernel.testing.crash import records_of
from turnkernel_demo.cli import cli


@pytest.fixture
def log(tmp_path):
    """The logs of a session that was killed with an agent, one of its own below, and one in the background."""
    path = tmp_path / "root.log"
    models = Models(
        root=[asks(call("a"), call("b", background=True))],
        a=[asks(call("c"))],
        b=[asks(call("y", "slow"))],
        c=[asks(call("x", "slow"))],
    )
    children = Children()

    async def main():
        tools = [*agents(models, depth=2, open_child=children), slow()]
        async with session_of(models, tools, path, "process") as session:
            await session.send("go")
            for one in "bc":
                await until(await children.of(one), "tool/start")
            await until(session, "task/started")
            return {one: one.read_bytes() for one in tmp_path.rglob("*.log")}

    for one, data in trio.run(main).items():
        one.write_bytes(data)
    return path


def run(*words):
    result = CliRunner().invoke(cli, [str(one) for one in words])
    assert result.exit_code == 0, (words, result.output, result.exception)
    return result.stdout


def all_logs(log):
    return sorted(log.parent.rglob("*.log"), key=lambda one: len(one.parts))


def test_each_log_of_a_tree_can_be_looked_at_alone(log):
    before = {one: one.read_bytes() for one in all_logs(log)}
    assert len(before) == 4
    for one in before:
        run("verify", one)
        assert "session/open" in run("show", one)
        assert json.loads(run("context", one, "--wire", "anthropic"))["messages"]
    shown = run("show", log)
    for child in all_logs(log)[1:3]:
        assert f"log root.log.d/{child.name}" in " ".join(shown.split())
    assert {one: one.read_bytes() for one in all_logs(log)} == before


@pytest.mark.law("L6", "L7")
def test_repair_closes_the_logs_of_children_first_and_says_which(log):
    before = {one: one.read_bytes() for one in all_logs(log)}
    dry = run("repair", "--dry-run", log)
    assert {one: one.read_bytes() for one in all_logs(log)} == before
    told = run("repair", log)
    for one in before:
        records = records_of(one.read_bytes())
        assert one.read_bytes().startswith(before[one])
        assert records[-1].event.type == "session/close"
        assert check_log(records, closed=True) == []
    # What was only planned was planned as it came, but for the clock.
    said = [line for line in told.splitlines() if " of a child, " in line]
    assert len(said) == 3
    assert "root.log.d" in said[0].replace(str(log.parent), "")
    assert said[0].count(".log.d/") == 2
    planned = [line.replace("would first be", "first") for line in dry.splitlines() if " of a child, " in line]
    assert sorted(planned) == sorted(said)
    assert dry.count("[Unknown] agent was started") == told.count("[Unknown] agent was started") == 1
    assert "its last turn end as interrupted" in dry
    assert "its last turn end as interrupted" in told
    assert "nothing to append" in run("repair", log)
    for one in before:
        assert "nothing to append" in run("repair", one)


def test_repair_of_a_child_alone_leaves_its_parent_to_be_repaired(log):
    child = next(
        one for one in all_logs(log) if one.parent.name == "root.log.d" and (one.parent / f"{one.name}.d").exists()
    )
    before = log.read_bytes()
    run("repair", child)
    assert log.read_bytes() == before
    assert "its last turn end as interrupted" in run("repair", log)
    openings = [one for one in logged(MemoryStore(child.read_bytes())) if isinstance(one, SessionOpen)]
    assert len(openings) == 2
    assert openings[0].parent == openings[1].parent


async def test_a_child_that_another_kernel_has_open_is_left_alone_and_told(log):
    (other,) = [
        one
        for one in all_logs(log)
        if len(one.relative_to(log.parent).parts) == 2 and b'"call":"b"' in one.read_bytes()[:500]
    ]
    async with open_session(other, provider=Models(root=[])("root"), durability="process"):
        before = other.read_bytes()
        async with session_of(Models(root=[]), [], log, "process") as session:
            (end,) = [one for one in logged(MemoryStore(log.read_bytes())) if one.type == "task/ended"]
            assert end.status == "lost"
            assert "is not known" in end.text
            assert str(other) in end.text
            assert results(session)["a"].status == "unknown"
        assert other.read_bytes() == before
