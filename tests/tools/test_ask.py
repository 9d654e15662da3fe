"""The tool that asks the user."""

import pytest

from turnkernel.tool import Answered, ToolOutput
from turnkernel_tools import ask_tool


async def test_an_answer_is_the_result(ctx):
    ctx.answer = Answered("answer", "the second")
    output = await ask_tool().run(ctx, {"question": "Which?", "options": ["first", "second"]})
    assert output == ToolOutput("the second")
    assert ctx.asked == [("Which?", ("first", "second"))]


async def test_a_dismissal_is_an_answer(ctx):
    ctx.answer = Answered("dismissed", "")
    output = await ask_tool().run(ctx, {"question": "Which?"})
    assert output == ToolOutput("[User dismissed the question without answering]", status="dismissed")


async def test_an_empty_answer_is_told_as_one(ctx):
    ctx.answer = Answered("answer", " ")
    assert "empty answer" in (await ask_tool().run(ctx, {"question": "Which?"})).text


@pytest.mark.parametrize("input", [{"question": " "}, {"question": 1}, {}, {"question": "x", "options": "yes"}])
async def test_a_question_that_is_none_asks_nobody(ctx, input):
    assert (await ask_tool().run(ctx, input)).is_error
    assert ctx.asked == []


def test_asking_has_no_effect_and_may_be_done_beside_others():
    tool = ask_tool()
    assert (tool.name, tool.effect, tool.concurrency) == ("ask_user", "read_only", "shared")
    assert list(tool.schema["properties"]) == ["question", "options"]
