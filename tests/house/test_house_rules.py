"""Rules of the house that no linter knows: shields, handlers, laws without a test, the public page."""

import ast
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import turnkernel
from turnkernel.cancel import SHIELDS
from turnkernel.events import ModelMessage, Record, SessionOpen, StepStart, TurnCancel, TurnStart
from turnkernel.grammar import Grammar
from turnkernel.messages import ToolUse
from turnkernel.testing.diagram import diagram, machines
from turnkernel.testing.laws import LAWS

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(path for folder in ("kernel", "tools", "providers") for path in (ROOT / folder).rglob("*.py"))

LATER = {
    "R1": "processes of calls are counted; background work and child sessions come with them",
    "C4": "thinking on the Responses wire comes with that wire",
    "D2": "what a screen shows is driven in a terminal with the chat",
}
"""Laws that are proved here as far as this version goes, and what proves the rest."""


def trees():
    for path in SOURCES:
        yield path.relative_to(ROOT), ast.parse(path.read_text())


@pytest.mark.law("R9")
def test_every_shield_is_made_in_one_place_and_has_a_line_in_the_table():
    made = []
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                made += [str(path) for word in node.keywords if word.arg == "shield"]
            if isinstance(node, ast.Assign):
                made += [
                    str(path) for one in node.targets if isinstance(one, ast.Attribute) and one.attr == "shield"
                ]
    assert sorted(made) == ["kernel/turnkernel/cancel.py", "kernel/turnkernel/testing/scripted.py"], (
        "a shield comes from cancel.shield; the scripted one is there for R9 to catch"
    )
    used = set()
    for _, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "shield":
                used.add(node.args[0].value)
    assert used == set(SHIELDS)


def test_no_handler_swallows_everything():
    """A handler for BaseException, or for nothing in particular, raises again as its last word."""
    for path, tree in trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.ExceptHandler):
                continue
            if path == Path("kernel/turnkernel_demo/cli.py"):
                continue  # outside of any trio run; it turns what comes out of one into an exit code
            bare = node.type is None or getattr(node.type, "id", "") in ("BaseException", "BaseExceptionGroup")
            if bare:
                raises = [inner for inner in ast.walk(node) if isinstance(inner, ast.Raise)]
                assert raises and not isinstance(node.body[-1], ast.Return | ast.Pass), (
                    f"{path}:{node.lineno} catches everything and raises nothing"
                )


def test_no_generator_yields_inside_a_scope_or_nursery():
    """But for context managers, which are entered and left by one `async with`."""
    for path, tree in trees():
        for function in ast.walk(tree):
            if not isinstance(function, ast.AsyncFunctionDef):
                continue
            decorators = {getattr(one, "id", getattr(one, "attr", "")) for one in function.decorator_list}
            if "asynccontextmanager" in decorators:
                continue
            for block in ast.walk(function):
                if isinstance(block, ast.With | ast.AsyncWith):
                    inside = [inner for inner in ast.walk(block) if isinstance(inner, ast.Yield)]
                    assert not inside, f"{path}:{block.lineno} {function.name} yields inside a with"


def test_every_law_has_a_test_that_names_it():
    named = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for call in re.findall(r"mark\.law\(([^)]*)\)", path.read_text(), re.DOTALL):
            named |= set(re.findall(r"\"([LCRD]\d+)\"", call))
    assert named - set(LAWS) == set(), "a test names a law that there is not"
    assert set(LAWS) - named == set(), "laws without a test"
    assert set(LATER) <= named


@pytest.mark.parametrize("page", ["turnkernel", "turnkernel.testing"])
def test_a_public_page_names_everything_that_is_on_it(page):
    package = importlib.import_module(page)
    public = {name for name, thing in vars(package).items() if not name.startswith("_")}
    modules = {info.name for info in pkgutil.iter_modules(package.__path__)}
    assert len(set(package.__all__)) == len(package.__all__)
    assert public - (modules - set(package.__all__)) == set(package.__all__)


def test_what_a_public_page_promises_is_made_of_what_public_pages_have():
    """Whoever writes a provider or reads a status needs no private place for it."""
    for name in ("Delta", "ModelEvent", "Message", "Text", "ToolUse", "Status", "CallStatus", "Settled"):
        assert name in turnkernel.__all__


@pytest.mark.parametrize("package", ["turnkernel", "turnkernel_tools", "turnkernel_providers", "turnkernel_demo"])
def test_every_module_begins_with_a_docstring_and_says_truly_what_it_offers(package):
    for info in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        if info.name.endswith("__main__"):
            continue
        module = importlib.import_module(info.name)
        assert module.__doc__, f"{info.name} has no docstring"
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            if getattr(thing, "__module__", None) == info.name and callable(thing):
                assert thing.__doc__, f"{info.name}.{name} has no docstring"


def test_the_diagrams_in_the_docs_are_drawn_from_the_grammar():
    text = (ROOT / "docs" / "design.md").read_text()
    assert machines() in text, "docs/design.md: run python -m turnkernel.testing.diagram and paste"


@pytest.mark.parametrize("machine", ["session", "turn", "step", "call", "ask", "item", "task"])
def test_every_state_in_a_diagram_can_be_come_to_and_left(machine):
    arrows = re.findall(r"^    (\S+) --> (\S+): ", diagram(machine), re.MULTILINE)
    begun, reached = {before for before, _ in arrows}, {after for _, after in arrows}
    assert begun == reached | {"[*]"}


def test_the_arrows_that_the_table_has_no_place_for_are_what_the_grammar_does():
    opening = SessionOpen("s", "2026-01-01T00:00:00.000+00:00", "memory", "none")
    asking = ModelMessage("t1", "s1", "w", "m", (ToolUse("c1", "x", {}),), "tool_use")
    for before in ([], [TurnCancel("t1")]):
        grammar = Grammar()
        events = [opening, TurnStart("t1"), StepStart("t1", "s1", "w", "m"), asking, *before]
        for seq, event in enumerate(events, 1):
            grammar.apply(Record(seq, 1, 0.0, event))
        assert [call.state for call in grammar.calls.values()] == ["asked"]
        for epoch in (2, 3):
            grammar.apply(Record(grammar.seq + 1, epoch, 0.0, opening))
            assert grammar.turn.state == "cut"


def test_the_project_speaks_of_itself_alone():
    words = re.compile(r"/work/|/tmp/bash|\.library|subagent helper|steering repo|DESIGN (\d|asks)")
    for folder in ("kernel", "tools", "providers", "tests", "benchmarks", "docs", ".ci"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix in (".py", ".md", ".toml", "") and path != Path(__file__).resolve():
                assert not words.search(path.read_text(errors="replace")), path
