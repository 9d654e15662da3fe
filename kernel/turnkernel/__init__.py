"""turnkernel: an agent kernel on trio. A turn is a nursery; when it is over, nothing of it is left.

Everything a user of the library needs is named here; other names are private by their place.
"""

from .cancel import Settled
from .causes import Answer, Cause, Urgency
from .errors import (
    InternalError,
    LogDamagedError,
    LogFailedError,
    ProviderError,
    SessionClosedError,
    SessionLiveError,
    TurnkernelError,
)
from .events import Delta, Error
from .gate import Block, Gate, Rewrite
from .kernel import Receipt, Settings
from .messages import Message, Opaque, Text, Thinking, ToolResultBlock, ToolUse
from .observe import CallStatus, Status
from .provider import Finish, ModelEvent, Provider, Request, RetryPolicy, ToolSpec
from .session import Session, open_session
from .tool import Answered, Resource, TaskBody, TaskContext, Tasks, Tool, ToolContext, ToolOutput, WorkContext
from .wording import WORDINGS, Wording

__all__ = [
    "WORDINGS",
    "Answer",
    "Answered",
    "Block",
    "CallStatus",
    "Cause",
    "Delta",
    "Error",
    "Finish",
    "Gate",
    "InternalError",
    "LogDamagedError",
    "LogFailedError",
    "Message",
    "ModelEvent",
    "Opaque",
    "Provider",
    "ProviderError",
    "Receipt",
    "Request",
    "Resource",
    "RetryPolicy",
    "Rewrite",
    "Session",
    "SessionClosedError",
    "SessionLiveError",
    "Settings",
    "Settled",
    "Status",
    "TaskBody",
    "TaskContext",
    "Tasks",
    "Text",
    "Thinking",
    "Tool",
    "ToolContext",
    "ToolOutput",
    "ToolResultBlock",
    "ToolSpec",
    "ToolUse",
    "TurnkernelError",
    "Urgency",
    "Wording",
    "WorkContext",
    "open_session",
]
