"""What the acts of a scenario do to a session. Synchronous; each gives the answer that the result lists.

`applied`, `repeated`, `idle`, `stale` for cancels; `done` for what was done; else why nothing was: `stale` (what
it names is over), `closed` (the ask, or the session's input), `unfit` (no word for this kind of ask),
`no_session`, `no_turn`, `log_failed`, `unavailable` in this version.
"""

import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NoReturn

from turnkernel.causes import Answer, Cause
from turnkernel.errors import LogFailedError, SessionClosedError
from turnkernel.events import AskAnswer, Record
from turnkernel.kernel import Receipt
from turnkernel.session import Session
from turnkernel.testing.laws import Violation

from .ledger import Broken
from .scenario import Act
from .stores import IO_ERROR, NO_SPACE

if TYPE_CHECKING:
    from .life import Life

__all__ = ["perform"]


def perform(life: "Life", act: Act, record: Record | None) -> str:
    """Do it. Never raises, but for dying."""
    try:
        if act.do in _TO_THE_PROGRAM:
            return _TO_THE_PROGRAM[act.do](life, act)
        if life.session is None:
            return "no_session"
        return _TO_THE_SESSION[act.do](life, life.session, act, record)
    except SessionClosedError:
        return "closed"
    except LogFailedError:
        return "log_failed"
    except Exception as error:  # noqa: BLE001 - a verb that raises is a finding of the run, not its end
        if act.do in ("cancel", "replace", "stop_all", "stale_cancel", "cancel_call"):
            life.tell(Broken(Violation("R7", life.seq, f"{act.do} raised {type(error).__name__}: {error}")))
        return f"raised {type(error).__name__}: {error}"


def _meant(act: Act, record: Record | None, *fields: str) -> str | None:
    """The id that the verb means: its target, else the first of these fields that the event has."""
    found = (getattr(record.event, field, None) for field in fields) if record is not None else ()
    return act.target or next((value for value in found if value), None)


# ----------------------------------------------------------------------------------------------- the program


def _kill(life: "Life", act: Act) -> NoReturn:
    life.die()


def _terminate(life: "Life", act: Act) -> str:
    life.raise_signal(signal.SIGTERM)
    return "done"


def _interrupt(life: "Life", act: Act) -> str:
    life.raise_signal(signal.SIGINT)
    return "done"


def _disk_full(life: "Life", act: Act) -> str:
    life.breaking.fail(act.op, NO_SPACE, lasting=act.lasting)
    return "done"


def _disk_error(life: "Life", act: Act) -> str:
    life.breaking.fail(act.op, IO_ERROR, lasting=act.lasting)
    return "done"


def _host_cancel(life: "Life", act: Act) -> str:
    return "done" if life.host_cancel() else "closed"


def _close(life: "Life", act: Act) -> str:
    return "done" if life.leave("close") else "closed"


_TO_THE_PROGRAM: Mapping[str, Callable[["Life", Act], str]] = {
    "kill": _kill,
    "terminate": _terminate,
    "interrupt": _interrupt,
    "disk_full": _disk_full,
    "disk_error": _disk_error,
    "host_cancel": _host_cancel,
    "close": _close,
}


# ----------------------------------------------------------------------------------------------- the session


def _receipt(life: "Life", receipt: Receipt) -> str:
    life.cancelled(receipt)
    return receipt.answer.value


def _cancel(life: "Life", session: Session, act: Act, record: Record | None) -> str:
    return _receipt(life, session.cancel(keep_inbox=act.keep_inbox))


def _stop_all(life: "Life", session: Session, act: Act, record: Record | None) -> str:
    return _receipt(life, session.stop_all())


def _stale_cancel(life: "Life", session: Session, act: Act, record: Record | None) -> str:
    handle = life.turn_before
    if handle is None:
        return "no_turn"
    receipt = session.cancel(turn=handle)
    if receipt.answer is not Answer.STALE:
        life.tell(Broken(Violation("R2", life.seq, f"a handle of {handle} answered {receipt.answer}")))
    return _receipt(life, receipt)


def _cancel_call(life: "Life", session: Session, act: Act, record: Record | None) -> str:
    call = _meant(act, record, "call")
    assert call is not None
    receipt = session.cancel_call(call)
    life.cancels.one_call(receipt, life.seq)
    return receipt.answer.value


def _replace(life: "Life", session: Session, act: Act, record: Record | None) -> str:
    receipt = session.cancel(Cause.REPLACED)
    answer = _receipt(life, receipt)
    _queue(life, session, act, prompt=True)
    return answer


def _steer(life: "Life", session: Session, act: Act, record: Record | None) -> str:
    return _queue(life, session, act, prompt=False)


def _send(life: "Life", session: Session, act: Act, record: Record | None) -> str:
    return _queue(life, session, act, prompt=True)


def _queue(life: "Life", session: Session, act: Act, *, prompt: bool) -> str:
    text = act.text or ""
    life.acknowledge(session.post(text, prompt=prompt), text)
    return "done"


def _withdraw(life: "Life", session: Session, act: Act, record: Record | None) -> str:
    item = _meant(act, record, "item")
    assert item is not None
    return "done" if session.withdraw(item) else "stale"


def _go_on(life: "Life", session: Session, act: Act, record: Record | None) -> str:
    session.go_on()
    return "done"


def _stop_task(life: "Life", session: Session, act: Act, record: Record | None) -> str:
    return "unavailable"


_WORDS: Mapping[str, AskAnswer] = {
    "allow": "allow",
    "allow_always": "allow_always",
    "deny": "deny",
    "deny_stop": "deny_stop",
    "dismiss": "dismissed",
    "answer": "answer",
}


def _answer(life: "Life", session: Session, act: Act, record: Record | None) -> str:
    meant = _meant(act, record, "ask", "call")
    assert meant is not None
    ask = life.ask_of(meant)
    if ask is None:
        return "closed"
    try:
        return "done" if session.answer(ask, _WORDS[act.do], act.text or "") else "closed"
    except ValueError:
        return "unfit"


_TO_THE_SESSION: Mapping[str, Callable[["Life", Session, Act, Record | None], str]] = {
    "cancel": _cancel,
    "replace": _replace,
    "steer": _steer,
    "send": _send,
    "withdraw": _withdraw,
    "go_on": _go_on,
    "cancel_call": _cancel_call,
    "stop_all": _stop_all,
    "stale_cancel": _stale_cancel,
    "stop_task": _stop_task,
    **dict.fromkeys(_WORDS, _answer),
}
