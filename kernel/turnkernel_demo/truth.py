"""What tools did, held against what the log says of them. Pure; touches nothing."""

from collections.abc import Iterator, Mapping, Sequence

from turnkernel.events import Record, ToolResult, ToolStart, TurnEnd
from turnkernel.testing.laws import Violation

from .ledger import Body

__all__ = ["check_bodies"]


def check_bodies(bodies: Sequence[Body], records: Sequence[Record], *, promised: bool) -> list[Violation]:
    """L4, R5, R6 and R12 of the calls whose bodies ran in one life, by the log as that life left it.

    `promised`: what was flushed can't have been lost.
    """
    events = [record.event for record in records]
    started = {event.call for event in events if isinstance(event, ToolStart)}
    results = {event.call: event for event in events if isinstance(event, ToolResult) and not event.synthetic}
    ends = {event.turn: event for event in events if isinstance(event, TurnEnd) and not event.synthetic}
    found: list[Violation] = []
    began: set[str] = set()
    for body in bodies:
        if body.state == "began":
            if body.call in began:
                found.append(Violation("R6", 0, f"the body of {body.call} ran twice"))
            began.add(body.call)
            if body.call not in started and promised and body.effect != "read_only":
                found.append(Violation("L4", 0, f"the body of {body.call} ran; the log has no tool/start of it"))
        if (result := results.get(body.call)) is not None:
            found += _check_result(body, result, ends)
    return found


def _check_result(body: Body, result: ToolResult, ends: Mapping[str, TurnEnd]) -> Iterator[Violation]:
    if body.state == "began" and result.status == "not_started":
        yield Violation("R5", 0, f"the body of {body.call} ran; the log says not started")
    if body.state == "returned" and result.status != body.detail:
        yield Violation("R6", 0, f"{body.call} returned {body.detail}; the log says {result.status}")
    end = ends.get(result.turn)
    told = end is None or result.status == "error" or any(error.type == body.detail for error in end.errors)
    if body.state == "raised" and not told:
        yield Violation("R12", 0, f"{body.call} raised {body.detail}; the log does not say so")
