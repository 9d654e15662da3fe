"""Which queued input becomes part of which turn. Decides only; uses no trio and appends nothing."""

from .events import Event, InboxConsumed, InboxQueued, TaskEnded
from .grammar import Grammar

__all__ = ["claim", "has_work", "steers"]


def claim(grammar: Grammar) -> list[Event]:
    """The events that consume what the next turn starts with; empty if nothing can start one.

    A turn claims the oldest item that a person said, and the notices that were queued before it. With no turn
    running a steer is a prompt like any other: what was meant for a turn that is over starts the next. Notices
    alone start a turn too, all together.
    """
    taken: list[str] = []
    for item in grammar.items.values():
        taken.append(item.item)
        if isinstance(item, InboxQueued):
            break
    turn, step = grammar.next_turn(), grammar.next_step()
    return [InboxConsumed(item, turn, step) for item in taken]


def has_work(grammar: Grammar, *, notices: bool) -> bool:
    """Whether something is queued that may start a turn; `notices` says whether a notice alone may."""
    if notices:
        return bool(grammar.items)
    return any(isinstance(item, InboxQueued) for item in grammar.items.values())


def steers(grammar: Grammar) -> list[Event]:
    """The events that consume what is queued for the running turn's next step: its steers, and notices."""
    turn, step = grammar.next_turn(), grammar.next_step()
    if grammar.turn is not None:
        turn = grammar.turn.id
    return [
        InboxConsumed(item.item, turn, step)
        for item in grammar.items.values()
        if isinstance(item, TaskEnded) or item.kind == "steer"
    ]
