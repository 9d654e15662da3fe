"""Plays a scenario for real: a model server here, the session in a process of its own. Starts and ends processes.

The session lives in a *player*, one process per life, because some acts kill it. Nothing of a run outlives
`play_for_real`: no process, no socket; not when it is cancelled either.
"""

import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import attrs
import trio

from turnkernel.cancel import shield
from turnkernel.testing.laws import Violation
from turnkernel.testing.replies import Reply
from turnkernel_providers.keys import KEY_VARIABLES
from turnkernel_providers.server import ModelServer, open_model_server
from turnkernel_tools.process import new_mark

from .frames import Frames, Job, frame
from .ledger import OVER_LIMIT, Broken, Carry, Stuck, Survivor
from .lives import Lives, children_of, detached_of, records_of
from .played import Played, Refused
from .processes import RUN, bearers, end_bearers, members_of_run
from .scenario import ROOT, Scenario

__all__ = ["play_for_real"]

_ANSWER_SECONDS = 8.0
"""How long after its limit a player may take to say who holds it, and its warden to look around, besides the
grace of its tools."""
_END_SECONDS = 5.0
"""Bound of ending whatever is left."""
_LOOK_SECONDS = 0.005


async def play_for_real(scenario: Scenario, *, log: Path, root: Path, hurry: trio.Event | None = None) -> Played:
    """Play it, with its log at `log` and its tools in `root`.

    Cancelled, it ends everything that it has started, in bounded time, and lets the cancel pass. Once `hurry` is
    set, it gives nothing a grace meanwhile. Raises ValueError
    for replies that no server can give, OSError where the system refuses a socket, a process or a file.
    """
    begun = time.monotonic()
    replies: dict[str, list[Reply]] = {ROOT: []}
    for reply in scenario.replies:
        replies.setdefault(reply.session, []).append(reply)
    async with open_model_server(scenario.wire, replies.pop(ROOT), apart=replies, clock=time.monotonic) as server:
        with TemporaryFile() as errors:
            run = _Run(scenario, log, root, server, errors, trio.Event() if hurry is None else hurry)
            try:
                carry: Carry | None = Carry()
                while carry is not None:
                    carry = await run.one_life(carry)
                run.look_around()
            finally:
                await run.end_all()
        children = _read_all(log)
        return Played(
            scenario,
            run.lives.ledger,
            children.pop(ROOT),
            [request.body for request in server.requests],
            [Refused(one.rule, one.text) for one in server.violations],
            len(server.unmet),
            children=children,
            seconds=time.monotonic() - begun,
        )


class _Run:
    """What outlives the single lives."""

    def __init__(
        self,
        scenario: Scenario,
        log: Path,
        root: Path,
        server: ModelServer,
        errors: IO[bytes],
        hurry: trio.Event,
    ) -> None:
        self.lives = Lives(scenario)
        self._scenario = scenario
        self._log = log
        self._root = root
        self._server = server
        self._errors = errors
        self._hurry = hurry
        self._token = secrets.token_hex(16)
        self._begun = trio.current_time()

    @property
    def _seconds(self) -> float:
        return trio.current_time() - self._begun

    async def one_life(self, carry: Carry) -> Carry | None:
        """Start a player and listen to it until it has ended; what the next goes on from."""
        ledger = self.lives.ledger
        left = max(0.0, self._scenario.limit_seconds - self._seconds)
        job = Job(
            attrs.evolve(self._scenario, replies=()),
            carry,
            self._log,
            self._root,
            self._server.base_url,
            self._server.url_of(""),
            left,
        )
        player = await trio.lowlevel.open_process(
            [sys.executable, "-P", "-m", "turnkernel_demo.player"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors.fileno(),
            env=self._environment(),
            # A Ctrl-C at the terminal is for the run, which then ends the player in order.
            start_new_session=True,
        )
        try:
            with trio.move_on_after(left + self._scenario.tools.grace_seconds + _ANSWER_SECONDS) as limit:
                await self._listen(player, job)
        finally:
            await self._end(player)
        if limit.cancelled_caught and ledger.stuck is None:
            ledger.take(Stuck(OVER_LIMIT, ("the kernel's process does not answer", *self._last_errors())))
        died = player.returncode == -signal.SIGKILL and ledger.left is None and self._was_told_to_die()
        if not died and ledger.stuck is None and (ledger.left is None or player.returncode):
            ledger.troubles.append(
                f"the kernel's process ended with {player.returncode}: {' / '.join(self._last_errors())}"
            )
        return self._after(died)

    async def _listen(self, player: trio.Process, job: Job) -> None:
        assert player.stdin is not None
        assert player.stdout is not None
        frames = Frames()
        try:
            await player.stdin.send_all(frame(job))
        except trio.BrokenResourceError:
            pass  # it has ended already; how, is told by its exit
        async for data in player.stdout:
            for report in frames.feed(data):
                self.lives.ledger.take(report)
        await player.wait()

    def _was_told_to_die(self) -> bool:
        acted = self.lives.ledger.acted
        return bool(acted) and self._scenario.acts[next(reversed(acted))[0]].do == "kill"

    def _after(self, died: bool) -> Carry | None:
        logs = _read_all(self._log)
        left, carry = self.lives.after(logs, died=died, clock=self._seconds)
        places = _places(self._log, logs[ROOT])
        for name in logs:
            if len(left[name]) < len(logs[name]):
                os.truncate(places[name], len(left[name]))
        return carry

    def _environment(self) -> dict[str, str]:
        """The player's: without the keys that a real model would need, with the run's mark."""
        kept = {name: value for name, value in os.environ.items() if name not in KEY_VARIABLES}
        return {"TURNKERNEL_STRICT": "1", **kept, RUN: self._token}

    def _last_errors(self) -> list[str]:
        """The end of what players wrote on standard error."""
        self._errors.seek(0)
        return [line for line in self._errors.read().decode("utf-8", "replace").splitlines() if line.strip()][-3:]

    # -------------------------------------------------------------------------------------------- the end of it

    async def _end(self, player: trio.Process) -> None:
        """End a player that has not ended: in order if it can, else not."""
        if player.returncode is None:
            seconds = self._scenario.tools.grace_seconds + _END_SECONDS
            with shield("critical section", seconds + 2 * _END_SECONDS):
                player.terminate()
                with trio.move_on_after(seconds):
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._hurry_up, player)
                        await player.wait()
                        nursery.cancel_scope.cancel()
                if player.returncode is None:
                    player.kill()
                    await player.wait()
        for pipe in (player.stdin, player.stdout):
            if pipe is not None:
                await trio.aclose_forcefully(pipe)

    async def _hurry_up(self, player: trio.Process) -> None:
        await self._hurry.wait()
        player.terminate()  # the second one: no graces any more
        await trio.sleep(_END_SECONDS)
        player.kill()

    def look_around(self) -> None:
        """Whoever is alive now and is of no detached task that a log knows as running should not be."""
        logs = _read_all(self._log)
        tasks = {task for log in logs.values() for task in detached_of(records_of(log)[0])}
        running = {new_mark(task).rpartition(".")[0] for task in tasks}
        for one in members_of_run(self._token):
            if one.work not in running:
                detail = f"process {one.pid} ({one.command}) is alive after the run, of {one.work or 'nothing'}"
                self.lives.ledger.take(Survivor(one.pid, one.command, "run"))
                self.lives.ledger.take(Broken(Violation("R1", 0, detail)))

    async def end_all(self) -> None:
        """Whatever happened, nothing of the run is left: no detached task, nor what a killed warden has left."""
        if bearers(self._token):
            with shield("critical section", _END_SECONDS):
                while bearers(self._token):
                    end_bearers(self._token)
                    await trio.sleep(_LOOK_SECONDS)


def _places(log: Path, data: bytes) -> dict[str, Path]:
    """Where the logs of a session and its children are, by their names."""
    return {ROOT: log, **{name: log.parent / child for name, child in children_of(records_of(data)[0]).items()}}


def _read_all(log: Path) -> dict[str, bytes]:
    """The logs that there are; the root's also where there is none."""
    read = {name: _read(place) for name, place in _places(log, _read(log)).items()}
    return {name: data for name, data in read.items() if data or name == ROOT}


def _read(log: Path) -> bytes:
    try:
        return log.read_bytes()
    except FileNotFoundError:
        return b""
