"""Makes a tool from a typed function. One that is not async gets a thread, or a process through `isolated`."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, overload

import attrs

from turnkernel.checks import check_tool, one_of
from turnkernel.tool import Concurrency, Effect, ToolContext, ToolOutput

from .containment import Tier
from .inputs import BadInputError, Inputs
from .isolated import Place, place_of, run_isolated
from .results import output_of
from .thread import run_in_thread

__all__ = ["FunctionTool", "IsolatedTool", "tool"]


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
            return self._refused(error)
        if inspect.iscoroutinefunction(self.function):
            value = await (
                self.function(ctx, **arguments) if self.inputs.takes_context else self.function(**arguments)
            )
        else:
            value = await run_in_thread(ctx, self.name, lambda inside: self._call(inside, arguments))
        return output_of(value)  # no checkpoint after the function's return: a result that is there is kept (R6)

    def _refused(self, error: BadInputError) -> ToolOutput:
        return ToolOutput(f"The input of {self.name} is not what it takes:\n{error}", is_error=True)

    def _call(self, ctx: ToolContext, arguments: Mapping[str, Any]) -> Any:
        return self.function(ctx, **arguments) if self.inputs.takes_context else self.function(**arguments)


@attrs.frozen
class IsolatedTool(FunctionTool):
    """A `Tool` whose body is a function that runs in a process of its own. Made by `tool`."""

    place: Place
    tier: Tier = "tree"
    """The containment that is wanted."""

    async def run(self, ctx: ToolContext, input: Mapping[str, Any]) -> ToolOutput:
        """Check the input, then call the function there. See `tool`."""
        try:
            self.inputs.check(input)
        except BadInputError as error:
            return self._refused(error)
        return await run_isolated(self.place, input, ctx=ctx, on_output=ctx.emit, tier=self.tier)


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
    isolation: Literal["process"] | None = None,
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
    isolation: Literal["process"] | None = None,
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

    With `isolation="process"` it runs in a Python of its own instead, and a cancel ends that, by SIGTERM and then
    SIGKILL, with all that it started. For code that does not co-operate, or may crash. Each call starts an
    interpreter and imports the function's module, which takes some tenths of a second. So it must stand at the top
    of a module that can be imported again (a script needs its `if __name__ == "__main__"`), and gets no context.
    What it prints is the call's output; what it raises is told by type and text, and so is a process that died.
    When it has returned the process is over, with threads that it has left. `attrs.evolve(made, tier="namespace")`
    holds it by another containment tier.

    `effect` says what running it twice would do; `effect` when in doubt. `concurrency` is `shared` for what is
    read-only and `exclusive` for the rest, unless given. `timeout` is in seconds.

    Raises TypeError for an annotation that has no JSON Schema, naming the parameter, and for a function that a
    process can't run, naming why; TypeError or ValueError for a
    name, an effect, a concurrency or a timeout that no tool can have.
    """

    def make(function: Callable[..., Any]) -> FunctionTool:
        if not callable(function):
            raise TypeError(f"@tool is for functions, not for {function!r}")
        own_name = name if name is not None else getattr(function, "__name__", repr(function))
        one_of("@tool: isolation", isolation, ("process", None))
        make_it: Callable[..., FunctionTool] = FunctionTool
        if isolation is not None:
            make_it = partial(IsolatedTool, place=place_of(function))
        inputs = Inputs(function)
        if isolation is not None and inputs.takes_context:
            raise TypeError(f"{own_name} takes a ToolContext, which can't go to another process")
        made = make_it(
            function=function,
            name=own_name,
            description=description or inspect.getdoc(function) or own_name,
            effect=effect,
            concurrency=concurrency or ("shared" if effect == "read_only" else "exclusive"),
            timeout=timeout,
            inputs=inputs,
        )
        check_tool(made, "@tool")
        return made

    return make if function is None else make(function)
