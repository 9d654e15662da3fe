"""What the acts of a scenario do to a session. Synchronous; each gives the answer that the result lists.

`applied`, `repeated`, `idle`, `stale` for cancels, of a task too; `done` for what was done; else why nothing was:
`stale` (what it names is over), `closed` (the ask, or the session's input), `unfit` (no word for this kind of
ask), `no_session`, `no_turn`, `log_failed`.
"""

import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NoReturn

import attrs

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
    from .part import Part

__all__ = ["perform"]


def perform(life: "Life", act: Act, record: Record | None) -> str:
    """Do it. Never raises, but for dying."""
    try:
        if act.do in _TO_THE_PROGRAM:
            return _TO_THE_PROGRAM[act.do](life, act)
        part = life.parts.get(act.session)
        if part is None or part.session is None:
            return "no_session"
        return _TO_THE_SESSION[act.do](_Meant(life, part, part.session), act, record)
    except SessionClosedError:
        return "closed"
    except LogFailedError:
        return "log_failed"
    except Exception as error:  # noqa: BLE001 - a verb that raises is a finding of the run, not its end
        if act.do in ("cancel", "replace", "stop_all", "stale_cancel", "cancel_call", "stop_task"):
            life.tell(Broken(Violation("R7", life.root.seq, f"{act.do} raised {type(error).__name__}: {error}")))
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
    return _break(life, act, NO_SPACE)


def _disk_error(life: "Life", act: Act) -> str:
    return _break(life, act, IO_ERROR)


def _break(life: "Life", act: Act, number: int) -> str:
    if act.session not in life.parts:
        return "no_session"
    life.parts[act.session].breaking.fail(act.op, number, lasting=act.lasting)
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


@attrs.frozen(eq=False)
class _Meant:
    """The session that an act is for."""

    life: "Life"
    part: "Part"
    session: Session


def _receipt(to: _Meant, receipt: Receipt) -> str:
    to.part.cancelled(receipt)
    return receipt.answer.value


def _cancel(to: _Meant, act: Act, record: Record | None) -> str:
    return _receipt(to, to.session.cancel(keep_inbox=act.keep_inbox))


def _stop_all(to: _Meant, act: Act, record: Record | None) -> str:
    return _receipt(to, to.session.stop_all())


def _stale_cancel(to: _Meant, act: Act, record: Record | None) -> str:
    handle = to.part.turn_before
    if handle is None:
        return "no_turn"
    receipt = to.session.cancel(turn=handle)
    if receipt.answer is not Answer.STALE:
        to.life.tell(Broken(Violation("R2", to.part.seq, f"a handle of {handle} answered {receipt.answer}")))
    return _receipt(to, receipt)


def _cancel_call(to: _Meant, act: Act, record: Record | None) -> str:
    call = _meant(act, record, "call")
    assert call is not None
    receipt = to.session.cancel_call(call)
    to.life.cancels.one_call(receipt, to.part.seq, to.part.name)
    return receipt.answer.value


def _replace(to: _Meant, act: Act, record: Record | None) -> str:
    receipt = to.session.cancel(Cause.REPLACED)
    answer = _receipt(to, receipt)
    _queue(to, act, prompt=True)
    return answer


def _steer(to: _Meant, act: Act, record: Record | None) -> str:
    return _queue(to, act, prompt=False)


def _send(to: _Meant, act: Act, record: Record | None) -> str:
    return _queue(to, act, prompt=True)


def _queue(to: _Meant, act: Act, *, prompt: bool) -> str:
    text = act.text or ""
    to.life.acknowledge(to.part, to.session.post(text, prompt=prompt), text)
    return "done"


def _withdraw(to: _Meant, act: Act, record: Record | None) -> str:
    item = _meant(act, record, "item")
    assert item is not None
    return "done" if to.session.withdraw(item) else "stale"


def _go_on(to: _Meant, act: Act, record: Record | None) -> str:
    to.session.go_on()
    return "done"


def _stop_task(to: _Meant, act: Act, record: Record | None) -> str:
    meant = _meant(act, record, "task", "call")
    assert meant is not None
    return to.session.stop_task(to.part.task_of(meant)).answer.value


_WORDS: Mapping[str, AskAnswer] = {
    "allow": "allow",
    "allow_always": "allow_always",
    "deny": "deny",
    "deny_stop": "deny_stop",
    "dismiss": "dismissed",
    "answer": "answer",
}


def _answer(to: _Meant, act: Act, record: Record | None) -> str:
    meant = _meant(act, record, "ask", "call")
    assert meant is not None
    ask = to.part.ask_of(meant)
    if ask is None:
        return "closed"
    try:
        return "done" if to.session.answer(ask, _WORDS[act.do], act.text or "") else "closed"
    except ValueError:
        return "unfit"


_TO_THE_SESSION: Mapping[str, Callable[[_Meant, Act, Record | None], str]] = {
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
