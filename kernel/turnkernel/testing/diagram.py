"""The grammar's table as diagrams: what `docs/design.md` shows is drawn from it and checked against it. Pure."""

import sys
from collections.abc import Iterator

from ..grammar import INNER, TABLE

__all__ = ["diagram", "machines"]

_BY_CONTENT = {
    "turn": ("running --> cut: session/open", "cancelled --> cut: session/open", "cut --> cut: session/open"),
    "call": ("[*] --> asked: model/message",),
}
"""Arrows that the table has no place for, because not the event's type alone makes them: an opening cuts a turn
where one is open, and a message opens as many calls as it asks for."""

_MACHINES = ("session", "turn", "step", "call", "ask", "item", "task")


def machines() -> str:
    """A Mermaid state diagram for each machine of the grammar."""
    return "\n\n".join(diagram(machine) for machine in _MACHINES)


def main() -> None:
    """Print them, to be pasted into the docs."""
    sys.stdout.write(machines() + "\n")


def diagram(machine: str) -> str:
    """One machine's Mermaid state diagram: its states, and the events that move it."""
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f"    {line}" for line in dict.fromkeys(_moves(machine))]
    inner = INNER.get(machine)
    caption = f"**{machine}**" + (f" (closes with no {inner} open)" if inner is not None else "")
    return caption + "\n\n" + "\n".join(lines) + "\n```"


def _moves(machine: str) -> Iterator[str]:
    yield from _BY_CONTENT.get(machine, ())
    for event, moves in TABLE.items():
        for move in moves:
            if move.machine == machine and move.after is not None:
                for before in sorted(move.before):
                    yield f"{_state(before)} --> {_state(move.after)}: {event}"


def _state(name: str) -> str:
    return "[*]" if name in ("none", "new") else name


if __name__ == "__main__":
    main()
