"""What is seen of one accident, up to the last record that was shown. A fold of records; touches nothing."""

import attrs

from turnkernel.events import (
    InboxConsumed,
    InboxQueued,
    ModelDelta,
    Record,
    StepStart,
    ToolOutput,
    ToolResult,
    ToolStart,
)
from turnkernel.grammar import Grammar
from turnkernel.observe import Status, StatusFold

__all__ = ["Scene", "Spoken"]


@attrs.define
class Spoken:
    """A line of the conversation, as a screen shows it."""

    who: str
    text: str
    call: str = ""
    """For a call: its id, and ..."""
    state: str = ""
    """... what has become of it."""
    started: float = 0.0


class _Folded:
    """State that follows from records."""

    def __init__(self) -> None:
        self.grammar = Grammar()
        self.status = StatusFold()
        self.said: list[Spoken] = []
        self.requests = 0
        self.time = 0.0
        self._queued: dict[str, str] = {}
        self._step = ""

    def take(self, record: Record) -> None:
        self.grammar.apply(record)
        self.status.apply(record)
        self.time = record.t
        match record.event:
            case InboxQueued(item=item, text=text):
                self._queued[item] = text
            case InboxConsumed(item=item):
                self.said.append(Spoken("user", self._queued.get(item, "")))
            case StepStart(step=step):
                self.requests += 1
                self._step = step
            case ModelDelta(part="text", text=text, step=step):
                if self._step == step:
                    self.said.append(Spoken("model", ""))
                    self._step = ""
                self.said[-1].text += text
            case ToolStart(call=call, name=name):
                self.said.append(Spoken(name, "", call, "running", record.t))
            case ToolOutput(call=call, text=text):
                self._of_call(call).text += text
            case ToolResult(call=call, status=status):
                self._of_call(call).state = status
            case _:
                pass

    def _of_call(self, call: str) -> Spoken:
        return next((one for one in self.said if one.call == call), Spoken("", ""))


@attrs.define
class Scene:
    """What a stage shows."""

    number: int
    of: int
    heading: str
    shown: list[Record | str] = attrs.field(factory=list[Record | str])
    """Records, and notes between them."""
    caption: str = ""
    dead: bool = False
    """Whether the program has been killed and not been started again."""
    since: float = 0.0
    """Seconds since the last record was shown."""
    removals: int = 0
    """How often records were cut out of the log."""
    _folded: _Folded = attrs.field(factory=_Folded)

    def show(self, record: Record) -> None:
        """Take in the next record."""
        self.shown.append(record)
        self._folded.take(record)
        self.dead = False
        self.since = 0.0

    def remove(self, count: int) -> None:
        """The last `count` records are not in the log any more: what is known of it begins anew."""
        kept = self.records[:-count]
        self._folded = _Folded()
        for record in kept:
            self._folded.take(record)
        self.shown = [*kept, f"{count} records cut out of the log"]
        self.removals += 1

    @property
    def records(self) -> list[Record]:
        """Those that were shown and have not been cut out."""
        return [one for one in self.shown if isinstance(one, Record)]

    @property
    def now(self) -> float:
        """Seconds of the log's epoch. Time stands still for a dead program."""
        return self._folded.time + (0.0 if self.dead else self.since)

    @property
    def status(self) -> Status:
        """What a screen shows of the session now (docs/status.md)."""
        return self._folded.status.status(self._folded.grammar, self.now)

    @property
    def ended(self) -> bool:
        """Whether the log was closed in order."""
        return self._folded.grammar.session == "closed"

    @property
    def requests(self) -> int:
        """Model requests so far, as far as the log knows."""
        return self._folded.requests

    @property
    def said(self) -> list[Spoken]:
        """The conversation so far."""
        return self._folded.said
