"""Which containment tier holds the processes of calls here. Touches nothing."""

from typing import Literal

from .supervision import missing, refused

__all__ = ["Tier", "containment"]

Tier = Literal["namespace", "tree", "group"]
"""What holds the processes of a call, the strongest first; `docs/containment.md` says what each holds."""


def containment(wanted: Tier = "tree") -> Tier:
    """The tier that is in force here when this one is wanted, for `open_session(containment=...)`.

    Never a stronger one than `wanted`. There is no `namespace` yet. Nothing is started for the answer: whether the
    supervisor can be is known after the first call. Should that fail, each call says so in its output.
    """
    return "group" if wanted == "group" or missing() or refused() else "tree"
