"""Sessions whose model gives work to agents: a strict scripted model per agent, and short ways to look at logs."""

from contextlib import asynccontextmanager

import trio

from turnkernel import Gate, open_session
from turnkernel.events import TaskEnded, ToolResult
from turnkernel.store import MemoryStore
from turnkernel.testing.crash import records_of
from turnkernel.testing.laws import check_log, check_messages
from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel.testing.scripted import ScriptedProvider, ScriptedTool
from turnkernel_tools.agent import agent_tools


class Strict(ScriptedProvider):
    """A scripted model that takes no history that a real one would refuse."""

    def stream(self, request):
        assert check_messages(request.messages) == []
        assert request.messages[-1].role == "user"
        return super().stream(request)


class Models:
    """The models of a session and of its agents, each by the id of the call that it was begun with."""

    def __init__(self, **replies) -> None:
        self.by_call = {name: Strict(said) for name, said in replies.items()}

    def __call__(self, call):
        return self.by_call[call]

    @property
    def open_streams(self):
        return sum(one.open_streams for one in self.by_call.values())


def agents(models, **options):
    return agent_tools(provider=models, gate=options.pop("gate", Gate), **options)


def session_of(models, tools=(), store=None, durability="memory", **options):
    """A root session; its model is the one named `root`."""
    store = MemoryStore() if store is None else store
    return open_session(store, provider=models("root"), tools=tools, durability=durability, **options)


def call(id, name="agent", **input):
    if name == "agent":
        input.setdefault("prompt", f"the work of {id}")
    return ReplyCall(id, name, input)


def asks(*calls):
    return Reply(text="Go.", calls=calls)


def says(text):
    return Reply(text=text)


def slow(name="slow", seconds=100.0, **options):
    return ScriptedTool(name, [{"sleep": seconds}, {"result": "slow result"}], **options)


def task_tool(name="work", seconds=10.0):
    return ScriptedTool(name, [{"spawn": "session"}, {"sleep": seconds}, {"result": f"{name} is done"}])


def events(session, kind=None):
    found = [record.event for record in session._kernel.journal.records_from(1)]
    return found if kind is None else [event for event in found if isinstance(event, kind)]


def results(session):
    return {one.call: one for one in events(session, ToolResult)}


def ends(session):
    return [(one.task, one.status) for one in events(session, TaskEnded)]


def stores_below(store, name="root"):
    """Every log of a tree, by its path."""
    found = {name: store}
    for child, below in store.children.items():
        found |= stores_below(below, f"{name}/{child.rpartition('/')[2]}")
    return found


def logged(store):
    return [record.event for record in records_of(store.read(0, store.size))]


def unlawful(store, **options):
    """Every violation in a tree of logs."""
    return [
        (name, found)
        for name, one in stores_below(store).items()
        if one.size
        for found in check_log(records_of(one.read(0, one.size)), **options)
    ]


async def until(session, name, nth=1):
    async for event in session.events():
        if event.type == name:
            nth -= 1
            if not nth:
                return event
    raise AssertionError(f"the session ended without its {name}")


class Children:
    """Opens children and keeps them, by the id of the task that each is and of the call that began it."""

    def __init__(self) -> None:
        self.by_work = {}
        self._came = trio.lowlevel.ParkingLot()

    @asynccontextmanager
    async def __call__(self, *arguments, **options):
        async with open_session(*arguments, **options) as child:
            work = options["within"]
            self.by_work[work.call_id] = self.by_work[work.work_id] = child
            self._came.unpark_all()
            yield child

    async def of(self, work):
        """The child of a call or task, once it is there. Ids of tasks are unique in one session only."""
        while work not in self.by_work:
            await self._came.park()
        return self.by_work[work]
