"""Virtual programs for the sweeps: between them they reach every wait of the kernel's own code.

Each is small, because a sweep runs it once per site.
"""

from collections.abc import Sequence

from ..events import AskClosed, AskOpened
from ..gate import Gate
from ..kernel import Settings
from ..provider import RetryPolicy
from .replies import Reply, ReplyCall
from .scripted import ScriptedTool
from .sweep import Box, Program, answer, steer

__all__ = ["PROGRAMS"]


def _slow(name: str = "slow", **options: object) -> ScriptedTool:
    return ScriptedTool(name, [{"emit": "line\n"}, {"sleep": 2.0}, {"result": "slow result"}], **options)  # type: ignore[arg-type]


def _fast(name: str = "fast", **options: object) -> ScriptedTool:
    return ScriptedTool(name, [{"result": "fast result"}], **options)  # type: ignore[arg-type]


def _batch() -> Sequence[ScriptedTool]:
    return [
        _slow(),
        _fast(concurrency="exclusive"),
        ScriptedTool("broken", [{"sleep": 0.1}, {"raise": "ValueError: no good"}], effect="read_only"),
    ]


def _stubborn() -> Sequence[ScriptedTool]:
    return [
        ScriptedTool("swallows", [{"swallow": True}, {"sleep": 1.0}, {"result": "never mind"}]),
        ScriptedTool("fails_late", [{"sleep": 1.0}], on_cancel=[{"sleep": 0.2}, {"raise": "OSError: disk gone"}]),
        ScriptedTool("careful", [{"critical": 0.5}, {"checkpoint": {"done": 1}}, {"sleep": 1.0}]),
    ]


def _asking() -> Sequence[ScriptedTool]:
    return [_fast(), ScriptedTool("question", [{"ask": "which one?"}], effect="read_only")]


def _approve() -> Gate:
    return Gate(approve=lambda name, input: name == "fast")


def _suits(box: Box) -> None:
    """Allow an approval, dismiss a question: the two are asked in either order."""
    last = [event for event in box.events if isinstance(event, AskOpened)][-1]
    answer("allow" if last.kind == "approval" else "dismissed")(box)


def _all_open(box: Box) -> None:
    """Answer every ask that is open by now."""
    closed = {event.ask for event in box.events if isinstance(event, AskClosed)}
    assert box.session is not None
    for event in box.events:
        if isinstance(event, AskOpened) and event.ask not in closed:
            box.session.answer(event.ask, "deny" if event.kind == "approval" else "answer", "blue")


def _stops(box: Box) -> None:
    last = [event for event in box.events if isinstance(event, AskOpened)][-1]
    answer("deny_stop" if last.kind == "approval" else "answer", "not now")(box)


def _calls(*names: str, text: str | None = "Let me see.", **reply: object) -> Reply:
    calls = [ReplyCall(f"c{number}", name) for number, name in enumerate(names, 1)]
    return Reply(text=text, calls=calls, **reply)  # type: ignore[arg-type]


def _task(name: str, seconds: float, **options: object) -> ScriptedTool:
    return ScriptedTool(name, [{"spawn": "session"}, {"sleep": seconds}, {"result": "built"}], **options)  # type: ignore[arg-type]


_DONE = Reply(text="All done.")

PROGRAMS: Sequence[Program] = (
    Program("words only", [Reply(thinking="Hm.", text="Hello to you."), _DONE], prompts=("hi", "and?")),
    Program("two steps", [_calls("slow", "fast", "slow", thinking="Hm."), _DONE], lambda: [_slow(), _fast()]),
    Program(
        "a mixed batch",
        [
            Reply(
                calls=[
                    ReplyCall("a", "fast"),
                    ReplyCall("a", "broken"),
                    ReplyCall("", "slow"),
                    ReplyCall("d", "nowhere"),
                    ReplyCall("e", "fast", raw_input='{"cut'),
                ]
            ),
            _DONE,
        ],
        _batch,
    ),
    Program("stubborn tools", [_calls("swallows", "fails_late", "careful"), _DONE], _stubborn),
    Program(
        "a steer while a call runs",
        [_calls("slow"), _DONE],
        lambda: [_slow()],
        on=[("tool/output", 1, steer("with --verbose"))],
    ),
    Program(
        "steers in the stream and at the last look",
        [Reply(text="One two."), Reply(text="Three."), _DONE],
        on=[("model/delta", 1, steer("first")), ("step/end", 2, steer("second"))],
    ),
    Program(
        "a steer skips what has not started",
        [_calls("slow", "fast", "slow"), _DONE],
        lambda: [_slow(concurrency="exclusive"), _fast(concurrency="exclusive")],
        settings=Settings(steer_policy="skip_unstarted"),
        on=[("tool/output", 1, steer("stop there"))],
    ),
    Program(
        "an approval and a question",
        [_calls("fast", "question"), _DONE],
        _asking,
        gate=_approve,
        on=[("ask/opened", 1, _suits), ("ask/opened", 2, _suits)],
    ),
    Program(
        "answers that take their time",
        [_calls("fast", "question", "late"), _DONE],
        lambda: [*_asking(), ScriptedTool("late", [{"sleep": 1.0}, {"emit": "now\n"}, {"sleep": 1.0}])],
        gate=_approve,
        on=[("tool/output", 1, _all_open)],
    ),
    Program(
        "a denial that stops",
        [_calls("question", "fast"), _DONE],
        _asking,
        gate=lambda: Gate(approve=lambda name, input: True),
        on=[("ask/opened", 1, answer("allow")), ("ask/opened", 2, _stops), ("ask/opened", 3, _stops)],
    ),
    Program(
        "a retry and a broken stream",
        [Reply(status=529, body="busy"), Reply(text="Half a", fault="cut"), _DONE],
        prompts=("go", "again"),
    ),
    Program(
        "limits",
        [_calls("slow"), _calls("slow"), _calls("slow"), _DONE],
        lambda: [_slow(timeout=1.0)],
        prompts=("go", "again"),
        settings=Settings(max_steps=2, turn_seconds=2.5, retry=RetryPolicy(0)),
    ),
    Program(
        "tasks",
        [_calls("short", "long", "slow"), _DONE],
        lambda: [_slow(), _task("short", 1.0), _task("long", 5.0, on_cancel=[{"sleep": 0.5}])],
        prompts=("go", "again"),
    ),
    Program(
        "odd endings",
        [
            _calls("fast", stop="max_tokens"),
            Reply(text="Wait", stop="pause_turn"),
            Reply(text=" \n", stop="end_turn"),
            Reply(text="I won't.", stop="refusal"),
            Reply(text="Too lo", stop="max_tokens"),
        ],
        lambda: [_fast()],
        prompts=("go", "again", "more"),
    ),
)
"""Every program, by what it shows."""
