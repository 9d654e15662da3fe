"""The scenarios that come with the package, played: what each says must come out does."""

import attrs
import pytest

from turnkernel_demo.builtin import TOUR, load_builtin, names
from turnkernel_demo.load import with_options
from turnkernel_demo.report import judge
from turnkernel_demo.virtual import play_virtually

VIRTUAL = [name for name in names() if load_builtin(name).virtual]


@pytest.mark.parametrize("wire", ["anthropic", "openai-chat"])
@pytest.mark.parametrize("name", VIRTUAL)
def test_a_virtual_scenario_comes_out_as_it_says(name, wire):
    scenario = with_options(load_builtin(name), name, wire=wire)
    result = judge(play_virtually(scenario))
    assert result.ok, result.unmet


REAL = [
    *TOUR,
    "eight-children",
    "esc-in-arguments",
    "esc-while-asked",
    "kill-in-a-stream",
    "overloaded",
    "process-that-runs-away",
    "steer-while-a-call-runs",
    "task-stopped-by-the-model",
    "words-for-a-child",
]
"""The tour's, and one of each kind; `kernel-demo run` with every name of `kernel-demo list` plays them all."""


@pytest.mark.parametrize(("wire", "piece_bytes"), [("anthropic", None), ("openai-chat", 1)])
@pytest.mark.parametrize("name", REAL)
def test_a_real_scenario_comes_out_as_it_says(real, name, wire, piece_bytes):
    scenario = with_options(load_builtin(name), name, wire=wire)
    replies = tuple(attrs.evolve(reply, piece_bytes=piece_bytes) for reply in scenario.replies)
    came = real(attrs.evolve(scenario, replies=replies))
    assert came.ok, came.unmet
