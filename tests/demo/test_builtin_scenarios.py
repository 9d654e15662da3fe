"""The built-in scenarios are sound, say what they show, and cover every kind of interrupt."""

import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

from turnkernel_demo.builtin import TOUR, find, load_builtin, names, scenarios
from turnkernel_demo.load import ScenarioError, with_options
from turnkernel_demo.plain import cell_width
from turnkernel_demo.scenario import Scenario

ALL = {name: load_builtin(name) for name in names()}


def text_of(name: str) -> str:
    return (files("turnkernel_demo") / "scenarios" / f"{name}.toml").read_text("utf-8")


@pytest.mark.parametrize("name", names())
def test_a_built_in_scenario_says_what_it_shows(name: str) -> None:
    text, scenario = text_of(name), ALL[name]
    assert text.startswith("# ")
    assert 10 < cell_width(scenario.title) <= 80
    assert scenario.users
    assert scenario.expect.events
    assert scenario.expect.requests is not None or scenario.expect.outcomes is not None
    assert "expect" in tomllib.loads(text)


@pytest.mark.parametrize("name", names())
def test_a_built_in_scenario_expects_nothing_of_calls_that_nobody_makes(name: str) -> None:
    scenario = ALL[name]
    calls = [call.id for reply in scenario.replies for call in reply.calls]
    assert len(calls) == len(set(calls))
    assert {*scenario.expect.results, *scenario.expect.said} <= set(calls)
    assert {act.where["call"] for act in scenario.acts if "call" in act.where} <= set(calls)


@pytest.mark.parametrize("name", names())
def test_a_built_in_scenario_can_be_played_on_every_wire(name: str) -> None:
    # A recording belongs to one wire; none of these has one.
    assert all(reply.raw is None for reply in ALL[name].replies)
    for wire in ("anthropic", "openai-chat", "openai-responses"):
        assert with_options(ALL[name], name, wire=wire).wire == wire


@pytest.mark.parametrize("name", [name for name, scenario in ALL.items() if not scenario.virtual])
def test_a_real_run_is_asked_for_its_survivors(name: str) -> None:
    expect = ALL[name].expect
    thread = any(script.isolation == "thread" for script in ALL[name].scripts)
    assert expect.survivors == (None if thread else 0)


def test_only_the_truncating_recovery_may_break_a_law() -> None:
    broken = {name: scenario.expect.violations for name, scenario in ALL.items() if scenario.expect.violations}
    assert broken == {"kill-in-a-tool-truncated": ("L7",)}


def test_the_tour_plays_the_same_crash_twice() -> None:
    crash, truncated = ALL[TOUR[1]], ALL[TOUR[2]]
    assert (crash.session.recovery, truncated.session.recovery) == ("append", "truncate")
    assert crash.users == truncated.users
    assert crash.acts == truncated.acts
    assert crash.replies[:2] == truncated.replies[:2]


def test_every_kind_of_interrupt_is_there() -> None:
    verbs = {act.do for scenario in ALL.values() for act in scenario.acts}
    assert verbs >= {
        "cancel", "replace", "steer", "send", "cancel_call", "stale_cancel", "host_cancel", "allow_always", "deny",
        "deny_stop", "dismiss", "answer", "kill", "terminate", "interrupt", "stop_task", "stop_all",
    }  # fmt: skip
    assert {reply.fault for scenario in ALL.values() for reply in scenario.replies} >= {
        "reset", "cut", "stall", "overloaded",
    }  # fmt: skip
    outcomes = {outcome for scenario in ALL.values() for outcome in scenario.expect.outcomes or ()}
    assert outcomes == {"completed", "aborted", "failed", "max_steps", "refused", "interrupted"}
    results = {status for scenario in ALL.values() for status in scenario.expect.results.values()}
    assert results >= {
        "ok", "error", "not_started", "stopped", "unknown", "withdrawn", "denied", "dismissed", "timed_out",
        "blocked", "output_limit",
    }  # fmt: skip


def test_every_kind_of_background_work_is_there() -> None:
    calls = [call for scenario in ALL.values() for reply in scenario.replies for call in reply.calls]
    background = [call.name for call in calls if (call.input or {}).get("background")]
    assert {*background} == {"bash", "agent"}
    assert {call.name for call in calls} >= {"agent", "send_to_task", "task_stop"}
    assert {scenario.tools.background for scenario in ALL.values()} == {"session", "detached"}
    deadly = {"kill", "terminate"}
    for name in ("task/started", "agent"):
        struck = [
            {act.do for act in scenario.acts}
            for scenario in ALL.values()
            if name in scenario.expect.events
            or any(name == call.name for r in scenario.replies for call in r.calls)
        ]
        assert any(deadly & verbs for verbs in struck), name
        assert any({"cancel", "interrupt"} & verbs for verbs in struck), name


def test_the_list_begins_with_the_tour() -> None:
    listed = scenarios()
    assert tuple(item.name for item in listed[:3]) == TOUR
    assert sorted(item.name for item in listed) == sorted(ALL)
    assert [item.title for item in listed] == [ALL[item.name].title for item in listed]


def test_a_word_of_the_command_line_is_a_name_or_a_path(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('title = "mine"')
    assert find("esc-in-a-long-tool") == ALL["esc-in-a-long-tool"]
    assert find(str(tmp_path / "mine.toml")) == Scenario(title="mine")
    said: list[str] = []
    for word in ("esc-in-a-long-tol", "zzz", str(tmp_path / "no.toml")):
        with pytest.raises(ScenarioError) as caught:
            find(word)
        said.append(str(caught.value))
    assert said == [
        "esc-in-a-long-tol: no such file, and no built-in scenario of that name"
        ' (did you mean "esc-in-a-long-tool"?)',
        "zzz: no such file, and no built-in scenario of that name; `kernel-demo list` shows those",
        f"{tmp_path / 'no.toml'}: No such file or directory",
    ]


def test_a_built_in_scenario_that_does_not_exist_is_told() -> None:
    with pytest.raises(ScenarioError) as caught:
        load_builtin("refusl")
    assert str(caught.value) == 'refusl: there is no such built-in scenario (did you mean "refusal"?)'
