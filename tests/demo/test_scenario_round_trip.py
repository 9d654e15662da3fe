"""A scenario written back is the same scenario: what a sweep finds can be replayed from a file."""

from pathlib import Path
from typing import Any, get_args

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkernel.causes import Answer
from turnkernel.events import EVENT_TYPES, Outcome, ResultStatus
from turnkernel.testing.replies import ReplyCall
from turnkernel_demo.builtin import load_builtin, names
from turnkernel_demo.dump import dumps
from turnkernel_demo.load import load, loads
from turnkernel_demo.scenario import (
    LONGEST,
    ROOT,
    Act,
    Action,
    Expect,
    Law,
    Scenario,
    ScenarioReply,
    SessionTable,
    ToolScript,
    ToolsTable,
    User,
    Wire,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAME = st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True)
SECONDS = st.floats(0, LONGEST, allow_nan=False)
PATIENCE = st.floats(0.001, LONGEST, allow_nan=False)
COUNT = st.integers(0, 10**9)
NUMBER = st.integers(1, 10**9)
FLOAT = st.floats(allow_nan=False, allow_infinity=False)
JSON: st.SearchStrategy[Any] = st.recursive(
    TEXT | st.booleans() | st.integers(-(2**63), 2**63 - 1) | FLOAT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
TABLE = st.dictionaries(TEXT, JSON, max_size=3)
TEXTS = st.lists(TEXT, max_size=3).map(tuple)


def one(words: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(get_args(words))


def some(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(strategy, max_size=3).map(tuple)


CALLS = some(st.builds(ReplyCall, TEXT, NAME, TABLE) | st.builds(ReplyCall, TEXT, NAME, raw_input=TEXT))
DELIVERY: dict[str, Any] = {
    "pace": SECONDS,
    "piece_bytes": st.none() | NUMBER,
    "headers": st.dictionaries(TEXT, TEXT, max_size=2),
}
SAID = st.builds(
    ScenarioReply,
    thinking=st.none() | TEXT,
    text=st.none() | TEXT,
    calls=CALLS,
    stop=st.none() | st.sampled_from(["end_turn", "tool_use", "max_tokens", "refusal", "pause_turn"]),
    after_bytes=COUNT,
    fault=st.sampled_from(["reset", "cut", "eof", "stall", "overloaded"]),
    **DELIVERY,
)
FAILED = st.builds(
    ScenarioReply, status=st.just(200) | st.integers(400, 599), body=st.none() | TEXT | TABLE, **DELIVERY
)

OF_TASK = st.builds(Action, st.just("touch"), TEXT) | st.builds(
    Action, st.sampled_from(["sleep", "critical", "shield"]), SECONDS
)
ACTION = (
    OF_TASK
    | st.builds(Action, st.sampled_from(["emit", "ask"]), TEXT)
    | st.builds(Action, st.just("block"), SECONDS)
    | st.builds(Action, st.just("checkpoint"), JSON)
    | st.builds(Action, st.just("spawn"), st.sampled_from(["call", "turn"]))
)
SPAWN = st.builds(Action, st.just("spawn"), st.sampled_from(["session", "detached"]))
END = st.builds(Action, st.just("result"), TEXT) | st.builds(
    Action, st.just("raise"), TEXT.map(lambda text: f"OSError: {text}")
)
SCRIPTED: dict[str, Any] = {
    "name": NAME,
    "effect": st.sampled_from(["read_only", "idempotent", "effect"]),
    "concurrency": st.sampled_from(["shared", "exclusive"]),
    "isolation": st.sampled_from(["task", "thread"]),
    "timeout": st.none() | PATIENCE,
}
SCRIPT = st.builds(
    ToolScript,
    does=st.builds(lambda first, end: (*first, *end), some(ACTION), st.lists(END, max_size=1)),
    on_cancel=some(ACTION),
    **SCRIPTED,
) | st.builds(
    ToolScript,
    does=st.builds(lambda first, spawn, rest: (*first, spawn, *rest), some(ACTION), SPAWN, some(OF_TASK)),
    on_cancel=some(OF_TASK),
    **SCRIPTED,
)

WHEN: dict[str, Any] = {
    "on": st.just("ask/opened"),
    "where": st.dictionaries(st.sampled_from(["seq", "call", "ask", "text"]), JSON, max_size=2),
    "nth": NUMBER,
    "delay": st.none() | SECONDS,
    "times": st.integers(2, 9),
    "gap": SECONDS,
}
SITE: dict[str, Any] = {"site": COUNT, "delay": st.none() | SECONDS}


def acts(when: dict[str, Any]) -> st.SearchStrategy[Act]:
    target = st.none() | TEXT if "on" in when else TEXT
    return st.one_of(
        st.builds(Act, do=st.just("cancel"), keep_inbox=st.booleans(), **when),
        st.builds(Act, do=st.sampled_from(["replace", "steer", "send"]), text=TEXT, **when),
        st.builds(Act, do=st.just("answer"), text=TEXT, target=target, **when),
        st.builds(Act, do=st.sampled_from(["deny", "deny_stop"]), text=st.none() | TEXT, target=target, **when),
        st.builds(Act, do=st.sampled_from(["withdraw", "cancel_call", "stop_task"]), target=TEXT, **when),
        st.builds(Act, do=st.sampled_from(["close", "terminate", "stale_cancel", "host_cancel"]), **when),
        st.builds(
            Act, do=st.just("kill"), bytes=st.none() | COUNT, lose=st.sampled_from([None, "unflushed"]), **when
        ),
        st.builds(
            Act,
            do=st.sampled_from(["disk_full", "disk_error"]),
            op=st.sampled_from(["append", "flush"]),
            lasting=st.booleans(),
            **when,
        ),
    )


SESSION = st.builds(
    SessionTable,
    max_steps=NUMBER,
    turn_seconds=st.none() | PATIENCE,
    context_tokens=NUMBER,
    steer_policy=st.sampled_from(["after_batch", "skip_unstarted"]),
    durability=st.sampled_from(["power", "process", "memory"]),
    wording=st.sampled_from(["default", "terse"]),
    recovery=st.sampled_from(["append", "truncate"]),
    containment=st.sampled_from(["tree", "namespace", "group"]),
    retries=COUNT,
    backoff_seconds=SECONDS,
    silence_seconds=st.none() | PATIENCE,
)
TOOLS = st.builds(
    ToolsTable,
    approve=some(st.sampled_from(["bash", "agent"])),
    approver=st.sampled_from(["script", "none", "always"]),
    grace_seconds=SECONDS,
    background=st.sampled_from(["session", "detached"]),
    block=st.dictionaries(st.just("bash"), TEXT),
    rewrite=st.dictionaries(st.just("write_file"), TABLE),
)
EXPECT = st.builds(
    Expect,
    outcomes=st.none() | some(one(Outcome)),
    requests=st.none() | COUNT,
    survivors=st.none() | COUNT,
    results=st.dictionaries(TEXT, one(ResultStatus), max_size=2),
    answers=st.none() | some(st.sampled_from(Answer)),
    events=some(st.sampled_from(sorted(EVENT_TYPES))),
    dropped=st.none() | TEXTS,
    said=st.dictionaries(TEXT, TEXTS, max_size=2),
    context_has=TEXTS,
    context_lacks=TEXTS,
    violations=some(one(Law)),
)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    virtual = draw(st.booleans())
    scenario = Scenario(
        title=draw(TEXT),
        wire=draw(one(Wire)),
        virtual=virtual,
        limit_seconds=draw(st.floats(0.1, LONGEST)),
        design=draw(TEXT),
        session=draw(SESSION),
        users=draw(some(st.builds(User, TEXT))),
        replies=draw(some(SAID | FAILED)),
        scripts=draw(st.lists(SCRIPT, max_size=3, unique_by=lambda script: script.name).map(tuple)),
        acts=draw(some(acts(WHEN) | acts(SITE) if virtual else acts(WHEN))),
        tools=draw(TOOLS),
        expect=draw(EXPECT),
    )
    ids = [call.id for reply in scenario.replies for call in reply.calls]
    if ids:
        named = draw(st.sampled_from([ROOT, *ids]))
        scenario = attrs.evolve(scenario, users=(User("child", session=named), *scenario.users))
    return scenario


@given(scenarios())
def test_a_scenario_written_back_is_the_same(scenario: Scenario) -> None:
    assert loads(dumps(scenario)) == scenario


@pytest.mark.parametrize("name", names())
def test_a_built_in_scenario_written_back_is_the_same(name: str) -> None:
    scenario = load_builtin(name)
    assert loads(dumps(scenario)) == scenario


def test_what_has_its_default_is_left_out() -> None:
    assert dumps(Scenario()) == "\n"
    assert dumps(Scenario(title="x", users=(User("hello"),))) == 'title = "x"\n\n[[user]]\ntext = "hello"\n'


def test_a_recorded_reply_is_written_by_its_absolute_path(tmp_path: Path) -> None:
    (tmp_path / "it.sse").write_bytes(b"\x00\xff")
    (tmp_path / "it.toml").write_text('[[reply]]\nraw = "it.sse"\n')
    scenario = load(tmp_path / "it.toml")
    (tmp_path / "elsewhere").mkdir()
    copy = tmp_path / "elsewhere" / "copy.toml"
    copy.write_text(dumps(scenario))
    assert load(copy) == scenario


def test_a_recording_without_a_file_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="recorded"):
        dumps(Scenario(replies=(ScenarioReply(raw=b"x"),)))
