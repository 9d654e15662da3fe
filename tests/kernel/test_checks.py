"""A mistake in what a program hands to the library is told at once, by the argument's name, and leaves no file."""

import math
import re
from typing import Any

import pytest

from turnkernel import Gate, RetryPolicy, Settings, open_session
from turnkernel.testing.replies import Reply
from turnkernel.testing.scripted import ScriptedProvider, ScriptedTool


class Odd(ScriptedTool):
    """A tool of which one attribute is wrong."""

    def __init__(self, **wrong: Any) -> None:
        super().__init__("odd")
        for name, value in wrong.items():
            object.__setattr__(self, name, value)


def said(words: str) -> str:
    return f"^{re.escape(words)}"


OPENINGS = [
    ({"provider": "claude"}, TypeError, "provider must be a Provider, with wire, model and stream(), not 'clau"),
    ({"provider": None}, TypeError, "provider must be a Provider, with wire, model and stream(), not None"),
    ({"provider": ScriptedProvider}, TypeError, "provider <class"),
    ({"settings": {}}, TypeError, "settings must be a Settings, not {}"),
    ({"gate": []}, TypeError, "gate must be a Gate, not []"),
    ({"gate": Gate}, TypeError, "gate must be a Gate, not <class"),
    ({"durability": "powr"}, ValueError, "durability must be one of power, process, memory, not 'powr' (did you"),
    ({"tools": ["bash"]}, TypeError, "tools[0] must be a Tool, not 'bash': it has no name, "),
    ({"tools": "bash"}, TypeError, "tools must be a list of tools, not 'bash'"),
    ({"tools": ScriptedTool("one")}, TypeError, "tools must be a list of tools, not ScriptedTool("),
    ({"tools": [print]}, TypeError, "tools[0] must be a Tool, not <built-in function print>: it has no "),
    ({"tools": [ScriptedTool("a"), ScriptedTool("a")]}, ValueError, "two tools are named 'a'"),
    ({"tools": [Odd(name="a b")]}, ValueError, "tools[0]: name must be 1 to 64 letters, digits, _ and -, not 'a "),
    ({"tools": [Odd(name="")]}, ValueError, "tools[0]: name must be 1 to 64 letters, digits, _ and -, not ''"),
    ({"tools": [Odd(name="x" * 65)]}, ValueError, "tools[0]: name must be 1 to 64 letters"),
    ({"tools": [Odd(name=3)]}, TypeError, "tools[0]: name must be a str, not 3"),
    ({"tools": [Odd(schema="object")]}, TypeError, "tool 'odd': schema must be a JSON Schema of an object"),
    ({"tools": [Odd(effect="readonly")]}, ValueError, "tool 'odd': effect must be one of read_only, idempotent,"
     " effect, not 'readonly' (did you mean 'read_only'?)"),
    ({"tools": [Odd(concurrency="parallel")]}, ValueError, "tool 'odd': concurrency must be one of shared, ex"),
    ({"tools": [Odd(timeout="5")]}, TypeError, "tool 'odd': timeout must be a number or None, not '5'"),
    ({"tools": [Odd(timeout=0)]}, ValueError, "tool 'odd': timeout must be more than 0, not 0"),
    ({"tools": [Odd(timeout=math.nan)]}, ValueError, "tool 'odd': timeout must be finite, or None, not nan"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "error", "words"), OPENINGS, ids=range(len(OPENINGS)))
async def test_an_argument_that_can_not_be_is_named_before_there_is_a_log(tmp_path, wrong, error, words):
    arguments: dict[str, Any] = {"provider": ScriptedProvider([]), **wrong}
    with pytest.raises(error, match=said(words)):
        async with open_session(tmp_path / "x.log", **arguments):
            raise AssertionError("it was opened")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "error"),
    [(".", IsADirectoryError), ("", IsADirectoryError), ("/", IsADirectoryError), ("there", IsADirectoryError),
     ("..", IsADirectoryError), (3, TypeError), (b"x.log", TypeError)],
)  # fmt: skip
async def test_a_path_that_can_not_be_a_log_leaves_no_file(tmp_path, monkeypatch, path, error):
    (tmp_path / "here" / "there").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(error):
        async with open_session(path, provider=ScriptedProvider([])):
            raise AssertionError("it was opened")
    assert sorted(one.name for one in tmp_path.rglob("*")) == ["here", "there"]


async def test_tools_may_come_from_a_generator():
    provider = ScriptedProvider([Reply(text="Fine.")])
    async with open_session(None, provider=provider, tools=(ScriptedTool(name) for name in "ab")) as session:
        await session.send("go")
        await session.rest()
    assert [spec.name for spec in provider.requests[0].tools] == ["a", "b"]


SETTINGS = [
    ({"system": None}, TypeError, "system must be a str, not None"),
    ({"max_tokens": 0}, ValueError, "max_tokens must be at least 1, not 0"),
    ({"max_steps": 0}, ValueError, "max_steps must be at least 1, not 0"),
    ({"max_steps": 2.0}, TypeError, "max_steps must be a whole number, not 2.0"),
    ({"max_steps": True}, TypeError, "max_steps must be a whole number, not True"),
    ({"max_parallel": -1}, ValueError, "max_parallel must be at least 1, not -1"),
    ({"context_tokens": 0}, ValueError, "context_tokens must be at least 1, not 0"),
    ({"turn_seconds": 0}, ValueError, "turn_seconds must be more than 0, not 0"),
    ({"turn_seconds": math.nan}, ValueError, "turn_seconds must be finite, or None, not nan"),
    ({"turn_seconds": "60"}, TypeError, "turn_seconds must be a number or None, not '60'"),
    ({"thread_grace_seconds": math.inf}, ValueError, "thread_grace_seconds must be finite, or None, not inf"),
    ({"thread_grace_seconds": -1}, ValueError, "thread_grace_seconds must be at least 0, not -1"),
    ({"stuck_after_seconds": math.inf}, ValueError, "stuck_after_seconds must be finite, not inf"),
    ({"closing_seconds": None}, TypeError, "closing_seconds must be a number, not None"),
    ({"steer_policy": "after_bach"}, ValueError, "steer_policy must be one of after_batch, skip_unstarted, not"),
    ({"host_cause": "host"}, TypeError, "host_cause must be a Cause, not 'host'"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "error", "words"), SETTINGS, ids=range(len(SETTINGS)))
def test_a_setting_that_can_not_be_is_named_where_it_is_made(wrong, error, words):
    with pytest.raises(error, match=said(words)):
        Settings(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [{"retries": -1}, {"retries": 1.5}, {"backoff_seconds": -0.1}, {"backoff_seconds": math.nan},
     {"longest_wait_seconds": math.inf}, {"longest_wait_seconds": "1"}],
)  # fmt: skip
def test_a_retry_policy_that_can_not_be_names_its_field(wrong):
    with pytest.raises((TypeError, ValueError), match=next(iter(wrong))):
        RetryPolicy(**wrong)
