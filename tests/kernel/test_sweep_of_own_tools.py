"""The sweep as somebody uses it who has tools and a provider of his own, and who makes mistakes."""

from contextlib import aclosing, asynccontextmanager
from functools import partial

import attrs
import pytest
import trio

from turnkernel import Finish
from turnkernel.events import Delta
from turnkernel.testing import Program, Reply, ReplyCall, ScriptedProvider, ScriptedTool, play, sweep
from turnkernel.tool import ToolOutput


@attrs.define(eq=False)
class Own:
    """A tool that somebody wrote."""

    name: str = "own"
    description: str = "Waits twice."
    schema: dict = attrs.field(factory=lambda: {"type": "object"})
    effect: str = "effect"
    concurrency: str = "shared"
    timeout: float | None = None

    async def run(self, ctx, input):
        await trio.sleep(1)
        ctx.emit("half way\n")
        await trio.sleep(1)
        return ToolOutput("done")


class Leaving(Own):
    """One whose work goes on without it: what must never be."""

    async def run(self, ctx, input):
        trio.lowlevel.spawn_system_task(trio.sleep, 1_000_000)
        return await super().run(ctx, input)


class Swallowing(Own):
    """One that shields itself from the cancel, which no law allows."""

    async def run(self, ctx, input):
        with trio.CancelScope(shield=True):
            return await super().run(ctx, input)


class OwnProvider:
    """A provider that somebody wrote: asks for a call once, then says a word."""

    wire, model = "own", "own-1"

    @asynccontextmanager
    async def stream(self, request):
        await trio.lowlevel.checkpoint()
        async with aclosing(self.events(request)) as events:
            yield events

    async def events(self, request):
        await trio.sleep(0.1)
        if len(request.messages) == 1:
            yield Delta(0, "call", call="c1", name="own")
            yield Delta(0, "input", "{}")
            yield Delta(0, "end")
            yield Finish("tool_use")
            return
        yield Delta(0, "text", "Well.")
        yield Delta(0, "end")
        yield Finish("end_turn")


ASKS_ONCE = [Reply(calls=[ReplyCall("c1", "own")]), Reply(text="Done.")]


@pytest.mark.law("R1", "R5", "R6")
def test_tools_and_a_provider_of_ones_own_are_swept():
    sites, failures = sweep(Program("own", tools=lambda: [Own()], provider=OwnProvider))
    assert failures == []
    assert sites > 30


def test_what_a_tool_of_ones_own_does_wrong_is_found():
    left = play(Program("left", ASKS_ONCE, lambda: [Leaving()]))
    assert "trio tasks are left after the session" in [one.detail for one in left.violations]
    _, failures = sweep(Program("shielded", ASKS_ONCE, lambda: [Swallowing()]))
    assert "R9" in {one.law for failure in failures for one in failure.violations}


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"tools": [Own()]}, TypeError, "^tools must be a function that makes them for each run, not "),
        ({"gate": None}, TypeError, "^gate must be a function"),
        ({"provider": OwnProvider()}, TypeError, "^provider must be a function"),
        ({"prompts": "go"}, TypeError, "^prompts must be a list of texts, not 'go'"),
        ({"provider": OwnProvider}, ValueError, "^replies are for the scripted model"),
        (
            {"on": [("tool/strt", 1, print)]},
            ValueError,
            "^on must be one of .* not 'tool/strt' .did you mean 'to",
        ),
    ],
)
def test_a_program_that_can_not_be_is_refused_by_its_field(wrong, error, words):
    with pytest.raises(error, match=words):
        Program(**{"title": "wrong", "replies": ASKS_ONCE, **wrong})


def test_what_is_no_tool_or_provider_is_the_program_s_mistake_and_no_finding_of_a_sweep():
    with pytest.raises(TypeError, match=r"^tools\[0\] must be a Tool, not 'own'"):
        sweep(Program("wrong", ASKS_ONCE, lambda: ["own"]))
    with pytest.raises(TypeError, match=r"^provider <class 'dict'> is no Provider|^provider must be a Provider"):
        sweep(Program("wrong", provider=dict))
    with pytest.raises(ZeroDivisionError):
        sweep(Program("wrong", ASKS_ONCE, lambda: 1 / 0))


@pytest.mark.parametrize(
    ("does", "error", "words"),
    [
        ([{"slep": 1}], ValueError, r"does\[0\]: there is no action 'slep' \(did you mean 'sleep'\?\)"),
        ([{"emit": "x"}, {"sleep": -1}], ValueError, r"does\[1\]: sleep must be at least 0, not -1"),
        ([{"sleep": float("inf")}], ValueError, "sleep must be finite, not inf"),
        ([{"sleep": "1"}], TypeError, "sleep must be a number, not '1'"),
        ([{"emit": 1}], TypeError, "emit must be a str, not 1"),
        ([{"emit": "x", "sleep": 1}], TypeError, "must be a mapping of one key"),
        (["sleep"], TypeError, "must be a mapping of one key, not 'sleep'"),
        ("sleep", TypeError, "does must be a list of actions, not 'sleep'"),
        ([{"spawn": "forever"}], ValueError, "spawn must be one of call, turn, session, detached, not 'forever'"),
        (
            [{"spawn": "session"}, {"emit": "x"}],
            ValueError,
            "'emit' is for calls, and what follows",
        ),
        (
            [{"raise": "UnicodeDecodeError: x"}],
            ValueError,
            "raise must name an exception that is",
        ),
        ([{"touch": "file"}], ValueError, "'touch' needs a function that makes files"),
    ],
)
def test_a_script_that_can_not_be_played_is_refused_and_not_swept_green(does, error, words):
    with pytest.raises(error, match=words):
        ScriptedTool("own", does)
    with pytest.raises(error, match=words):
        sweep(Program("wrong", ASKS_ONCE, lambda: [ScriptedTool("own", does)]))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (partial(Reply, fault="rest"), ValueError, "fault must be one of .* not 'rest' .did you mean 'reset'"),
        (partial(Reply, stop="done"), ValueError, "stop must be one of"),
        (partial(Reply, pace=-1), ValueError, "pace must be at least 0, not -1"),
        (partial(Reply, piece_bytes=0), ValueError, "piece_bytes must be at least 1, not 0"),
        (partial(Reply, text=3), TypeError, "text must be a str, not 3"),
        (partial(Reply, calls=["c1"]), TypeError, r"calls\[0\] must be a ReplyCall, not 'c1'"),
        (partial(ScriptedProvider, ["Hello."]), TypeError, r"replies\[0\] must be a Reply, not 'Hello.'"),
    ],
)
def test_a_reply_that_no_model_can_give_is_refused(make, error, words):
    with pytest.raises(error, match=words):
        make()
