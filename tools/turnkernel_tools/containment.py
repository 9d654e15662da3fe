"""Which containment tier holds the processes of calls here. For `namespace` starts a process to find out."""

from typing import Literal

from .probe import missing_for_namespace
from .supervision import missing, refused

__all__ = ["Tier", "containment"]

Tier = Literal["namespace", "tree", "group"]
"""What holds the processes of a call, the strongest first; `docs/containment.md` says what each holds."""


def containment(wanted: Tier = "tree") -> Tier:
    """The tier that is in force here when this one is wanted, for `open_session(containment=...)`.

    Never a stronger one than `wanted`. For `namespace` one is made on trial, in a process of its own, the first
    time: that blocks for about 50 ms. No supervisor is started for the answer: whether that works is known after
    the first call. Should it fail, or a namespace later, each call that is held by less says so in its output.
    """
    if wanted == "group" or missing() or refused():
        return "group"
    return "namespace" if wanted == "namespace" and missing_for_namespace() is None else "tree"
