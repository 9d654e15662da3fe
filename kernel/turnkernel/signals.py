"""The signals that tell a program to stop, for hosts of a session. Sets handlers of the process, uses trio.

Every signal that the system delivers counts: `trio.open_signal_receiver` makes two of a kind into one when they
come before anybody has looked, and a second Ctrl-C means something else than the first.
"""

import signal
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from types import FrameType

import attrs
import trio

from .causes import Answer
from .errors import SessionClosedError
from .session import Session

__all__ = ["STOPPING", "Stopped", "each_signal", "stop_on_signals"]

STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""The signals that ask a program to stop. SIGHUP is not everywhere."""


@attrs.define
class Stopped:
    """Whether a signal has ended a `stop_on_signals` block, and which."""

    by: signal.Signals | None = None
    """None while none has. A program may exit with 128 + this."""


@contextmanager
def each_signal(handle: Callable[[signal.Signals], None], *numbers: signal.Signals) -> Generator[None]:
    """Inside the block, `handle` is called in the trio run for every one of these signals, in order.

    It must not raise. To be entered in the main thread; the handlers of before are back when the block is left.
    A signal that was ignored when the block was entered stays ignored (nohup(1)).
    """
    token = trio.lowlevel.current_trio_token()
    before = {number: signal.getsignal(number) for number in numbers}
    inside = True

    def arrived(number: int, frame: FrameType | None) -> None:
        token.run_sync_soon(handle_inside, signal.Signals(number))

    def handle_inside(number: signal.Signals) -> None:
        if inside:
            handle(number)

    heard = [number for number in numbers if before[number] is not signal.SIG_IGN]
    for number in heard:
        signal.signal(number, arrived)
    try:
        yield
    finally:
        inside = False
        for number in heard:
            signal.signal(number, before[number])


@asynccontextmanager
async def stop_on_signals(session: Session) -> AsyncGenerator[Stopped]:
    """Inside the block, to be entered inside the session's: SIGINT, SIGTERM and SIGHUP stop it in order.

    SIGINT cancels the running turn, and nothing else. With no turn running, or with one that is being stopped
    already, it ends the block. So do SIGTERM and SIGHUP, after `Session.wind_down`; a second signal of any kind
    ends the block at once, and what still runs ends with the session's block, without graces.

    A block that was ended is left as if it were done: nothing is raised, not even for words that came too late
    (`SessionClosedError`), and `Stopped` says by what. What the block itself raises leaves as it is.
    """
    stopped = Stopped()
    failed: Exception | None = None

    async def wind_down() -> None:
        await session.wind_down()
        nursery.cancel_scope.cancel(reason="a signal asked for it")

    def handle(number: signal.Signals) -> None:
        first, is_term = stopped.by is None, number != signal.SIGINT
        if first and not is_term and session.turn is not None and session.cancel().answer is Answer.APPLIED:
            return
        stopped.by = stopped.by or number
        if first and is_term:
            nursery.start_soon(wind_down, name="winding down")
        else:
            nursery.cancel_scope.cancel(reason="a signal asked for it")

    async with trio.open_nursery() as nursery:
        with each_signal(handle, *STOPPING):
            try:
                yield stopped
            except SessionClosedError as error:
                if stopped.by is None:
                    failed = error
                else:  # its words came too late; what it said before is still to end
                    await trio.sleep_forever()
            except Exception as error:  # noqa: BLE001 - raised below, where the nursery can't wrap it
                failed = error
        nursery.cancel_scope.cancel()
    if failed is not None:
        raise failed
