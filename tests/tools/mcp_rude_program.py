"""A server that speaks MCP by hand, and not always as it should.

    python mcp_rude_program.py FOLDER HOW

HOW: `broken` says why and exits; `silent` never answers; `old` speaks a version that nobody does; `endless` has a
list of tools without an end; `noisy` says on its standard output what is no message; `garbled` answers a call with
what is no answer; `late` answers the call of `hold` once it has been cancelled; `deaf` reads nothing after the
handshake; `chatty` asks and asks when it is called; `hasty` answers and then says how far it is; `stubborn`
ignores SIGTERM and the end of its input.
"""

import json
import signal
import sys
from pathlib import Path

FOLDER, HOW = Path(sys.argv[1]), sys.argv[2]
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("echo", "hold")]


def say(**message) -> None:
    print(json.dumps({"jsonrpc": "2.0"} | message), flush=True)


def text(words: str) -> dict:
    return {"content": [{"type": "text", "text": words}]}


def answer(request: dict) -> dict | None:
    params = request.get("params", {})
    match request["method"]:
        case "initialize":
            version = "1999-01-01" if HOW == "old" else params["protocolVersion"]
            about = {"name": "rude", "version": "0"}
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
        case "tools/list" if HOW == "endless":
            return {"tools": [], "nextCursor": params.get("cursor", "") + "x"}
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call" if params["name"] == "echo":
            return text(params["arguments"].get("text", ""))
    return None


if HOW == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if HOW == "broken":
    print("no configuration found in /nowhere", file=sys.stderr, flush=True)
    sys.exit(3)
if HOW == "noisy":
    print("Listening on \x1b[1mstdin\x1b[0m\n[1, 2]\n\n{}", flush=True)
    say(method="what/ever")
    say(method="notifications/message", params={"level": "\x1b[31mloud"})
held = None
for line in sys.stdin:
    request = json.loads(line)
    method = request["method"]
    if HOW == "silent":
        continue
    if HOW == "garbled" and method == "tools/call":
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "answer": 42}), flush=True)
    elif HOW == "chatty" and method == "tools/call":
        for number in range(200_000):
            print(json.dumps({"jsonrpc": "2.0", "id": number, "method": "ping"}))
    elif method == "tools/call" and request["params"]["name"] == "hold":
        held = request
        token = request["params"]["_meta"]["progressToken"]
        say(method="notifications/progress", params={"progressToken": token, "progress": 1})
    elif method == "notifications/cancelled":
        assert request["params"]["requestId"] == held["id"]
        (FOLDER / "told").touch()
        token = held["params"]["_meta"]["progressToken"]
        say(method="notifications/progress", params={"progressToken": token, "progress": 2})
        say(id=held["id"], result=text("too late"))
    elif HOW == "hasty" and method == "tools/call":
        token = request["params"]["_meta"]["progressToken"]
        progress = {"jsonrpc": "2.0", "method": "notifications/progress"}
        progress["params"] = {"progressToken": token, "progress": 1}
        result = {"jsonrpc": "2.0", "id": request["id"], "result": answer(request)}
        print(f"{json.dumps(result)}\n{json.dumps(progress)}", flush=True)
    elif "id" in request:
        say(id=request["id"], result=answer(request))
    if HOW == "deaf" and method == "tools/list":
        signal.pause()
(FOLDER / "input ended").touch()
if HOW == "stubborn":
    while True:
        signal.pause()
