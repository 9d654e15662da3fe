"""Every built-in scenario that can run virtually, crashed at every write of it. Laws: L3, L4, L7, L8, C2."""

import os

import pytest

import turnkernel_demo.virtual
from turnkernel.testing.crash import Played, sweep_crashes
from turnkernel.testing.disk_model import ModelDisk
from turnkernel_demo.builtin import load_builtin, names
from turnkernel_demo.ledger import Acknowledged
from turnkernel_demo.stores import BreakableMemory
from turnkernel_demo.virtual import play_virtually

LONG = bool(os.environ.get("TURNKERNEL_LONG"))

SCENARIOS = [name for name in names() if load_builtin(name).virtual]


@pytest.mark.law("L3", "L4", "L7", "L8", "C2")
@pytest.mark.parametrize("name", SCENARIOS)
def test_no_crash_of_a_built_in_scenario_breaks_a_law(name, monkeypatch, capsys):
    """Each life is a run of its own, on the log that the one before has left."""
    lives: list[Played] = []

    class Recording(BreakableMemory):
        def __init__(self, data, breaking):
            super().__init__(data, breaking)
            played = Played(ModelDisk(data, exists=bool(data)), "power", data.splitlines(keepends=True))
            lives.append(played)
            tell = breaking.tell

            def listen(report):
                if isinstance(report, Acknowledged):
                    played.disk.note("ack", report.item)
                tell(report)

            breaking.tell = listen

        def write(self, data):
            before = self.size
            try:
                super().write(data)
            finally:
                written = self.read(before, self.size)
                if written:
                    lives[-1].disk.append(written)
                    lives[-1].truth += written.splitlines(keepends=True)

        def sync(self):
            super().sync()
            lives[-1].disk.sync()

    monkeypatch.setattr(turnkernel_demo.virtual, "BreakableMemory", Recording)
    scenario = load_builtin(name)
    played = play_virtually(scenario)
    assert played.log
    states = distinct = 0
    for life in lives[:1] if any(act.do == "kill" for act in scenario.acts) else lives:
        swept = sweep_crashes(life, stride=7 if LONG else 499)
        assert swept.found == []
        states, distinct = states + swept.states, distinct + swept.distinct
    with capsys.disabled():
        print(f"\n{name}: {states} crashes, {distinct} distinct, no violation")
