"""Who belongs to a call, on a made-up process table that changes while it is looked at."""

import signal
from collections.abc import Callable

import pytest

from turnkernel_tools import family
from turnkernel_tools.family import MarkedFamily

LEADER, START, MARK = 100, 5000, "call_1.abc"


class Table:
    """What /proc would say. `on_read` maps (pid, file) to what happens just before that is read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stats: dict[int, bytes] = {}
        self.environs: dict[int, bytes] = {}
        self.forks = 1000
        self.on_read: dict[tuple[int, str], Callable[[], None]] = {}
        self.listings = 0
        monkeypatch.setattr(family, "_read", self.read)
        monkeypatch.setattr(family.os, "listdir", self.list)
        self.add(LEADER, session=LEADER, group=LEADER)

    def add(
        self,
        pid: int,
        *,
        session: int = 1,
        group: int = 1,
        parent: int = 1,
        start: int = START,
        state: str = "S",
        mark: bool = False,
    ) -> None:
        numbers = [parent, group, session, 0, 0, 0, *[0] * 10, 1, 0, start]
        self.stats[pid] = f"{pid} (a ) b) {state} {' '.join(map(str, numbers))}\n".encode()
        self.environs[pid] = f"A=1\0TURNKERNEL_CALL={MARK if mark else 'call_1.other'}\0".encode()

    def end(self, pid: int, *, zombie: bool = False) -> None:
        if zombie:
            self.add(pid, state="Z")
            self.environs[pid] = b""
        else:
            del self.stats[pid], self.environs[pid]

    def list(self, path: str) -> list[str]:
        self.listings += 1
        return ["self", *map(str, self.stats)]

    def read(self, pid: int | str, name: str) -> bytes | None:
        if pid == "":
            files = {"stat": b"cpu 1\nprocesses %d\n" % self.forks, "sys/kernel/pid_max": b"32768\n"}
            return files[name]
        assert isinstance(pid, int)
        self.on_read.pop((pid, name), lambda: None)()
        kept = {"stat": self.stats, "environ": self.environs}.get(name)
        return b"command\0" if kept is None else kept.get(pid)


@pytest.fixture
def table(monkeypatch) -> Table:
    return Table(monkeypatch)


@pytest.fixture
def ours(table) -> MarkedFamily:
    return MarkedFamily(LEADER, START, MARK)


def pids(members: list[family.Member]) -> list[int]:
    return sorted(member.pid for member in members)


def test_session_mark_and_parents_make_the_family(table, ours):
    table.add(101, session=LEADER)
    table.add(102, mark=True)
    table.add(103, parent=102)
    table.add(104, parent=103)
    table.add(105)
    assert pids(ours.scan()) == [100, 101, 102, 103, 104]


def test_a_session_that_a_member_led_belongs_to_the_family_while_anybody_is_in_it(table, ours):
    table.add(101, mark=True, session=101)
    assert pids(ours.scan()) == [100, 101]
    table.end(101)
    table.add(102, session=101)  # born in between, an orphan without a mark
    for _ in range(2):
        assert pids(ours.scan()) == [100, 102]
    table.end(102)
    assert pids(ours.scan()) == [100]
    table.add(103, session=101)  # the number is anybody's now
    assert pids(ours.scan()) == [100]


def test_a_session_that_a_member_is_only_in_is_not_taken_over(table, ours):
    table.add(101, mark=True, session=7)
    table.add(102, session=7)
    for _ in range(2):
        assert pids(ours.scan()) == [100, 101]


def test_what_is_older_than_the_leader_or_dead_is_not_of_the_family(table, ours):
    table.add(101, start=START - 1, mark=True)
    table.add(102, session=LEADER, state="Z")
    assert pids(ours.scan()) == [100]


@pytest.mark.parametrize("zombie", [False, True])
def test_a_process_that_forks_and_dies_under_the_look_does_not_hide_its_child(table, ours, zombie):
    table.end(LEADER, zombie=True)
    table.add(101, mark=True)

    def fork_and_die() -> None:
        table.end(101, zombie=zombie)
        table.add(102, mark=True)

    table.on_read[101, "stat"] = fork_and_die
    assert pids(ours.scan()) == [102]


def test_a_process_between_two_programs_is_looked_at_again(table, ours):
    table.end(LEADER, zombie=True)
    table.add(101, mark=True)
    environment = table.environs[101]

    def execute() -> None:
        table.environs[101] = b""
        table.on_read[101, "stat"] = lambda: table.environs.update({101: environment})

    table.on_read[101, "environ"] = execute
    assert pids(ours.scan()) == [101]


def test_a_quiet_table_is_looked_at_once(table, ours):
    table.end(LEADER, zombie=True)
    table.add(101)
    assert ours.scan() == []
    assert table.listings == 1


def test_a_table_that_never_rests_is_not_looked_at_for_ever(table, ours):
    table.end(LEADER, zombie=True)

    def come_and_go(pid: int) -> None:
        table.stats.pop(pid)
        table.add(pid + 1)
        table.on_read[pid + 1, "stat"] = lambda: come_and_go(pid + 1)

    table.add(200)
    table.on_read[200, "stat"] = lambda: come_and_go(200)
    assert ours.scan() == []
    assert 1 < table.listings < 20


def test_another_process_with_the_pid_of_a_member_is_not_taken_for_it(table, ours):
    table.add(101, mark=True)
    assert pids(ours.scan()) == [100, 101]
    table.end(LEADER, zombie=True)
    table.add(101, start=START + 1)
    assert ours.left() == []


def test_a_member_that_drops_its_mark_stays_one(table, ours):
    table.add(101, mark=True)
    ours.scan()
    table.add(101)
    assert pids(ours.scan()) == [100, 101]


def test_a_member_that_left_the_group_since_it_was_seen_is_reached_all_the_same(table, ours, monkeypatch):
    table.add(101, session=LEADER, group=LEADER)
    table.add(102, session=LEADER, group=LEADER)
    sent: list[tuple[str, int]] = []
    monkeypatch.setattr(family.os, "killpg", lambda pid, number: sent.append(("group", pid)))
    monkeypatch.setattr(ours, "_send_one", lambda number, member: sent.append(("one", member.pid)))
    members = ours.scan()
    table.add(102, session=102, group=102)
    ours.send(signal.SIGTERM, members)
    assert sent == [("group", LEADER), ("one", 102)]


def test_lower_pids_are_looked_at_once_the_numbers_may_have_begun_again(table, ours):
    table.add(50, mark=True)
    assert pids(ours.scan()) == [100]  # so young and so low: it can't be yet
    table.forks += 20000
    assert pids(ours.scan()) == [50, 100]
