"""A log like that of a working session, of any length. Pure."""

from collections.abc import Iterator

from turnkernel.events import (
    Event,
    InboxConsumed,
    InboxQueued,
    ModelDelta,
    ModelMessage,
    SessionOpen,
    StepEnd,
    StepStart,
    ToolCall,
    ToolOutput,
    ToolResult,
    ToolStart,
    TurnEnd,
    TurnStart,
)
from turnkernel.journal import Journal
from turnkernel.messages import Text, ToolUse
from turnkernel.store import MemoryStore

__all__ = ["log_of_lines", "log_of_turns"]

_WIRE, _MODEL = "scripted", "scripted-1"
_WORDS = ["Let ", "me ", "look ", "at ", "the ", "tests ", "that ", "fail. "] * 3
_ANSWER = ["The ", "second ", "assertion ", "compares ", "floats ", "without ", "a ", "tolerance. "] * 3


def _turn(number: int) -> Iterator[Event]:
    """A turn of two steps: words and a call, then the answer; 63 events."""
    turn, item, call = f"t{number}", f"item_{number}", f"call_{number}"
    first, second = f"{turn}.s1", f"{turn}.s2"
    input = {"command": "python -m pytest -q tests"}
    yield InboxQueued(item, "prompt", "Why do the tests fail?")
    yield TurnStart(turn)
    yield InboxConsumed(item, turn, first)
    yield StepStart(turn, first, _WIRE, _MODEL)
    yield from (ModelDelta(turn, first, 0, "text", word) for word in _WORDS)
    blocks = (Text("".join(_WORDS)), ToolUse(call, "bash", input))
    yield ModelMessage(turn, first, _WIRE, _MODEL, blocks, "tool_use", {"input_tokens": 900, "output_tokens": 40})
    yield ToolCall(turn, call, "bash")
    yield ToolStart(turn, call, "bash", input, "effect")
    yield ToolOutput(turn, call, "stdout", "1 failed, 212 passed in 3.07s\n")
    yield ToolResult(turn, call, "bash", "error", True, "1 failed, 212 passed in 3.07s\n[exit code 1]", 3.207113)
    yield StepEnd(turn, first)
    yield StepStart(turn, second, _WIRE, _MODEL)
    yield from (ModelDelta(turn, second, 0, "text", word) for word in _ANSWER)
    yield ModelMessage(turn, second, _WIRE, _MODEL, (Text("".join(_ANSWER)),), "end_turn", {"output_tokens": 30})
    yield StepEnd(turn, second)
    yield TurnEnd(turn, "completed")


def _journal(store: MemoryStore) -> Journal:
    journal = Journal(store, durability="memory", clock=lambda: 0.0)
    journal.append(SessionOpen("0123456789abcdef", "2026-01-01T00:00:00.000+00:00", "memory"))
    return journal


def log_of_turns(turns: int) -> bytes:
    """A log of so many whole turns."""
    store = MemoryStore()
    journal = _journal(store)
    for number in range(1, turns + 1):
        journal.append(*_turn(number))
    return store.read(0, store.size)


def log_of_lines(lines: int) -> bytes:
    """A log of so many lines, most likely cut in the middle of a turn, as by a crash."""
    store = MemoryStore()
    journal = _journal(store)
    number = 0
    while journal.seq < lines:
        number += 1
        journal.append(*list(_turn(number))[: lines - journal.seq])
    return store.read(0, store.size)
