"""The tool `ask_user`: a question to the person, as an ask of the session. Touches nothing itself."""

from typing import Annotated

from turnkernel.tool import Tool, ToolContext, ToolOutput

from .function import tool

__all__ = ["ask_tool"]

DISMISSED = "[User dismissed the question without answering]"


def ask_tool() -> Tool:
    """The tool `ask_user {question, options?}`. Under cancellation the question is withdrawn."""

    @tool(name="ask_user", effect="read_only")
    async def ask_user(
        ctx: ToolContext,
        question: Annotated[str, "What you want to know, with all that is needed to answer it."],
        options: Annotated[
            list[str] | None, "Answers to choose from; the user can still say something else."
        ] = None,
    ) -> ToolOutput:
        """Ask the user a question and wait for the answer.

        Use it for what only the user can decide. Do not use it to ask for permission to run a tool: that is asked
        for you.
        """
        if not question.strip():
            return ToolOutput("The question is empty. Nobody was asked.", is_error=True)
        answered = await ctx.ask(question, options or ())
        if answered.answer == "dismissed":
            return ToolOutput(DISMISSED, status="dismissed")
        return ToolOutput(answered.text if answered.text.strip() else "(the user gave an empty answer)")

    return ask_user
