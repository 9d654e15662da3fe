"""What a scenario file says, as frozen classes. attrs only; touches nothing.

Fields, defaults and their meaning are those of the scenario format (docs/scenarios.md); `load` makes these from
TOML and checks what one field can't say alone. Times are in seconds.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import attrs

from turnkernel.causes import Answer
from turnkernel.events import Outcome, ResultStatus
from turnkernel.testing.replies import Reply
from turnkernel.tool import Concurrency, Effect

__all__ = [
    "LONGEST",
    "ROOT",
    "RUN_LIMIT",
    "Act",
    "Action",
    "AtLeast",
    "Do",
    "Expect",
    "Law",
    "Scenario",
    "ScenarioReply",
    "SessionTable",
    "ToolScript",
    "ToolsTable",
    "User",
    "Verb",
    "Wire",
]

ROOT = "root"
"""The name of the session that the users talk to; a child session's name is its call's id."""

Wire = Literal["anthropic", "openai-chat", "openai-responses"]
Law = Literal[
    "L1", "L2", "L3", "L4", "L5", "L6", "L7", "L8",
    "C1", "C2", "C3", "C4", "C5", "C6",
    "R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8", "R9", "R10", "R11", "R12",
    "D1", "D2",
]  # fmt: skip
Verb = Literal[
    "emit", "sleep", "checkpoint", "ask", "touch", "critical", "spawn", "result", "block", "swallow", "shield",
    "raise",
]  # fmt: skip
Do = Literal[
    "cancel", "replace", "steer", "send", "withdraw", "go_on", "cancel_call", "stop_all", "stale_cancel",
    "host_cancel", "close", "allow", "allow_always", "deny", "deny_stop", "dismiss", "answer", "stop_task",
    "kill", "terminate", "interrupt", "disk_full", "disk_error",
]  # fmt: skip


@attrs.frozen
class AtLeast:
    """The bound of an annotated number; the loader holds it."""

    least: float
    most: float = float("inf")


LONGEST = 604_800
"""A week, in seconds. Nothing of a run takes longer, and what the system's timers refuse is far beyond it."""
_MOST = 1_000_000_000

Seconds = Annotated[float, AtLeast(0, LONGEST)]
Patience = Annotated[float, AtLeast(0.001, LONGEST)]
"""How long something may take: none at all is no patience but a mistake."""
RUN_LIMIT = AtLeast(0.1, LONGEST)
"""How long a whole run may take: starting the kernel's process alone takes about as long as the least."""
Count = Annotated[int, AtLeast(0, _MOST)]
Number = Annotated[int, AtLeast(1, _MOST)]


@attrs.frozen
class SessionTable:
    """How the session is opened."""

    max_steps: Number = 20
    turn_seconds: Patience | None = None
    """A turn that takes longer is cut, with cause `limit`. None: no limit."""
    context_tokens: Number = 100_000
    """A context over it is refused before anything is sent."""
    steer_policy: Literal["after_batch", "skip_unstarted"] = "after_batch"
    durability: Literal["power", "process", "memory"] = "power"
    wording: str = "default"
    """The name of a policy in `turnkernel.wording.WORDINGS`."""
    recovery: Literal["append", "truncate"] = "append"
    """`truncate`, for contrast, removes the records of an unfinished turn instead of closing it."""
    containment: Literal["tree", "namespace", "group"] = "tree"
    retries: Count = 2
    backoff_seconds: Seconds = 0.05
    silence_seconds: Patience | None = None
    """A stream without progress for so long is given up. None: as the provider has it."""


@attrs.frozen
class User:
    """Words of a person, said when the session is at rest."""

    text: str
    session: str = ROOT


@attrs.frozen
class ScenarioReply(Reply):
    """A reply of the scripted model, and whose model it is."""

    session: str = ROOT
    raw_file: str | None = None
    """Where `raw` was read from: an absolute path."""


@attrs.frozen
class Action:
    """One thing that a scripted tool does; a table of one key in the file."""

    verb: Verb
    value: Any
    """`emit` `ask` `touch` `result`: a text. `sleep` `critical` `block` `shield`: seconds. `checkpoint`: any JSON
    value. `spawn`: a lifetime. `swallow`: true; from there on a cancel is swallowed. `raise`: the `Exception`."""


@attrs.frozen
class ToolScript:
    """A scripted tool. Without a `result` in `does` it returns a text of its own."""

    name: str
    effect: Effect = "effect"
    concurrency: Concurrency = "shared"
    isolation: Literal["task", "thread"] = "task"
    timeout: Patience | None = None
    does: tuple[Action, ...] = ()
    on_cancel: tuple[Action, ...] = ()
    """What its cleanup does; then the cancel goes on."""


@attrs.frozen
class Act:
    """A scripted interrupt: when, and what."""

    do: Do
    on: str | None = None
    """An event type."""
    site: Count | None = None
    """Instead of `on`, in virtual runs: a place as printed by a sweep."""
    where: Mapping[str, Any] = attrs.field(factory=dict[str, Any])
    """Fields of the event that must be equal."""
    nth: Number = 1
    """The n-th match, counted over restarts."""
    delay: Seconds | None = None
    """None: right after the append, before the appender goes on."""
    times: Number = 1
    gap: Seconds = 0.0
    """Between one firing and the next."""
    target: str | None = None
    """The call, ask, task or item that the verb means; None: the event's own."""
    text: str | None = None
    keep_inbox: bool = False
    bytes: Count | None = None
    """For `kill`: after so many bytes of the matching record."""
    lose: Literal["unflushed"] | None = None
    """For `kill`: a power cut takes what was not flushed."""
    op: Literal["append", "flush"] = "append"
    """For the disk: what fails."""
    lasting: bool = False
    """For the disk: whether it stays so."""
    session: str = ROOT


@attrs.frozen
class ToolsTable:
    """How calls are let through."""

    approve: tuple[str, ...] = ()
    """Tools that need approval."""
    approver: Literal["script", "none", "always"] = "script"
    """Who gives it: the acts, nobody, or everybody."""
    grace_seconds: Seconds = 2.0
    """Between SIGTERM and SIGKILL."""
    background: Literal["session", "detached"] = "session"
    """How long the commands run that `bash` makes tasks of."""
    block: Mapping[str, str] = attrs.field(factory=dict[str, str])
    """Tools that a hook blocks, with its reason."""
    rewrite: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict[str, Mapping[str, Any]])
    """Tools whose input a hook replaces."""


@attrs.frozen
class Expect:
    """What must have come out. None and nothing: not looked at, except for `violations`."""

    outcomes: tuple[Outcome, ...] | None = None
    requests: Count | None = None
    """Model requests that reached the wire."""
    survivors: Count | None = None
    """Processes of a turn that were alive after it."""
    results: Mapping[str, ResultStatus] = attrs.field(factory=dict[str, ResultStatus])
    answers: tuple[Answer, ...] | None = None
    """Of the cancels, in order."""
    events: tuple[str, ...] = ()
    """In this order, others between."""
    dropped: tuple[str, ...] | None = None
    """Texts of queued input that a cancel dropped."""
    said: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict[str, tuple[str, ...]])
    """Parts of a result's text, by call."""
    context_has: tuple[str, ...] = ()
    context_lacks: tuple[str, ...] = ()
    violations: tuple[Law, ...] = ()
    """Laws that must be broken; no other may be."""


@attrs.frozen
class Scenario:
    """A whole file."""

    title: str = ""
    wire: Wire = "anthropic"
    virtual: bool = False
    """Virtual clock, model and log in memory, scripted tools only."""
    limit_seconds: Annotated[float, RUN_LIMIT] = 60.0
    """Real time; over it the run fails."""
    design: str = "turnkernel"
    """Or the name of a known-bad kernel of `turnkernel.testing`."""
    session: SessionTable = SessionTable()
    users: tuple[User, ...] = ()
    replies: tuple[ScenarioReply, ...] = ()
    scripts: tuple[ToolScript, ...] = ()
    acts: tuple[Act, ...] = ()
    tools: ToolsTable = ToolsTable()
    expect: Expect = Expect()
