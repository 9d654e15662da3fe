"""The check of a context before it is sent, and its repair. Pure, but for the switch in the environment.

The kernel keeps laws C1 to C3, so there should be nothing to repair; what a provider is given may come from
elsewhere, though, and one bad message makes a vendor refuse every request of a session for ever. So what breaks
the laws is mended here, in the least lossy way, always the same way. A mend means that something upstream is
broken: with `TURNKERNEL_STRICT=1` in the environment it is an error instead.
"""

import os
from collections.abc import Iterable, Sequence

import attrs

from turnkernel.errors import TurnkernelError
from turnkernel.ids import call_id
from turnkernel.messages import AssistantBlock, Message, Text, ToolResultBlock, ToolUse, UserBlock
from turnkernel.text import is_blank

from .wire_json import written

__all__ = ["FILLER", "NO_OUTPUT", "NO_RESULT", "PairingError", "is_strict", "paired"]

FILLER = "(continue)"
"""Stands where a user message has to be and none is."""
NO_RESULT = "[No result was recorded for this call.]"
NO_OUTPUT = "(no output)"
"""Stands where a result has no text; vendors refuse an empty error (rule A22)."""


class PairingError(TurnkernelError):
    """The caller's: a context that breaks laws C1 to C3, under `TURNKERNEL_STRICT=1`."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(f"the context breaks the laws: {'; '.join(problems)}")
        self.problems = tuple(problems)


def is_strict() -> bool:
    """Whether the environment asks for an error instead of a mend."""
    return os.environ.get("TURNKERNEL_STRICT") == "1"


def paired(messages: Iterable[Message], *, strict: bool | None = None) -> tuple[Message, ...]:
    """The messages, fit to be sent on any wire: laws C1 to C3 hold of them.

    They start with user and alternate; ids are unique; every call is answered by one result, first in the next
    message and in the order of the calls; no text is blank and no message empty; inputs are JSON. A missing
    result is added, an orphan becomes plain text, what is no JSON becomes `{}`. They may end with the assistant:
    such a context is one that nobody is sending.

    Raises:
        PairingError: `strict` (default: as the environment says) and there was something to mend.
    """
    mend = _Mend()
    for message in messages:
        if message.role == "assistant":
            mend.assistant(message)
        else:
            mend.user(message)
    mend.settle()
    if mend.problems and (is_strict() if strict is None else strict):
        raise PairingError(mend.problems)
    return tuple(mend.out)


class _Mend:
    """Goes through the messages once; a user message is finished only when the next assistant message comes."""

    def __init__(self) -> None:
        self.out: list[Message] = []
        self.problems: list[str] = []
        self._taken: set[str] = set()
        self._waiting: list[tuple[str, ToolUse]] = []
        """The calls of the last assistant message, each with the id that its result names."""
        self._heard: list[UserBlock] = []
        self._has_user = False

    def user(self, message: Message) -> None:
        """Take a user message; one that follows another is its continuation."""
        if self._has_user:
            self.problems.append("two user messages in a row")
        self._has_user = True
        self._heard += [block for block in message.blocks if isinstance(block, Text | ToolResultBlock)]

    def assistant(self, message: Message) -> None:
        """Take an assistant message; what the user said before it is settled now."""
        blocks = [block for block in message.blocks if not isinstance(block, Text) or not is_blank(block.text)]
        said: list[AssistantBlock] = []
        calls: list[tuple[str, ToolUse]] = []
        for block in blocks:
            if isinstance(block, ToolUse):
                calls.append((block.id, self._call(block)))
            elif not isinstance(block, ToolResultBlock):
                said.append(block)
                if calls:
                    self.problems.append("words after a call")
        if len(blocks) < len(message.blocks) or not (said or calls):
            self.problems.append("a blank text or an empty message of the assistant")
        if not (said or calls):
            return
        if not self._has_user:
            self.problems.append("an assistant message that answers nobody")
        self._settle_user()
        self.out.append(attrs.evolve(message, blocks=(*said, *(call for _, call in calls))))
        self._waiting = calls

    def settle(self) -> None:
        """The end: a user message that is there, or must be because of calls, is settled."""
        if self._has_user or self._waiting:
            self._settle_user()

    def _call(self, use: ToolUse) -> ToolUse:
        ident = use.id
        if not ident or ident in self._taken:
            self.problems.append(f"the call id {ident!r} is not unique")
            ident = call_id(ident, self._taken)
        self._taken.add(ident)
        return attrs.evolve(use, id=ident, input=self._input(use))

    def _input(self, use: ToolUse) -> dict[str, object]:
        given: object = use.input
        try:
            if isinstance(given, dict):
                written(use.input)
                return dict(use.input)
        except ValueError:
            pass
        self.problems.append(f"the input of call {use.id!r} is no JSON object")
        return {}

    def _settle_user(self) -> None:
        left = {at: block for at, block in enumerate(self._heard) if isinstance(block, ToolResultBlock)}
        blocks: list[UserBlock] = [self._answer(ident, use, left) for ident, use in self._waiting]
        for at, block in enumerate(self._heard):
            if isinstance(block, ToolResultBlock):
                if at in left:
                    self.problems.append(f"a result of {block.call!r}, which nothing waits for")
                    text = NO_OUTPUT if is_blank(block.text) else block.text
                    blocks.append(Text(f"[Result of an earlier call of {block.name}]\n{text}"))
            elif is_blank(block.text):
                self.problems.append("a blank text of the user")
            else:
                blocks.append(block)
        self._check_order()
        if not blocks:
            self.problems.append("an empty message of the user")
            blocks = [Text(FILLER)]
        self.out.append(Message("user", tuple(blocks)))
        self._heard, self._waiting, self._has_user = [], [], False

    def _answer(self, ident: str, use: ToolUse, left: dict[int, ToolResultBlock]) -> ToolResultBlock:
        """The first result that names the call, taken out of `left`, or one that says that there is none."""
        for at, result in left.items():
            if result.call == ident:
                del left[at]
                if is_blank(result.text):
                    self.problems.append(f"a blank result of {ident!r}")
                    result = attrs.evolve(result, text=NO_OUTPUT)
                return attrs.evolve(result, call=use.id)
        self.problems.append(f"no result of {ident!r}")
        return ToolResultBlock(use.id, use.name, NO_RESULT, is_error=True)

    def _check_order(self) -> None:
        ranks = [isinstance(block, Text) for block in self._heard]
        order = [block.call for block in self._heard if isinstance(block, ToolResultBlock)]
        asked = [ident for ident, _ in self._waiting]
        if ranks != sorted(ranks) or (sorted(order) == sorted(asked) and order != asked):
            self.problems.append("results that are not first, or not in the order of their calls")
