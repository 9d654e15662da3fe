"""What all rooms of one session share: its log, its ports, its settings, and the slot of the authority.

Holds the one synchronous function that cancels, because every room may cause a cancel and none may do it in its
own way. Only a receipt waits.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

import attrs
import trio

from .cancel import Authority, Pressure, Settled
from .causes import Answer, Cause, Urgency
from .checks import check_settings
from .errors import LogFailedError
from .events import AskClosed, AskOpened, Event, InboxCanceled, InboxQueued, TaskStarted, TurnCancel
from .grammar import Grammar
from .journal import Journal
from .messages import ToolUse
from .provider import Provider, RetryPolicy
from .replay import Context
from .tool import Answered, Hosted, Tool, WorkContext
from .wording import DEFAULT, Wording

__all__ = ["Kernel", "LiveCall", "LiveTask", "PendingAsk", "Receipt", "Settings"]


@attrs.frozen
class Settings:
    """What a session was opened with. Times in seconds."""

    system: str = ""
    """The system prompt."""
    max_tokens: int = 8192
    """Of one answer of the model."""
    max_steps: int = 100
    """Steps of one turn; then it ends as `max_steps`."""
    turn_seconds: float | None = None
    """Time of one turn; then it is cancelled, cause `limit`."""
    context_tokens: int | None = None
    """Estimated tokens of the context over which no request is made: `failed(context_limit)`."""
    steer_policy: Literal["after_batch", "skip_unstarted"] = "after_batch"
    """Whether a steer waits for all calls of its step, or only for those that run."""
    max_parallel: int = 8
    """Shared calls that run together."""
    retry: RetryPolicy = attrs.field(factory=RetryPolicy)
    wording: Wording = DEFAULT
    thread_grace_seconds: float | None = None
    """After a cancel, how long a thread that does not return is waited for; None: until the urgency is *now*."""
    stuck_after_seconds: float = 10.0
    """After a cancel, when `turn/stuck` says who holds the turn."""
    closing_seconds: float = 5.0
    """Bound of the flush after a turn's end, and of everything once the session's block is being left."""
    host_cause: Cause = Cause.HOST
    """Cause of a cancel that came through a scope around the session; in a child session it is `parent`."""

    def __attrs_post_init__(self) -> None:
        """Raises TypeError or ValueError, naming the field."""
        check_settings(self)


@attrs.define(eq=False)
class LiveCall:
    """A call of the running turn that has no result yet."""

    use: ToolUse
    phase: Literal["queued", "gate", "starting", "running"] = "queued"
    scope: trio.CancelScope | None = None
    """Cancelled by `cancel_call`; None while no trio task runs it."""
    stopped_by: Cause | None = None
    """Set by `cancel_call`."""
    asking: bool = False
    process: bool = False
    """Whether it has held a process."""
    survived: bool = False
    """Whether something of it was left alive."""
    started: float = 0.0
    checkpointed: bool = False
    error: str = ""
    """What went wrong while it was being stopped."""


class LiveTask(Pressure):
    """A task that runs in this process, or whose end is waited for here."""

    def __init__(self, started: TaskStarted) -> None:
        super().__init__()
        self.started = started
        self.scope = trio.CancelScope()
        """Cancelled when it is stopped, or the session is left."""
        self.stopped_by: Cause | None = None
        """Set when somebody stops it. What merely ends with the session has none."""
        self.by_call = ""
        """The call that stops it, if it was one."""
        self.began: float | None = None
        """When its body began."""
        self.survivors: list[str] = []
        """What of it could not be stopped."""
        self.error = ""
        """What went wrong while it was being stopped."""
        self.over = trio.Event()

    def __repr__(self) -> str:
        return f"<LiveTask {self.started.task} {self.started.name} urgency={self.urgency!r}>"


@attrs.define(eq=False)
class PendingAsk:
    """An ask that is open."""

    event: AskOpened
    closed: trio.Event = attrs.field(factory=trio.Event)
    answered: Answered | None = None


@attrs.frozen(eq=False)
class Receipt:
    """What a cancel did."""

    answer: Answer
    cause: Cause
    """The first cause: not this one's, if the turn had been cancelled before."""
    turn: str | None
    """The turn that it acted on."""
    dropped: tuple[InboxQueued, ...] = ()
    """Queued input that it dropped, with its text, so that an editor can have it back."""
    going_on: tuple[TaskStarted, ...] = ()
    """Background work that lives on."""
    _authority: Authority | None = None
    _journal: Journal | None = None
    stopped: tuple[TaskStarted, ...] = ()
    """Background work that it stops."""
    _tasks: tuple[LiveTask, ...] = attrs.field(default=(), alias="tasks")

    async def settled(self) -> Settled:
        """Wait until the turn is over and its log durable, or reported as failed, and the tasks that it stops have
        ended. May itself be cancelled.

        Returns at once for `idle` and `stale`, if no task is stopped. Raises `LogFailedError` if the log failed
        meanwhile.
        """
        for task in self._tasks:
            await task.over.wait()
        if self._authority is None:
            await trio.lowlevel.checkpoint()
            return Settled(None, durable=True, milestones={})
        await self._authority.settled.wait()
        if self._journal is not None and self._journal.failure is not None:
            raise self._journal.failure
        return self._authority.outcome or Settled(None, durable=False, milestones=self._authority.milestones)


class Kernel:
    """One session's shared state. Its rooms are functions that are given it."""

    def __init__(
        self,
        journal: Journal,
        context: Context,
        provider: Provider,
        tools: Iterable[Tool],
        settings: Settings,
        within: WorkContext | None = None,
    ) -> None:
        self.journal = journal
        self.context = context
        self.provider = provider
        self.tools: dict[str, Tool] = {}
        self.add_tools(tools)
        self.settings = settings
        self.within = within
        """The work of the parent that this session runs in; None for a root."""
        self.authority: Authority | None = None
        """The running turn's, or None."""
        self.calls: dict[str, LiveCall] = {}
        """Calls of the running turn without a result."""
        self.asks: dict[str, PendingAsk] = {}
        self.tasks: dict[str, LiveTask] = {}
        """Tasks whose end is waited for here."""
        self.tasks_nursery: trio.Nursery | None = None
        """Where tasks run; None before the session's block and once it is being left."""
        self.children: dict[str, Hosted] = {}
        """Child sessions that run, by the id of the call or task that they are."""
        self._deadline = float("inf")
        self.cancelled = trio.lowlevel.ParkingLot()
        """Unparked when a turn is cancelled."""
        self.changed = trio.lowlevel.ParkingLot()
        """Unparked when there may be work for the driver, or rest."""

    def __repr__(self) -> str:
        return f"<Kernel {self.journal!r} authority={self.authority!r} calls={len(self.calls)}>"

    def add_tools(self, tools: Iterable[Tool]) -> None:
        """From now on the model has these too. Raises ValueError for a name that is taken."""
        for tool in tools:
            if tool.name in self.tools:
                raise ValueError(f"two tools are named {tool.name!r}")
            self.tools[tool.name] = tool

    @property
    def deadline(self) -> float:
        """Trio time by which everything must be over, from when the session's block is left.

        In a child session the parent's too, so that bounds don't add up.
        """
        return self._deadline if self.within is None else min(self._deadline, self.within.deadline)

    @property
    def host_cause(self) -> Cause:
        """The cause of a cancel that came through a scope around the session."""
        return self.settings.host_cause if self.within is None else Cause.PARENT

    @property
    def host_urgency(self) -> Urgency:
        """The urgency of such a cancel: a parent's own."""
        return Urgency.NOW if self.within is None else self.within.urgency or Urgency.POLITE

    @property
    def grammar(self) -> Grammar:
        """What is open in the log."""
        return self.journal.grammar

    @property
    def wording(self) -> Wording:
        """The policy in force."""
        return self.settings.wording

    def append(self, *events: Event) -> None:
        """`Journal.append`."""
        self.journal.append(*events)

    def hurry(self) -> None:
        """The session is to end now: from here on one deadline bounds every shield and closing flush.

        A child session that is asked politely has as long as its parent has.
        """
        self._deadline = min(self._deadline, trio.current_time() + self.settings.closing_seconds)

    def queued(self, *kinds: str) -> list[InboxQueued]:
        """Queued prompts and steers, in order; notices are not among them."""
        return [
            item for item in self.grammar.items.values() if isinstance(item, InboxQueued) and item.kind in kinds
        ]

    # --------------------------------------------------------------------------------------------- cancel

    @trio.lowlevel.enable_ki_protection
    def cancel(
        self,
        cause: Cause = Cause.USER,
        *,
        keep_inbox: bool = False,
        turn: str | None = None,
        urgency: Urgency | None = None,
    ) -> Receipt:
        """Cancel the running turn. Synchronous, never blocks, never raises (law R7).

        The scope goes first, the record second. `turn` names the turn that is meant: any other is `stale` and
        nothing at all happens. Prompts and steers that were queued when the turn was cancelled are dropped
        unless `keep_inbox`.
        """
        authority = self.authority
        tasks = tuple(self.grammar.tasks.values())
        if turn is not None and (authority is None or authority.turn != turn):
            return Receipt(Answer.STALE, cause, turn, going_on=tasks)
        if authority is None:
            dropped = () if keep_inbox or self.journal.closed else self._drop()
            self.changed.unpark_all()
            return Receipt(Answer.IDLE, cause, None, dropped, tasks)
        answer = authority.cancel(cause, urgency or _urgency(authority, cause))
        dropped = ()
        if answer is Answer.APPLIED:
            self._record([TurnCancel(authority.turn)])
            # Apart, because a full disk still takes what closes.
            self._record(self._withdrawals(authority.turn))
            dropped = () if keep_inbox else self._drop()
            self.cancelled.unpark_all()
        first = authority.cause or cause
        return Receipt(answer, first, authority.turn, dropped, tasks, authority, self.journal)

    def _withdrawals(self, turn: str) -> list[Event]:
        """Close every open ask, so that a late answer finds it closed and nothing reads as a denial."""
        events: list[Event] = []
        for pending in self.asks.values():
            if pending.answered is None:
                pending.answered = Answered("withdrawn", "")
                pending.closed.set()
                events.append(AskClosed(turn, pending.event.call, pending.event.ask, "withdrawn"))
        return events

    def _drop(self) -> tuple[InboxQueued, ...]:
        """Drop what is queued; what was dropped. What the log does not take stays queued."""
        queued = tuple(self.queued("prompt", "steer"))
        taken = self._record([InboxCanceled(item.item, "cancel") for item in queued])
        return queued if taken else ()

    def _record(self, events: Sequence[Event]) -> bool:
        try:
            if events:
                self.journal.append(*events)
        except LogFailedError:
            # The scope is cancelled, which is what counts; the failure is told by whoever waits on the log.
            return False
        return True


def _urgency(authority: Authority, cause: Cause) -> Urgency:
    second = authority.cause is not None and cause in (Cause.USER, Cause.REPLACED)
    return Urgency.NOW if second or cause in (Cause.HOST, Cause.SHUTDOWN) else Urgency.POLITE
