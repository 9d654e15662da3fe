"""Why a turn was cut short, how urgently, and how a cancel was answered. Pure; touches nothing."""

from enum import IntEnum, StrEnum

__all__ = ["Answer", "Cause", "Urgency"]


class Cause(StrEnum):
    """Who or what cut a turn short. The first one wins (law R4). Run-time information: never in the log."""

    USER = "user"
    """A person pressed stop."""
    REPLACED = "replaced"
    """A person said something else instead; the model needs no reminder."""
    PARENT = "parent"
    """The session that started this one was cut."""
    LIMIT = "limit"
    """A limit of the session was reached."""
    SHUTDOWN = "shutdown"
    """The session's block was left."""
    HOST = "host"
    """A cancel scope around the session was cancelled."""
    LOG = "log"
    """The log can't be written any more."""


class Urgency(IntEnum):
    """How much time a cut turn is given. It only ever rises."""

    POLITE = 1
    """SIGTERM, grace, SIGKILL; threads are waited for; critical sections end."""
    NOW = 2
    """Graces and critical sections end at once; a thread that does not return is left and named."""


class Answer(StrEnum):
    """What a cancel did."""

    APPLIED = "applied"
    """A turn (or call) was running; it will end cut short."""
    REPEATED = "repeated"
    """It had been cancelled already; at most the urgency rose."""
    IDLE = "idle"
    """No turn was running; only the queue may have changed."""
    STALE = "stale"
    """The turn or call that was named is not the running one; nothing was done."""
