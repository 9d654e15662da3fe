"""Names of things in one session's log. Pure; touches nothing.

Every id is a plain string, unique within its session, and follows from what the log already holds, so that
replaying a log gives the same ids again. Only the session's own id is random.
"""

import secrets
from collections.abc import Collection, Sequence
from itertools import count

__all__ = ["call_id", "new_session_id", "step_id"]


def new_session_id() -> str:
    """A fresh random id of a session, 16 hex digits."""
    return secrets.token_hex(8)


def step_id(turn: str, number: int) -> str:
    """The id of a turn's n-th step (from 1). It names its turn, so it is unique in the whole session."""
    return f"{turn}.s{number}"


def call_id(from_wire: str, *taken: Collection[str]) -> str:
    """The id of a call: the wire's own where it is non-empty and new in the session, else one made unique.

    Models repeat ids and leave them empty; a result must still answer exactly one call.
    """
    if from_wire and not _among(from_wire, taken):
        return from_wire
    base, first = from_wire or "call", 2 if from_wire else 1
    # A model that repeats an id in every step of a long session must not have us count through all of them.
    after_all = sum(map(len, taken)) + 1
    numbers = (number for numbers in (range(first, 10), count(after_all)) for number in numbers)
    return next(name for name in (f"{base}_{number}" for number in numbers) if not _among(name, taken))


def _among(name: str, taken: Sequence[Collection[str]]) -> bool:
    return any(name in ids for ids in taken)
