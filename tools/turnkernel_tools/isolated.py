"""Runs a function in a Python of its own, which can be killed. Starts processes through `process` only.

Both sides are here. The order and the answer are JSON, in one unnamed file that is the process's input: there is
nothing to remove when anybody is killed. JSON is enough: the input came as JSON, and is checked and made into the
types of the annotations on the far side; what comes back is the text that a model is told.
"""

import importlib
import importlib.util
import inspect
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, cast

import attrs

from turnkernel.tool import ToolOutput, WorkContext

from .containment import Tier
from .inputs import Inputs
from .output import OnOutput
from .process import NotStartedError, ProcessEnd, run_process
from .results import output_of

__all__ = ["FunctionFailedError", "Place", "answer", "place_of", "run_isolated"]

_PROGRAM = """\
import json, os, sys
order = json.loads(os.pread(0, os.fstat(0).st_size, 0))
sys.path[:] = order["path"]
from turnkernel_tools.isolated import answer
answer(order)"""

_SCRIPT = "__mp_main__"
"""What a script is called that is imported again. By this name it knows that it is not to run, as it does with
`multiprocessing`."""


class FunctionFailedError(Exception):
    """The function's: it raised, or its process died before it had returned.

    For what it raised, this is a subclass with the name of what that was, so that it is told as if it had been
    raised here.
    """


@attrs.frozen
class Place:
    """Where another interpreter finds a function."""

    module: str
    """To import."""
    script: str | None
    """The file that is the module, where that has no name to import it by."""
    name: str


def place_of(function: Callable[..., Any]) -> Place:
    """Raises TypeError, naming why, for what another interpreter can't find, or can't run by itself."""
    if not inspect.isfunction(function):
        raise TypeError(f"a process can only run a function of a module, not {function!r}")
    name, module = function.__qualname__, function.__module__
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"{name} is async: isolation is for functions that block")
    if name == "<lambda>" or "<locals>" in name:
        raise TypeError(f"{name} is made while the program runs: another process can't import it")
    if "." in name:
        raise TypeError(f"{name} is not at the top of its module: another process can't import it")
    if module != "__main__":
        return Place(module, None, name)
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return Place(spec.name, None, name)
    if file is None or not Path(file).is_file():
        raise TypeError(f"{name} is in a __main__ that is no file: another process can't import it")
    return Place(_SCRIPT, str(Path(file).absolute()), name)


async def run_isolated(
    place: Place, input: Mapping[str, Any], *, ctx: WorkContext, on_output: OnOutput, tier: Tier
) -> ToolOutput:
    """Call it in a process; what a model is told of its result.

    Under cancellation the process and all that it started are ended, see `run_process`.

    Raises `FunctionFailedError`.
    """
    order = {**attrs.asdict(place), "path": sys.path, "input": dict(input)}
    with tempfile.TemporaryFile() as paper:
        paper.write(json.dumps(order).encode())
        paper.flush()
        try:
            end = await run_process(
                [sys.executable, "-c", _PROGRAM],
                ctx=ctx,
                cwd=Path.cwd(),
                on_output=on_output,
                tier=tier,
                given=paper.fileno(),
            )
        except NotStartedError as error:
            raise FunctionFailedError(f"its process could not be started: {error}") from error
        return _told(_said(paper), end)


def _said(paper: BinaryIO) -> dict[str, Any] | None:
    """The answer; None when none, or no whole one, was written."""
    fd = paper.fileno()
    try:
        said: Any = json.loads(os.pread(fd, os.fstat(fd).st_size, 0))
    except ValueError:
        return None
    return cast("dict[str, Any]", said) if "answer" in said else None


def _told(said: Mapping[str, Any] | None, end: ProcessEnd) -> ToolOutput:
    if end.stopped is not None:
        text = f"[The function's process was stopped: {end.stopped}. It may have had effects]"
        return ToolOutput(text, is_error=True, status="stopped")
    if said is None:
        how = f"was killed by {end.signal}" if end.signal else f"ended with exit code {end.exit_code}"
        raise FunctionFailedError(f"its process {how} before it had returned")
    if said["answer"] == "raised":
        raise type(said["type"], (FunctionFailedError,), {})(said["text"])
    return ToolOutput(said["text"], is_error=said["is_error"], status=said["status"])


# --------------------------------------------------------------------------------------------- on the far side


def answer(order: Mapping[str, Any]) -> None:
    """In the process: do what the order says, write the answer over it, and leave at once."""
    paper = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    cast("TextIOWrapper", sys.stdout).reconfigure(line_buffering=True)  # shown while it runs
    try:
        function = _found(Place(order["module"], order["script"], order["name"]))
        output = output_of(function(**Inputs(function).check(order["input"])))
        said = {"answer": "returned", "text": output.text, "is_error": output.is_error, "status": output.status}
    except Exception as error:  # noqa: BLE001 - told on the other side, where it is raised again
        said = {"answer": "raised", "type": type(error).__name__, "text": str(error)}
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os.ftruncate(paper, 0)
    os.pwrite(paper, json.dumps(said).encode(), 0)
    os._exit(0)  # what threads the function has left would keep the interpreter waiting


def _found(place: Place) -> Callable[..., Any]:
    if place.script is None:
        module = importlib.import_module(place.module)
    else:
        spec = importlib.util.spec_from_file_location(place.module, place.script)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[place.module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    found = getattr(module, place.name)
    return getattr(found, "function", found)  # what @tool has made of it
