"""From the claiming of input until nothing is left to feed back to the model: a nursery with a closing block.

The nursery's own cancel scope is the authority. When the nursery has closed, the outcome, the dropping of the
authority, the closers and `turn/end` are one synchronous block: a cancel comes before it and applies, or after
it and finds no turn.
"""

from collections.abc import Sequence

import attrs
import trio

from .cancel import Authority, Settled, shield
from .causes import Cause
from .dispatch import Folds
from .errors import LogFailedError
from .events import Event, TurnStart
from .faults import errors_of, leaves
from .kernel import Kernel
from .repair import Ending, closers
from .step import Step

__all__ = ["Turn"]


@attrs.define(eq=False)
class Turn:
    """One turn. `run` claims, works, closes and flushes."""

    kernel: Kernel
    folds: Folds
    outcome: str | None = None
    """Set when the turn has ended."""

    @trio.lowlevel.enable_ki_protection
    async def run(self, claimed: Sequence[Event]) -> None:
        """Run the turn that consumes `claimed`. When it returns or raises, nothing of the turn is left.

        Raises what is not the turn's own: `trio.Cancelled` of a scope around it, KeyboardInterrupt,
        `LogFailedError`, and faults of the kernel; each after the turn was closed.
        """
        kernel = self.kernel
        authority: Authority | None = None
        ending: Ending | None = None
        try:
            async with trio.open_nursery() as nursery:
                authority = Authority(kernel.grammar.next_turn(), nursery)
                kernel.authority = authority
                # One write. A crash in the middle of it leaves the items queued.
                kernel.append(TurnStart(authority.turn), *claimed)
                ending = await self._steps(authority, nursery)
        except BaseException as error:
            self._conclude(authority, ending, error)
            await self._settle(authority)
            raise
        self._conclude(authority, ending, None)
        await self._settle(authority)

    async def _steps(self, authority: Authority, nursery: trio.Nursery) -> Ending:
        """Steps until one ends the turn or nothing is left to feed back."""
        settings = self.kernel.settings
        limit = trio.CancelScope()
        if settings.turn_seconds is not None:
            nursery.start_soon(self._limit, settings.turn_seconds, limit, name="turn limit")
        try:
            for _ in range(settings.max_steps):
                step = Step(self.kernel, self.folds, authority)
                ending = await step.run()
                if ending is not None:
                    return ending
                # The last look. A steer that comes after it is found unread when the turn closes.
                if not step.more and not self.kernel.queued("steer"):
                    return Ending("completed")
            return Ending("max_steps")
        finally:
            limit.cancel()

    async def _limit(self, seconds: float, scope: trio.CancelScope) -> None:
        """A limit is a cancel with a cause: a deadline of a scope would have none."""
        with scope:
            await trio.sleep(seconds)
            self.kernel.cancel(Cause.LIMIT, keep_inbox=True)

    def _conclude(self, authority: Authority | None, ending: Ending | None, error: BaseException | None) -> None:
        """The closing block. Synchronous; KeyboardInterrupt waits until it is over."""
        kernel = self.kernel
        kernel.authority = None
        if authority is None or kernel.grammar.turn is None:
            return
        authority.mark("tasks_gone")
        final = self._ending(authority, ending, error)
        self.outcome = final.outcome
        if kernel.journal.failure is None:
            try:
                kernel.append(*closers(kernel.grammar, kernel.wording, final))
            except LogFailedError:
                pass  # kept by the journal; `_settle` and the driver raise it
        authority.mark("ended")

    def _ending(self, authority: Authority, ending: Ending | None, error: BaseException | None) -> Ending:
        """The outcome, by the authority's record and never by what was caught alone."""
        errors = (*authority.errors, *(errors_of(error, "kernel") if error is not None else ()))
        if ending is not None:
            errors = (*errors, *ending.errors)
        if authority.cause is Cause.LOG:
            return Ending("failed", "log", errors)
        if authority.cause is not None:
            return Ending("aborted", errors=errors, cause=authority.cause)
        if error is None and ending is not None:
            return attrs.evolve(ending, errors=errors)
        faults = [leaf for leaf in leaves(error) if isinstance(leaf, Exception)] if error is not None else []
        if faults:
            code = "log" if all(isinstance(leaf, LogFailedError) for leaf in faults) else "internal"
            return Ending("failed", code, errors)
        # Nobody called our cancel: it came through a scope around the turn, or as KeyboardInterrupt.
        return Ending("aborted", errors=errors, cause=self.kernel.host_cause)

    async def _settle(self, authority: Authority | None) -> None:
        """Flush, shielded and bounded, and let the receipts settle. A late callback finds no authority."""
        kernel = self.kernel
        if authority is None or self.outcome is None:
            return
        durable = False
        scope = shield("closing flush", kernel.settings.closing_seconds, outer_deadline=kernel.deadline)
        try:
            with scope:
                await kernel.journal.flush()
                durable = True
                authority.mark("durable")
        finally:
            authority.outcome = Settled(self.outcome, durable, authority.milestones)
            authority.settled.set()
            kernel.changed.unpark_all()
