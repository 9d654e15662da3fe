"""A kill, and a power cut, at every write of a session with agents: what the next opening makes of all logs."""

import pytest
import trio
from tests.tools.agent_sessions import Models, agents, asks, call, says, slow, stores_below, task_tool, unlawful

from turnkernel import open_session
from turnkernel.events import TaskEnded, TaskStarted, ToolResult, ToolStart
from turnkernel.journal import Journal
from turnkernel.reading import is_log
from turnkernel.store import MemoryStore
from turnkernel.testing import check_append_only, run_virtually
from turnkernel.testing.crash import records_of


class Disk:
    """What was done to all logs of a tree, in its order."""

    def __init__(self) -> None:
        self.done = []
        """Names of logs, with the bytes written; None for a sync."""

    def images(self, until, *, power=()):
        """What is in each log after so many operations. Those in `power` have lost what was not synced."""
        size, synced, data = {}, {}, {}
        for name, written in self.done[:until]:
            if written is None:
                synced[name] = size.get(name, 0)
            else:
                data[name] = data.get(name, b"") + written
                size[name] = len(data[name])
        return {name: one[: synced.get(name, 0)] if name in power else one for name, one in data.items()}


class Kept(MemoryStore):
    """A log in memory that tells the disk what is done to it, and finds those beside it among images."""

    def __init__(self, name, disk, images) -> None:
        super().__init__(images.get(name, b""))
        self.name, self.disk, self.images = name, disk, images
        for other in images:
            head, _, child = other.rpartition("/")
            if head == name:
                self.beside(f"memory.d/{child}")

    def write(self, data):
        super().write(data)
        self.disk.done.append((self.name, data))

    def sync(self):
        self.disk.done.append((self.name, None))

    def beside(self, name):
        if name not in self.children:
            self.children[name] = Kept(f"{self.name}/{name.rpartition('/')[2]}", self.disk, self.images)
        return self.children[name]


class Unthreaded(Journal):
    """Syncs without a thread, which a virtual run can't have."""

    async def _sync(self):
        self._syncing, upto = True, self.seq
        try:
            await trio.lowlevel.checkpoint()
            self._sync_in_thread(upto)
        finally:
            self._syncing = False
            self._flushers.unpark_all()


def played():
    """An agent that waits for one of its own, and one in the background with a task; to the end."""
    disk = Disk()
    models = Models(
        root=[asks(call("a"), call("b", background=True)), says("So."), says("I see."), says("Yes.")],
        a=[asks(call("c"), call("x", "inner")), says("A is done.")],
        b=[asks(call("w", "build"), call("y", "inner")), says("B builds."), says("B is done.")],
        c=[asks(call("z", "inner")), says("C is done.")],
    )

    async def main():
        def opened(*arguments, **options):
            return open_session(*arguments, **options, journal_type=Unthreaded)

        tools = [*agents(models, depth=2, tools=[slow("inner", 1.0), task_tool("build", 3.0)], open_child=opened)]
        async with opened(Kept("root", disk, {}), provider=models("root"), tools=tools) as session:
            await session.send("go")
            await session.rest(tasks=True)

    run_virtually(main, seed=0)
    return disk


def reopened(images):
    """Open the root and leave at once: the stores, and what was done to them."""
    disk = Disk()
    root = Kept("root", disk, images)

    async def main():
        async with open_session(root, provider=Models(root=[])("root")):
            pass

    trio.run(main)  # not virtually: logs are synced in threads
    return root, disk


def data_of(root):
    return {name: store.read(0, store.size) for name, store in stores_below(root).items() if store.size}


def events_of(data):
    return [record.event for record in records_of(data)]


def depth(name):
    return name.count("/")


def check(images):
    """Every fault of the opening after a crash that left these logs."""
    root, disk = reopened(images)
    after = data_of(root)
    found = [(name, one) for name in images for one in check_append_only(images[name], after.get(name, b""))]
    events = {name: events_of(data) for name, data in after.items()}
    for name, data in after.items():
        found += [(name, one) for _, one in unlawful(MemoryStore(data), closed=True, every_prefix=False)]
        # One whose first record is torn had not begun, and is let be.
        if events[name] and events[name][-1].type != "session/close":
            found.append((name, "is not closed"))
    found += [("root", one) for one in order(disk)] + links(events)
    _, more = reopened(after)
    written = [(name, one.type) for name, data in more.done if data is not None for one in events_of(data)]
    if written != [("root", "session/open"), ("root", "session/close")]:
        found.append(("root", f"a second opening wrote {written}"))
    return found


def order(disk):
    """The deepest first: nothing is written to a log while one below it is still to be closed."""
    written = [(name, number) for number, (name, data) in enumerate(disk.done) if data not in (None, b"\n")]
    for name, number in written:
        late = [other for other, later in written if other.startswith(f"{name}/") and later > number]
        if late:
            yield f"{name} was written to before {late}"


def links(events):
    """Each log names the other, and the parent has a result or an end for each child."""
    found = []
    for name, own in events.items():
        results = {event.call for event in own if isinstance(event, ToolResult)}
        ended = {event.task for event in own if isinstance(event, TaskEnded)}
        for event in own:
            if isinstance(event, ToolStart) and event.log is not None and event.call not in results:
                found.append((name, f"{event.call} has no result"))
            if isinstance(event, TaskStarted) and event.task not in ended:
                found.append((name, f"{event.task} has no end"))
        for child in (one for one in events if one.rpartition("/")[0] == name and events[one]):
            log = f"memory.d/{child.rpartition('/')[2]}"
            named = {event.call for event in own if getattr(event, "log", None) == log}
            parent = events[child][0].parent
            if parent.session != own[0].session or parent.call not in named:
                found.append((child, f"names {parent} and is named by {named}"))
    return found


@pytest.fixture(scope="module")
def disk():
    return played()


def crashes(disk):
    """Every different state: killed between two writes, within one, and a power cut of some of the logs or all."""
    seen = set()
    names = {name for name, _ in disk.done}
    below = names - {"root"}
    for number in range(1, len(disk.done) + 1):
        name, data = disk.done[number - 1]
        states = {("kill", number): disk.images(number)}
        if data is not None:
            torn = disk.images(number)
            torn[name] = torn[name][: -len(data) // 2]
            states["torn", number] = torn
        for lost, power in (("all", names), ("root", {"root"}), ("below", below)):
            states[f"power cut of {lost}", number] = disk.images(number, power=power)
        for label, images in states.items():
            images = {one: kept for one, kept in images.items() if kept}
            key = tuple(sorted(images.items()))
            if key not in seen and "root" in images:
                seen.add(key)
                yield label, images


@pytest.mark.law("L1", "L2", "L3", "L6", "L7", "C1", "C2")
def test_the_opening_after_any_crash_closes_every_log_the_deepest_first(disk):
    states = 0
    for label, images in crashes(disk):
        if not is_log(MemoryStore(images["root"])):
            continue  # its first record is torn: there was no session
        states += 1
        assert (label, check(images)) == (label, [])
    assert states > 200


@pytest.mark.law("L7")
def test_a_crash_in_the_opening_after_a_crash_comes_to_the_same(disk):
    """Two kills; the first ones are those in which all four logs are open."""
    firsts = [images for label, images in crashes(disk) if label[0] == "kill" and len(images) == 4]
    states = 0
    for images in firsts[:: max(1, len(firsts) // 6)]:
        _, done = reopened(images)
        for number in range(1, len(done.done) + 1):
            second = done.images(number)
            both = {name: data + second.get(name, b"") for name, data in images.items()}
            assert (number, check(both)) == (number, [])
            states += 1
    assert states > 50


def test_the_parents_results_tell_how_its_agents_had_come_along(disk):
    """Killed when the grandchild has spoken and its caller not yet."""
    number = next(
        number
        for number, (name, data) in enumerate(disk.done, 1)
        if depth(name) == 2 and data is not None and b"turn/end" in data
    )
    root, _ = reopened(disk.images(number))
    events = {name: events_of(data) for name, data in data_of(root).items()}
    (deepest,) = [name for name in events if depth(name) == 2]
    results = {one.call: one for own in events.values() for one in own if isinstance(one, ToolResult)}
    assert "c" in {one.call for one in events[deepest.rpartition("/")[0]] if isinstance(one, ToolResult)}
    assert results["c"].status == results["a"].status == "unknown"
    assert "its last turn end as completed. Its last words: C is done." in results["c"].text
    assert "its last turn end as interrupted" in results["a"].text
    (lost,) = [one for one in events["root"] if isinstance(one, TaskEnded)]
    assert lost.status == "lost"
    assert "its last turn end as completed. Its last words: B builds." in lost.text
