"""`show`, `verify` and `context` on logs of every kind. Laws: L3, L7, C5, D1 as a log shows them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from click.testing import Result

from turnkernel import open_session
from turnkernel.events import InboxQueued, SessionOpen, ToolResult
from turnkernel.testing.replies import Reply, ReplyCall
from turnkernel.testing.scripted import ScriptedProvider, ScriptedTool
from turnkernel.text import printable

from .conftest import cut_after, log_of, records_of

Invoke = Callable[..., Result]

OPEN_AFTER = ["turn/start", "step/start", "model/delta", "model/message", "tool/start", "tool/result", "step/end"]


def damaged_in_the_middle(data: bytes) -> bytes:
    """One bit of the fifth line is another."""
    lines = data.splitlines(keepends=True)
    lines[4] = lines[4].replace(b"anthropic", b"anthropid")
    return b"".join(lines)


# ------------------------------------------------------------------------------------------------------ show


def test_a_closed_log_is_shown_line_by_line(invoke: Invoke, closed_log: Path) -> None:
    result = invoke("show", closed_log)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0].split()[2] == "session/open"
    assert lines[-1].split()[2] == "session/close"
    assert sum("tool/result" in line for line in lines) == 2


def test_what_a_model_said_can_not_drive_the_terminal(invoke: Invoke, closed_log: Path) -> None:
    for command in (["show"], ["show", "--json"], ["verify"], ["context", "--wire", "anthropic"]):
        result = invoke(*command, closed_log)
        assert printable(result.output) == result.output, command


def test_the_json_of_a_log_is_the_log(invoke: Invoke, closed_log: Path, closed_bytes: bytes) -> None:
    result = invoke("show", "--json", closed_log)
    shown = [json.loads(line) for line in result.stdout.splitlines()]
    assert shown == [json.loads(line) for line in closed_bytes.splitlines()]


@pytest.mark.parametrize("after", OPEN_AFTER)
@pytest.mark.parametrize("more", [0, 1, 40])
def test_an_open_or_torn_log_is_no_violation(
    invoke: Invoke, tmp_path: Path, closed_bytes: bytes, after: str, more: int
) -> None:
    log = tmp_path / "open.log"
    data = cut_after(closed_bytes, after, more)
    log.write_bytes(data)
    for command in (["show"], ["verify"], ["context", "--wire", "anthropic"]):
        result = invoke(*command, log)
        assert result.exit_code == 0, result.output
        assert ": open: turn t1 (running)" in result.stderr
        assert "closed in memory with" in result.stderr
        assert ("torn: the last" in result.stderr) == (more > 0)
    assert log.read_bytes() == data, "reading has changed the log"
    assert list(tmp_path.iterdir()) == [log], "reading has left a file"


def test_a_damaged_log_is_shown_up_to_the_damage_and_names_its_place(
    invoke: Invoke, tmp_path: Path, closed_bytes: bytes
) -> None:
    log = tmp_path / "damaged.log"
    log.write_bytes(damaged_in_the_middle(closed_bytes))
    result = invoke("show", log)
    offset = sum(map(len, closed_bytes.splitlines(keepends=True)[:4]))
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 4
    assert f"{log}: damaged: line 5 (byte {offset}): its crc does not match" in result.stderr


def test_a_live_log_can_be_looked_at(invoke: Invoke, tmp_path: Path) -> None:
    async def main() -> dict[str, Result]:
        log = tmp_path / "live.log"
        waiting = ScriptedTool("slow", [{"emit": "begun\n"}, {"sleep": 1000.0}])
        provider = ScriptedProvider([Reply(calls=[ReplyCall("call_1", "slow")])])
        async with open_session(log, provider=provider, tools=[waiting]) as session:
            await session.send("go")
            async for event in session.events():
                if event.type == "tool/output":
                    break
            return {
                "show": invoke("show", log),
                "verify": invoke("verify", log),
                "context": invoke("context", log, "--wire", "openai-chat"),
                "repair": invoke("repair", log),
                "dry": invoke("repair", "--dry-run", log),
            }

    results = trio.run(main)
    for name in ("show", "verify", "context"):
        assert results[name].exit_code == 0
        assert "call call_1 (running)" in results[name].stderr
    for name in ("repair", "dry"):
        assert results[name].exit_code == 2
        assert results[name].stdout == ""
        assert results[name].stderr.count("\n") == 1
        assert "live" in results[name].stderr


# ---------------------------------------------------------------------------------------------------- verify


def test_a_good_log_keeps_every_law_that_it_can_show(invoke: Invoke, closed_log: Path) -> None:
    result = invoke("verify", "--closed", closed_log)
    assert result.exit_code == 0, result.output
    assert "no violation of L1 L2 L3 L4 L5 L6 L7 C1 C2 C3 C4 C5 C6 R2 R4 R5" in result.stdout


@pytest.mark.law("L3")
def test_closed_makes_an_open_log_a_violation(invoke: Invoke, tmp_path: Path, closed_bytes: bytes) -> None:
    log = tmp_path / "open.log"
    log.write_bytes(cut_after(closed_bytes, "tool/start"))
    result = invoke("verify", "--closed", log)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    seq = len(records_of(log.read_bytes()))
    assert f"L3 at {seq}: call call_1 has no result" in lines
    assert f"L3 at {seq}: turn t1 has no end" in lines


@pytest.mark.law("L2", "L3")
def test_a_missing_result_is_a_violation_of_l3_at_its_place(
    invoke: Invoke, tmp_path: Path, closed_bytes: bytes
) -> None:
    records = records_of(closed_bytes)
    missing = next(record for record in records if isinstance(record.event, ToolResult))
    log = tmp_path / "bad.log"
    log.write_bytes(log_of([record.event for record in records if record is not missing]))
    result = invoke("verify", log)
    assert result.exit_code == 1
    ends = next(record.seq for record in records if record.event.type == "step/end" and record.seq > missing.seq)
    assert f"L2 at {ends - 1}: step t1.s1 ends with call call_1 open" in result.stdout.splitlines()


@pytest.mark.law("L1", "L7")
def test_a_removed_record_is_a_violation_of_l1(invoke: Invoke, tmp_path: Path, closed_bytes: bytes) -> None:
    lines = closed_bytes.splitlines(keepends=True)
    log = tmp_path / "bad.log"
    log.write_bytes(b"".join(lines[:6] + lines[7:]))
    result = invoke("verify", log)
    assert result.exit_code == 1
    assert "L1 at 8: seq 8 after 6" in result.stdout.splitlines()
    assert invoke("show", log).exit_code == 1


@pytest.mark.law("L7")
def test_a_changed_record_is_a_violation_of_l7_with_its_place(
    invoke: Invoke, tmp_path: Path, closed_bytes: bytes
) -> None:
    log = tmp_path / "damaged.log"
    log.write_bytes(damaged_in_the_middle(closed_bytes))
    result = invoke("verify", "--json", log)
    report = json.loads(result.stdout)
    assert result.exit_code == 1
    assert not report["ok"]
    assert report["records"] == 4
    assert report["damage"]["line"] == 5
    assert [one["law"] for one in report["violations"]] == ["L7"]


def test_verify_says_what_it_closed_in_memory(invoke: Invoke, tmp_path: Path, closed_bytes: bytes) -> None:
    log = tmp_path / "open.log"
    log.write_bytes(cut_after(closed_bytes, "tool/start", 3))
    report = json.loads(invoke("verify", "--json", log).stdout)
    assert report["ok"]
    assert report["open"] == ["turn t1 (running)", "step t1.s1", "call call_1 (running)", "call call_2 (asked)"]
    assert report["closed_in_memory_with"] == ["tool/result", "tool/result", "step/end", "turn/end"]
    assert report["torn"]["length"] == 3


@pytest.mark.law("C5")
def test_cache_marks_stand_on_the_last_block_of_a_message_and_are_few(
    invoke: Invoke, closed_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = context_of(invoke, closed_log, "anthropic")
    blocks = [block for message in messages for block in message["content"]]  # type: ignore
    marked = [block for block in blocks if "cache_control" in block]
    assert marked == [message["content"][-1] for message in messages if message["role"] == "user"][-2:]  # type: ignore

    def marked_everywhere(*_: object) -> dict[str, object]:
        first = {"role": "user", "content": [{"cache_control": {}}, {"text": "last"}]}
        return {"messages": [first, *({"role": "user", "content": [{"cache_control": {}}]} for _ in range(4))]}

    assert invoke("verify", closed_log).exit_code == 0
    monkeypatch.setattr("turnkernel_demo.log_commands.messages_of", marked_everywhere)
    result = invoke("verify", closed_log)
    assert result.exit_code == 1
    assert "C5 at 49: 5 cache marks, 4 on a last block" in result.stdout.splitlines()


# --------------------------------------------------------------------------------------------------- context


def context_of(invoke: Invoke, log: Path, wire: str, *more: str) -> list[dict[str, object]]:
    result = invoke("context", log, "--wire", wire, *more)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["messages"]


def test_the_context_is_the_messages_of_the_wire(invoke: Invoke, closed_log: Path) -> None:
    messages = context_of(invoke, closed_log, "anthropic")
    roles = [message["role"] for message in messages]
    assert roles == ["user", "assistant", "user", "assistant", "user", "assistant"]
    chat = context_of(invoke, closed_log, "openai-chat")
    assert [message["role"] for message in chat][:4] == ["user", "assistant", "tool", "tool"]


@pytest.mark.law("C4")
def test_thinking_goes_to_the_model_that_gave_it_only(invoke: Invoke, closed_log: Path) -> None:
    own, other = (
        json.dumps(context_of(invoke, closed_log, "anthropic", *more)) for more in ([], ["--model", "another"])
    )
    assert '"thinking": "hm"' in own
    assert "thinking" not in other


@pytest.mark.law("C2")
def test_an_open_call_is_answered_in_the_context(invoke: Invoke, tmp_path: Path, closed_bytes: bytes) -> None:
    log = tmp_path / "open.log"
    log.write_bytes(cut_after(closed_bytes, "tool/start"))
    last = context_of(invoke, log, "anthropic")[-1]
    assert last["role"] == "user"
    assert [block["tool_use_id"] for block in last["content"]] == ["call_1", "call_2"]  # type: ignore


def test_the_context_of_a_damaged_log_is_that_before_the_damage(
    invoke: Invoke, tmp_path: Path, closed_bytes: bytes
) -> None:
    log = tmp_path / "damaged.log"
    log.write_bytes(damaged_in_the_middle(closed_bytes))
    result = invoke("context", log, "--wire", "anthropic")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["messages"][0]["content"][0]["text"] == "Run the tests."
    assert "line 5 (byte" in result.stderr


def test_a_wire_that_is_not_there_yet_is_named(invoke: Invoke, closed_log: Path) -> None:
    result = invoke("context", closed_log, "--wire", "openai-responses")
    assert (result.exit_code, result.stdout) == (2, "")
    said = "the wire openai-responses is not available yet; there are anthropic and openai-chat"
    assert result.stderr == f"kernel-demo: {said}\n"


def test_show_cuts_nothing_where_no_terminal_reads(invoke: Invoke, tmp_path: Path) -> None:
    words = "word " * 5000
    log = tmp_path / "long.log"
    log.write_bytes(log_of([SessionOpen("s1", "2026-01-01T00:00:00.000+00:00", "memory", "none"),
                            InboxQueued("i2", "prompt", words)]))  # fmt: skip
    assert words in invoke("show", log).stdout
