"""What the README shows is run here, as it stands."""

import re
from pathlib import Path

import trio

from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel_demo.cli import COMMANDS
from turnkernel_providers.server import open_model_server

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


def code(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


async def test_the_library_example_runs_and_is_short(tmp_path, monkeypatch, capsys):
    (example,) = code("python")
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
    assert capsys.readouterr().out == "idle None rest\n"
    assert (tmp_path / "session.log").stat().st_mode & 0o777 == 0o600


def test_every_command_of_the_table_is_there():
    named = set(re.findall(r"^\| `kernel-demo (\w+)", README, re.MULTILINE))
    assert named == set(COMMANDS)
