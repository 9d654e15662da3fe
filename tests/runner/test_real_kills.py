"""The real thing: a kernel with real tools kills itself before, half-way through and after each write of its log.

The effects of its tools are counted, outside of the log: a call never has one twice, and none where the log says
that it did not start. In CI the kills are taken in strides, on both wires in turn; TURNKERNEL_LONG=1 takes all of
them on both, which is a thousand runs and most of an hour. Laws: L3, L4, L6, L7, L8.
"""

import os
from collections import Counter
from pathlib import Path

import attrs
import pytest
from tests.runner.conftest import AFTERWARDS, Came, kill, play_real

from turnkernel.codec import encode

LONG = bool(os.environ.get("TURNKERNEL_LONG"))
WIRES = ("anthropic", "openai-chat")

COMMANDS = """
[[user]]
text = "Do both."

[[reply]]
text = "Both."
calls = [
  { id = "c1", name = "bash", input = { command = "echo c1 | tee -a effects" } },
  { id = "c2", name = "bash", input = { command = "echo c2 | tee -a effects" } },
]

[[reply]]
text = "Done."
"""

FILES_AND_ASKS = """
[[user]]
text = "Do it all."

[[reply]]
text = "Files."
calls = [
  { id = "c1", name = "write_file", input = { path = "made", content = "c1\\n" } },
  { id = "c2", name = "edit_file", input = { path = "effects", old = "begin\\n", new = "begin\\nc2\\n" } },
]

[[reply]]
text = "The rest."
calls = [
  { id = "c3", name = "ask_user", input = { question = "Which?", options = ["this", "that"] } },
  { id = "c4", name = "bash", input = { command = "echo c4 | tee -a effects" } },
]

[[reply]]
text = "Done."

[tools]
approve = ["bash"]
approver = "script"

[[act]]
on = "ask/opened"
where = { call = "c3" }
do = "answer"
text = "this"

[[act]]
on = "ask/opened"
where = { call = "c4" }
do = "allow"
"""

STORIES = {"commands": COMMANDS, "files and asks": FILES_AND_ASKS}


@attrs.frozen
class Kill:
    """One death."""

    on: str
    nth: int
    how: str
    act: str
    last: bool
    """Whether nobody speaks after it."""

    def __str__(self) -> str:
        return f"{self.how} {self.on} {self.nth}"


def story(name: str, wire: str) -> str:
    return f'wire = "{wire}"\n' + STORIES[name] + AFTERWARDS


def played(text: str, folder: Path) -> Came:
    effects = folder / "scratch" / "effects"
    effects.parent.mkdir(parents=True)
    effects.write_text("begin\n")
    return play_real(text, folder)


def kills(came: Came) -> list[Kill]:
    """Every death at a record of a run that was not killed."""
    found: list[Kill] = []
    counts: Counter[str] = Counter()
    last = [record.seq for record in came.records if record.event.type == "inbox/queued"][-1]
    for record in came.records:
        on, size = record.event.type, len(encode(record))
        counts[on] += 1
        hows = {
            "before": "bytes = 0",
            "half-way through": f"bytes = {size // 2}",
            "after": "",
            "power cut after": 'lose = "unflushed"',
        }
        found += [Kill(on, counts[on], how, act, record.seq > last) for how, act in hows.items()]
    return found


def strided(all_of_them: list[Kill], name: str) -> list[Kill]:
    """Some of everything: records and ways to die take turns. Of deltas, the first."""
    stride, first = 11, {"commands": 0, "files and asks": 3}[name]
    few = [one for one in all_of_them if one.on != "model/delta" or one.nth == 1]
    return few[first::stride]


@pytest.mark.law("L3", "L4", "L6", "L7", "L8")
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("name", STORIES)
def test_a_kernel_that_is_killed_does_nothing_twice_and_forgets_nothing(name, wire, tmp_path, capsys):
    whole = played(story(name, wire), tmp_path / "whole")
    assert whole.ok, whole.unmet
    assert set(whole["results"].values()) == {"ok"}
    check_effects(whole, tmp_path / "whole", "no kill")
    chosen = kills(whole)
    if not LONG:
        chosen = strided(chosen, name)[WIRES.index(wire) :: 2]
    for place, one in enumerate(chosen):
        folder = tmp_path / str(place)
        came = played(story(name, wire) + kill(one.on, f"nth = {one.nth}", one.act), folder)
        assert came.laws == set(), one
        assert came.answers.count("killed") == 1, one
        # What comes after its death may never come, and then nobody answers.
        assert [line for line in came.unmet if "never fired" not in line] == [], one
        assert came["survivors"] == [], one
        assert came["outcomes"][-1] in (("completed", "interrupted") if one.last else ("completed",)), one
        check_effects(came, folder, one)
        if LONG and place % 20 == 0:
            with capsys.disabled():
                print(f"\n{name} on {wire}: {place + 1} of {len(chosen)} kills")
    with capsys.disabled():
        print(f"\n{name} on {wire}: killed {len(chosen)} times of {len(kills(whole))}, no effect twice")


def check_effects(came: Came, folder: Path, one: object) -> None:
    scratch = folder / "scratch"
    ran = Counter((scratch / "effects").read_text().split())
    ran["c1"] += (scratch / "made").exists()
    assert ran.pop("begin") == 1
    for call, status in came["results"].items():
        if call == "c3":
            continue  # a question has no effect that could be counted
        if status == "ok":
            assert ran[call] == 1, f"{one}: the log says that {call} ran, and it did not, or twice"
        elif status == "unknown":
            assert ran[call] <= 1, f"{one}: {call} ran twice"
        else:
            assert ran[call] == 0, f"{one}: the log says {status} of {call}, and it ran"
        ran.pop(call, None)
    assert +ran == Counter(), f"{one}: the log says nothing of what ran"
    messages = [one["content"] for one in came["context"]["messages"] if one["role"] == "user"]
    for user in came.played.scenario.users:
        assert str(messages).count(user.text) == 1, one


SURVIVES = """
[[user]]
text = "Do it."

[[reply]]
calls = [{ id = "c1", name = "stuck" }]

[[tool]]
name = "stuck"
isolation = "thread"
does = [{ emit = "x" }, { block = 1.5 }]

[tools]
grace_seconds = 0.1

[[act]]
on = "tool/output"
do = "cancel"
times = 2
gap = 0.1
"""


@pytest.mark.parametrize(("wire", "how"), [("anthropic", "bytes = 40"), ("openai-chat", "")])
def test_a_kernel_that_is_killed_at_a_survivor_of_its_turn_is_recovered(wire, how, tmp_path):
    came = played(f'wire = "{wire}"\n' + SURVIVES + AFTERWARDS + kill("turn/survivor", how), tmp_path)
    assert came.laws == set()
    assert came.answers == ["applied", "repeated", "killed"]
    assert came["outcomes"] == ["interrupted", "completed"]


@pytest.mark.law("L8")
def test_without_syncs_a_kill_loses_nothing_either(tmp_path):
    text = '[session]\ndurability = "process"\n' + COMMANDS + AFTERWARDS + kill("tool/result")
    came = played(text, tmp_path)
    assert came.laws == set()
    check_effects(came, tmp_path, "no syncs")
