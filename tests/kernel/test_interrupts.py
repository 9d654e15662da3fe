"""KeyboardInterrupt at the worst places: it waits until the log is whole."""

import signal

import pytest
import trio

from turnkernel import open_session
from turnkernel.journal import Journal
from turnkernel.testing.laws import check_log
from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel.testing.scripted import ScriptedProvider, ScriptedTool


def interrupting(kind: str):
    """A journal that gets Ctrl-C in the middle of the append of an event."""

    class Interrupting(Journal):
        done = False

        @trio.lowlevel.enable_ki_protection
        def append(self, *events):
            if not type(self).done and any(event.type == kind for event in events):
                type(self).done = True
                signal.raise_signal(signal.SIGINT)
            super().append(*events)

    return Interrupting


@pytest.mark.law("R8", "R11")
@pytest.mark.parametrize(
    "kind", ["turn/start", "step/start", "model/message", "tool/start", "tool/result", "turn/end"]
)
def test_ctrl_c_in_an_append_leaves_a_closed_log(kind):
    tool = ScriptedTool("quick", [{"result": "done"}])
    provider = ScriptedProvider([Reply(text="Hm.", calls=[ReplyCall("c1", "quick")]), Reply(text="Done.")])
    sessions = []

    async def main():
        async with open_session(None, provider=provider, tools=[tool], journal_type=interrupting(kind)) as session:
            sessions.append(session)
            await session.send("go")
            await session.rest()

    with pytest.raises(BaseException) as caught:
        trio.run(main)
    error = caught.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, KeyboardInterrupt)
    records = sessions[0]._kernel.journal.records_from(1)
    assert not check_log(records, closed=True)
    assert records[-1].event.type == "session/close"
