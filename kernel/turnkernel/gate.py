"""What stands between a call and its body: hooks, then approval. Waits for people; appends `ask/*`.

Runs inside the call's own trio task and before `tool/start`, so a cancel here leaves a call that has not
started. Answers come from outside, through `answer`, and name their ask.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import attrs
import orjson
import trio

from .events import AskAnswer, AskClosed, AskOpened, InboxConsumed, Record, ResultStatus, ToolResult
from .faults import in_words, is_ours
from .kernel import Kernel, LiveCall, PendingAsk
from .tool import Answered
from .wording import CallFacts

__all__ = ["Approver", "Block", "Gate", "Hook", "Refused", "Rewrite", "answer", "ask"]

Approver = Literal["person", "none", "always"]
"""Who approves: a person through `answer`, nobody, or everything is allowed."""


@attrs.frozen
class Block:
    """A hook's word: this call does not run."""

    reason: str


@attrs.frozen
class Rewrite:
    """A hook's word: this call runs with another input. The tool use stays as the model sent it."""

    input: Mapping[str, Any]
    reason: str = ""


Hook = Callable[[str, Mapping[str, Any]], Awaitable[Block | Rewrite | None]]
"""Asked with a call's tool name and input before it runs. May be cancelled; an exception blocks the call."""


class AfterHook(Protocol):
    """Told of a call's result after it is in the log, if a trio task had taken the call up and the turn goes on.

    May be cancelled; holds up the end of its step while it runs. An exception is logged with the turn.
    """

    async def __call__(self, result: ToolResult) -> None:
        """See the class."""
        ...


@attrs.frozen
class Refused:
    """The call does not run."""

    status: ResultStatus
    text: str


class Gate:
    """A session's hooks and approval rules, and what people have said so far. A fold of the log."""

    types = frozenset(("ask/opened", "ask/closed", "inbox/consumed"))

    def __init__(
        self,
        *,
        hooks: Sequence[Hook] = (),
        after: Sequence[AfterHook] = (),
        approve: Callable[[str, Mapping[str, Any]], bool] = lambda name, input: False,
        approver: Approver = "person",
    ) -> None:
        self.hooks = tuple(hooks)
        self.after = tuple(after)
        self.approve = approve
        self.approver: Approver = approver
        self.rules: set[str] = set()
        """Tools that a person has allowed always, in this session."""
        self._inputs: dict[str, str] = {}
        self._denied: set[str] = set()

    def apply(self, record: Record) -> None:
        """Take in the next event of the log."""
        event = record.event
        match event:
            case AskClosed():
                asked = self._inputs.pop(event.ask, None)
                if event.rule is not None:
                    self.rules.add(event.rule)
                if asked is not None and event.answer in ("deny", "deny_stop", "dismissed"):
                    self._denied.add(asked)
            case AskOpened(kind="approval"):
                self._inputs[event.ask] = event.text
            case InboxConsumed():
                self._denied.clear()
            case _:
                pass

    async def clear(self, kernel: Kernel, live: LiveCall) -> Mapping[str, Any] | Refused:
        """The input that the call may run with, or why it may not. May be cancelled anywhere."""
        name, input = live.use.name, live.use.input
        for hook in self.hooks:
            word = await _asked(kernel, hook, name, input)
            if isinstance(word, Block):
                return _refused(kernel, live, "blocked", word.reason)
            if isinstance(word, Rewrite):
                input = word.input
        if self.approver == "always" or name in self.rules or not self.approve(name, input):
            return input
        if self.approver == "none":
            return _refused(kernel, live, "no_approver")
        return await self._approved(kernel, live, input)

    async def _approved(
        self, kernel: Kernel, live: LiveCall, input: Mapping[str, Any]
    ) -> Mapping[str, Any] | Refused:
        text = f"{live.use.name} {orjson.dumps(dict(input), option=orjson.OPT_SORT_KEYS).decode()}"
        if text in self._denied:
            return Refused("denied", kernel.wording.denied_again(CallFacts(live.use.name)))
        said = await ask(kernel, live, "approval", text)
        if said.answer in ("allow", "allow_always"):
            return input
        return _refused(kernel, live, "denied", said.text)


async def _asked(kernel: Kernel, hook: Hook, name: str, input: Mapping[str, Any]) -> Block | Rewrite | None:
    try:
        word = await hook(name, input)
        if isinstance(word, Rewrite):
            # What the log can't hold no tool is given.
            return attrs.evolve(word, input=orjson.loads(orjson.dumps(dict(word.input))))
        return word
    except Exception as error:
        if is_ours(error, kernel.journal):
            raise
        # A hook that fails must not let the call through.
        return Block(f"a hook failed: {in_words(error)}")


def _refused(kernel: Kernel, live: LiveCall, status: ResultStatus, reason: str = "") -> Refused:
    return Refused(status, kernel.wording.result(status, CallFacts(live.use.name, error=reason)))


async def ask(
    kernel: Kernel,
    live: LiveCall,
    kind: Literal["approval", "question"],
    text: str,
    options: Sequence[str] = (),
) -> Answered:
    """Open an ask of this call and wait for its answer. Cancelled, it is withdrawn in the log."""
    # After a cancel nobody is asked any more.
    await trio.lowlevel.checkpoint_if_cancelled()
    turn = _turn(kernel)
    event = AskOpened(turn, live.use.id, f"a{kernel.journal.seq + 1}", kind, text, tuple(options))
    # There before its record is: who reads the record may answer in the same instant.
    pending = kernel.asks[event.ask] = PendingAsk(event)
    live.asking = True
    opened = False
    try:
        kernel.append(event)
        opened = True
        if pending.answered is None:
            # Not with an answer in hand already: a wait would ask the cancel and lose it.
            await pending.closed.wait()
    finally:
        del kernel.asks[event.ask]
        if opened and pending.answered is None:
            pending.answered = Answered("withdrawn", "")
            kernel.append(AskClosed(turn, live.use.id, event.ask, "withdrawn"))
        live.asking = pending.answered is None or pending.answered.answer == "withdrawn"
    assert pending.answered is not None
    if live.asking:
        # Withdrawn by a cancel, inside a critical section it may be: whoever asks again is told.
        await trio.lowlevel.checkpoint_if_cancelled()
    return pending.answered


def answer(kernel: Kernel, ask_id: str, word: AskAnswer, text: str = "") -> bool:
    """A person's answer. Synchronous. False, and nothing happens, where no such ask is open.

    A word that does not fit the kind of ask is a ValueError: a question takes `answer` and `dismissed`, an
    approval `allow`, `allow_always`, `deny`, `deny_stop` and `dismissed` (which denies). Raises `LogFailedError`.
    """
    pending = kernel.asks.get(ask_id)
    if pending is None or pending.answered is not None:
        return False
    event = pending.event
    kind, fits = "a question", ("answer", "dismissed")
    if event.kind == "approval":
        kind, fits = "an approval", ("allow", "allow_always", "deny", "deny_stop", "dismissed")
    if word not in fits:
        raise ValueError(f"{ask_id} is {kind}: it takes {', '.join(fits)}, not {word!r}")
    call = kernel.grammar.calls[event.call]
    rule = call.use.name if word == "allow_always" else None
    # State before its record, here too: a cancel in the same instant must find the ask closed.
    pending.answered = Answered(word, text)
    pending.closed.set()
    kernel.append(AskClosed(event.turn, event.call, ask_id, word, text, rule))
    if word == "deny_stop":
        kernel.cancel()
    return True


def _turn(kernel: Kernel) -> str:
    authority = kernel.authority
    assert authority is not None
    return authority.turn
