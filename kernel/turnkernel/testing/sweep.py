"""Cancel at every scheduling point: a program of prompts, replies and tools, run once per place a cancel can be.

A *site* is an instant at which code of the same trio run could call `cancel`: B, just before a step of a trio
task (it was woken already, what it was woken with is decided and kept), A, after the last step of a batch when
the loop goes to wait (everybody is parked, waits get aborted), and E, right after an append, inside the step of
whoever appended (a tool or a hook that cancels its own turn). Between two trio steps nothing else can run, so A
and B are complete for cancels from outside, for one schedule; `seed` chooses the schedule.

The method is old: xapi did it in 2012 for virtual machines, trio issue 77 asks for it since 2017.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import attrs
import trio
from trio.lowlevel import Task

from ..cancel import is_listed
from ..causes import Answer
from ..checks import check_provider, check_tools, one_of
from ..events import EVENT_TYPES, AskOpened, Event, Record, ToolResult, ToolStart, TurnCancel, TurnEnd
from ..gate import Gate
from ..inbox import has_work
from ..journal import Journal
from ..kernel import Receipt, Settings
from ..provider import Provider
from ..session import Session, open_session
from ..tool import Tool
from .laws import Violation, check_log
from .replies import Reply
from .scripted import ScriptedProvider
from .virtual import Livelock, Site, run_virtually, where_of
from .watched import WatchedProvider, Witness, watched

__all__ = [
    "Action",
    "Box",
    "Failure",
    "Livelock",
    "Program",
    "Run",
    "Site",
    "answer",
    "cancel",
    "host_cancel",
    "pairs",
    "play",
    "steer",
    "sweep",
    "truth",
]


@attrs.frozen
class Program:
    """What a virtual run does: prompts said one after the other, each when the session is at rest.

    `tools` and `provider` are functions, because every run of a sweep has new ones. Tools and providers of your
    own are swept too, as far as they wait for nothing but trio: a thread, a process or a socket wakes when it
    likes, and no schedule follows from a seed. Raises TypeError or ValueError, naming the field.
    """

    title: str
    replies: Sequence[Reply] = ()
    """What the scripted model says; one too many is answered with a few words."""
    tools: Callable[[], Sequence[Tool]] = tuple
    prompts: Sequence[str] = ("go",)
    settings: Settings = attrs.field(factory=Settings)
    gate: Callable[[], Gate] = Gate
    on: Sequence[tuple[str, int, "Action"]] = ()
    """What is done right after the n-th event (from 1) of a type."""
    epilogue: Sequence[Reply] = (Reply(text="Understood."),)
    """Replies of the last prompt, which is said after everything and must work."""
    provider: Callable[[], Provider] | None = None
    """Makes a provider of your own, instead of `replies` and `epilogue`. It must answer the last prompt too."""

    def __attrs_post_init__(self) -> None:
        for name in ("tools", "gate", "provider"):
            made = getattr(self, name)
            if not callable(made) and not (name == "provider" and made is None):
                raise TypeError(f"{name} must be a function that makes them for each run, not {made!r}")
        if isinstance(self.prompts, str):
            raise TypeError(f"prompts must be a list of texts, not {self.prompts!r}")
        if self.provider is not None and self.replies:
            raise ValueError("replies are for the scripted model, and there is a provider")
        for event, _, _ in self.on:
            one_of("on", event, EVENT_TYPES)


@attrs.define
class Box:
    """What a run's hooks and checks see of it."""

    session: Session | None = None
    host: trio.CancelScope | None = None
    host_cancelled: bool = False
    provider: ScriptedProvider | WatchedProvider | None = None
    tools: Sequence[Witness] = ()
    records: list[Record] = attrs.field(factory=list[Record])
    receipts: list[tuple[int, Receipt]] = attrs.field(factory=list[tuple[int, Receipt]])
    """Receipts with the number of the last record before them."""
    found: list[Violation] = attrs.field(factory=list[Violation])
    """What was seen while it ran."""
    sites: "_Sites | None" = None
    armed: bool = False
    """Whether sites count now: while the program's prompts are said, not in its epilogue."""
    error: BaseException | None = None

    @property
    def events(self) -> list[Event]:
        """What was logged."""
        return [record.event for record in self.records]

    def say(self, law: str, detail: str) -> None:
        """Note a violation."""
        self.found.append(Violation(law, len(self.records), detail))


Action = Callable[[Box], None]
"""What is done at a site. Synchronous."""


@attrs.frozen
class Run:
    """One run of a program."""

    box: Box
    sites: Sequence[Site]
    violations: Sequence[Violation]


@attrs.frozen
class Failure:
    """A place at which a law breaks, and how to see it again."""

    program: str
    seed: int
    plan: tuple[int, ...]
    site: Site
    violations: Sequence[Violation]

    def __str__(self) -> str:
        broken = "; ".join(f"{one.law} at {one.seq}: {one.detail}" for one in self.violations)
        return f"{self.program!r} seed {self.seed} sites {self.plan} ({self.site}): {broken}"


# ---------------------------------------------------------------------------------------------- the schedule


class _Sites(trio.abc.Instrument):
    """Counts sites and does the plan. trio silently drops a hook that raises, so this one notes it instead."""

    def __init__(self, box: Box, plan: Mapping[int, Action]) -> None:
        self.sites: list[Site] = []
        self.fired: set[int] = set()
        self._box = box
        self._plan = plan
        self._last: Task | None = None

    def before_task_step(self, task: Task) -> None:
        self._last = None
        self._site("B", task)

    def after_task_step(self, task: Task) -> None:
        self._last = task

    def before_io_wait(self, timeout: float) -> None:
        if self._last is not None:
            self._site("A", self._last)
            self._last = None

    def _site(self, kind: str, task: Task) -> None:
        if self._box.armed:
            self._reach(Site(kind, task.name.rsplit(".", 1)[-1], where_of(task)))

    def appended(self, record: Record) -> None:
        """Called by the journal right after an append."""
        if self._box.armed:
            self._reach(Site("E", record.event.type, str(record.seq)))

    def _reach(self, site: Site) -> None:
        number = len(self.sites)
        planned = self._plan.get(number)
        self.sites.append(site)
        if planned is not None:
            try:
                planned(self._box)
                _check_shields(self._box)
            except Exception as error:  # noqa: BLE001 - noted, and told by `play`, which can raise
                self._box.error = error
            self.fired.add(number)


def _check_shields(box: Box) -> None:
    """R9 as it runs: no shield inside the turn but listed ones, none without a deadline."""
    authority = box.session._kernel.authority if box.session is not None else None  # pyright: ignore
    if authority is None:
        return
    for task in _tree(authority.nursery.parent_task):
        status = cast(Any, task)._cancel_status
        while status is not None:
            scope = status._scope
            if scope.shield and (not is_listed(scope) or scope.deadline == float("inf")):
                box.say("R9", f"a shield that is not listed or has no deadline, in {task.name}")
            status = status._parent


def _tree(task: Task) -> list[Task]:
    """A trio task and everything below it. The turn's steps run in the task that holds its nursery."""
    children = [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return [task, *(below for child in children for below in _tree(child))]


# --------------------------------------------------------------------------------------------------- one run


def play(program: Program, plan: Mapping[int, Action] | None = None, seed: int = 0) -> Run:
    """Run the program with the plan's actions at its sites, and check every law that a virtual run can show.

    Deterministic: the same program, plan and seed give the same log. Raises what an action raised, what
    the program's own functions raised, TypeError or ValueError for what is no tool or provider, and AssertionError
    where a planned site was not reached.
    """
    box = _equipped(program)
    plan = plan or {}
    sites = box.sites = _Sites(box, plan)
    try:
        run_virtually(_main, program, box, seed=seed, instruments=[sites])
    except trio.TrioInternalError as error:
        box.say("hang", repr(error.__cause__))
    except Exception as error:  # noqa: BLE001 - a fault of the kernel is what a sweep looks for: told as a violation
        box.say("fault", repr(error))
    if box.error is not None:
        raise box.error
    missed = set(plan) - sites.fired
    assert not missed or box.found, f"planned sites {sorted(missed)} were not reached"
    return Run(
        box, sites.sites, [*box.found, *check_log(box.records, closed=True, every_prefix=False), *truth(box)]
    )


def _equipped(program: Program) -> Box:
    """A box with the program's provider and tools in it. A mistake in them is the program's, and no finding."""
    box = Box(tools=[watched(tool) for tool in check_tools(program.tools())])
    if program.provider is None:
        box.provider = ScriptedProvider(program.replies, spare=Reply(text="Anything else?"))
    else:
        provider = program.provider()
        check_provider(provider)
        box.provider = WatchedProvider(provider)
    return box


async def _main(program: Program, box: Box) -> None:
    living = trio.lowlevel.current_statistics().tasks_living
    with trio.CancelScope() as box.host:
        async with _opened(program, box) as session:
            box.session = session
            try:
                box.armed = True
                for prompt in program.prompts:
                    await session.send(prompt)
                    await _rested(box)
            finally:
                box.armed = False
            await _epilogue(program, box)
    if trio.lowlevel.current_statistics().tasks_living != living:
        box.say("R1", "trio tasks are left after the session")


async def _rested(box: Box) -> None:
    assert box.session is not None
    await box.session.rest()
    grammar = box.session._kernel.grammar  # pyright: ignore
    if has_work(grammar, notices=grammar.last_outcome not in ("aborted", "interrupted")):
        box.say("L5", "the session rests, and input is queued")


async def _epilogue(program: Program, box: Box) -> None:
    """One more prompt, whatever happened: it must work."""
    assert box.session is not None
    if isinstance(box.provider, ScriptedProvider):
        box.provider.replace(program.epilogue)
    before = len(box.receipts)
    await box.session.send("and now?")
    await _rested(box)
    last = [record.event for record in box.records if isinstance(record.event, TurnEnd)][-1]
    if last.outcome != "completed" or len(box.receipts) != before:
        box.say("R2", f"the prompt after everything ended {last.outcome}")


def _opened(program: Program, box: Box) -> Any:
    journal = type("WatchedJournal", (_Watched,), {"box": box, "program": program})
    return open_session(
        None,
        provider=cast(Provider, box.provider),
        tools=box.tools,
        settings=program.settings,
        gate=program.gate(),
        journal_type=journal,
    )


class _Watched(Journal):
    """A journal that tells the box what it appended, after it did, in the same synchronous step."""

    box: Box
    program: Program

    def append(self, *events: Event) -> None:
        super().append(*events)
        new = self.records_from(len(self.box.records) + 1)
        self.box.records += new
        for record in new:
            self._seen(record)

    def _seen(self, record: Record) -> None:
        box, event = self.box, record.event
        if isinstance(event, TurnEnd):
            assert box.provider is not None
            if box.provider.open_streams:
                box.say("R1", "a stream is open at turn/end")
            if any(tool.running for tool in box.tools):
                box.say("R1", "a tool's body runs at turn/end")
            if box.session is not None and box.session.turn is not None:
                box.say("R2", "the authority is there at turn/end")
        for name, nth, action in self.program.on:
            if event.type == name and box.armed and self._count(record) == nth:
                action(box)
        if box.sites is not None:
            box.sites.appended(record)

    def _count(self, record: Record) -> int:
        earlier = self.box.records[: record.seq]
        return sum(one.event.type == record.event.type for one in earlier)


_CUT = ("not_started", "stopped", "unknown", "withdrawn")
"""What a call that returned a result is never told to have been."""


def truth(box: Box) -> list[Violation]:
    """What the log says against what happened."""
    found: list[Violation] = []
    started = {record.event.call for record in box.records if isinstance(record.event, ToolStart)}
    results = {record.event.call: record.event for record in box.records if isinstance(record.event, ToolResult)}
    for tool in box.tools:
        for call in tool.late:
            found.append(Violation("R5", 0, f"the body of {call} began after the cancel"))
        for call in tool.began:
            if call not in started:
                found.append(Violation("L4", 0, f"the body of {call} ran without tool/start"))
            if call in results and results[call].status == "not_started":
                found.append(Violation("R5", 0, f"the body of {call} ran and the log says not started"))
        for call in tool.ended:
            if call in results and results[call].status in _CUT:
                found.append(Violation("R6", 0, f"{call} returned a result; the log says {results[call].status}"))
        if len(set(tool.began)) != len(tool.began):
            found.append(Violation("R6", 0, f"a call of {tool.name} ran twice"))
    return found + _outcomes(box)


def _outcomes(box: Box) -> list[Violation]:
    """R11: applied means aborted, and nothing else does."""
    ends = {record.event.turn: record.event for record in box.records if isinstance(record.event, TurnEnd)}
    applied = {receipt.turn for _, receipt in box.receipts if receipt.answer is Answer.APPLIED}
    logged = {event.turn for event in box.events if isinstance(event, TurnCancel)}
    found: list[Violation] = []
    for turn, end in ends.items():
        if turn in applied and end.outcome != "aborted":
            found.append(Violation("R11", 0, f"a cancel of {turn} was applied and it ended {end.outcome}"))
        if turn not in applied | logged and end.outcome == "aborted" and not box.host_cancelled:
            found.append(Violation("R11", 0, f"{turn} ended aborted and no cancel of it was applied"))
    return found


# ------------------------------------------------------------------------------------------------- the sweep


def cancel(box: Box) -> None:
    """The action of a plain sweep: the user presses stop."""
    assert box.session is not None
    seq = len(box.records)
    box.receipts.append((seq, box.session.cancel()))


def steer(text: str) -> Action:
    """The action of typing on while the turn runs."""

    def act(box: Box) -> None:
        assert box.session is not None
        box.session.post(text)

    return act


def answer(word: str, text: str = "") -> Action:
    """The action of answering the last ask that was opened."""

    def act(box: Box) -> None:
        assert box.session is not None
        asks = [event.ask for event in box.events if isinstance(event, AskOpened)]
        box.session.answer(asks[-1], cast(Any, word), text)

    return act


def host_cancel(box: Box) -> None:
    """The host cancels a scope around the session."""
    assert box.host is not None
    box.host_cancelled = True
    box.host.cancel()


def sweep(
    program: Program,
    action: Action = cancel,
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> tuple[int, list[Failure]]:
    """Do the action at every site of the program, one run each. How many sites, and where a law breaks.

    Raises AssertionError where the program breaks a law without any action: then a sweep would show nothing.
    """
    base = play(program, seed=seed)
    assert not base.violations, f"{program.title!r} breaks laws by itself: {base.violations}"
    failures: list[Failure] = []
    for number, site in enumerate(base.sites):
        run = play(program, {number: action}, seed)
        if run.violations:
            failures.append(Failure(program.title, seed, (number,), site, run.violations))
        progress(number + 1, len(base.sites))
    return len(base.sites), failures


def pairs(
    program: Program, first: Action = cancel, second: Action = cancel, *, seed: int = 0, stride: int = 1
) -> Any:
    """Two actions at every ordered pair of sites; the second site is one of the run that had the first.

    `stride` takes every so many second sites. How many runs, and where a law breaks.
    """
    runs = 0
    failures: list[Failure] = []
    for one in range(len(play(program, seed=seed).sites)):
        for two in range(one + 1, len(play(program, {one: first}, seed).sites), stride):
            run = play(program, {one: first, two: second}, seed)
            runs += 1
            if run.violations:
                failures.append(Failure(program.title, seed, (one, two), run.sites[two], run.violations))
    return runs, failures
