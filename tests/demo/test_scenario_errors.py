"""Every wrong thing in a scenario file is one clear line that names file, table and key."""

import copy
import tomllib
import unicodedata
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkernel_demo.builtin import names
from turnkernel_demo.dump import toml
from turnkernel_demo.load import ScenarioError, load, loads, with_options
from turnkernel_demo.scenario import Scenario, ScenarioReply
from turnkernel_demo.values import Problem, exception_of

ACT = '[[act]]\non = "tool/start"\ndo = "{}"\n'
CALLS = "[[reply]]\ncalls = [{{ id = 'c', name = 'x', {} }}]\n"
RESULTS = (
    "ok, error, not_started, stopped, unknown, withdrawn, denied, dismissed, timed_out, blocked, no_approver, "
    "output_limit"
)

BAD = [
    # unknown and missing keys, at every depth
    ('titel = "x"', 'unknown key "titel" (did you mean "title"?)'),
    ('[session]\nmax_step = 3', '[session]: unknown key "max_step" (did you mean "max_steps"?)'),
    ('[[user]]\ntext = "a"\n[[user]]\ntxt = "b"', '[[user]] 2: unknown key "txt" (did you mean "text"?)'),
    ('[[act]]\nwhn = 1', '[[act]] 1: unknown key "whn" (did you mean "where"?)'),
    ("[[user]]\nzzz = 1", '[[user]] 1: unknown key "zzz"; there are text, session'),
    ('[[reply]]\nraw_file = "x"', '[[reply]] 1: unknown key "raw_file" (did you mean "raw"?)'),
    ("users = []", 'unknown key "users" (did you mean "user"?)'),
    (CALLS.format("inptu = {}"), '[[reply]] 1: calls 1: unknown key "inptu" (did you mean "input"?)'),
    ('"a\\u001b[2J\\n" = 1', 'unknown key "a\\x1b[2J\\n"; there are title, wire, virtual,'
     " limit_seconds, design, session, user, reply, tool, act, tools, expect"),
    ("[[user]]", '[[user]] 1: the key "text" is missing'),
    ('[[reply]]\ncalls = [{ id = "c" }]', '[[reply]] 1: calls 1: the key "name" is missing'),
    ('[[act]]\non = "turn/end"', '[[act]] 1: the key "do" is missing'),
    # types are taken at their word
    ("title = 3", "title: must be a text, not 3"),
    ("virtual = 1", "virtual: must be true or false, not 1"),
    ("[session]\nmax_steps = true", "[session]: max_steps: must be a whole number, not true"),
    ("[session]\nmax_steps = 2.0", "[session]: max_steps: must be a whole number, not 2.0"),
    ("[session]\nretries = 1e400", "[session]: retries: must be a whole number, not inf"),
    ("limit_seconds = true", "limit_seconds: must be a number, not true"),
    ('limit_seconds = "60"', 'limit_seconds: must be a number, not "60"'),
    ("limit_seconds = nan", "limit_seconds: must be a finite number, not nan"),
    ("[session]\nturn_seconds = inf", "[session]: turn_seconds: must be a finite number, not inf"),
    ("limit_seconds = 0x" + "f" * 400, "limit_seconds: must be a finite number, not a number that large"),
    ("session = 3", "[session]: must be a table, not 3"),
    ('[user]\ntext = "x"', "[[user]]: must be an array, not a table"),
    ('user = "x"', '[[user]]: must be an array, not "x"'),
    ('user = ["x"]', '[[user]] 1: must be a table, not "x"'),
    ("[[user]]\ntext = 1979-05-27", "[[user]] 1: text: must be a text, not a date or time"),
    ('[expect]\nsaid = { c = "x" }', '[expect]: said: c: must be an array, not "x"'),
    ("[expect]\ncontext_has = [1]", "[expect]: context_has 1: must be a text, not 1"),
    ("[[reply]]\nheaders = { a = 1 }", "[[reply]] 1: headers: a: must be a text, not 1"),
    ("[[reply]]\nstatus = 500\nbody = 3", "[[reply]] 1: body: must be a text or a table, not 3"),
    (
        CALLS.format("input = { a = [1, { b = 07:32:00 }] }"),
        "[[reply]] 1: calls 1: input: a 2: b: must be what JSON can hold, not a date or time",
    ),
    (f'virtual = "{"y" * 99}"', f'virtual: must be true or false, not "{"y" * 38}…'),
    # what follows a spawn is a task
    ('[[tool]]\nname = "a"\ndoes = [{ spawn = "session" }, { emit = "x" }]',
     '[[tool]] 1: does 2: "emit" is for calls, and what follows a spawn is a task'),
    ('[[tool]]\nname = "a"\ndoes = [{ spawn = "detached" }, { sleep = 1 }]\non_cancel = [{ emit = "x" }]',
     '[[tool]] 1: on_cancel 1: "emit" is for calls, and what follows a spawn is a task'),
    # bounds
    ("limit_seconds = -1", "limit_seconds: must be at least 0.1, not -1"),
    ("limit_seconds = 0.0001", "limit_seconds: must be at least 0.1, not 0.0001"),
    ("limit_seconds = 1e300", "limit_seconds: must be at most 604800, not 1e+300"),
    ("[session]\nturn_seconds = 0", "[session]: turn_seconds: must be at least 0.001, not 0"),
    ("[session]\nsilence_seconds = 0", "[session]: silence_seconds: must be at least 0.001, not 0"),
    ("[session]\nmax_steps = 0", "[session]: max_steps: must be at least 1, not 0"),
    ("[session]\nretries = 1000000001", "[session]: retries: must be at most 1000000000, not 1000000001"),
    ("[session]\nbackoff_seconds = 1e9", "[session]: backoff_seconds: must be at most 604800, not 1000000000.0"),
    ("[tools]\ngrace_seconds = 1e9", "[tools]: grace_seconds: must be at most 604800, not 1000000000.0"),
    ('[[tool]]\nname = "a"\ntimeout = 0', "[[tool]] 1: timeout: must be at least 0.001, not 0"),
    ('[[tool]]\nname = "a"\ndoes = [{ block = 1e300 }]',
     "[[tool]] 1: does 1: block: must be at most 604800, not 1e+300"),
    ("[[reply]]\npace = 1e300", "[[reply]] 1: pace: must be at most 604800, not 1e+300"),
    (ACT.format("cancel") + "times = 0", "[[act]] 1: times: must be at least 1, not 0"),
    (ACT.format("cancel") + "times = 2\ngap = -1", "[[act]] 1: gap: must be at least 0, not -1"),
    ("[[reply]]\npace = -0.5", "[[reply]] 1: pace: must be at least 0, not -0.5"),
    ("[[reply]]\npiece_bytes = 0", "[[reply]] 1: piece_bytes: must be at least 1, not 0"),
    ("[[reply]]\nstatus = 99", "[[reply]] 1: status: must be at least 200, not 99"),
    ("[[reply]]\nstatus = 900", "[[reply]] 1: status: must be at most 599, not 900"),
    (ACT.format("cancel") + "nth = 0", "[[act]] 1: nth: must be at least 1, not 0"),
    (ACT.format("cancel") + "delay = -1", "[[act]] 1: delay: must be at least 0, not -1"),
    ("[expect]\nrequests = -1", "[expect]: requests: must be at least 0, not -1"),
    # one of a few words
    ('wire = "antropic"', 'wire: must be one of anthropic, openai-chat, openai-responses, not "antropic"'
     ' (did you mean "anthropic"?)'),
    ("wire = 3", "wire: must be one of anthropic, openai-chat, openai-responses, not 3"),
    ('[session]\nwording = "ters"', '[session]: wording: must be one of default, terse, not "ters"'
     ' (did you mean "terse"?)'),
    ('[[reply]]\nstop = "cut"', "[[reply]] 1: stop: must be one of end_turn, tool_use, max_tokens, refusal,"
     ' pause_turn, not "cut"'),
    ('[[reply]]\nfault = "rest"', "[[reply]] 1: fault: must be one of reset, cut, eof, stall, overloaded, not"
     ' "rest" (did you mean "reset"?)'),
    ('[expect]\nresults = { c = "stoped" }', f'[expect]: results: c: must be one of {RESULTS}, not "stoped"'
     ' (did you mean "stopped"?)'),
    ('[expect]\nanswers = ["applied", "aplied"]', "[expect]: answers 2: must be one of applied, repeated, idle,"
     ' stale, not "aplied" (did you mean "applied"?)'),
    # replies
    (CALLS.format('input = {}, raw_input = ""'), '[[reply]] 1: calls 1: has both "input" and "raw_input"'),
    ('[[reply]]\nraw = "no.sse"\ntext = "x"', '[[reply]] 1: has both "raw" and "text"'),
    ('[[reply]]\nraw = "no.sse"', '[[reply]] 1: raw: "no.sse": No such file or directory'),
    ('[[reply]]\nraw = "no.sse"\nbody = "x"', '[[reply]] 1: has both "raw" and "body"'),
    ('[[reply]]\nbody = "x"\nthinking = "y"', '[[reply]] 1: has both "body" and "thinking"'),
    ('[[reply]]\nstatus = 503\ntext = "x"', '[[reply]] 1: has both an error status (503) and "text"'),
    ('[[reply]]\nstatus = 503\nfault = "cut"', '[[reply]] 1: has both an error status (503) and "fault"'),
    ("[[reply]]\nstatus = 302", "[[reply]] 1: status: must be 200 or an HTTP error, not 302"),
    ('[[reply]]\ntext = "x"\nafter_bytes = 3', '[[reply]] 1: "after_bytes" means nothing without "fault"'),
    # tools
    ('[[tool]]\nname = "a b"', '[[tool]] 1: name: must be 1 to 64 letters, digits, _ and -, not "a b"'),
    ('[[tool]]\nname = "a"\n[[tool]]\nname = "a"', '[[tool]] 2: name: there is a tool "a" already'),
    ('[[tool]]\nname = "a"\ndoes = [{ slep = 1 }]', '[[tool]] 1: does 1: unknown action "slep"'
     ' (did you mean "sleep"?)'),
    ('[[tool]]\nname = "a"\ndoes = [{ emit = "x" }, { sleep = true }]',
     "[[tool]] 1: does 2: sleep: must be a number, not true"),
    ('[[tool]]\nname = "a"\ndoes = [{ emit = "x", sleep = 1 }]',
     "[[tool]] 1: does 1: must be a table of one key, not of 2"),
    ('[[tool]]\nname = "a"\ndoes = [{ spawn = "forever" }]',
     '[[tool]] 1: does 1: spawn: must be one of call, turn, session, detached, not "forever"'),
    ('[[tool]]\nname = "a"\ndoes = [{ swallow = false }]', "[[tool]] 1: does 1: swallow: must be true, not false"),
    ('[[tool]]\nname = "a"\ndoes = [{ raise = "SystemExit: x" }]', "[[tool]] 1: does 1: raise: must be a built-in"
     ' exception and its text, like "ValueError: x", not "SystemExit: x"'),
    ('[[tool]]\nname = "a"\ndoes = [{ raise = "UnicodeDecodeError: x" }]', "[[tool]] 1: does 1: raise: must be an"
     " exception that can be made from one text, not UnicodeDecodeError"),
    ('[[tool]]\nname = "a"\ndoes = [{ checkpoint = { a = [1, nan] } }]',
     "[[tool]] 1: does 1: checkpoint: a 2: must be a finite number, not nan"),
    ('[[tool]]\nname = "a"\ndoes = [{ checkpoint = 18446744073709551616 }]',
     "[[tool]] 1: does 1: checkpoint: must fit in 64 bits, not a number that large"),
    ('[[tool]]\nname = "a"\ndoes = [{ result = "x" }, { sleep = 1 }]',
     '[[tool]] 1: does 2: comes after "result", so it would never be done'),
    ('[[tool]]\nname = "a"\non_cancel = [{ swallow = true }]',
     '[[tool]] 1: on_cancel 1: "swallow" has no meaning in a cleanup'),
    ('[tools]\napprove = ["bsah"]', '[tools]: approve: there is no tool "bsah" (did you mean "bash"?)'),
    ('[tools]\nblock = { qqq = "x" }', '[tools]: block: there is no tool "qqq"; there are bash, read_file,'
     " write_file, edit_file, ask_user, task_list, task_output, task_stop, agent, send_to_task"),
    ('[[tool]]\nname = "x"\n[tools]\nrewrite = { qqq = {} }',
     '[tools]: rewrite: there is no tool "qqq"; there are x, bash, read_file, write_file, edit_file,'
     " ask_user, task_list, task_output, task_stop, agent, send_to_task"),
    # acts
    ('[[act]]\ndo = "cancel"', '[[act]] 1: needs either "on" or "site"'),
    ('[[act]]\non = "turn/end"\nsite = 3\ndo = "cancel"', '[[act]] 1: needs either "on" or "site", not both'),
    ('[[act]]\nsite = 3\ndo = "cancel"', '[[act]] 1: site: is for runs with "virtual = true" only'),
    ('virtual = true\n[[act]]\nsite = 3\nnth = 2\ndo = "cancel"', '[[act]] 1: "nth" means nothing without "on"'),
    ('[[act]]\non = "tool/strt"\ndo = "cancel"',
     '[[act]] 1: on: unknown event type "tool/strt" (did you mean "tool/start"?)'),
    (ACT.format("cancel") + 'where = { cal = "c" }',
     '[[act]] 1: where: tool/start has no field "cal" (did you mean "call"?)'),
    (ACT.format("steer"), '[[act]] 1: "steer" needs "text"'),
    (ACT.format("cancel") + 'text = "x"', '[[act]] 1: "text" means nothing for "cancel"'),
    (ACT.format("cancel") + 'target = "x"', '[[act]] 1: "target" means nothing for "cancel"'),
    (ACT.format("stop_all") + "keep_inbox = true", '[[act]] 1: "keep_inbox" means nothing for "stop_all"'),
    (ACT.format("terminate") + "bytes = 4", '[[act]] 1: "bytes" means nothing for "terminate"'),
    (ACT.format("kill") + 'op = "flush"', '[[act]] 1: "op" means nothing for "kill"'),
    (ACT.format("cancel") + "gap = 0.1", '[[act]] 1: "gap" means nothing without "times"'),
    ('[[act]]\non = "turn/start"\ndo = "cancel_call"',
     '[[act]] 1: "cancel_call" needs "target": turn/start has no call'),
    ('virtual = true\n[[act]]\nsite = 3\ndo = "allow"', '[[act]] 1: "allow" needs "target": no event'),
    # what the parts say of each other
    ('virtual = true\n[[reply]]\ncalls = [{ id = "c", name = "bash" }]',
     '[[reply]] 1: calls 1: "bash" is a real tool; a virtual run has scripted ones only'),
    ('[[user]]\ntext = "x"\nsession = "rot"',
     '[[user]] 1: session: there is no session "rot" (did you mean "root"?)'),
    ('[expect]\nevents = ["turn/end", "turn/en"]',
     '[expect]: events 2: unknown event type "turn/en" (did you mean "turn/end"?)'),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line"), BAD, ids=range(len(BAD)))
def test_every_wrong_file_gets_its_one_line(text: str, line: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        loads(text, "esc.toml", tmp_path)
    assert str(caught.value) == f"esc.toml: {line}"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("title = ", "line 1, at its end: "),
        ('title = "a"\n\n[[user]\n', "line 3, column 7: "),
        ('title = "\x01"', "line 1, column 10: "),
        ("limit_seconds = " + "9" * 5000, ""),
        ("title = " + "[" * 5000, "nested too deeply"),
    ],
    ids=range(5),
)
def test_what_is_no_toml_is_told_with_its_place(text: str, place: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        loads(text, "esc.toml")
    assert str(caught.value).startswith(f"esc.toml: {place}")
    assert len(str(caught.value)) > len("esc.toml: ")
    assert str(caught.value).splitlines() == [str(caught.value)]


def test_a_file_is_named_as_the_caller_named_it(tmp_path: Path) -> None:
    missing, folder, latin = tmp_path / "no.toml", tmp_path / "folder.toml", tmp_path / "latin.toml"
    folder.mkdir()
    latin.write_bytes('title = "é"'.encode("latin-1"))
    said: list[str] = []
    for path in (missing, folder, latin):
        with pytest.raises(ScenarioError) as caught:
            load(path)
        said.append(str(caught.value))
    assert said == [
        f"{missing}: No such file or directory",
        f"{folder}: Is a directory",
        f"{latin}: byte 9: not UTF-8",
    ]


def test_a_file_name_cannot_drive_the_terminal() -> None:
    with pytest.raises(ScenarioError) as caught:
        load(Path("/nowhere/\x1b[2J\n.toml"))
    assert str(caught.value) == "/nowhere/\\x1b[2J\\n.toml: No such file or directory"


def test_a_recording_is_read_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "recorded.sse").write_bytes(b"data: [DONE]\n\n")
    (tmp_path / "it.toml").write_text('[[reply]]\nraw = "recorded.sse"\npiece_bytes = 7\n')
    reply = load(tmp_path / "it.toml").replies[0]
    assert reply == ScenarioReply(raw=b"data: [DONE]\n\n", piece_bytes=7, raw_file=str(tmp_path / "recorded.sse"))


def test_an_empty_file_is_a_scenario_of_defaults() -> None:
    assert loads("") == Scenario()


def test_a_child_session_may_bear_an_id_that_the_kernel_made_unique() -> None:
    scenario = loads(
        '[[reply]]\ncalls = [{ id = "child", name = "agent", input = { prompt = "x" } }]\n'
        '[[reply]]\nsession = "child_2"\ntext = "y"\n'
    )
    assert scenario.replies[1].session == "child_2"


def test_the_options_of_the_command_line_are_checked_like_the_file() -> None:
    scenario = loads('[[user]]\ntext = "x"\n[[reply]]\ncalls = [{ id = "c", name = "bash" }]', "it.toml")
    assert with_options(scenario, "it.toml", wire="openai-chat").wire == "openai-chat"
    with pytest.raises(ScenarioError) as caught:
        with_options(scenario, "it.toml", virtual=True)
    assert str(caught.value) == (
        'it.toml: [[reply]] 1: calls 1: "bash" is a real tool; a virtual run has scripted ones only'
    )


@pytest.mark.parametrize("text", ["", 'title = "x"', '[[reply]]\ntext = "x"', ACT.format("cancel")])
def test_a_scenario_in_which_nobody_speaks_can_not_be_played(text: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        with_options(loads(text), "it.toml")
    assert str(caught.value).startswith("it.toml: nobody says anything, so nothing would happen")


def test_an_act_may_be_the_one_who_speaks() -> None:
    with_options(loads('[[act]]\non = "session/open"\ndo = "send"\ntext = "x"'), "it.toml")


def test_what_a_tool_raises_is_made_from_its_text() -> None:
    error = exception_of("OSError: the disk is gone: really")
    assert type(error) is OSError
    assert str(error) == "the disk is gone: really"
    with pytest.raises(Problem):
        exception_of("print")


SCENARIOS = files("turnkernel_demo") / "scenarios"
KEYS = """title wire virtual session user reply tool act tools expect text calls id name input does sleep emit on
do where nth site anthropic cancel tool/start bash root ok results outcomes raw body status"""
WORDS = st.sampled_from(KEYS.split())
VALUES: st.SearchStrategy[Any] = st.recursive(
    WORDS | st.text(max_size=5) | st.booleans() | st.integers() | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


SOUND = [tomllib.loads((SCENARIOS / f"{name}.toml").read_text("utf-8")) for name in names()]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container in a file with every key or place in it."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [(value, key) for key in keys] + [place for key in keys for place in places(value[key])]


@given(st.data())
def test_a_sound_file_with_one_thing_changed_loads_or_gets_one_line(data: st.DataObject) -> None:
    said = copy.deepcopy(data.draw(st.sampled_from(SOUND)))
    holder, key = data.draw(st.sampled_from(places(said)))
    if isinstance(holder, dict) and data.draw(st.booleans()):
        holder[data.draw(WORDS)] = holder.pop(key)
    else:
        holder[key] = data.draw(VALUES)
    try:
        loads(toml(said), "it.toml")
    except ScenarioError as error:
        line = str(error)
        assert line.startswith("it.toml: ")
        assert line.splitlines() == [line]
        assert not [char for char in line if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp")]


@given(st.text())
def test_whatever_is_no_toml_gets_one_line(text: str) -> None:
    try:
        loads(text, "it.toml")
    except ScenarioError as error:
        assert str(error).splitlines() == [str(error)]
