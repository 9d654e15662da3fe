"""A log that says how long it took, for splits only: asking the clock takes time too."""

import trio

from turnkernel.events import Event, TurnEnd
from turnkernel.journal import Journal

__all__ = ["ClockedJournal"]


class ClockedJournal(Journal):
    """Adds up the time inside `append`, the closing block's left out, and keeps that of the last flush.

    For one session at a time.
    """

    appending = 0.0
    """Seconds since it was last set to 0."""
    flushing = 0.0
    """Seconds of the last flush that was waited for to its end."""

    def append(self, *events: Event) -> None:
        """As `Journal.append`."""
        began = trio.current_time()
        try:
            super().append(*events)
        finally:
            if not any(isinstance(event, TurnEnd) for event in events):
                ClockedJournal.appending += trio.current_time() - began

    async def flush(self) -> None:
        """As `Journal.flush`."""
        began = trio.current_time()
        await super().flush()
        ClockedJournal.flushing = trio.current_time() - began
