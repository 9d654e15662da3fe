"""What the README shows is run here, as it stands."""

import re
from pathlib import Path

import trio

from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel_demo.cli import COMMANDS
from turnkernel_providers.server import open_model_server
from turnkernel_tools import containment

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


def code(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


async def test_the_library_example_runs_and_is_short(tmp_path, monkeypatch, capsys):
    example, _ = code("python")
    lines = [line for line in example.splitlines() if line.strip()]
    assert len(lines) <= 20
    replies = [
        Reply(text="Let me see.", calls=[ReplyCall("call_1", "bash", {"command": "echo 2 passed"})]),
        Reply(text="Nothing fails."),
    ]
    monkeypatch.chdir(tmp_path)
    async with open_model_server("anthropic", replies) as server:
        there = f'open_anthropic("claude-sonnet-4-5", base_url="{server.base_url}", api_key="k")'
        source = example.replace('open_anthropic("claude-sonnet-4-5")', there).replace("trio.run(main)", "")
        assert there in source
        names: dict = {}
        exec(compile(source, "README.md", "exec"), names)
        with trio.fail_after(30):
            await names["main"]()
        assert server.violations == []
        assert len(server.requests) == 2
    assert capsys.readouterr().out == "idle completed\nNothing fails.\n"
    assert f'"containment":"{containment()}"' in (tmp_path / "session.log").read_text()
    assert (tmp_path / "session.log").stat().st_mode & 0o777 == 0o600


def test_the_sweep_of_a_tool_of_ones_own_runs_and_finds_nothing(capsys):
    _, example = code("python")
    exec(compile(example, "README.md", "exec"), {"__name__": "readme"})
    sites, broken = map(int, re.findall(r"\d+", capsys.readouterr().out))
    assert (sites > 30, broken) == (True, 0)


def test_every_link_is_to_a_file_that_is_there():
    root = Path(__file__).resolve().parents[2]
    for page in (root / "README.md", root / "docs" / "scenarios.md"):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", page.read_text()):
            assert (page.parent / target).exists(), (page, target)


def test_every_command_of_the_table_is_there():
    named = set(re.findall(r"^\| `kernel-demo (\w+)", README, re.MULTILINE))
    assert named == set(COMMANDS)
