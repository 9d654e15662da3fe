"""What the model said and is told, independent of any wire. attrs only; touches nothing.

Providers turn these into a wire's own shapes and back. Blocks are frozen: for one wire and model a block that
was sent is never changed (law C6).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

__all__ = [
    "AssistantBlock",
    "Block",
    "Message",
    "Opaque",
    "Role",
    "Text",
    "Thinking",
    "ToolResultBlock",
    "ToolUse",
    "UserBlock",
]

Role = Literal["user", "assistant"]


@attrs.frozen
class Text:
    """Words, of either side."""

    text: str


@attrs.frozen
class Thinking:
    """Reasoning that the model gave, whole. It goes back byte for byte, only to the wire and model it is from."""

    text: str
    signature: str | None = None
    """What the wire proves it with; None where the wire signs nothing."""
    redacted: str | None = None
    """The wire's encrypted form, given instead of text."""


@attrs.frozen
class ToolUse:
    """A call that the model asks for."""

    id: str
    """Unique in the session; encoders map it to what a wire allows."""
    name: str
    input: Mapping[str, Any]
    """A JSON object, always: `{}` where the model sent something else."""
    raw: str | None = None
    """What the model sent as input, when it was no JSON object. The call is answered with an error."""


@attrs.frozen
class Opaque:
    """A block that only the wire it came from understands (a server-side tool, say). Given back as it came."""

    data: Mapping[str, Any]


@attrs.frozen
class ToolResultBlock:
    """The one answer to a call."""

    call: str
    name: str
    text: str
    """Never blank."""
    is_error: bool


AssistantBlock = Text | Thinking | ToolUse | Opaque
UserBlock = Text | ToolResultBlock
Block = AssistantBlock | UserBlock


@attrs.frozen
class Message:
    """One turn of speech. Consecutive messages of a context have different roles (law C1)."""

    role: Role
    blocks: Sequence[Block]
    wire: str | None = None
    """For the assistant: the wire it was said on ..."""
    model: str | None = None
    """... and the model that said it. Its thinking goes back to these only."""
