"""Makes a tool from a typed function. Starts a thread for one that is not async; touches nothing else."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, overload

import attrs
import cattrs
import orjson

from turnkernel.checks import check_tool
from turnkernel.tool import Concurrency, Effect, ToolContext, ToolOutput

from .inputs import BadInputError, Inputs
from .thread import run_in_thread

__all__ = ["FunctionTool", "tool"]


@attrs.frozen
class FunctionTool:
    """A `Tool` whose body is a function. Made by `tool`."""

    function: Callable[..., Any]
    """What was decorated, as it was."""
    name: str
    description: str
    effect: Effect
    concurrency: Concurrency
    timeout: float | None
    inputs: Inputs = attrs.field(repr=False)

    @property
    def schema(self) -> Mapping[str, Any]:
        """JSON Schema of the input, from the annotations."""
        return self.inputs.schema

    async def run(self, ctx: ToolContext, input: Mapping[str, Any]) -> ToolOutput:
        """Check the input, then call the function. See `tool` for what becomes of its result."""
        try:
            arguments = self.inputs.check(input)
        except BadInputError as error:
            return ToolOutput(f"The input of {self.name} is not what it takes:\n{error}", is_error=True)
        if inspect.iscoroutinefunction(self.function):
            value = await (
                self.function(ctx, **arguments) if self.inputs.takes_context else self.function(**arguments)
            )
        else:
            value = await run_in_thread(ctx, self.name, lambda inside: self._call(inside, arguments))
        return _output(value)  # no checkpoint after the function's return: a result that is there is kept (R6)

    def _call(self, ctx: ToolContext, arguments: Mapping[str, Any]) -> Any:
        return self.function(ctx, **arguments) if self.inputs.takes_context else self.function(**arguments)


def _output(value: Any) -> ToolOutput:
    if isinstance(value, ToolOutput):
        return value
    text = value if isinstance(value, str) else "" if value is None else _json(value)
    return ToolOutput(text if text.strip() else "(no output)")


def _json(value: Any) -> str:
    return orjson.dumps(cattrs.unstructure(value), option=orjson.OPT_NON_STR_KEYS).decode()


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect = "effect",
    concurrency: Concurrency | None = None,
    timeout: float | None = None,
) -> Callable[[Callable[..., Any]], FunctionTool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect = "effect",
    concurrency: Concurrency | None = None,
    timeout: float | None = None,
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Make a tool from a function, async or not.

    Its name and docstring are what the model is told, its annotations are the JSON Schema of the input, with
    `Annotated[T, "words"]` for a parameter's description: str, int, float, bool, None, list, dict, Literal, Enum,
    unions, TypedDict and attrs classes. An input that does not fit is an error result that names the key. A first
    parameter annotated `ToolContext` gets the call's context and is no part of the input.

    The result is text, a `ToolOutput`, or anything that JSON can say. What it raises is an error result.

    A function that is not async runs in a thread. A cancel is seen there by `trio.from_thread.check_cancelled()`,
    which long loops should call; the thread is waited for. One that does not return is left behind, and named,
    only when the call is to end *now*.

    `effect` says what running it twice would do; `effect` when in doubt. `concurrency` is `shared` for what is
    read-only and `exclusive` for the rest, unless given. `timeout` is in seconds.

    Raises TypeError for an annotation that has no JSON Schema, naming the parameter; TypeError or ValueError for a
    name, an effect, a concurrency or a timeout that no tool can have.
    """

    def make(function: Callable[..., Any]) -> FunctionTool:
        if not callable(function):
            raise TypeError(f"@tool is for functions, not for {function!r}")
        own_name = name if name is not None else getattr(function, "__name__", repr(function))
        made = FunctionTool(
            function=function,
            name=own_name,
            description=description or inspect.getdoc(function) or own_name,
            effect=effect,
            concurrency=concurrency or ("shared" if effect == "read_only" else "exclusive"),
            timeout=timeout,
            inputs=Inputs(function),
        )
        check_tool(made, "@tool")
        return made

    return make if function is None else make(function)
