"""Opens a log that exists: loads it, and closes what a crash left open, first in the logs of its child sessions.

Waits for the file system in threads; what is written is decided by `repair`.
"""

import datetime
from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import trio

from .errors import LogDamagedError, LogFailedError, SessionLiveError
from .events import Parent, PassedOver, Salvaged, SessionClose, SessionOpen
from .ids import new_session_id
from .journal import Journal
from .logfile import is_there, make_private
from .messages import Text
from .reading import is_log
from .repair import INTERRUPTION, closers
from .replay import Context
from .store import FileStore, MemoryStore, Store
from .wording import Wording

__all__ = ["close_children", "load", "open_store", "recover"]


async def open_store(
    path: str | PathLike[str] | Store | None, durability: str, *, child: bool = False
) -> tuple[Store, str]:
    """Where a log is, locked for writing, and the durability that can be had there.

    With `child` the folder that it is in is made if need be. Raises ValueError, `SessionLiveError`, OSError.
    """
    if durability not in ("power", "process", "memory"):
        raise ValueError(f"durability is power, process or memory, not {durability!r}")
    if path is None:
        return MemoryStore(), "memory"
    if isinstance(path, str | PathLike):
        return await trio.to_thread.run_sync(_open_file, Path(path), child), durability
    return path, durability


def _open_file(path: Path, child: bool) -> FileStore:
    if child:
        make_private(path.parent)
    return FileStore.open(path)


_SHORT_BYTES = 64 * 1024
"""A log that is read in less time than a thread's start and end would add to."""


def _loaded(journal: Journal, salvage: bool) -> tuple[PassedOver | None, Salvaged | None]:
    try:
        return journal.load(), None
    except LogDamagedError:
        if not salvage:
            raise
    return journal.salvage()


async def load(journal: Journal, store: Store, salvage: bool) -> tuple[PassedOver | None, Salvaged | None]:
    """Read the log into the journal: the torn tail that it passed over, and what it gave up, if it may.

    Raises `LogDamagedError`.
    """
    if store.size and not is_log(store):
        # Somebody's letter of one line would be taken for the torn beginning of a log, and written to.
        raise LogDamagedError(store.where, 0, 1, "no log: there is no record at its beginning")
    if store.size <= _SHORT_BYTES:
        return _loaded(journal, salvage)
    # A long log must not hold up other sessions of this trio run.
    return await trio.to_thread.run_sync(_loaded, journal, salvage)


def recover(
    journal: Journal,
    wording: Wording,
    passed_over: PassedOver | None,
    salvaged: Salvaged | None = None,
    *,
    containment: str = "none",
    parent: Parent | None = None,
    children: Mapping[str, str] | None = None,
) -> None:
    """Open the next epoch of a journal that was loaded, and close what a crash left open. Synchronous.

    `children` says how the sessions ended that its open calls and tasks had opened (`close_children`).
    Deterministic but for the wall clock and, in a new log, the session's id. Raises `LogFailedError`.
    """
    known = journal.grammar.opened
    journal.append(
        SessionOpen(
            known.session if known is not None else new_session_id(),
            datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            journal.durability,
            containment,
            parent=parent or (known.parent if known is not None else None),
            passed_over=(passed_over,) if passed_over is not None else (),
            salvaged=salvaged,
        )
    )
    journal.append(*closers(journal.grammar, wording, INTERRUPTION, children or {}))


async def close_children(journal: Journal, wording: Wording) -> dict[str, str]:
    """Close what a crash left open in the logs of the child sessions of a log, deepest first.

    How each had ended, in words, by the name of its log. One that can't be opened or read is left alone, which the
    words say. Durable when it returns; cancelled, the rest is done at the next opening.
    """
    grammar = journal.grammar
    works = (*grammar.calls.values(), *grammar.tasks.values())
    return {work.log: await _close_child(journal, work.log, wording) for work in works if work.log is not None}


async def _close_child(parent: Journal, name: str, wording: Wording) -> str:
    try:
        place = parent.beside(name)
        if isinstance(place, Path) and not is_there(place):
            return wording.child_ended(None, "")
        store, durability = await open_store(place, parent.durability)
    except (OSError, ValueError, SessionLiveError) as error:
        return wording.child_unknown(str(error))
    context = Context()
    journal = Journal(store, durability=durability, folds=(context,), clock=trio.current_time)
    try:
        passed_over, _ = await load(journal, store, salvage=False)
        children = await close_children(journal, wording)
        if journal.grammar.session == "open":
            known = journal.grammar.opened
            recover(
                journal,
                wording,
                passed_over,
                containment=known.containment if known is not None else "none",
                children=children,
            )
            journal.append(SessionClose())
            await journal.flush()
    except (LogDamagedError, LogFailedError) as error:
        return wording.child_unknown(str(error))
    finally:
        journal.close()
    return wording.child_ended(journal.grammar.last_outcome, _last_words(context))


def _last_words(context: Context) -> str:
    """What the model said last."""
    for message in reversed(context.messages):
        if message.role == "assistant":
            return "\n".join(block.text for block in message.blocks if isinstance(block, Text))
    return ""
