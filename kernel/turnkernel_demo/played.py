"""What came of a scenario, before it is judged. attrs only; touches nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from turnkernel.testing.virtual import Site

from .ledger import Ledger
from .scenario import Scenario

__all__ = ["MODEL", "Played", "Refused"]

MODEL = "scripted-1"
"""The name of the scripted model, on every wire."""


@attrs.frozen
class Refused:
    """A request that a real API would have refused."""

    rule: str
    text: str


@attrs.frozen
class Played:
    """One scenario, played."""

    scenario: Scenario
    ledger: Ledger
    log: bytes
    """The root's."""
    bodies: Sequence[Any]
    """What was sent, request by request."""
    refused: Sequence[Refused] = ()
    unmet_requests: int = 0
    """Requests for which there was no reply."""
    children: Mapping[str, bytes] = attrs.field(factory=dict[str, bytes])
    """The logs of child sessions, by their names."""
    log_path: str | None = None
    """Where the log is, when it was kept."""
    sites: Sequence[Site] = ()
    """Of a virtual run: the places at which an act could happen, in order."""
    seconds: float = 0.0
