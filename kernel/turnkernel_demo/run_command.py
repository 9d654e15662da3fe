"""The command `run`. Plays scenarios; writes logs and the standard streams; handles signals meanwhile."""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import get_args

import attrs
import click
import trio

from turnkernel.errors import SessionLiveError
from turnkernel.signals import STOPPING, each_signal
from turnkernel.store import FileStore
from turnkernel_providers.context import WIRES

from .builtin import find
from .exits import Unreadable, json_line, reason_of
from .load import ScenarioError, with_options
from .options import seconds_of_run, wires
from .plain import one_line
from .played import Played
from .report import Result, judge
from .scenario import Scenario, Wire

__all__ = ["run"]

DESIGN = "turnkernel"


@attrs.frozen
class _Piece:
    """One scenario of the command line, ready to be played."""

    name: str
    scenario: Scenario
    log: Path | None
    """Where its log is to be; None: nowhere."""
    keep: Path | None
    """Its scratch root; None: one that is removed afterwards."""


class _StoppedError(Exception):
    """A signal asked the run to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@click.command()
@click.argument("scenarios", metavar="SCENARIO...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="One object per scenario and line, and nothing else.")
@click.option("--log", type=click.Path(path_type=Path), metavar="PATH",
              help="Keep the log there; of several scenarios in a folder. Must not exist yet.")  # fmt: skip
@click.option("--wire", type=click.Choice(get_args(Wire)), metavar="WIRE",
              help=f"Play on this wire instead of the scenario's own: {wires(WIRES)}.")  # fmt: skip
@click.option("--virtual", is_flag=True, help="Play in memory, on a virtual clock; for scripted tools only.")
@click.option("--seed", type=click.IntRange(min=0), metavar="N",
              help="The schedule of a virtual run; 0 without it.")  # fmt: skip
@click.option("--design", metavar="NAME", help=f"Play it with another kernel; this version has {DESIGN} only.")
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
              help="Let the tools work there, and leave it; of several scenarios each in a folder.")  # fmt: skip
@click.option("--limit", type=float, callback=seconds_of_run, metavar="S",
              help="Seconds of real time that a run may take, instead of the scenario's own.")  # fmt: skip
def run(
    scenarios: tuple[str, ...],
    as_json: bool,
    log: Path | None,
    wire: Wire | None,
    virtual: bool,
    seed: int | None,
    design: str | None,
    keep: Path | None,
    limit: float | None,
) -> None:
    """Play scenarios and say whether what must come out came out: names of `list`, or files.

    A real model server on 127.0.0.1 plays the model, the kernel runs in a process of its own, tools work in a
    fresh folder. Then the log is held against every law. Nothing of a run is left, whatever happens in it.

    What a scenario file may say: docs/scenarios.md in the project's folder.

    \b
    Example:
      kernel-demo run esc-in-a-long-tool
      kernel-demo run my-scenario.toml --log my.log && kernel-demo show my.log
      kernel-demo run kill-in-a-tool --json | jq .violations

    \b
    Exit codes:
      0  everything came out as the scenarios say
      1  an expectation or an act is unmet, a law is broken, or a run took too long
      2  a scenario can't be read or played, or the log is there already; nothing was run
    """
    pieces = [_Piece(word, _prepared(word, wire, virtual, design, limit), None, None) for word in scenarios]
    if seed is not None:
        _check_seeded(pieces)
    pieces = _with_places(pieces, log, keep)
    failed = 0
    for number, piece in enumerate(pieces, 1):
        _say_progress(f"{number}/{len(pieces)} {one_line(piece.name)}")
        try:
            result = judge(_play(piece, seed or 0))
        except _StoppedError as stopped:
            _say_progress("")
            sys.exit(128 + stopped.number)
        _say_progress("")
        failed += not result.ok
        click.echo(json_line(result.fields) if as_json else _verdict(piece.name, result))
    if len(pieces) > 1 and not as_json:
        click.echo(f"{len(pieces) - failed} of {len(pieces)} as they must be")
    sys.exit(1 if failed else 0)


def _verdict(name: str, result: Result) -> str:
    title = result.fields["title"]
    head = f"{'ok     ' if result.ok else 'FAILED '} {one_line(name)}{f': {one_line(title)}' if title else ''}"
    notes = (f"note: {line}" for line in result.notes)
    return "\n".join([head, *(f"        {one_line(line)}" for line in (*result.unmet, *notes))])


def _say_progress(text: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)


# ------------------------------------------------------------------------------------------ before it is played


def _prepared(word: str, wire: Wire | None, virtual: bool, design: str | None, limit: float | None) -> Scenario:
    """The scenario as it is to be played. Raises `Unreadable`."""
    try:
        scenario = with_options(find(word), word, wire=wire, virtual=virtual)
    except ScenarioError as error:
        raise Unreadable(str(error)) from None
    design = design or scenario.design
    if design != DESIGN:
        raise Unreadable(f"{word}: there is no design {design} in this version; there is {DESIGN}")
    if scenario.wire not in WIRES:
        reason = f"the wire {scenario.wire} is not available for running yet; there are {wires(WIRES)}"
        raise Unreadable(f"{word}: {reason}")
    if limit is not None:
        scenario = attrs.evolve(scenario, limit_seconds=limit)
    return scenario


def _check_seeded(pieces: Sequence[_Piece]) -> None:
    """A seed chooses a schedule, which a real run does not have. Raises `Unreadable`."""
    for piece in pieces:
        if not piece.scenario.virtual:
            raise Unreadable(
                f"{piece.name}: --seed is for virtual runs, and this is played for real; add --virtual"
            )


def _with_places(pieces: Sequence[_Piece], log: Path | None, keep: Path | None) -> list[_Piece]:
    """The pieces with the paths of their logs and scratch roots, all of which can be made. Raises `Unreadable`."""
    if log is not None:
        _check_free(log)
    several = len(pieces) > 1
    placed: list[_Piece] = []
    names: set[str] = set()
    for piece in pieces:
        name = _unique(Path(piece.name).stem or "scenario", names)
        placed.append(
            attrs.evolve(
                piece,
                log=log / f"{name}.log" if log is not None and several else log,
                keep=keep / name if keep is not None and several else keep,
            )
        )
    if log is not None and not log.absolute().parent.is_dir():
        raise Unreadable(f"{log}: there is no folder for it")
    if log is not None and several:
        _made(log)
    for piece in placed:
        if piece.keep is not None:
            _made(piece.keep, parents=True)
        if piece.log is not None:
            _try_log(piece.log)
            _check_free(piece.log.with_name(f"{piece.log.name}.d"))
    return placed


def _check_free(path: Path) -> None:
    """Nothing is there. Raises `Unreadable`."""
    with suppress(OSError):  # a name that can't be: making it will tell
        path.lstat()
        raise Unreadable(f"{path}: it is there already; a log is never written over")


def _made(folder: Path, *, parents: bool = False) -> None:
    """Make a folder, and see that files can be made in it. Raises `Unreadable`."""
    try:
        folder.mkdir(parents=parents, exist_ok=parents)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Unreadable(f"{folder}: no files can be made there: {reason_of(error)}") from None


def _try_log(path: Path) -> None:
    """Make a log as the kernel will, and take it away again: what can't be kept is told before anything runs.

    Raises `Unreadable`.
    """
    try:
        FileStore.open(path).close()
    except SessionLiveError:
        raise Unreadable(f"{path}: another kernel holds it") from None
    except OSError as error:
        _take_away(path)
        raise Unreadable(f"{path}: no log can be written there: {reason_of(error)}") from None
    _take_away(path)


def _take_away(log: Path) -> None:
    for made in (log, log.with_name(f"{log.name}.lock")):
        with suppress(OSError):
            made.unlink()


def _unique(name: str, taken: set[str]) -> str:
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    taken.add(found)
    return found


# ------------------------------------------------------------------------------------------------ playing it


def _play(piece: _Piece, seed: int) -> Played:
    if piece.scenario.virtual:
        return _play_virtually(piece, seed)
    with _scratch() as folder:
        root = piece.keep
        if root is None:
            root = Path(folder) / "scratch"
            root.mkdir()
        log = piece.log or Path(folder) / "session.log"
        played = trio.run(_play_until_signal, piece, log.absolute(), root.absolute())
        return attrs.evolve(played, log_path=str(piece.log) if piece.log is not None else None)


def _scratch() -> TemporaryDirectory[str]:
    try:
        return TemporaryDirectory(prefix="kernel-demo-", ignore_cleanup_errors=True)
    except OSError as error:
        raise Unreadable(f"no temporary folder can be made: {reason_of(error)}") from None


def _play_virtually(piece: _Piece, seed: int) -> Played:
    from .virtual import play_virtually

    played = play_virtually(piece.scenario, seed=seed)
    if piece.log is None:
        return played
    try:
        fd = os.open(piece.log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(played.log)
    except OSError as error:
        raise Unreadable(f"{piece.log}: {reason_of(error)}") from None
    return attrs.evolve(played, log_path=str(piece.log))


async def _play_until_signal(piece: _Piece, log: Path, root: Path) -> Played:
    """Play for real. At SIGINT, SIGTERM or SIGHUP everything is ended first, in bounded time; at a second one
    without graces.
    """
    from .runner import play_for_real

    stopped: list[int] = []
    outcome: list[Played | Exception] = []
    hurry = trio.Event()

    def handle(number: signal.Signals) -> None:
        if stopped:
            hurry.set()
        # SIGHUP counts as SIGTERM, as in every command.
        stopped.append(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)
        scope.cancel()

    with each_signal(handle, *STOPPING), trio.CancelScope() as scope:
        try:
            outcome.append(await play_for_real(piece.scenario, log=log, root=root, hurry=hurry))
        except (OSError, ValueError) as error:
            outcome.append(error)
    if stopped:
        raise _StoppedError(stopped[0])
    played = outcome[0]
    if isinstance(played, OSError):
        raise Unreadable(f"{piece.name}: {played.filename or 'the system'}: {reason_of(played)}")
    if isinstance(played, Exception):
        raise Unreadable(f"{piece.name}: {played}")
    return played
