"""What a scenario says of its session, its gate and its tools, as the library's own objects. Waits for nothing."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import trio

from turnkernel.gate import Block, Gate, Hook, Rewrite
from turnkernel.kernel import Settings
from turnkernel.provider import RetryPolicy
from turnkernel.testing.scripted import ScriptedTool, scripted_error
from turnkernel.tool import Tool, ToolContext, ToolOutput
from turnkernel.wording import WORDINGS
from turnkernel_tools.thread import run_in_thread

from .scenario import Action, Scenario, ToolScript

__all__ = ["gate_of", "real_scripts", "settings_of", "virtual_scripts"]

_SLICE = 0.02


def settings_of(scenario: Scenario) -> Settings:
    """How the session is opened."""
    said = scenario.session
    return Settings(
        max_steps=said.max_steps,
        turn_seconds=said.turn_seconds,
        context_tokens=said.context_tokens,
        steer_policy=said.steer_policy,
        retry=RetryPolicy(said.retries, said.backoff_seconds),
        wording=WORDINGS[said.wording],
    )


def gate_of(scenario: Scenario) -> Gate:
    """How calls are let through."""
    tools = scenario.tools
    return Gate(
        hooks=[_hook(tools.block, tools.rewrite)] if tools.block or tools.rewrite else (),
        approve=lambda name, input: name in tools.approve,
        approver="person" if tools.approver == "script" else tools.approver,
    )


def _hook(block: Mapping[str, str], rewrite: Mapping[str, Mapping[str, Any]]) -> Hook:
    async def hook(name: str, input: Mapping[str, Any]) -> Block | Rewrite | None:
        await trio.lowlevel.checkpoint()
        if name in block:
            return Block(block[name])
        return Rewrite(rewrite[name], "rewritten by the scenario") if name in rewrite else None

    return hook


# ---------------------------------------------------------------------------------------------- scripted tools


def _plain(actions: Sequence[Action]) -> list[dict[str, Any]]:
    return [{action.verb: action.value} for action in actions]


def _script(said: ToolScript, **more: Any) -> ScriptedTool:
    return ScriptedTool(
        said.name,
        _plain(said.does),
        _plain(said.on_cancel),
        effect=said.effect,
        concurrency=said.concurrency,
        timeout=said.timeout,
        **more,
    )


def virtual_scripts(scenario: Scenario) -> list[Tool]:
    """The scripted tools of a virtual run: threads and files are imagined."""
    return [_script(said, touch=_touch_nothing) for said in scenario.scripts]


def _touch_nothing(name: str) -> None:
    """There are no files."""


def real_scripts(scenario: Scenario, root: Path) -> list[Tool]:
    """The scripted tools of a real run: real threads, and files in `root`."""

    def touch(name: str) -> None:
        path = (root / name).resolve()
        if not path.is_relative_to(root.resolve()):
            raise PermissionError(f"{name} is not in the scratch root")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    return [
        ThreadScript(_script(said, touch=touch, block=_block))
        if said.isolation == "thread"
        else _script(said, touch=touch, block=_block)
        for said in scenario.scripts
    ]


async def _block(ctx: ToolContext, seconds: float) -> None:
    """Wait for a thread that does not listen."""
    await run_in_thread(ctx, "block", lambda inside: time.sleep(seconds))


@attrs.frozen(eq=False)
class ThreadScript:
    """A script that is played in a thread, where a `sleep` listens to a cancel and a `block` doesn't."""

    script: ScriptedTool

    @property
    def name(self) -> str:
        """The script's."""
        return self.script.name

    @property
    def description(self) -> str:
        """The script's."""
        return self.script.description

    @property
    def schema(self) -> Mapping[str, Any]:
        """The script's."""
        return self.script.schema

    @property
    def effect(self) -> Any:
        """The script's."""
        return self.script.effect

    @property
    def concurrency(self) -> Any:
        """The script's."""
        return self.script.concurrency

    @property
    def timeout(self) -> float | None:
        """The script's."""
        return self.script.timeout

    async def run(self, ctx: ToolContext, input: Mapping[str, Any]) -> ToolOutput:
        """Do the actions in order, in a thread."""
        return await run_in_thread(ctx, self.name, self._play)

    def _play(self, ctx: ToolContext) -> ToolOutput:
        result, swallow = "done", False
        for action in self.script.does:
            ((verb, value),) = action.items()
            if verb == "result":
                result = value
            elif verb == "swallow":
                swallow = True
            else:
                try:
                    self._do(ctx, verb, value)
                except trio.Cancelled:
                    if swallow:
                        continue
                    self._undo(ctx)
                    raise
        return ToolOutput(result)

    def _undo(self, ctx: ToolContext) -> None:
        for action in self.script.on_cancel:
            ((verb, value),) = action.items()
            self._do(ctx, verb, value, listens=False)

    def _do(self, ctx: ToolContext, verb: str, value: Any, *, listens: bool = True) -> None:
        match verb:
            case "emit":
                ctx.emit(value)
            case "checkpoint":
                ctx.checkpoint(value)
            case "sleep" if listens:
                _sleep(value)
            case "sleep" | "block":
                time.sleep(value)
            case "touch":
                assert self.script.touch is not None
                self.script.touch(value)
            case "raise":
                raise scripted_error(value)
            case _:
                raise RuntimeError(f"{verb} is for scripts that run in a trio task; this one runs in a thread")


def _sleep(seconds: float) -> None:
    """Sleep in a thread, with an ear for a cancel."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        trio.from_thread.check_cancelled()
        time.sleep(min(left, _SLICE))
