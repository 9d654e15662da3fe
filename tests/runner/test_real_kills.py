"""The real thing: a kernel with real tools kills itself at, before and inside each record, on both wires.

The effects of its tools are counted: a call never runs twice, and what the log says of it is true. In CI each kind
of record is met once, and those around an effect on both wires; TURNKERNEL_LONG=1 meets each in every way on both.
Laws: L3, L4, L6, L7, L8.
"""

import itertools
import os
from pathlib import Path

import pytest

LONG = bool(os.environ.get("TURNKERNEL_LONG"))

SCENARIO = """
title = "Killed while a tool has effects"
wire = "{wire}"

[session]
durability = "{durability}"

[[user]]
text = "Do both."

[[reply]]
text = "Both."
calls = [
  {{ id = "c1", name = "bash", input = {{ command = "echo one | tee -a effects" }} }},
  {{ id = "c2", name = "bash", input = {{ command = "echo two | tee -a effects" }} }},
]

[[reply]]
text = "Done."

[[user]]
text = "And now?"

[[reply]]
text = "All is well."

[[reply]]
text = "As I said."

[[reply]]
text = "Really."

[[act]]
on = "{on}"
do = "kill"
{how}
"""

EVENTS = [
    "session/open",
    "inbox/queued",
    "turn/start",
    "inbox/consumed",
    "step/start",
    "model/delta",
    "model/message",
    "tool/call",
    "tool/start",
    "tool/output",
    "tool/result",
    "step/end",
    "turn/end",
    "session/close",
]
WIRES = ["anthropic", "openai-chat"]
HOWS = {
    "before it": "bytes = 0",
    "half-way": "bytes = 40",
    "after it": "",
    "after it, power cut": 'lose = "unflushed"',
    "after the second": "nth = 2",
}
ALL = list(itertools.product(WIRES, EVENTS, HOWS))
# Each kind of record once, wires and kinds of death taking turns; those around an effect on both wires.
SOME = [(WIRES[place % 2], on, list(HOWS)[place % 4]) for place, on in enumerate(EVENTS)] + [
    (WIRES[(place + 1) % 2], on, list(HOWS)[(place + 1) % 4])
    for place, on in enumerate(EVENTS)
    if on in ("model/message", "tool/start", "tool/output", "tool/result")
]
ONCE = ("session/open", "session/close")


@pytest.mark.law("L3", "L4", "L6", "L7", "L8")
@pytest.mark.parametrize(("wire", "on", "how"), ALL if LONG else SOME)
def test_a_kernel_that_is_killed_does_nothing_twice_and_forgets_nothing(real, tmp_path, wire, on, how):
    if how == "after the second" and on in ONCE:
        how = "after it"  # there is one in a life
    came = real(SCENARIO.format(wire=wire, on=on, how=HOWS[how], durability="power"))
    assert came.laws == set()
    assert came.ok, came.unmet
    assert came.answers == ["killed"]
    _check_effects(came, tmp_path / "scratch")


def _check_effects(came, root: Path) -> None:
    effects = root / "effects"
    ran = effects.read_text().split() if effects.exists() else []
    for call, word in (("c1", "one"), ("c2", "two")):
        assert ran.count(word) <= 1, "a call ran twice"
        status = came["results"].get(call, "none")
        if status == "ok":
            assert ran.count(word) == 1, "the log says that it ran, and it did not"
        elif status != "unknown":
            assert ran.count(word) == 0, f"the log says {status}, and it ran"
    assert came["outcomes"][-1] == "completed"
    said = str([one["content"] for one in came["context"]["messages"] if one["role"] == "user"])
    assert said.count("Do both.") == 1
    assert said.count("And now?") == 1


@pytest.mark.law("L8")
def test_without_syncs_a_kill_loses_nothing_either(real, tmp_path):
    came = real(SCENARIO.format(wire="anthropic", on="tool/result", how="", durability="process"))
    assert came.laws == set()
    _check_effects(came, tmp_path / "scratch")
