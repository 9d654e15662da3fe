"""Where the tour is seen: a terminal, or plain lines. Writes to standard output; waits for nothing.

Both are given the same things in the same order. Everything on them is a fold of the records that were shown.
"""

import textwrap
from collections.abc import Sequence
from typing import Protocol

import click
from rich.console import Console, Group, RenderableType
from rich.layout import Layout
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from turnkernel.events import ModelDelta, Record
from turnkernel.text import printable

from .exits import on_terminal
from .render import lines
from .tour_scene import Scene, Spoken

__all__ = ["PlainStage", "Stage", "TerminalStage", "stage_for"]

LEAST_COLUMNS, LEAST_ROWS = 60, 16
"""Below this a terminal is given plain lines."""

_READABLE = 100
"""Columns of running text."""
_HEAD = 15
"""Columns of a record's line before its type."""


class Stage(Protocol):
    """What the tour is played on. A context manager, too."""

    paced: bool
    """Whether somebody is to read along."""

    def __enter__(self) -> "Stage": ...
    def __exit__(self, *_: object) -> None: ...

    def begin(self, scene: Scene) -> None:
        """The next accident begins."""
        ...

    def changed(self, scene: Scene) -> None:
        """Something was added to the scene, or time has passed."""
        ...

    def end(self, scene: Scene, verdict: Sequence[str]) -> None:
        """It has ended."""
        ...


class PlainStage:
    """Plain lines, as they come: no colour, no cursor movement."""

    paced = False

    def __init__(self, width: int) -> None:
        self._width = width
        self._printed = 0
        self._removals = 0
        self._caption = ""

    def __enter__(self) -> "PlainStage":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self, scene: Scene) -> None:
        """The heading."""
        self._printed, self._removals, self._caption = 0, 0, ""
        click.echo(f"\n=== {scene.number} of {scene.of}: {scene.heading} ===\n")

    def changed(self, scene: Scene) -> None:
        """What has come: lines of the log, and the caption where there is a new one."""
        if self._removals < scene.removals:
            self._removals, self._printed = scene.removals, len(scene.shown) - 1
        new = scene.shown[self._printed :]
        if not scene.caption or scene.caption == self._caption:
            # Deltas are held back until their block is whole: they make one line together.
            while new and isinstance(new[-1], Record) and isinstance(new[-1].event, ModelDelta):
                new.pop()
        for line in _lines(new, self._width):
            click.echo(line)
        self._printed += len(new)
        if scene.caption and scene.caption != self._caption:
            self._say(scene.caption, "  -> ", "     ")
        self._caption = scene.caption

    def end(self, scene: Scene, verdict: Sequence[str]) -> None:
        """The verdict."""
        for line in _lines(scene.shown[self._printed :], self._width):
            click.echo(line)
        self._say(" ".join(verdict), "  => ", "     ")

    def _say(self, words: str, first: str, others: str) -> None:
        width = min(self._width, _READABLE)
        click.echo("\n" + textwrap.fill(words, width, initial_indent=first, subsequent_indent=others) + "\n")


class TerminalStage:
    """The whole terminal: the log on one side, the running state on the other, what to look at below."""

    paced = True

    def __init__(self, console: Console) -> None:
        self._console = console
        # No thread of its own: it is drawn when the tour says so.
        self._live = Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False)
        self._verdicts: list[str] = []

    def __enter__(self) -> "TerminalStage":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        for line in self._verdicts:
            click.echo(textwrap.fill(line, min(self._console.width - 1, _READABLE)))

    def begin(self, scene: Scene) -> None:
        """Draw it."""
        self.changed(scene)

    def changed(self, scene: Scene) -> None:
        """Draw it again."""
        self._live.update(self._picture(scene), refresh=True)

    def end(self, scene: Scene, verdict: Sequence[str]) -> None:
        """The verdict in the caption's place; it is kept for when the terminal is given back."""
        self._verdicts += [f"{scene.number}. {scene.heading}", *verdict, ""]
        scene.caption = "\n".join(verdict)
        self.changed(scene)

    def _picture(self, scene: Scene) -> RenderableType:
        width, height = self._console.size
        now_width = 30 if width < 100 else 40
        caption = Text(scene.caption, style="bold", overflow="fold")
        caption_rows = min(9, max(3, len(caption.wrap(self._console, width - 4)))) + 2
        rows = height - 1 - caption_rows - 2
        layout = Layout()
        layout.split_column(
            Layout(self._header(scene, width), size=1),
            Layout(name="middle"),
            Layout(Panel(caption, border_style="cyan"), size=caption_rows),
        )
        layout["middle"].split_row(
            Layout(_log_panel(scene, width - now_width - 4, rows)),
            Layout(
                Panel(
                    _now(scene, self._console, now_width - 4, rows),
                    title="the running program",
                    border_style="dim",
                ),
                size=now_width,
            ),
        )
        return layout

    def _header(self, scene: Scene, width: int) -> Text:
        text = f" {scene.number} of {scene.of}   {scene.heading}"
        leave = "Ctrl-C leaves "
        return Text(text[: width - len(leave) - 1].ljust(width - len(leave)) + leave, style="reverse")


def stage_for(width: int) -> Stage:
    """A terminal's stage, where standard output is one that can do it; else plain lines."""
    console = Console()
    columns, rows = console.size
    # Not `console.is_terminal`: an environment that forces colour would have a pipe driven as a terminal.
    if on_terminal() and not console.is_dumb_terminal and columns >= LEAST_COLUMNS and rows >= LEAST_ROWS:
        return TerminalStage(console)
    return PlainStage(width)


def _lines(shown: Sequence[Record | str], width: int) -> list[str]:
    found: list[str] = []
    run: list[Record] = []
    for one in shown:
        if isinstance(one, Record):
            run.append(one)
            continue
        found += [*lines(run, width), f"  -- {one} --"]
        run = []
    return [*found, *lines(run, width)]


def _log_panel(scene: Scene, width: int, rows: int) -> Panel:
    # In a narrow one the numbers and times go, so that there is room for what happened.
    head = 0 if width >= 80 else _HEAD
    wanted = _lines(scene.shown[-(rows * 8) :], width + head)[-rows:]
    styled = [
        Text(line if line.startswith("  --") else line[head:], style=_style(line), no_wrap=True) for line in wanted
    ]
    return Panel(Group(*styled), title="the log", border_style="dim")


def _style(line: str) -> str:
    if line.startswith("  --"):
        return "bold red"
    event_type = line[_HEAD:].split(" ", 1)[0]
    if "(closer)" in line[: _HEAD + 30]:
        return "magenta"
    styles = {"turn/cancel": "bold red", "model/delta": "dim", "tool/result": "green", "turn/end": "bold"}
    return styles.get(event_type, "")


def _now(scene: Scene, console: Console, width: int, rows: int) -> Group:
    """The running state: the program, the session, and the conversation as its screen would show it."""
    status = scene.status
    program = ("killed", "bold red") if scene.dead else ("ended" if scene.ended else "runs", "")
    table = [
        Text.assemble(("program   ", "dim"), program),
        Text.assemble(("session   ", "dim"), ("" if scene.dead else status.outcome or status.state, "bold")),
        Text.assemble(("requests  ", "dim"), str(scene.requests)),
        Text(""),
    ]
    said = [line for one in scene.said for line in _spoken(one, scene).wrap(console, width)]
    room = max(0, rows - len(table))
    return Group(*table, *(said[-room:] if room else []))


def _spoken(one: Spoken, scene: Scene) -> Text:
    if not one.call:
        return Text.assemble((f"{one.who}: ", "cyan"), printable(one.text.rstrip()))
    running = one.state == "running"
    state = "was running" if running and scene.dead else one.state
    seconds = f" {scene.now - one.started:.1f} s" if running and not scene.dead else ""
    style = "yellow" if running else "green" if one.state == "ok" else "bold magenta"
    output = "".join(f"\n  | {line}" for line in printable(one.text).splitlines())
    return Text.assemble((f"{one.who}: ", "cyan"), (state + seconds, style), output)
