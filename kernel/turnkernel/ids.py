"""Names of things in one session's log. Pure; touches nothing.

Every id is a plain string, unique within its session, and follows from what the log already holds, so that
replaying a log gives the same ids again. Only the session's own id is random.
"""

import secrets
from collections.abc import Container

__all__ = ["call_id", "new_session_id", "step_id"]


def new_session_id() -> str:
    """A fresh random id of a session, 16 hex digits."""
    return secrets.token_hex(8)


def step_id(turn: str, number: int) -> str:
    """The id of a turn's n-th step (from 1). It names its turn, so it is unique in the whole session."""
    return f"{turn}.s{number}"


def call_id(from_wire: str, taken: Container[str]) -> str:
    """The id of a call: the wire's own where it is non-empty and new in the session, else one made unique.

    Models repeat ids and leave them empty; a result must still answer exactly one call.
    """
    base = from_wire or "call"
    if from_wire and from_wire not in taken:
        return from_wire
    number = 2 if from_wire else 1
    while f"{base}_{number}" in taken:
        number += 1
    return f"{base}_{number}"
