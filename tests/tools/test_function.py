"""Tools made from typed functions: schema, check of inputs, results, threads."""

import enum
import threading
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import attrs
import orjson
import pytest
import trio
import trio.testing

from turnkernel.causes import Urgency
from turnkernel.tool import Tool, ToolContext, ToolOutput
from turnkernel_tools import tool


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Where(TypedDict):
    line: int
    why: NotRequired[Annotated[str, "The reason."]]


@attrs.frozen
class Pair:
    left: int
    right: Annotated[list[str], "Words."] = attrs.Factory(list)


@tool(effect="read_only", timeout=3.0)
async def everything(
    text: Annotated[str, "Some text."],
    number: float,
    count: int | None = None,
    flag: bool = False,
    words: list[str] | str = "",
    table: dict[str, int] | None = None,
    kind: Literal["a", 1] = "a",
    color: Color = Color.RED,
    pair: Pair | None = None,
    where: Where | None = None,
    rest: list = [],  # noqa: B006 - nobody changes it
) -> Any:
    """Takes everything.

    And more.
    """
    return {
        name: value for name, value in locals().items() if value is not None and name not in ("color", "pair")
    } | {"color": color.name, "pair": pair}


async def call(tool: Tool, ctx: Any, **input: Any) -> ToolOutput:
    return await tool.run(ctx, input)


# ----------------------------------------------------------------------------------------------- schema


def test_a_function_becomes_a_tool_with_its_words_and_types():
    assert isinstance(everything, Tool)
    assert everything.name == "everything"
    assert everything.description == "Takes everything.\n\nAnd more."
    assert (everything.effect, everything.concurrency, everything.timeout) == ("read_only", "shared", 3.0)
    record = {
        "type": "object",
        "properties": {"line": {"type": "integer"}, "why": {"type": "string", "description": "The reason."}},
        "required": ["line"],
        "additionalProperties": False,
    }
    null = {"type": "null"}
    words = {"type": "array", "items": {"type": "string"}}
    assert orjson.loads(orjson.dumps(everything.schema)) == {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "Some text."},
            "number": {"type": "number"},
            "count": {"anyOf": [{"type": "integer"}, null]},
            "flag": {"type": "boolean", "default": False},
            "words": {"anyOf": [words, {"type": "string"}], "default": ""},
            "table": {"anyOf": [{"type": "object", "additionalProperties": {"type": "integer"}}, null]},
            "kind": {"enum": ["a", 1], "default": "a"},
            "color": {"enum": ["red", "blue"]},
            "pair": {
                "anyOf": [
                    {
                        "type": "object",
                        "properties": {
                            "left": {"type": "integer"},
                            "right": {"type": "array", "items": {"type": "string"}, "description": "Words."},
                        },
                        "required": ["left"],
                        "additionalProperties": False,
                    },
                    null,
                ]
            },
            "where": {"anyOf": [record, null]},
            "rest": {"type": "array", "items": {}},
        },
        "required": ["text", "number"],
        "additionalProperties": False,
    }


def test_the_options_of_the_decorator_win():
    @tool(name="other", description="Words.", concurrency="shared")
    def mine() -> None: ...

    assert (mine.name, mine.description, mine.effect, mine.concurrency) == ("other", "Words.", "effect", "shared")


def test_in_doubt_a_tool_has_effects_and_runs_alone():
    @tool
    def mine() -> None: ...

    assert (mine.name, mine.description, mine.effect, mine.concurrency) == ("mine", "mine", "effect", "exclusive")


def test_the_context_is_no_part_of_the_schema():
    @tool
    async def mine(context: ToolContext, x: int) -> str:
        return f"{context.call_id} {x}"

    assert list(mine.schema["properties"]) == ["x"]


@attrs.frozen
class Itself:
    child: "Itself | None"


@pytest.mark.parametrize("annotation", [set[int], bytes, dict[int, str], Itself, object])
def test_a_type_that_json_has_no_words_for_is_refused_at_once(annotation):
    def mine(strange): ...

    mine.__annotations__["strange"] = annotation
    with pytest.raises(TypeError, match="mine: parameter 'strange'"):
        tool(mine)


def test_parameters_without_a_name_are_refused():
    def rest(*many: int): ...
    def named(**many: int): ...
    def positional(one: int, /): ...

    for function in (rest, named, positional):
        with pytest.raises(TypeError, match="parameter"):
            tool(function)


# ------------------------------------------------------------------------------------------------ check


async def test_a_good_input_arrives_as_the_types_say(ctx):
    output = await call(
        everything,
        ctx,
        text="t",
        number=2,
        count=3.0,
        flag=True,
        words=["x"],
        table={"k": 1},
        kind=1,
        color="blue",
        pair={"left": 1, "right": ["r"]},
        where={"line": 3},
        rest=[1, None, {"a": []}],
    )
    assert not output.is_error
    assert orjson.loads(output.text) == {
        "text": "t",
        "number": 2.0,
        "count": 3,
        "flag": True,
        "words": ["x"],
        "table": {"k": 1},
        "kind": 1,
        "color": "BLUE",
        "pair": {"left": 1, "right": ["r"]},
        "where": {"line": 3},
        "rest": [1, None, {"a": []}],
    }


async def test_what_was_not_given_is_left_to_the_function(ctx):
    output = await call(everything, ctx, text="t", number=1.5)
    assert orjson.loads(output.text) == {
        "text": "t",
        "number": 1.5,
        "flag": False,
        "words": "",
        "kind": "a",
        "rest": [],
        "color": "RED",
        "pair": None,
    }


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"extra": 1}, "extra fields found (extra)"),
        ({"text": 1}, "expected a string, got 1 @ input.text"),
        ({"text": None}, "expected a string, got null @ input.text"),
        ({"number": "2"}, 'expected a number, got "2" @ input.number'),
        ({"number": True}, "expected a number, got true @ input.number"),
        ({"count": True}, "expected an integer, got true"),
        ({"count": 1.5}, "expected an integer, got 1.5"),
        ({"flag": 1}, "expected true or false, got 1 @ input.flag"),
        ({"words": [1]}, "expected a string, got 1"),
        ({"table": {"k": "v"}}, "@ it['k']"),
        ({"table": ["k"]}, 'expected an object, got ["k"]'),
        ({"kind": True}, 'expected one of "a", 1, got true @ input.kind'),
        ({"color": "green"}, 'expected one of "red", "blue", got "green" @ input.color'),
        ({"pair": {"left": "1"}}, 'expected an integer, got "1" @ it.left'),
        ({"pair": {"left": 1, "right": "ab"}}, 'expected a list, got "ab" @ it.right'),
        ({"pair": {"left": 1, "up": 2}}, "extra fields found (up)"),
        ({"where": {}}, "required field missing @ it.line"),
        ({"rest": "abc"}, 'expected a list, got "abc" @ input.rest'),
        ({"rest": {"a": 1}}, 'expected a list, got {"a": 1} @ input.rest'),
    ],
)
async def test_a_bad_input_is_an_error_result_that_names_the_key(ctx, wrong, told):
    output = await call(everything, ctx, **({"text": "t", "number": 1} | wrong))
    assert output.is_error
    assert told in output.text


async def test_every_fault_of_an_input_is_told_at_once(ctx):
    output = await call(everything, ctx, text=1, flag=2)
    assert [line.split(" @ ")[1] for line in output.text.splitlines()[1:]] == [
        "input.text",
        "input.number",
        "input.flag",
    ]


async def test_a_bad_input_does_not_reach_the_function(ctx):
    reached: list[object] = []

    @tool
    async def mine(x: int) -> None:
        reached.append(x)

    assert (await call(mine, ctx)).is_error
    assert reached == []


# ---------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("words", "words"),
        (None, "(no output)"),
        (" \n", "(no output)"),
        ({"a": [1, 2.5, None]}, '{"a":[1,2.5,null]}'),
        (Pair(1, ["x"]), '{"left":1,"right":["x"]}'),
        ({1: True}, '{"1":true}'),
    ],
)
async def test_a_result_is_text_or_json(ctx, value, text):
    @tool
    async def mine() -> Any:
        return value

    assert await call(mine, ctx) == ToolOutput(text)


async def test_a_tool_output_passes_as_it_is(ctx):
    output = ToolOutput("", is_error=True, status="stopped")

    @tool
    async def mine() -> ToolOutput:
        return output

    assert await call(mine, ctx) is output


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_what_a_function_raises_passes(ctx, kind):
    def fail() -> None:
        raise KeyError("x")

    async def fail_async() -> None:
        fail()

    with pytest.raises(KeyError):
        await call(tool(fail if kind == "sync" else fail_async), ctx)
    assert ctx.held == []


async def test_a_result_that_no_json_can_say_is_an_error(ctx):
    @tool
    async def mine() -> Any:
        return {"x": object()}

    with pytest.raises(TypeError):
        await call(mine, ctx)


# ---------------------------------------------------------------------------------------------- threads


async def test_a_sync_function_runs_in_a_named_thread_with_a_context_it_can_use(ctx):
    @tool
    def mine(context: ToolContext, x: int) -> str:
        context.emit(f"{context.call_id} {x}\n")
        context.checkpoint({"x": x})
        return threading.current_thread().name

    output = await call(mine, ctx, x=3)
    assert output.text == f"mine {ctx.call_id}"
    assert ctx.said == [(f"{ctx.call_id} 3\n", "stdout")]
    assert ctx.checkpoints == [{"x": 3}]
    assert ctx.held == []


async def test_what_waits_is_not_for_threads(ctx):
    @tool
    def mine(context: ToolContext) -> None:
        context.critical("never", 1.0)

    with pytest.raises(RuntimeError, match="async tools"):
        await call(mine, ctx)


async def run_cut(ctx: Any, mine: Tool, before_cancel: Any = None) -> list[ToolOutput]:
    """Run a tool, cancel it when it has said something; what it returned all the same."""
    outputs: list[ToolOutput] = []

    async def body() -> None:
        with ctx.cut:
            try:
                outputs.append(await mine.run(ctx, {}))
            finally:
                ctx.over = True  # as the kernel does: a context is valid until `run` returns

    async with trio.open_nursery() as nursery:
        nursery.start_soon(body)
        await ctx.saw("ready")
        ctx.cancel()
        if before_cancel is not None:
            await before_cancel()
    return outputs


async def test_a_thread_sees_the_cancel_and_is_waited_for(ctx):
    seen: list[str] = []

    @tool
    def mine(context: ToolContext) -> None:
        context.emit("ready")
        try:
            while True:
                trio.from_thread.check_cancelled()
        finally:
            seen.append("cleaned up")

    assert await run_cut(ctx, mine) == []
    assert seen == ["cleaned up"]
    assert ctx.cut.cancelled_caught
    assert ctx.survivors == []


async def test_what_a_thread_returns_in_spite_of_the_cancel_is_kept(ctx):
    go = threading.Event()

    @tool
    def mine(context: ToolContext) -> str:
        context.emit("ready")
        go.wait()
        context.emit("last words")
        return "done"

    async def let_go() -> None:
        await ctx.until(lambda: bool(ctx.sections))
        go.set()

    assert await run_cut(ctx, mine, let_go) == [ToolOutput("done")]
    assert ctx.output == "readylast words"
    assert ctx.survivors == []


async def test_what_a_thread_raises_in_spite_of_the_cancel_is_not_hidden(ctx):
    go = threading.Event()

    @tool
    def mine(context: ToolContext) -> str:
        context.emit("ready")
        go.wait()
        raise KeyError("x")

    async def let_go() -> None:
        await ctx.until(lambda: bool(ctx.sections))
        go.set()

    with pytest.raises(ExceptionGroup) as caught:
        await run_cut(ctx, mine, let_go)
    assert caught.group_contains(KeyError)


async def test_a_thread_that_does_not_return_is_left_and_named_when_it_is_to_end_now(ctx):
    go = threading.Event()
    late: list[BaseException] = []
    over = threading.Event()

    @tool
    def mine(context: ToolContext) -> str:
        context.emit("ready")
        go.wait()
        try:
            context.emit("too late")
        except AssertionError as error:  # the fake's way to say that the context is over
            late.append(error)
        finally:
            over.set()
        return "done"

    async def urge() -> None:
        await ctx.until(lambda: bool(ctx.sections))
        ctx.cancel(Urgency.NOW)

    try:
        assert await run_cut(ctx, mine, urge) == []
        assert ctx.survivors == [("thread", f"mine {ctx.call_id}")]
        assert ctx.held == []
    finally:
        go.set()
    await trio.to_thread.run_sync(over.wait)
    assert ctx.output == "ready"
    assert len(late) == 1


async def test_a_cancel_before_the_thread_starts_none(ctx):
    reached: list[str] = []

    @tool
    def mine() -> None:
        reached.append("body")

    with ctx.cut:
        ctx.cancel()
        await mine.run(ctx, {})
    assert ctx.cut.cancelled_caught
    assert (reached, ctx.sections) == ([], [])


async def test_a_cancel_just_as_the_thread_starts_waits_for_it(ctx):
    reached: list[str] = []

    @tool
    def mine() -> str:
        reached.append("body")
        return "done"

    outputs: list[ToolOutput] = []

    async def body() -> None:
        with ctx.cut:
            outputs.append(await mine.run(ctx, {}))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(body)
        await ctx.until(lambda: bool(ctx.held))
        ctx.cancel()
    assert (reached, outputs) == (["body"], [ToolOutput("done")])


async def test_stuck_tools_hold_no_thread_of_the_shared_limiter(new_ctx):
    go = threading.Event()

    @tool
    def mine(context: ToolContext) -> None:
        context.emit("ready")
        go.wait()

    shared = trio.to_thread.current_default_thread_limiter()
    async with trio.open_nursery() as nursery:
        contexts = [new_ctx() for _ in range(3)]
        for one in contexts:
            nursery.start_soon(mine.run, one, {})
        for one in contexts:
            await one.saw("ready")
        assert shared.borrowed_tokens == 0
        go.set()


def test_an_input_that_is_no_mapping_is_a_bad_input_too():
    from turnkernel_tools.inputs import BadInputError, Inputs

    def mine(x: Mapping[str, int]): ...

    with pytest.raises(BadInputError, match="expected an object"):
        Inputs(mine).check(["x"])  # type: ignore[arg-type]
    assert Inputs(mine).check({"x": {"a": 1}}) == {"x": {"a": 1}}


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"effect": "readonly"}, ValueError, "tool 'f': effect must be one of .* not 'readonly' .did you mean"),
        ({"concurrency": "parallel"}, ValueError, "tool 'f': concurrency must be one of shared, exclusive"),
        ({"timeout": "5"}, TypeError, "tool 'f': timeout must be a number or None, not '5'"),
        ({"timeout": -1}, ValueError, "tool 'f': timeout must be more than 0, not -1"),
        (
            {"name": "read file"},
            ValueError,
            "@tool: name must be 1 to 64 letters, digits, _ and -, not 'read file'",
        ),
        ({"name": ""}, ValueError, "@tool: name must be 1 to 64 letters"),
        ({"name": "x" * 65}, ValueError, "@tool: name must be 1 to 64 letters"),
        ({"description": 3}, TypeError, "tool 'f': description must be a str, not 3"),
    ],
)
def test_a_tool_that_can_not_be_is_told_where_it_is_made(options, error, words):
    def f(x: int) -> int:
        return x

    with pytest.raises(error, match=words):
        tool(**options)(f)


def test_only_functions_with_a_name_are_made_tools():
    with pytest.raises(TypeError, match="@tool is for functions, not for 'name'"):
        tool("name")
    with pytest.raises(ValueError, match="not '<lambda>'"):
        tool(lambda: None)
