"""What the model is told in words of the kernel's own. No trio, no I/O; pure.

A policy is replaceable, so that wordings can be compared in experiments. A text is rendered once, when its event
is appended, and stored in it (law C6): a new policy never changes an old log's context.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import attrs

from .causes import Cause
from .events import Error, FailureCode, Outcome, ResultStatus, ToolResult
from .text import clip, is_blank

__all__ = ["DEFAULT", "MODEL_OUTPUT_BYTES", "WORDINGS", "CallFacts", "TaskFacts", "TurnFacts", "Wording"]

MODEL_OUTPUT_BYTES = 32 * 1024
"""How much of one call's output the model is given."""

_WHO: Mapping[Cause, str] = {
    Cause.USER: "the user",
    Cause.REPLACED: "the user",
    Cause.PARENT: "the session that started this one",
    Cause.LIMIT: "a limit of this session",
    Cause.SHUTDOWN: "the shutdown of this session",
    Cause.HOST: "the program that runs this session",
    Cause.LOG: "a failure of the session's log",
}


@attrs.define
class CallFacts:
    """What is known of a call when its result is worded. Not frozen, which would triple the time to make one."""

    name: str
    cause: Cause | None = None
    """Why it was cut, if it was; None after a crash."""
    seconds: float | None = None
    """How long its body ran."""
    output: str = ""
    """What it had shown."""
    error: str = ""
    """What went wrong in it: an exception, a bad input, a hook's reason, a person's reason."""
    answer: str = ""
    """What a person had answered to its question."""
    effect: str = "effect"
    process: bool = False
    """Whether it ran a process."""
    resumable: bool = False
    """Whether it left a checkpoint."""
    alone: bool = False
    """Whether only this call was stopped, the turn going on."""
    child: str = ""
    """How the session that it had opened ended."""


@attrs.frozen
class TaskFacts:
    """What is known of a task when its end is worded."""

    task: str
    name: str
    """The tool that began it."""
    what: str
    """What it does, for a person: its command, or the beginning of its prompt."""
    status: Literal["ok", "error", "stopped", "lost"]
    cause: Cause | None = None
    """Why it was stopped, if it was and that is known."""
    by_call: bool = False
    """Whether a call of the session has stopped it."""
    seconds: float | None = None
    """How long it ran; None where that is not known, or it had not begun."""
    output: str = ""
    """What it returned, or had shown."""
    survivors: Sequence[str] = ()
    """What of it could not be stopped."""
    child: str = ""
    """How the session that it was ended."""


@attrs.frozen
class TurnFacts:
    """What is known of a turn when its reminder is worded."""

    outcome: Outcome
    cause: Cause | None
    code: FailureCode | None
    errors: Sequence[Error]
    calls: Sequence[ToolResult]
    """Of the last step, in the order of their results."""
    text_cut: bool
    """Whether words of the model were cut off."""
    calls_cut: Sequence[str]
    """Names of calls whose input was cut, so that they are not in the context."""
    answered: bool
    """Whether the last message of the turn is whole and asked for no call."""


def who(cause: Cause | None) -> str:
    """Who cut it, in words for the model."""
    return _WHO[cause] if cause is not None else "a crash of the program that runs this session"


def for_seconds(seconds: float | None, word: str = "after") -> str:
    """A duration in words, a space before it; or nothing."""
    return "" if seconds is None else f" {word} {seconds:.1f} s"


def output_of(facts: CallFacts) -> str:
    """What the call had shown, as a paragraph, or nothing."""
    if is_blank(facts.output):
        return "\nIt had printed nothing." if facts.seconds is not None else ""
    return f"\nOutput until then:\n{clip(facts.output, MODEL_OUTPUT_BYTES)}"


class Wording:
    """The default policy. Subclass it and override what an experiment changes."""

    def result(self, status: ResultStatus, facts: CallFacts) -> str:
        """The text of a result that the kernel writes itself. Never blank."""
        text: str = getattr(self, status)(facts)
        return text + self._resume(facts) if facts.resumable else text

    def not_started(self, facts: CallFacts) -> str:
        """Did not run; not a failure; ask again if still needed."""
        why = f"{who(facts.cause)} stopped {'this call' if facts.alone else 'the turn'} first"
        return (
            f"[Not started] {facts.name} did not run: {why}. Nothing was done and nothing failed; "
            "call it again if it is still needed."
        )

    def skipped(self, facts: CallFacts) -> str:
        """Not started because new words of the user came first."""
        return (
            f"[Not started] {facts.name} did not run: the user said something new first. Nothing was done and "
            "nothing failed; call it again if it is still needed."
        )

    def stopped(self, facts: CallFacts) -> str:
        """Who stopped it, when, what it had printed, and care with what it may have left."""
        mark = ""
        if facts.process:
            by = "by user" if facts.cause in (None, Cause.USER, Cause.REPLACED) else f"by {who(facts.cause)}"
            mark = f"[Process interrupted {by}]\n"
        error = f"\nWhile it was stopped: {facts.error}" if facts.error else ""
        return (
            f"{mark}[Stopped] {facts.name} was stopped by {who(facts.cause)}{for_seconds(facts.seconds)}. It may "
            "have had effects already. Look at what is there before you remove a lock or a half-written file."
            f"{error}{output_of(facts)}"
        )

    def timed_out(self, facts: CallFacts) -> str:
        """Its own time limit ended it."""
        error = f"\nWhile it was stopped: {facts.error}" if facts.error else ""
        return (
            f"[Timed out] {facts.name} was stopped by its time limit{for_seconds(facts.seconds)}. It may have had "
            f"effects already.{error}{output_of(facts)}"
        )

    def unknown(self, facts: CallFacts) -> str:
        """Started, and nobody recorded how it ended."""
        if facts.effect in ("read_only", "idempotent"):
            care = "It changes nothing that a second run would harm: it may be called again."
        else:
            care = (
                "It may have had its effect or not. Verify the state of things first, or ask the user; "
                "do not retry blindly."
            )
        said = f" The user had answered its question with: {facts.answer}" if facts.answer else ""
        child = f" {facts.child}" if facts.child else ""
        more = f"{said}{child}{output_of(facts)}"
        return f"[Unknown] {facts.name} was started, but no result was recorded. {care}{more}"

    def withdrawn(self, facts: CallFacts) -> str:
        """Its question was open when the turn stopped."""
        return (
            f"[Withdrawn] {facts.name} was waiting for the user's answer when {who(facts.cause)} stopped the turn."
            " The question was withdrawn; nobody denied it, and the call did not go on."
        )

    def denied(self, facts: CallFacts) -> str:
        """The user said no."""
        reason = f" Their reason: {facts.error}" if facts.error else ""
        return (
            f"[Denied] The user did not allow this call of {facts.name}.{reason} Do not make the same call again; "
            "think about why it was denied, and adjust your approach or ask."
        )

    def denied_again(self, facts: CallFacts) -> str:
        """The same call as one that was denied, with nothing said in between."""
        return (
            f"[Denied] The user has just denied this same call of {facts.name} and has said nothing since; they "
            "were not asked again. Adjust your approach or ask."
        )

    def dismissed(self, facts: CallFacts) -> str:
        """A question was closed without an answer."""
        return "[User dismissed the question without answering]"

    def blocked(self, facts: CallFacts) -> str:
        """A hook did not let it run."""
        return f"[Blocked] {facts.name} was not run. A rule of this session blocks it: {facts.error}"

    def no_approver(self, facts: CallFacts) -> str:
        """It needs approval and nobody can give it."""
        return (
            f"[Not approved] {facts.name} needs the user's approval, and nobody can give it here. It did not run."
        )

    def output_limit(self, facts: CallFacts) -> str:
        """The message that asked for it was cut by its length limit."""
        return (
            f"[Not run] Your message reached its length limit, so this call of {facts.name} may be incomplete and "
            "was not run. Make it again, shorter or in parts."
        )

    def unknown_tool(self, name: str, known: Sequence[str]) -> str:
        """There is no such tool."""
        return f"[Error] There is no tool named {name!r}. There are: {', '.join(known) or 'none'}."

    def bad_input(self, name: str, raw: str) -> str:
        """What came as input is no JSON object, or none that can be kept exactly."""
        return (
            f"[Error] The input of this call of {name} was not a JSON object (without deep nesting, and whole "
            "numbers within 64 bits), so it was not run. It was:\n"
            f"{clip(raw, 2048)}"
        )

    def raised(self, facts: CallFacts) -> str:
        """The tool failed with an exception."""
        shown = "" if is_blank(facts.output) else output_of(facts)
        return f"[Error] {facts.name} failed: {facts.error}{shown}"

    def task_ended(self, facts: TaskFacts) -> str:
        """The notice that a task is over. Never blank."""
        what = f"{facts.name}: {facts.what}" if facts.what else facts.name
        head = f"[Task {facts.task} {self._task_end(facts)}] {what}"
        left = f"Could not be stopped and is left: {', '.join(facts.survivors)}." if facts.survivors else ""
        return clip(
            "\n".join(filter(None, (head, facts.child, left, facts.output.strip("\n")))), MODEL_OUTPUT_BYTES
        )

    def _task_end(self, facts: TaskFacts) -> str:
        after = for_seconds(facts.seconds)
        match facts.status:
            case "ok":
                return f"ended{after}"
            case "error":
                return f"failed{after}"
            case "stopped":
                by = "a tool call" if facts.by_call else who(facts.cause) if facts.cause is not None else ""
                return f"was stopped{f' by {by}' if by else ''}{after}"
            case _:
                return "is lost: it does not run any more, and its result is unknown"

    def child_ended(self, outcome: str | None, words: str) -> str:
        """How a child session ended whose caller was cut by a crash."""
        how = "had not begun a turn" if outcome is None else f"had its last turn end as {outcome}"
        last = f" Its last words: {clip(words, 4096)}" if not is_blank(words) else ""
        return f"The session that it had opened {how}.{last}"

    def child_unknown(self, why: str) -> str:
        """A child session whose log can't be read."""
        return f"How the session that it had opened ended is not known: {why}."

    def empty(self) -> str:
        """What stands for a result without any text."""
        return "(no output)"

    def pause(self) -> str:
        """The user text after a provider's pause."""
        return "Continue."

    def reminder(self, facts: TurnFacts) -> str | None:
        """What the next user message tells of a turn that was cut; None for nothing. Only facts."""
        lines = self.reminder_lines(facts)
        if not lines:
            return None
        body = "\n".join(lines)
        return f"<system-reminder>\n{body}\n</system-reminder>"

    def reminder_lines(self, facts: TurnFacts) -> list[str]:
        """The sentences of the reminder."""
        if facts.cause is Cause.REPLACED or facts.outcome in ("completed", "refused"):
            return []
        lines = [self._ended(facts)]
        if facts.text_cut:
            lines.append("Your message was cut off where it is marked [interrupted].")
        lines += [f"A call of {name} was cut off while you wrote it; it did not run." for name in facts.calls_cut]
        lines += map(_call_line, facts.calls)
        return lines

    def _ended(self, facts: TurnFacts) -> str:
        match facts.outcome:
            case "aborted":
                when = "after your answer was complete" if facts.answered else "before it was done"
                return f"Your previous turn was stopped by {who(facts.cause)} {when}."
            case "interrupted":
                return (
                    "Your previous turn was interrupted: the program that runs this session ended in the middle."
                )
            case "max_steps":
                return "Your previous turn reached its limit of steps and was ended."
            case _:
                why = "; ".join(
                    f"{error.type}: {clip(error.text, 500)}".removesuffix(": ") for error in facts.errors
                )
                return f"Your previous turn failed ({facts.code}){': ' + why if why else ''}."

    def _resume(self, facts: CallFacts) -> str:
        return "\nIt left a checkpoint: called again with the same input, it goes on from there."


def _call_line(call: ToolResult) -> str:
    name = call.name
    match call.status:
        case "stopped":
            return f"{name} was running and was stopped{for_seconds(call.seconds)}."
        case "not_started":
            return f"{name} did not start."
        case "ok":
            return f"{name} had run{for_seconds(call.seconds, 'for')} and has its result."
        case "error":
            return f"{name} had run{for_seconds(call.seconds, 'for')} and failed."
        case "timed_out":
            return f"{name} was stopped by its time limit{for_seconds(call.seconds)}."
        case "unknown":
            return f"{name} was started; its result is unknown."
        case "withdrawn":
            return f"{name} was waiting for an answer; the question was withdrawn."
        case status:
            return f"{name}: {status.replace('_', ' ')}."


class Terse(Wording):
    """For comparison in experiments: a word where the default explains."""

    def not_started(self, facts: CallFacts) -> str:
        """One word."""
        return "aborted"

    def stopped(self, facts: CallFacts) -> str:
        """One word and the output."""
        return f"aborted{output_of(facts)}"

    def withdrawn(self, facts: CallFacts) -> str:
        """One word."""
        return "aborted"

    def unknown(self, facts: CallFacts) -> str:
        """One word and the output."""
        return f"unknown{output_of(facts)}"

    def reminder_lines(self, facts: TurnFacts) -> list[str]:
        """At most one sentence."""
        return super().reminder_lines(facts)[:1]


DEFAULT = Wording()
WORDINGS: Mapping[str, Wording] = {"default": DEFAULT, "terse": Terse()}
"""The policies that a scenario can name."""
