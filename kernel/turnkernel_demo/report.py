"""Judges what came of a scenario: the laws, what was expected, and the object that `run --json` prints. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import attrs
import orjson

from turnkernel.causes import Cause
from turnkernel.codec import parse_object
from turnkernel.events import (
    InboxCanceled,
    InboxQueued,
    Record,
    SessionClose,
    ToolResult,
    TurnCancel,
    TurnEnd,
)
from turnkernel.provider import Request
from turnkernel.reading import LogReader
from turnkernel.store import MemoryStore
from turnkernel.testing.laws import Violation, check_log
from turnkernel_providers.context import messages_of
from turnkernel_providers.pairing import PairingError

from .ledger import MILESTONES, OVER_LIMIT, CancelSeen
from .lives import records_of
from .played import MODEL, Played
from .scenario import ROOT, Expect

__all__ = ["Result", "judge"]

EVERY_PREFIX_UP_TO = 2000
"""Records up to which the context is checked at each: the time that takes grows with the square of them."""

_LAW_OF_RULE: Mapping[str, str] = {
    **dict.fromkeys(("A11", "A12", "A13", "A14", "A15"), "C1"),
    **dict.fromkeys(("A01", "A02", "A03", "A04", "A05", "A06", "A24", "A25", "C01", "C02", "C03", "C07"), "C2"),
    **dict.fromkeys(("A16", "A17", "A18", "A19", "A20", "A21"), "C4"),
    **dict.fromkeys(("A27", "A28"), "C5"),
}
"""Which law a request breaks that a real API refuses; every other rule is about what a block may hold: C3."""


@attrs.frozen
class Result:
    """A scenario, played and judged."""

    ok: bool
    unmet: Sequence[str]
    """Expectations and acts that were not met, and what went wrong with the run, a line each."""
    violations: Sequence[Violation]
    fields: Mapping[str, Any]
    """What `run --json` prints."""
    notes: Sequence[str] = ()
    """What a person may want to know besides, and is no failure."""


def judge(played: Played) -> Result:
    """The verdict."""
    records = {name: records_of(log)[0] for name, log in ((ROOT, played.log), *played.children.items())}
    violations = [*played.ledger.violations, *_of_log(played, ROOT, played.log), *_refusals(played)]
    for name, log in played.children.items():
        violations += [attrs.evolve(one, detail=f"in {name}: {one.detail}") for one in _of_log(played, name, log)]
    context, broken = _context(played)
    violations = sorted(dict.fromkeys([*violations, *broken]), key=lambda one: one.seq)
    facts = _Facts(played, records, context, violations)
    unmet = [*_troubles(played), *_unmet_acts(played), *facts.unmet(played.scenario.expect)]
    return Result(not unmet, unmet, violations, _fields(played, facts, not unmet, unmet), list(_notes(played)))


def _should_be_closed(played: Played) -> bool:
    left = played.ledger.left
    return left is not None and left.why != "log" and left.error is None and played.ledger.stuck is None


# -------------------------------------------------------------------------------------------------- the laws


def _of_log(played: Played, session: str, log: bytes) -> Iterator[Violation]:
    """What the log of one session shows."""
    records, damage = records_of(log)
    if damage is not None:
        yield Violation("L7", damage.line, f"the log can't be read on: {damage.reason}")
    yield from check_log(
        records, closed=_should_be_closed(played), every_prefix=len(records) <= EVERY_PREFIX_UP_TO
    )
    yield from _ends(played, session, records)


def _refusals(played: Played) -> Iterator[Violation]:
    for one in played.refused:
        yield Violation(_LAW_OF_RULE.get(one.rule, "C3"), 0, f"refused ({one.rule}): {one.text}")


def _ends(played: Played, session: str, records: Sequence[Record]) -> Iterator[Violation]:
    """R4, R8 and R11, as far as the log alone can't show them."""
    ledger = played.ledger
    cancels = [seen for seen in ledger.cancels.values() if seen.session == session and not seen.one_call]
    recorded = {record.event.turn for record in records if isinstance(record.event, TurnCancel)}
    applied = {seen.turn for seen in cancels if seen.answer == "applied"}
    by_host = any(played.scenario.acts[place].do == "host_cancel" for place, _ in ledger.acted)
    for record in records:
        match record.event:
            case TurnEnd(synthetic=True) | TurnEnd(code="log"):
                pass  # cut by something stronger than a cancel
            case TurnEnd(turn=turn, outcome="aborted") if turn not in recorded | applied and not by_host:
                yield Violation("R11", record.seq, f"{turn} ended aborted and no cancel of it was applied")
            case TurnEnd(turn=turn, outcome=outcome) if turn in applied and outcome != "aborted":
                yield Violation("R11", record.seq, f"a cancel of {turn} was applied and it ended {outcome}")
            case _:
                pass
    yield from _causes(cancels)
    by_host = ledger.left is not None and ledger.left.why == "host"
    if by_host and not (records and isinstance(records[-1].event, SessionClose)):
        yield Violation("R8", len(records), "the host cancelled and the log was not closed")


def _causes(cancels: Sequence[CancelSeen]) -> Iterator[Violation]:
    """R4: a repeated cancel is answered with the first cause."""
    first = {seen.turn: seen.cause for seen in cancels if seen.answer == "applied"}
    for seen in cancels:
        if seen.answer == "repeated" and seen.cause != first.get(seen.turn, seen.cause):
            detail = f"{seen.turn} was cancelled by {first[seen.turn]}; a later cancel says {seen.cause}"
            yield Violation("R4", seen.seq, detail)


def _context(played: Played) -> tuple[dict[str, Any] | None, list[Violation]]:
    """What the model would be sent now, and whether it can't be."""
    reader = LogReader(MemoryStore(played.log))
    for _ in reader:
        pass
    request = Request("", reader.closed_context().messages, (), 0)
    try:
        return messages_of(request, played.scenario.wire, MODEL), []
    except PairingError as error:
        return None, [Violation("C2", 0, str(error))]


# -------------------------------------------------------------------------------------------- what was expected


def _troubles(played: Played) -> Iterator[str]:
    ledger = played.ledger
    yield from ledger.troubles
    if ledger.stuck is not None:
        limit = f" ({played.scenario.limit_seconds:g} s)" if ledger.stuck.why == OVER_LIMIT else ""
        yield f"given up: {ledger.stuck.why}{limit}"
        yield from (f"held by {line}" for line in ledger.stuck.holders)
    if ledger.left is not None and ledger.left.error is not None:
        yield f"the kernel failed: {ledger.left.error}"
    if played.unmet_requests:
        more = "1 request" if played.unmet_requests == 1 else f"{played.unmet_requests} requests"
        yield f"replies: {more} too many, answered 500"


def _notes(played: Played) -> Iterator[str]:
    answered = len(played.bodies) - played.unmet_requests
    unused = len(played.scenario.replies) - answered
    if unused > 0:
        yield f"replies: {unused} of {len(played.scenario.replies)} were not asked for"


def _unmet_acts(played: Played) -> Iterator[str]:
    said = {one.user for one in played.ledger.said}
    for place, user in enumerate(played.scenario.users):
        if user.session != ROOT and place not in said:
            yield f"user {place + 1} had nobody to speak to: {user.session} did not run, or had ended"
    fired = dict(played.ledger.acted.keys())  # by place, how often
    for place, act in enumerate(played.scenario.acts):
        when = f"on {act.on}" if act.on is not None else f"at site {act.site}"
        times = fired.get(place, 0)
        if times == 0:
            yield f"act {place + 1} ({act.do} {when}) never fired"
        elif times < act.times:
            yield f"act {place + 1} ({act.do} {when}) fired {times} of {act.times} times"


@attrs.frozen
class _Facts:
    """What a played scenario can be asked."""

    played: Played
    logs: Mapping[str, Sequence[Record]]
    """The records of every session, by its name, the root's first."""
    context: Mapping[str, Any] | None
    violations: Sequence[Violation]

    @property
    def records(self) -> Sequence[Record]:
        return self.logs[ROOT]

    @property
    def outcomes(self) -> list[str]:
        return _outcomes(self.records)

    @property
    def results(self) -> dict[str, ToolResult]:
        """By call; of calls with the same id in two sessions the root's."""
        events = [record.event for records in reversed([*self.logs.values()]) for record in records]
        return {event.call: event for event in events if isinstance(event, ToolResult)}

    @property
    def dropped(self) -> list[str]:
        return [text for records in self.logs.values() for text in _dropped(records)]

    @property
    def cancels(self) -> list[CancelSeen]:
        return list(self.played.ledger.cancels.values())

    @property
    def answers(self) -> list[str]:
        """Of those who cancelled: that a cancel reaches a child session is part of it."""
        return [seen.answer for seen in self.cancels if seen.session == ROOT or seen.cause != Cause.PARENT]

    def unmet(self, expect: Expect) -> Iterator[str]:
        ledger = self.played.ledger
        yield from _differs("outcomes", expect.outcomes, self.outcomes)
        yield from _differs("requests", expect.requests, len(self.played.bodies))
        yield from _differs("survivors", expect.survivors, len(ledger.survivors))
        yield from _differs("answers", expect.answers, self.answers)
        yield from _differs("dropped", expect.dropped, self.dropped)
        yield from self._unmet_results(expect)
        missing = _first_missing(expect.events, [record.event.type for record in self.records])
        if missing is not None:
            yield f"events: no {expect.events[missing]} (number {missing + 1}) after those before it"
        yield from self._unmet_context(expect)
        yield from self._unmet_laws(expect)

    def _unmet_results(self, expect: Expect) -> Iterator[str]:
        results = self.results
        for call, status in expect.results.items():
            found = results[call].status if call in results else "no result"
            yield from _differs(f"results: {call}", status, found)
        for call, parts in expect.said.items():
            text = results[call].text if call in results else ""
            yield from (f"said: {call} does not say {_quoted(part)}" for part in parts if part not in text)

    def _unmet_context(self, expect: Expect) -> Iterator[str]:
        if not expect.context_has and not expect.context_lacks:
            return
        texts = list(_strings(self.context["messages"])) if self.context is not None else []
        for part in expect.context_has:
            if not any(part in text for text in texts):
                yield f"context_has: {_quoted(part)} is not in the context"
        for part in expect.context_lacks:
            if any(part in text for text in texts):
                yield f"context_lacks: {_quoted(part)} is in the context"

    def _unmet_laws(self, expect: Expect) -> Iterator[str]:
        wanted = set(expect.violations)
        for one in self.violations:
            if one.law not in wanted:
                yield f"violations: {one.law} is broken at seq {one.seq}: {one.detail}"
        broken = {one.law for one in self.violations}
        yield from (f"violations: {law} is not broken" for law in expect.violations if law not in broken)


def _outcomes(records: Sequence[Record]) -> list[str]:
    return [record.event.outcome for record in records if isinstance(record.event, TurnEnd)]


def _dropped(records: Sequence[Record]) -> Iterator[str]:
    texts = {record.event.item: record.event.text for record in records if isinstance(record.event, InboxQueued)}
    for record in records:
        if isinstance(record.event, InboxCanceled) and record.event.reason == "cancel":
            yield texts.get(record.event.item, "")


def _differs(name: str, wanted: Any, found: Any) -> Iterator[str]:
    if wanted is None:
        return
    if isinstance(wanted, tuple):
        wanted = [str(one) for one in cast("tuple[Any, ...]", wanted)]
    if wanted != found:
        yield f"{name}: expected {_shown(wanted)}, found {_shown(found)}"


def _shown(value: Any) -> str:
    return orjson.dumps(value).decode() if not isinstance(value, str) else value


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode()


def _first_missing(wanted: Sequence[str], found: Sequence[str]) -> int | None:
    """The first that does not come in its order."""
    rest = iter(found)
    return next((place for place, name in enumerate(wanted) if name not in rest), None)


def _strings(value: Any, key: str = "") -> Iterator[str]:
    """Every string of the messages, inputs included, signatures not."""
    if isinstance(value, str):
        yield value
        if key == "arguments" and (parsed := parse_object(value)) is not None:
            yield from _strings(parsed)
    elif isinstance(value, dict):
        for name, item in cast("dict[str, Any]", value).items():
            if name not in ("signature", "encrypted_content"):
                yield from _strings(item, name)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _strings(item)


# ----------------------------------------------------------------------------------------------- the object


def _fields(played: Played, facts: _Facts, ok: bool, unmet: Sequence[str]) -> dict[str, Any]:
    return {
        "title": played.scenario.title,
        "ok": ok,
        "outcomes": facts.outcomes,
        "requests": len(played.bodies),
        "request_bodies": list(played.bodies),
        "survivors": [attrs.asdict(one) for one in played.ledger.survivors],
        "results": {call: result.status for call, result in facts.results.items()},
        "violations": [attrs.asdict(one) for one in facts.violations],
        "unmet": list(unmet),
        "acts": [_act(played, place, number) for place, number in played.ledger.acted],
        "cancels": [_cancel(seen) for seen in facts.cancels],
        "log": played.log_path,
        "context": facts.context,
    }


def _act(played: Played, place: int, number: int) -> dict[str, Any]:
    act, acted = played.scenario.acts[place], played.ledger.acted[place, number]
    # Killing is not answered: nobody is left to.
    answer = acted.answer or ("killed" if act.do == "kill" else "none")
    return {"act": place + 1, "do": act.do, "firing": number, "seq": acted.seq, "answer": answer}


def _cancel(seen: CancelSeen) -> dict[str, Any]:
    reached = {
        name: round(seen.milestones[name] * 1000, 3) if name in seen.milestones else None for name in MILESTONES
    }
    said = {"turn": seen.turn, "seq": seen.seq, "cause": seen.cause, "answer": seen.answer}
    return {**said, **reached, **({} if seen.session == ROOT else {"session": seen.session})}
