"""What one value of a scenario can't say alone: keys that contradict each other or mean nothing. Pure.

Each check gets what was made of a table and the keys that stood in it, and raises `Problem`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from turnkernel.events import EVENT_TYPES
from turnkernel.testing.replies import ReplyCall
from turnkernel.wording import WORDINGS

from .plain import quoted
from .scenario import ROOT, Act, Expect, Scenario, ScenarioReply, SessionTable, ToolScript
from .values import Problem, did_you_mean, known_ones, shown

__all__ = ["CHECKS", "REAL_TOOLS", "check_scenario", "check_speaks"]

REAL_TOOLS = (
    "bash", "read_file", "write_file", "edit_file", "ask_user", "task_list", "task_output", "task_stop", "agent",
    "send_to_task",
)  # fmt: skip
"""The tools of a run that are not scripted."""

_OF_CALLS = ("emit", "checkpoint", "ask", "block", "spawn")
"""Actions that a task can't do."""

_SAID = ("thinking", "text", "calls", "stop")
_ASKS = ("allow", "allow_always", "deny", "deny_stop", "dismiss", "answer")
_MEANT_BY: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(_ASKS, ("ask", "call")),
    "withdraw": ("item",),
    "cancel_call": ("call",),
    "stop_task": ("task", "call"),
}
"""What the target of a verb can be; without `target` the event must have one of these fields."""
_NEEDS_TEXT = ("replace", "steer", "send", "answer")
_ONLY_FOR: Mapping[str, tuple[str, ...]] = {
    "target": tuple(_MEANT_BY),
    "text": (*_NEEDS_TEXT, "deny", "deny_stop"),
    "keep_inbox": ("cancel",),
    "bytes": ("kill",),
    "lose": ("kill",),
    "op": ("disk_full", "disk_error"),
    "lasting": ("disk_full", "disk_error"),
}
"""Keys of an act that mean something for these verbs only."""


def check_call(call: ReplyCall, keys: frozenset[str]) -> None:
    """A call says its input once."""
    if {"input", "raw_input"} <= keys:
        raise Problem('has both "input" and "raw_input"')


def check_reply(reply: ScenarioReply, keys: frozenset[str]) -> None:
    """A reply says one thing: words, a recording, or a body."""
    said = [key for key in _SAID if key in keys]
    for other in ("raw", "body"):
        if said and other in keys:
            raise Problem(f'has both "{other}" and "{said[0]}"')
    if {"raw", "body"} <= keys:
        raise Problem('has both "raw" and "body"')
    if reply.status != 200 and reply.status < 400:
        raise Problem(f"must be 200 or an HTTP error, not {reply.status}", "status")
    streams = [*said, *(key for key in ("raw", "fault") if key in keys)]
    if streams and reply.status != 200:
        raise Problem(f'has both an error status ({reply.status}) and "{streams[0]}"')
    if reply.after_bytes is not None and reply.fault is None:
        raise Problem('"after_bytes" means nothing without "fault"')


def check_script(script: ToolScript, keys: frozenset[str]) -> None:
    """What ends a tool is its last action, and a cleanup does not end it."""
    if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", script.name) is None:
        raise Problem(f"must be 1 to 64 letters, digits, _ and -, not {shown(script.name)}", "name")
    for place, action in enumerate(script.does[:-1]):
        if action.verb in ("result", "raise"):
            raise Problem(f"comes after {quoted(action.verb)}, so it would never be done", "does", place + 1)
    for place, action in enumerate(script.on_cancel):
        if action.verb in ("result", "swallow"):
            raise Problem(f"{quoted(action.verb)} has no meaning in a cleanup", "on_cancel", place)
    _check_spawn(script)


def _check_spawn(script: ToolScript) -> None:
    """What follows a spawn is a task's work, and so may be the cleanup: it shows nothing and asks nobody."""
    tasks = [place for place, action in enumerate(script.does) if action.value in ("session", "detached")]
    first = next((place for place in tasks if script.does[place].verb == "spawn"), None)
    if first is None:
        return
    after = [("does", place, action) for place, action in enumerate(script.does) if place > first]
    after += [("on_cancel", place, action) for place, action in enumerate(script.on_cancel)]
    for key, place, action in after:
        if action.verb in _OF_CALLS:
            raise Problem(f"{quoted(action.verb)} is for calls, and what follows a spawn is a task", key, place)


def check_act(act: Act, keys: frozenset[str]) -> None:
    """An act says when it happens once, and nothing that its verb has no use for."""
    if ("on" in keys) == ("site" in keys):
        raise Problem('needs either "on" or "site"' + ("" if "on" not in keys else ", not both"))
    for key in ("where", "nth"):
        if key in keys and act.on is None:
            raise Problem(f'"{key}" means nothing without "on"')
    for key, verbs in _ONLY_FOR.items():
        if key in keys and act.do not in verbs:
            raise Problem(f'"{key}" means nothing for "{act.do}"')
    if act.do in _NEEDS_TEXT and act.text is None:
        raise Problem(f'"{act.do}" needs "text"')
    if "gap" in keys and act.times == 1:
        raise Problem('"gap" means nothing without "times"')
    fields = _event_fields(act.on, "on") if act.on is not None else ()
    for key in act.where:
        if key not in fields:
            raise Problem(f"{act.on} has no field {quoted(key)}{known_ones(key, fields)}", "where")
    meant = _MEANT_BY.get(act.do, ())
    if meant and act.target is None and not set(meant) & set(fields):
        raise Problem(f'"{act.do}" needs "target": ' + (f"{act.on} has no {meant[0]}" if act.on else "no event"))


def check_session(session: SessionTable, keys: frozenset[str]) -> None:
    """The wording exists."""
    if session.wording not in WORDINGS:
        known = ", ".join(WORDINGS)
        hint = did_you_mean(session.wording, WORDINGS)
        raise Problem(f"must be one of {known}, not {quoted(session.wording)}{hint}", "wording")


def check_expect(expect: Expect, keys: frozenset[str]) -> None:
    """The events exist."""
    for place, name in enumerate(expect.events):
        _event_fields(name, "events", place)


def _event_fields(name: str, *path: str | int) -> Sequence[str]:
    if name not in EVENT_TYPES:
        raise Problem(f"unknown event type {quoted(name)}{known_ones(name, EVENT_TYPES)}", *path)
    return ("seq", "epoch", *(field.name for field in attrs.fields(EVENT_TYPES[name])))


CHECKS: Mapping[type[Any], Callable[[Any, frozenset[str]], None]] = {
    ReplyCall: check_call,
    ScenarioReply: check_reply,
    ToolScript: check_script,
    Act: check_act,
    SessionTable: check_session,
    Expect: check_expect,
}
"""The check of each table that has one."""


def check_scenario(scenario: Scenario) -> None:
    """What tables say of each other."""
    scripted = [script.name for script in scenario.scripts]
    for place, name in enumerate(scripted):
        if name in scripted[:place]:
            raise Problem(f"there is a tool {quoted(name)} already", "tool", place, "name")
    for key, names in (
        ("approve", scenario.tools.approve),
        ("block", tuple(scenario.tools.block)),
        ("rewrite", tuple(scenario.tools.rewrite)),
    ):
        for name in names:
            if name not in scripted and name not in REAL_TOOLS:
                hint = known_ones(name, (*scripted, *REAL_TOOLS))
                raise Problem(f"there is no tool {quoted(name)}{hint}", "tools", key)
    _check_sessions(scenario)
    if scenario.virtual:
        _check_virtual(scenario, scripted)
    for place, act in enumerate(scenario.acts):
        if act.site is not None and not scenario.virtual:
            raise Problem('is for runs with "virtual = true" only', "act", place, "site")


def check_speaks(scenario: Scenario) -> None:
    """Somebody says something, or nothing would be played."""
    speaks = any(act.do in ("send", "steer", "replace") for act in scenario.acts)
    if not speaks and not any(user.session == ROOT for user in scenario.users):
        raise Problem("nobody says anything, so nothing would happen: it needs a [[user]] with a text")


def _check_virtual(scenario: Scenario, scripted: list[str]) -> None:
    for place, reply in enumerate(scenario.replies):
        for number, call in enumerate(reply.calls):
            if call.name in REAL_TOOLS and call.name not in scripted:
                reason = f"{quoted(call.name)} is a real tool; a virtual run has scripted ones only"
                raise Problem(reason, "reply", place, "calls", number)


def _check_sessions(scenario: Scenario) -> None:
    """A child session's name is its call's id, or begins with it where the kernel had to make the id unique."""
    calls = [call.id for reply in scenario.replies for call in reply.calls]
    if "" in calls or any(reply.raw is not None for reply in scenario.replies):
        return  # a call may then have any id
    for key, said in (("user", scenario.users), ("reply", scenario.replies), ("act", scenario.acts)):
        for place, one in enumerate(said):
            name = one.session
            if name != ROOT and not any(name == call or name.startswith(f"{call}_") for call in calls):
                reason = f"there is no session {quoted(name)}{known_ones(name, (ROOT, *calls))}"
                raise Problem(reason, key, place, "session")
