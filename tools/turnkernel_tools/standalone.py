"""How the programs in `keeping` are started: Python without site packages and without keys. Touches nothing."""

import os
import sys
from pathlib import Path

__all__ = ["bare_environment", "python"]

_PASSED_ON = ("TURNKERNEL_", "LD_LIBRARY_PATH")
"""The variables that they get, by how their names begin: marks, and what Python may need to start."""


def python(program: str, *arguments: str) -> list[str]:
    """The command that runs this text. In its `sys.argv` are the folder of `keeping`, then the arguments."""
    return [sys.executable, "-I", "-S", "-c", program, str(Path(__file__).parent), *arguments]


def bare_environment() -> dict[str, str]:
    """Nothing of ours but what is needed, so no keys."""
    return {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)}
