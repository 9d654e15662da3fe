"""What tests of an agent, and of the kernel, are made of: scripted models and tools, law checks, sweeps. Public.

Everything that a user of it needs is named here; other names are private by their place. A test of your own tool:

    from turnkernel.testing import Program, Reply, ReplyCall, sweep

    replies = [Reply(calls=[ReplyCall("call_1", "my_tool", {"path": "x"})]), Reply(text="Done.")]
    sites, failures = sweep(Program("my tool", replies, lambda: [my_tool]))
    assert not failures

cancels a turn that calls it at every place where a cancel can strike, and holds what came of it against the laws.
"""

from .actions import Action
from .laws import LAWS, Violation, check_append_only, check_log, check_messages
from .programs import PROGRAMS
from .replies import Fault, Reply, ReplyCall, model_events
from .scripted import ScriptedProvider, ScriptedTool
from .sweep import (
    Box,
    Failure,
    Program,
    Run,
    Site,
    answer,
    cancel,
    host_cancel,
    pairs,
    play,
    steer,
    sweep,
)
from .virtual import run_virtually

__all__ = [
    "LAWS",
    "PROGRAMS",
    "Action",
    "Box",
    "Failure",
    "Fault",
    "Program",
    "Reply",
    "ReplyCall",
    "Run",
    "ScriptedProvider",
    "ScriptedTool",
    "Site",
    "Violation",
    "answer",
    "cancel",
    "check_append_only",
    "check_log",
    "check_messages",
    "host_cancel",
    "model_events",
    "pairs",
    "play",
    "run_virtually",
    "steer",
    "sweep",
]
