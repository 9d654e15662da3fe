"""Scenarios as texts, played: in memory, or for real with a log and a scratch folder."""

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import trio

from turnkernel.events import Record
from turnkernel_demo.lives import records_of
from turnkernel_demo.load import loads
from turnkernel_demo.played import Played
from turnkernel_demo.report import Result, judge
from turnkernel_demo.runner import play_for_real
from turnkernel_demo.scenario import Scenario
from turnkernel_demo.virtual import play_virtually


@attrs.frozen
class Came:
    """What came of a scenario."""

    played: Played
    result: Result

    @property
    def ok(self) -> bool:
        return self.result.ok

    @property
    def unmet(self) -> list[str]:
        return list(self.result.unmet)

    @property
    def laws(self) -> set[str]:
        return {one.law for one in self.result.violations}

    @property
    def records(self) -> list[Record]:
        return records_of(self.played.log)[0]

    @property
    def types(self) -> list[str]:
        return [record.event.type for record in self.records]

    def __getitem__(self, field: str):
        return self.result.fields[field]

    @property
    def answers(self) -> list[str]:
        """Of the acts, in order."""
        return [act["answer"] for act in self["acts"]]


@pytest.fixture
def virtual() -> Callable[..., Came]:
    """Plays a text on the virtual clock."""

    def play(text: str, seed: int = 0) -> Came:
        played = play_virtually(loads(f"virtual = true\n{text}"), seed=seed)
        return Came(played, judge(played))

    return play


def play_real(what: str | Scenario, folder: Path) -> Came:
    """Play a text or a scenario for real, its log at `session.log` and its tools in `scratch` of a folder."""
    root = folder / "scratch"
    root.mkdir(exist_ok=True, parents=True)
    scenario = loads(what) if isinstance(what, str) else what

    async def main() -> Played:
        # A limit of its own, so that a hang is a failure and not a hang of the tests.
        with trio.fail_after(60):
            return await play_for_real(scenario, log=folder / "session.log", root=root)

    played = trio.run(main)
    return Came(played, judge(played))


@pytest.fixture
def real(tmp_path: Path) -> Callable[..., Came]:
    """`play_real`, in `tmp_path`."""
    return lambda what: play_real(what, tmp_path)


# ------------------------------------------------------------------------------------------------------ deaths

AFTERWARDS = """
[[user]]
text = "And now?"

[[reply]]
text = "All is well."

[[reply]]
text = "As I said."

[[reply]]
text = "Really."

[[reply]]
text = "Nothing more."
"""
"""What is said and answered after a death, wherever it came: no reply may be missing."""


def kill(on: str, *more: str) -> str:
    """An act that kills the kernel at an event."""
    return "\n".join(["", "[[act]]", f'on = "{on}"', 'do = "kill"', *more, ""])
