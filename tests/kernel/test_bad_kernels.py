"""Known-bad kernels: each plants one fault, and the sweep must catch it. A check that catches nothing is none."""

import functools

import pytest
import trio

from turnkernel import dispatch, driver, gate, step, turn
from turnkernel.causes import Answer
from turnkernel.kernel import Kernel, Receipt
from turnkernel.repair import Ending
from turnkernel.testing.programs import PROGRAMS
from turnkernel.testing.sweep import cancel, host_cancel, steer, sweep

BY_TITLE = {program.title: program for program in PROGRAMS}


class _Blind:
    """trio, but asking whether we are cancelled never says yes."""

    def __init__(self):
        self.lowlevel = self

    async def checkpoint_if_cancelled(self):
        pass

    def __getattr__(self, name):
        return getattr(trio, name, None) or getattr(trio.lowlevel, name)


def late_start(patch):
    """A call begins after the cancel."""
    patch.setattr(dispatch, "trio", _Blind())


def late_request(patch):
    """A step begins after the cancel."""
    patch.setattr(step, "trio", _Blind())


def late_ask(patch):
    """A person is asked after the cancel."""
    patch.setattr(gate, "trio", _Blind())


def outcome_from_the_exception(patch):
    """A turn that was cancelled after its last checkpoint reads completed."""

    def ending(self, authority, end, error):
        return end if error is None and end is not None else Ending("aborted")

    patch.setattr(turn.Turn, "_ending", ending)


def authority_kept(patch):
    """The handle is dropped after the turn's end, not before."""
    conclude = turn.Turn._conclude

    def late(self, authority, end, error):
        kernel, kept = self.kernel, self.kernel.authority

        class Keeps(type(kernel)):
            authority = property(lambda self: kept, lambda self, value: None)

        plain = type(kernel)
        kernel.__class__ = Keeps
        try:
            conclude(self, authority, end, error)
        finally:
            kernel.__class__ = plain
            kernel.authority = None

    patch.setattr(turn.Turn, "_conclude", late)


def false_ok(patch):
    """A call that was cut is told as done."""
    patch.setattr(dispatch.Dispatch, "_cut", lambda self, live, tool: self._result(live, "ok", "done"))


def result_dropped(patch):
    """A result that came with the cancel is thrown away."""
    run = dispatch.Dispatch._run

    async def dropping(self, live, tool, input):
        result = await run(self, live, tool, input)
        await trio.lowlevel.checkpoint_if_cancelled()
        return result

    patch.setattr(dispatch.Dispatch, "_run", dropping)


def body_before_intent(patch):
    """A tool's body runs and tool/start comes after it."""
    cleared = dispatch.Dispatch._cleared

    async def early(self, live, tool):
        class Ctx:
            call_id = live.use.id

        tool.began.append(live.use.id)
        await trio.lowlevel.checkpoint()
        return await cleared(self, live, tool)

    patch.setattr(dispatch.Dispatch, "_cleared", early)


def steer_lost(patch):
    """What is typed at the last look waits for a turn that never comes."""
    patch.setattr(driver, "has_work", lambda grammar, notices: bool(grammar.items) and not grammar.turns)


def cancel_lies(patch):
    """A cancel answers applied and cancels nothing."""

    def lying(self, cause=None, *, keep_inbox=False, turn=None, urgency=None):
        authority = self.authority
        if authority is None:
            return Receipt(Answer.IDLE, cause, None)
        return Receipt(Answer.APPLIED, cause, authority.turn)

    patch.setattr(Kernel, "cancel", lying)


def unclosed_step(patch):
    """The closing block forgets the step that was cut."""
    whole = turn.closers

    @functools.wraps(whole)
    def partial(grammar, wording, ending):
        return [event for event in whole(grammar, wording, ending) if event.type != "step/end"]

    patch.setattr(turn, "closers", partial)


CATCHES = [
    (late_start, "two steps", cancel),
    (late_request, "two steps", cancel),
    (late_ask, "an approval and a question", cancel),
    (outcome_from_the_exception, "words only", cancel),
    (authority_kept, "words only", cancel),
    (false_ok, "two steps", cancel),
    (result_dropped, "an approval and a question", cancel),
    (body_before_intent, "two steps", cancel),
    (cancel_lies, "two steps", cancel),
    (unclosed_step, "two steps", cancel),
    (unclosed_step, "two steps", host_cancel),
]


@pytest.mark.parametrize(
    ("plant", "title", "action"), CATCHES, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_sweep_catches_a_planted_fault(plant, title, action, monkeypatch):
    plant(monkeypatch)
    try:
        _, failures = sweep(BY_TITLE[title], action)
    except AssertionError as error:
        # Some faults show without any cancel; the sweep refuses to start then, and names the law.
        assert "breaks laws by itself" in str(error)
        return
    assert failures


def test_a_steer_that_is_lost_is_caught(monkeypatch):
    steer_lost(monkeypatch)
    with pytest.raises(AssertionError, match="breaks laws by itself"):
        sweep(BY_TITLE["steers in the stream and at the last look"], steer("more"))
