"""What the tour tells: three accidents, what to look at in each, what each has shown. Pure; touches nothing."""

from collections.abc import Callable, Mapping, Sequence

import attrs

from turnkernel.events import Record, SessionOpen
from turnkernel.text import clip

from .plain import one_line
from .report import Result

__all__ = ["ACCIDENTS", "CLOSING_WORDS", "KILLED", "OPENING_WORDS", "REMOVED", "Accident", "Cue", "verdict"]

KILLED = "killed"
"""The cue of the program's death, which no record tells."""
REMOVED = "removed"
"""The cue of records that are gone."""


@attrs.frozen
class Cue:
    """Words, and the place at which they are said."""

    at: str
    """An event's type, `KILLED` or `REMOVED`."""
    words: str
    seconds: float
    """How long a person needs to read them."""
    nth: int = 1
    where: Mapping[str, str] = attrs.field(factory=dict[str, str])
    """Fields of the event that must be equal."""


@attrs.frozen
class Accident:
    """One scenario of the tour and what is said of it."""

    scenario: str
    heading: str
    cues: Sequence[Cue]
    measured: Callable[[Result, Sequence[Record]], str]
    """What was found, in figures."""
    moral: str


OPENING_WORDS = (
    "An agent is cut in the middle of its work, three times. What is left? Programs, commands and HTTP are real; "
    "only the model's words are made up."
)

CLOSING_WORDS = (
    "kernel-demo list        more accidents",
    "kernel-demo run NAME    play one: what came out, and whether it was as promised",
    "kernel-demo --help      everything else",
)


def verdict(accident: Accident, result: Result, records: Sequence[Record]) -> Sequence[str]:
    """How it came out, as lines; `records` are those that were shown, without those that were cut out."""
    if not result.ok:
        return [one_line(clip("NOT as promised: " + "; ".join(result.unmet), 600))]
    return [f"As promised. {accident.measured(result, records)}", accident.moral]


def _esc_measured(result: Result, records: Sequence[Record]) -> str:
    gone = result.fields["cancels"][0]["processes_gone"]
    when = "when the turn ended" if gone is None else f"{gone:.0f} ms after Esc"
    return f"The process was gone {when}, and a strict model server took the history."


def _kill_measured(result: Result, records: Sequence[Record]) -> str:
    opened = [record.seq for record in records if isinstance(record.event, SessionOpen)]
    closers = sum(bool(getattr(record.event, "synthetic", False)) for record in records)
    left = "No process has survived."
    if result.fields["survivors"]:
        left = "The command outlived the program, for nothing else held it; the tour has ended it."
    return f"All {opened[1] - 1} records from before the kill are there, {closers} were added. {left}"


def _truncate_measured(result: Result, records: Sequence[Record]) -> str:
    gone = next(one for one in result.violations if one.law == "L7").detail.partition(": ")[2]
    return f"The checks find it: law L7 (no record is ever removed) is broken: {gone}."


_ESC = Accident(
    "esc-in-a-long-tool",
    "Esc in a long tool",
    (
        Cue(
            "tool/output",
            "A command that takes five minutes runs, as a real process. Now the user presses Esc ...",
            1.0,
        ),
        Cue(
            "turn/end",
            "The process is gone, its output kept, its call has one result: stopped. Only now is the turn over.",
            1.8,
        ),
        Cue("step/start", "The user goes on. The model is told what was stopped.", 0.8, nth=2),
    ),
    _esc_measured,
    "Nothing of a stopped turn goes on, and the conversation can.",
)

_KILL = Accident(
    "kill-in-a-tool",
    "kill -9 and restart",
    (
        Cue("tool/result", "One command has ended: its result is in the log.", 0.6),
        Cue(
            "tool/output",
            "A second one runs, an upload. Now kill -9 hits the whole program ...",
            1.0,
            where={"call": "call_2"},
        ),
        Cue(KILLED, "Dead. The log ends in the middle of a turn.", 0.8),
        Cue(
            "turn/end",
            "Restarted, it appends what is missing. The upload is unknown: begun, and nobody saw it end. Nothing "
            "is run again.",
            2.0,
        ),
        Cue("step/start", "The model is told all of that, and need not guess.", 0.8, nth=3),
    ),
    _kill_measured,
    "A crash loses no record and invents no result.",
)

_TRUNCATE = Accident(
    "kill-in-a-tool-truncated",
    "the same crash, under a recovery that truncates",
    (
        Cue("step/start", "For contrast: the same work, and the same kill ...", 0.2),
        Cue(
            KILLED,
            "Dead again. This recovery cuts the unfinished turn out of the log, as many programs do ...",
            1.0,
        ),
        Cue(REMOVED, "... and with it the command that had ended, and every trace of the upload.", 1.3),
        Cue("model/message", "The model knows of no upload, and offers to begin.", 1.2, nth=3),
    ),
    _truncate_measured,
    "Cutting a history clean loses finished work and hides effects. turnkernel only ever appends.",
)

ACCIDENTS = (_ESC, _KILL, _TRUNCATE)
