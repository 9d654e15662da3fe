"""What can go wrong, and whose fault it is. attrs only; touches nothing.

A tool's or a model's failure is a value in the log, not an exception here; these are for the caller, the log
and the kernel itself.
"""

__all__ = [
    "GrammarError",
    "InternalError",
    "LogDamagedError",
    "LogFailedError",
    "ProviderError",
    "SessionClosedError",
    "SessionLiveError",
    "TurnkernelError",
]


class TurnkernelError(Exception):
    """Base of every error that turnkernel raises on its own account."""


class SessionClosedError(TurnkernelError):
    """The caller's: input was given to a session whose block is being left."""


class SessionLiveError(TurnkernelError):
    """The caller's: another process (or this one) holds the log open for writing."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: the session is live: another kernel holds its lock")
        self.path = path


class LogDamagedError(TurnkernelError):
    """The file's: bytes before the end of the log are no record, and no opening has named them."""

    def __init__(self, path: str, offset: int, line: int, reason: str) -> None:
        super().__init__(f"{path}: line {line} (byte {offset}): {reason}")
        self.path = path
        self.offset = offset
        self.line = line
        self.reason = reason


class LogFailedError(TurnkernelError):
    """The disk's: the log could not be written or synced and is closed for writing."""

    def __init__(self, what: str, where: str, reason: str, not_durable: int) -> None:
        super().__init__(f"{where}: {what} failed: {reason}; {not_durable} records are not durable")
        self.what = what
        """`append`, `flush` or `close`."""
        self.where = where
        self.reason = reason
        self.not_durable = not_durable
        """How many records had been appended and not synced."""


class GrammarError(TurnkernelError):
    """The writer's: an event may not stand at this place of the log. Nothing was changed."""

    def __init__(self, event_type: str, reason: str) -> None:
        super().__init__(f"{event_type}: {reason}")
        self.event_type = event_type
        self.reason = reason


class InternalError(TurnkernelError):
    """The kernel's own: a turn ended as `failed(internal)`; the cause is chained."""


class ProviderError(TurnkernelError):
    """The model side's: a request was refused, or its stream broke. Raised by providers, kept in the log.

    `retryable` says that the same request may succeed later. The kernel retries only while nothing was shown.
    `kind` is `context_limit` when the model's window is what was exceeded, else `provider`.
    """

    def __init__(
        self,
        text: str,
        *,
        retryable: bool = False,
        retry_after: float | None = None,
        status: int | None = None,
        kind: str = "provider",
    ) -> None:
        super().__init__(text)
        self.text = text
        self.retryable = retryable
        self.retry_after = retry_after
        """Seconds that the server asked to wait, if it did."""
        self.status = status
        """HTTP status, if one was received."""
        self.kind = kind
