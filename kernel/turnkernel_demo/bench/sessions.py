"""Whether a step costs more in a long session than in a short one. In memory, with a scripted model."""

from collections.abc import Mapping
from functools import partial

import trio

from turnkernel import Session, open_session
from turnkernel.store import MemoryStore
from turnkernel.testing.replies import Reply
from turnkernel.testing.scripted import ScriptedProvider

from .figures import Figure
from .sample import log_of_turns
from .timing import Tick, interleaved, quiet

__all__ = ["measure_steps"]


async def _turn(session: Session) -> Mapping[str, float]:
    """One turn of one step, from the prompt to rest."""
    with quiet():
        began = trio.current_time()
        await session.send("And now?")
        await session.rest()
        return {"turn": trio.current_time() - began}


async def measure_steps(runs: int, short: int, long: int, tick: Tick) -> list[Figure]:
    """The figure of a step. The request is handed over, not encoded: what a wire does with it is the wire's."""
    answer = Reply(text="Nothing more to do.")
    async with (
        open_session(MemoryStore(log_of_turns(short)), provider=ScriptedProvider([], spare=answer)) as small,
        open_session(MemoryStore(log_of_turns(long)), provider=ScriptedProvider([], spare=answer)) as large,
    ):
        in_small, in_large = await interleaved(runs, tick, partial(_turn, small), partial(_turn, large))
    return [
        Figure(
            "step",
            f"a turn of one step after {long:,} turns",
            f"the same after {short:,} turns",
            in_small["turn"],
            in_large["turn"],
        )
    ]
