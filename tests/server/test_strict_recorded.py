"""The strict checkers against what real APIs did take: every refusal of such a body is one that we mean."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from turnkernel_providers.server_anthropic import AnthropicWire
from turnkernel_providers.server_openai_chat import OpenAIChatWire
from turnkernel_providers.strict_anthropic import check_anthropic
from turnkernel_providers.strict_openai_chat import check_openai_chat

STRICTER_THAN_VENDORS = {"A09", "A10", "A12", "A13", "A14", "A15", "A21", "A23", "A25", "C09"}
"""Rules by which we refuse, on purpose, what some vendor takes; the checkers' modules say why."""


def accepted(folder: Path) -> list[tuple[str, Any]]:
    """The bodies whose recorded answer was 200: they stand beside the stream that they got."""
    files = sorted(folder.glob("*.req.json"))
    assert all(file.with_name(file.name.replace(".req.json", ".sse")).exists() for file in files)
    return [(file.name, json.loads(file.read_text())) for file in files]


@pytest.mark.parametrize(
    ("folder", "check", "refused"),
    [("anthropic", check_anthropic, {"A12": 1}), ("openai-chat", check_openai_chat, {"A09": 1})],
)
def test_what_a_real_api_took_is_refused_only_on_purpose(
    recorded: Path, folder: str, check: Any, refused: dict[str, int]
) -> None:
    bodies = accepted(recorded / folder)
    assert len(bodies) >= 30
    found = {name: check(body) for name, body in bodies}
    counted = Counter(refusal.rule for refusal in found.values() if refusal)
    assert counted.keys() <= STRICTER_THAN_VENDORS, {name: refusal for name, refusal in found.items() if refusal}
    assert counted == refused


def test_what_a_real_api_refused_for_other_reasons_passes(recorded: Path) -> None:
    """Recorded errors of the two wires are about keys, models, limits and media: no history among them is bad."""
    checked = 0
    for file in sorted((recorded / "errors").glob("*.req.json")):
        body = json.loads(file.read_text())
        if "messages" not in body or "model" not in body:
            continue
        check = check_anthropic if file.name.startswith("anthropic") else check_openai_chat
        assert check(body) is None, file.name
        checked += 1
    assert checked > 10


def test_our_errors_have_the_recorded_envelope(recorded: Path) -> None:
    for pattern, wire in (("anthropic__*", AnthropicWire()), ("openai__*", OpenAIChatWire())):
        files = [file for file in (recorded / "errors").glob(pattern) if ".req." not in file.name]
        assert files
        for file in files:
            theirs = json.loads(file.read_text())
            ours = wire.error(int(file.name.partition("__")[2][:3]), "text", 1)
            assert ours.keys() == theirs.keys()
            assert ours["error"].keys() == theirs["error"].keys()
            assert ours["error"]["type"] == theirs["error"]["type"]
