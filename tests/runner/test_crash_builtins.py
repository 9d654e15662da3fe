"""Every life of every built-in scenario, crashed at every write of it. Laws: L3, L4, L7, L8, C2.

Those that run virtually, and of those that need real tools and a real wire the ones that are killed or ended by a
signal; with TURNKERNEL_LONG=1 all of them, at every seventh byte, which takes 24 minutes on a busy machine.
"""

import os

import attrs
import pytest
from tests.runner.conftest import play_real

import turnkernel_demo.virtual
from turnkernel.codec import encode
from turnkernel.testing.crash import Played, Swept, records_of, sweep_crashes
from turnkernel.testing.disk_model import ModelDisk
from turnkernel_demo.builtin import load_builtin, names
from turnkernel_demo.ledger import Acknowledged, Body, Ledger, Report, Synced
from turnkernel_demo.lives import Lives, cut_back
from turnkernel_demo.scenario import ROOT
from turnkernel_demo.stores import BreakableMemory
from turnkernel_demo.virtual import play_virtually

LONG = bool(os.environ.get("TURNKERNEL_LONG"))
STRIDE = 7 if LONG else 499

VIRTUAL = [name for name in names() if load_builtin(name).virtual]
REAL = [name for name in names() if name not in VIRTUAL]
DYING = [name for name in REAL if any(act.do in ("kill", "terminate") for act in load_builtin(name).acts)]


def sweep(lives: list[Played]) -> Swept:
    swept = Swept()
    for life in lives:
        swept += sweep_crashes(life, stride=STRIDE)
    return swept


def begun(log: bytes) -> Played:
    """A life on the log that the one before has left. What that has torn is no record of it."""
    return Played(ModelDisk(log, exists=bool(log)), "power", [encode(record) for record in records_of(log)])


@pytest.mark.law("L3", "L4", "L7", "L8", "C2")
@pytest.mark.parametrize("name", VIRTUAL)
def test_no_crash_of_a_virtual_scenario_breaks_a_law(name, monkeypatch, told):
    lives: list[Played] = []

    class Recording(BreakableMemory):
        def __init__(self, data, breaking):
            super().__init__(data, breaking)
            played = begun(data)
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
    played = play_virtually(load_builtin(name))
    assert played.log
    told(name, sweep(lives))


# --------------------------------------------------------------------------------------------------- real ones


@attrs.define
class Life:
    """What one life of a real run has left and told, in the order in which it was."""

    reports: list[Report] = attrs.field(factory=list[Report])
    end: bytes = b""

    def played(self, before: bytes) -> Played:
        """The trace of its log: a write a record, all of them before the sync that covers them was told."""
        played = begun(before)
        played.truth[:] = [encode(record) for record in records_of(self.end)]
        disk, upto = played.disk, len(before)
        for report in [*self.reports, Synced(len(self.end))]:
            if getattr(report, "session", ROOT) != ROOT:
                continue
            match report:
                case Synced(size) if size > upto:
                    for line in self.end[upto:size].splitlines(keepends=True):
                        disk.append(line)
                    disk.sync()
                    upto = size
                case Acknowledged(item):
                    disk.note("ack", item)
                case Body(call, effect, "began") if effect != "read_only":
                    disk.note("effect", call)
                case _:
                    pass
        return played


@pytest.mark.law("L3", "L4", "L7", "L8", "C2")
@pytest.mark.parametrize("name", REAL if LONG else DYING)
def test_no_crash_of_a_real_scenario_breaks_a_law(name, monkeypatch, tmp_path, told):
    lives, left = [Life()], [b""]
    take, after = Ledger.take, Lives.after

    def listen(self, report):
        lives[-1].reports.append(report)
        take(self, report)

    def note(self, logs, *, died, clock):
        lives[-1].end = logs[ROOT]
        kept, carry = after(self, logs, died=died, clock=clock)
        if carry is not None:
            lives.append(Life())
            left.append(kept[ROOT])
        return kept, carry

    monkeypatch.setattr(Ledger, "take", listen)
    monkeypatch.setattr(Lives, "after", note)
    scenario = load_builtin(name)
    came = play_real(scenario, tmp_path)
    assert came.ok, came.unmet
    assert len(lives) > 1 or name not in DYING
    if scenario.session.recovery == "truncate":
        left = [log[: cut_back(log).size] for log in left]
    played = [life.played(before) for life, before in zip(lives, left, strict=True)]
    told(f"{name}, lives: {len(lives)}", sweep(played))
