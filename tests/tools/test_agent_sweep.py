"""A cancel at every place where one can strike in sessions with agents: the laws hold in all of their logs."""

import attrs
import pytest
from tests.tools.agent_sessions import Models, agents, asks, call, says, slow, stores_below, task_tool, unlawful

from turnkernel import open_session
from turnkernel.events import TaskStarted, ToolResult, ToolStart
from turnkernel.journal import Journal
from turnkernel.testing import Box, Program, cancel, host_cancel, play
from turnkernel.testing.crash import records_of

CUT = ("not_started", "stopped", "unknown", "withdrawn")


@attrs.define
class Scene:
    """One run: what its agents are made of, and what is seen of them."""

    box: Box | None = None
    models: Models | None = None
    tools: list = attrs.Factory(list)
    children: list = attrs.Factory(list)

    def keep(self, box):
        self.box = box

    def begin(self, replies, **options):
        """A fresh set of agents, whose every append is a site too."""
        self.box, self.children = None, []
        self.models = Models(**replies)
        self.tools = [slow("inner", 1.0), task_tool("build", 3.0)]
        scene = self

        class Watched(Journal):
            def append(self, *events):
                before = self.seq
                super().append(*events)
                box = scene.box
                if box is not None and box.sites is not None:
                    for record in self.records_from(before + 1):
                        box.sites.appended(record)

        def opened(*arguments, **options):
            return open_session(*arguments, **options, journal_type=Watched)

        return agents(self.models, tools=self.tools, open_child=opened, **options)

    def at_turn_end(self, box):
        """R1: of the calls of a turn no child lives on, and no stream of one."""
        tasks = {one.task for one in box.events if isinstance(one, TaskStarted)}
        left = set(box.session.children) - tasks
        if left:
            box.say("R1", f"children {left} live at turn/end")
        if not tasks and self.models.open_streams:
            box.say("R1", "a child's stream is open at turn/end")


def violations(scene, run):
    """What breaks in the logs of the children, and between them and what their tools did."""
    store = run.box.session._kernel.journal._store
    found = unlawful(store, closed=True, every_prefix=False)
    for name, one in stores_below(store).items():
        records = [record.event for record in records_of(one.read(0, one.size))]
        if name != "root" and records and records[-1].type != "session/close":
            found.append((name, "R1: its log is not closed"))
    everything = [
        record.event
        for name, one in stores_below(store).items()
        if name != "root"
        for record in records_of(one.read(0, one.size))
    ]
    started = {event.call for event in everything if isinstance(event, ToolStart)}
    status = {event.call: event.status for event in everything if isinstance(event, ToolResult)}
    for tool in scene.tools:
        found += [(tool.name, f"R5: {one} began late") for one in tool.late]
        found += [(tool.name, f"L4: {one} ran unsaid") for one in tool.began if one not in started]
        found += [(tool.name, f"R6: {one} is {status[one]}") for one in tool.ended if status[one] in CUT]
        found += [(tool.name, f"R1: {one} still runs") for one in tool.running]
    found += [("root", violation) for violation in run.violations]
    if scene.models.open_streams:
        found.append(("models", "R1: a stream is open"))
    return found


def foreground(scene):
    """Two agents beside a call, one of them with an agent of its own."""
    replies = {
        "a": [asks(call("b"), call("i1", "inner")), says("A.")],
        "b": [asks(call("i2", "inner")), says("B.")],
        "c": [says("C.")],
    }
    return Program(
        "agents in the foreground",
        [asks(call("a"), call("c"), call("s", "slow")), says("So.")],
        lambda: [*scene.begin(replies, depth=2), slow(seconds=2.0)],
        on=[("inbox/queued", 1, scene.keep), ("turn/end", 1, scene.at_turn_end)],
    )


def background(scene):
    """An agent that outlives the turn, with a task of its own; words to it; a child of the next turn beside it."""
    replies = {
        "a": [asks(call("w", "build"), call("i1", "inner")), says("A."), says("More."), says("A again.")],
        "c": [asks(call("i2", "inner")), says("C.")],
    }
    return Program(
        "an agent in the background",
        [
            asks(call("a", background=True)),
            says("So."),
            asks(call("t", "send_to_task", task="k19", text="And?"), call("c"), call("s", "slow")),
            *[says("I see.")] * 2,
        ],
        lambda: [*scene.begin(replies), slow(seconds=9.0)],
        prompts=("go", "ask"),
        on=[("inbox/queued", 1, scene.keep), ("turn/end", 1, scene.at_turn_end)],
    )


def stop_all(box):
    box.receipts.append((len(box.records), box.session.stop_all()))


def stop_call(box):
    """The agent's call, if it runs."""
    box.session.cancel_call("a")


def twice(box):
    cancel(box)
    cancel(box)


def stop_task(box):
    for one in [event.task for event in box.events if isinstance(event, TaskStarted)]:
        box.session.stop_task(one)


def swept(program, action, stride, seed=0):
    """Do the action at every site, or every so many; the run without it, and where anything breaks."""
    scene = Scene()
    made = program(scene)
    base = play(made, seed=seed)
    assert violations(scene, base) == []
    broken = {}
    for number, site in list(enumerate(base.sites))[::stride]:
        run = play(made, {number: action}, seed)
        found = violations(scene, run)
        if found:
            broken[number, str(site)] = found
    return base, broken


@pytest.mark.law("L2", "L3", "L6", "R1", "R2", "R5", "R6", "R8", "R11", "C1", "C2")
@pytest.mark.parametrize("program", [foreground, background])
@pytest.mark.parametrize(
    ("action", "stride"),
    [(cancel, 1), (twice, 11), (host_cancel, 7), (stop_all, 7), (stop_call, 7), (stop_task, 7)],
)
def test_no_law_breaks_in_any_log_wherever_a_cancel_strikes(program, action, stride):
    base, broken = swept(program, action, stride if program is foreground else 2 * stride)
    assert broken == {}
    kinds = {site.task for site in base.sites if site.kind == "E"}
    assert kinds >= {"session/open", "session/close"} | ({"task/ended"} if program is background else set())
    assert len(base.sites) > 200
    results = {one.call: one for one in base.box.events if isinstance(one, ToolResult)}
    assert all(one.status == "ok" for one in results.values())
    assert program is foreground or results["t"].text == "Said to task k19, which runs."
