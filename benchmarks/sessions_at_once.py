"""Many sessions that stream at once in one process: how long, and what they hold. Uses the local model server.

    python benchmarks/sessions_at_once.py [SESSIONS] [DURABILITY]

All sessions share one provider and its client; each has its log on the disk, in a temporary folder. When every one
of them is in the middle of its answer, descriptors, locks, threads and memory of this process are counted; the
server's side of the connections is in it too. Then all are cancelled in the same instant, and it is measured when
the last turn has ended and when the last is durable. Beside it the same with as many bare httpx streams. What is
left afterwards is counted again. Linux only.
"""

import os
import resource
import sys
import tempfile
import threading
from pathlib import Path

import httpx
import trio

from turnkernel import Provider, Session, open_session
from turnkernel.events import ModelDelta
from turnkernel.testing.replies import Reply
from turnkernel_providers.anthropic import open_anthropic
from turnkernel_providers.server import ModelServer, open_model_server

WORDS = 20
REPLY = Reply(text="word " * WORDS, fault="stall")
"""Says its words and then nothing, so that every cancel finds a stream that is open."""


def counted() -> dict[str, int]:
    """What this process holds now."""
    pid = os.getpid()
    locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())) - 1,
        "locks": sum(str(pid) in fields for fields in locks),
        "threads": threading.active_count(),
        "MiB": pages * resource.getpagesize() >> 20,
    }


async def _bare(server: ModelServer, client: httpx.AsyncClient, number: int) -> dict[str, float]:
    """As many bare streams: until all have said their words, and from the cancel until all are closed."""
    body = {
        "model": "m",
        "max_tokens": 8192,
        "stream": True,
        "messages": [{"role": "user", "content": "Talk."}],
    }
    left = number
    all_there = trio.Event()

    async def read() -> None:
        nonlocal left
        seen = b""
        async with client.stream("POST", f"{server.base_url}/v1/messages", json=body) as response:
            async for data in response.aiter_bytes():
                seen += data
                if seen.count(b"word ") == WORDS:
                    left -= 1
                    if not left:
                        all_there.set()

    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(number):
            nursery.start_soon(read)
        await all_there.wait()
        streaming = trio.current_time()
        nursery.cancel_scope.cancel()
    return {"streamed": streaming - begun, "ended": trio.current_time() - streaming}


class _Gates:
    """What the sessions' trio tasks wait for, and what they tell."""

    def __init__(self, number: int) -> None:
        self.sessions: list[Session] = []
        self.opened, self.ask, self.said, self.leave = (trio.Event() for _ in range(4))
        self._number = number
        self._said = 0

    def is_open(self, session: Session) -> None:
        self.sessions.append(session)
        if len(self.sessions) == self._number:
            self.opened.set()

    def has_said(self) -> None:
        self._said += 1
        if self._said == self._number:
            self.said.set()


async def _session(provider: Provider, path: Path, durability: str, gates: _Gates) -> None:
    """One session, in a trio task of its own: opened, prompted, read."""
    async with open_session(path, provider=provider, durability=durability) as session:
        gates.is_open(session)
        await gates.ask.wait()
        await session.send("Talk.")
        said = 0
        async for event in session.events():
            said += isinstance(event, ModelDelta) and event.text == "word "
            if said == WORDS:
                break
        gates.has_said()
        await gates.leave.wait()


async def _sessions(provider: Provider, folder: Path, number: int, durability: str) -> dict[str, float]:
    """The sessions: all cancelled in the same instant once all have said their words."""
    gates = _Gates(number)
    times = [trio.current_time()]
    async with trio.open_nursery() as nursery:
        for place in range(number):
            nursery.start_soon(_session, provider, folder / f"{place}.log", durability, gates)
        await gates.opened.wait()
        times.append(trio.current_time())
        print(f"  all open: {counted()}")
        gates.ask.set()
        await gates.said.wait()
        times.append(trio.current_time())
        print(f"  all streaming: {counted()}")
        receipts = [session.cancel() for session in gates.sessions]
        times.append(trio.current_time())
        reached = [(await receipt.settled()).milestones for receipt in receipts]
        times.append(trio.current_time())
        gates.leave.set()
    opened, streaming, returned, durable = times[1:]
    return {
        "opened": opened - times[0],
        "streamed": streaming - opened,
        "cancel() returned": returned - streaming,
        # A milestone counts from its own session's cancel.
        "ended": max(one["ended"] for one in reached),
        "durable": durable - streaming,
        "left": trio.current_time() - durable,
    }


async def measure(number: int, durability: str) -> None:
    """Measure and print."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    with tempfile.TemporaryDirectory() as folder:
        print(f"{number} sessions, durability {durability}")
        print(f"  before: {counted()}")
        async with open_model_server("anthropic", [REPLY] * (2 * number)) as server:
            async with httpx.AsyncClient(timeout=None, limits=limits, trust_env=False) as client:
                bare = await _bare(server, client, number)
            await server.wait_closed()
            async with open_anthropic("m", base_url=server.base_url, api_key="none") as provider:
                ours = await _sessions(provider, Path(folder), number, durability)
        print(f"  after: {counted()}")
    print("  bare, seconds: " + ", ".join(f"{name} {seconds:.3f}" for name, seconds in bare.items()))
    print("  sessions, seconds: " + ", ".join(f"{name} {seconds:.3f}" for name, seconds in ours.items()))


def main() -> None:
    """Measure and print."""
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    trio.run(measure, number, sys.argv[2] if len(sys.argv) > 2 else "power")


if __name__ == "__main__":
    main()
