"""The two trio tasks that a session keeps: one runs its turns, one watches for what the first can't see.

Both live in the session's nursery and end with it.
"""

import trio

from .cancel import Authority, shield
from .causes import Cause, Urgency
from .dispatch import Folds
from .errors import InternalError, LogFailedError
from .events import TurnStuck
from .inbox import claim, has_work
from .kernel import Kernel
from .observe import holders_of
from .turn import Turn

__all__ = ["Driver"]


class Driver:
    """Runs the turns of one session, one after the other, while there is something to run them for."""

    def __init__(self, kernel: Kernel, folds: Folds) -> None:
        self.fault: Exception | None = None
        """What made it give up: a failed log, or a fault of the kernel. Raised where the session's block ends."""
        self._kernel = kernel
        self._folds = folds
        self._going = False
        self._busy = False
        """Whether it is between finding work and having done it."""
        self._nursery: trio.Nursery | None = None
        kernel.journal.on_failure = self._log_failed

    def __repr__(self) -> str:
        return f"<Driver going={self._going} busy={self._busy} fault={self.fault!r}>"

    def start(self, nursery: trio.Nursery) -> None:
        """Start both tasks in the session's nursery."""
        self._nursery = nursery
        nursery.start_soon(self._drive, name="driver")
        nursery.start_soon(self._watch, name="watcher")

    def go(self) -> None:
        """From now on what is queued may start turns. An opening alone never calls the model."""
        self._going = True
        self._kernel.changed.unpark_all()

    def stop(self) -> None:
        """From now on no turn starts; what is queued stays so."""
        self._going = False
        self._kernel.changed.unpark_all()

    @property
    def at_rest(self) -> bool:
        """Whether no turn runs and nothing waits for one, or never will."""
        kernel = self._kernel
        if kernel.journal.failure is not None or kernel.journal.closed:
            return kernel.authority is None
        return kernel.authority is None and not self._busy and not self._runnable()

    @property
    def expects_notices(self) -> bool:
        """Whether a task runs that ends with the session at the latest, and whose end would begin a turn."""
        ending = any(live.started.lifetime == "session" for live in self._kernel.tasks.values())
        return ending and self._wakes and self._kernel.journal.failure is None

    @property
    def _wakes(self) -> bool:
        """A notice does not wake the model after a turn that was cut: it waits for the next prompt."""
        return self._kernel.grammar.last_outcome not in ("aborted", "interrupted")

    def _runnable(self) -> bool:
        if not self._going or self._kernel.journal.failure is not None:
            return False
        return has_work(self._kernel.grammar, notices=self._wakes)

    @trio.lowlevel.enable_ki_protection
    async def _drive(self) -> None:
        kernel = self._kernel
        try:
            while kernel.journal.failure is None:
                if not self._runnable():
                    self._busy = False
                    kernel.changed.unpark_all()
                    await kernel.changed.park()
                    continue
                self._busy = True
                # Nothing is claimed while it waits: a cancel here has only the queue to drop.
                await kernel.journal.flush()
                await trio.lowlevel.checkpoint_if_cancelled()
                claimed = claim(kernel.grammar) if self._runnable() else []
                if claimed:
                    await Turn(kernel, self._folds).run(claimed)
            self._give_up(kernel.journal.failure)
        except* LogFailedError as group:
            self._give_up(kernel.journal.failure or kernel.journal.full or _internal(group))
        except* Exception as group:  # noqa: BLE001 - a fault of the kernel leaves the block as what it is
            self._give_up(_internal(group))

    def _give_up(self, fault: Exception | None) -> None:
        self.fault = fault
        self._busy = False
        self._kernel.changed.unpark_all()
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel(reason="the kernel failed")

    def _log_failed(self) -> None:
        if self._kernel.authority is not None:
            self._kernel.authority.cancel(Cause.LOG, Urgency.POLITE)
            self._kernel.cancelled.unpark_all()
        self._kernel.changed.unpark_all()

    async def _watch(self) -> None:
        """Notices a cancel of the host's, and says who holds a turn that does not end."""
        kernel = self._kernel
        try:
            while True:
                authority = kernel.authority
                if authority is None or authority.cause is None:
                    await kernel.cancelled.park()
                else:
                    await self._say_if_stuck(authority)
        except trio.Cancelled:
            if kernel.host_urgency is Urgency.NOW:
                kernel.hurry()
            for live in kernel.tasks.values():
                live.press(kernel.host_urgency)
            authority = kernel.authority
            if authority is not None:
                kernel.cancel(kernel.host_cause, keep_inbox=True, urgency=kernel.host_urgency)
                with shield("watching a stuck turn", kernel.settings.stuck_after_seconds + 1.0):
                    await self._say_if_stuck(authority)
            raise

    async def _say_if_stuck(self, authority: Authority) -> None:
        kernel = self._kernel
        with trio.move_on_after(kernel.settings.stuck_after_seconds):
            await authority.settled.wait()
            return
        if kernel.authority is authority:
            try:
                kernel.append(TurnStuck(authority.turn, holders_of(authority, authority.nursery)))
            except LogFailedError:
                pass  # told where the block ends
        await authority.settled.wait()


def _internal(group: BaseExceptionGroup[Exception]) -> InternalError:
    error = InternalError(f"the kernel failed: {group.exceptions[0]!r}")
    error.__cause__ = group.exceptions[0] if len(group.exceptions) == 1 else group
    return error
