"""What an MCP server offers, as tools: their names, their effects, what a result says. Pure.

What a server says of itself comes from outside: names and annotations are made fit or left aside, never trusted.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import attrs
import mcp_types as types

from turnkernel.tool import Concurrency, Effect, ToolContext, ToolOutput

__all__ = ["Call", "McpTool", "effect_of", "mcp_tools", "output", "tool_names"]

MOST_NAME = 64
"""Characters that every wire takes in a tool's name."""

Call = Callable[[ToolContext, str, Mapping[str, Any]], Awaitable[ToolOutput]]
"""How a tool is called on its server, by the server's own name for it."""


@attrs.frozen
class McpTool:
    """A `Tool` whose body is on an MCP server. Made by `mcp_server`."""

    name: str
    description: str
    schema: Mapping[str, Any] = attrs.field(repr=False)
    effect: Effect
    concurrency: Concurrency
    timeout: float | None
    own_name: str
    """What the server calls it."""
    call: Call = attrs.field(repr=False)

    async def run(self, ctx: ToolContext, input: Mapping[str, Any]) -> ToolOutput:
        """Call it and wait for the answer. What the server says meanwhile of its progress is shown.

        Under cancellation the server is told, an answer that comes later is dropped, `trio.Cancelled` passes.
        """
        return await self.call(ctx, self.own_name, input)


def mcp_tools(
    server: str, offered: Iterable[types.Tool], *, call: Call, trust_hints: bool, timeout: float | None
) -> list[McpTool]:
    """A tool for each that a server offers; of two with the same name the first."""
    by_name: dict[str, types.Tool] = {}
    for tool in offered:
        by_name.setdefault(tool.name, tool)
    names = tool_names(server, by_name)
    tools: list[McpTool] = []
    for own_name, tool in by_name.items():
        effect = effect_of(tool.annotations) if trust_hints else "effect"
        tools.append(
            McpTool(
                name=names[own_name],
                description=_description(server, tool, names[own_name]),
                schema=tool.input_schema,
                effect=effect,
                concurrency="shared" if effect == "read_only" else "exclusive",
                timeout=timeout,
                own_name=own_name,
                call=call,
            )
        )
    return tools


def tool_names(server: str, own_names: Iterable[str]) -> dict[str, str]:
    """`server_name` for each of a server's own names, made of what every wire takes, and unique.

    Where it would not be, or is too long, it ends in a hash of the own name. So it depends on nothing but the own
    names: the model's tools are the same after every opening.
    """
    plain = {own: f"{server}_{re.sub(r'[^A-Za-z0-9_-]', '_', own)}" for own in own_names}
    counted = Counter(plain.values())
    fit: dict[str, str] = {}
    for own, name in plain.items():
        mark = hashlib.sha256(own.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        clear = len(name) <= MOST_NAME and counted[name] == 1
        fit[own] = name if clear else f"{name[: MOST_NAME - 9]}_{mark}"
    return fit


def _description(server: str, tool: types.Tool, name: str) -> str:
    """The server's, and its own name for the tool where it had to be changed."""
    described = (tool.description or tool.title or "").strip()
    renamed = f"(The server {server} calls it {tool.name!r}.)" if name != f"{server}_{tool.name}" else ""
    return "\n".join(part for part in (described, renamed) if part) or f"The tool {tool.name!r} of {server}."


def effect_of(hints: types.ToolAnnotations | None) -> Effect:
    """What the annotations of a trusted server say that running it twice would do."""
    if hints is not None and hints.read_only_hint:
        return "read_only"
    return "idempotent" if hints is not None and hints.idempotent_hint else "effect"


def output(result: types.CallToolResult) -> ToolOutput:
    """A result as text. What is no text is named; structured content is shown where there is nothing else."""
    text = "\n".join(_shown(block) for block in result.content)
    if not text.strip() and result.structured_content is not None:
        text = json.dumps(result.structured_content, ensure_ascii=False)
    return ToolOutput(text if text.strip() else "(no output)", is_error=result.is_error)


def _shown(block: types.ContentBlock) -> str:
    match block:
        case types.TextContent():
            return block.text
        case types.ImageContent() | types.AudioContent():
            return f"[{block.type.capitalize()}, {block.mime_type}, {_size(block.data)}: not shown]"
        case types.ResourceLink():
            words = [block.name, block.title, block.description, block.mime_type]
            return f"[Resource {block.uri}: {', '.join(word for word in words if word)}]"
        case types.EmbeddedResource():
            held = block.resource
            if isinstance(held, types.TextResourceContents):
                return f"[Resource {held.uri}]\n{held.text}"
            return f"[Resource {held.uri}, {held.mime_type or 'bytes'}, {_size(held.blob)}: not shown]"


def _size(base64: str) -> str:
    return f"{len(base64) * 3 // 4 - base64[-2:].count('=')} bytes"
