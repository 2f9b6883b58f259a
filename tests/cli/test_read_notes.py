"""How a trace was read is printed and is part of the JSON output of every command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Run = Callable[..., Result]

KV = ["--layers", "2", "--kv-heads", "2", "--head-size", "64", "--dtype", "bfloat16"]
COMMANDS = {
    "replay": ["--capacity", "900", "--json"],
    "sweep": ["--capacity", "900", "--policies", "lru", "--jobs", "1", "--json"],
    "fleet": [
        "--capacity",
        "100%",
        "--replicas",
        "2",
        "--routers",
        "random",
        "--jobs",
        "1",
        "--json",
    ],
    "plan": ["--hit-rate", "10%", *KV, "--json"],
    "explain": ["--capacity", "900", "--json"],
    "show": ["--capacity", "900", "--json"],
    "report": ["--capacity", "900", "--policies", "lru", "--jobs", "1", "--json"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_field_that_is_not_read_is_named_on_stderr_and_in_json(
    run: Run, tmp_path: Path, command: str
) -> None:
    row = {"input_length": 1030, "output_length": 2, "tenant": "a\x1b[2J"}
    path = tmp_path / "trace.jsonl"
    rows = [{**row, "timestamp": 900 * n, "hash_ids": [1, 2 * n + 2, 2 * n + 3]} for n in range(30)]
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    output = ["--output", str(tmp_path / "report.html")] if command == "report" else []
    result = run(command, str(path), *COMMANDS[command], *output)
    assert result.exit_code == 0, result.stderr
    lines = result.stderr.splitlines()
    assert "fields that were not read, with their rows: tenant (30)" in lines
    assert any(line.startswith("read as Mooncake; ") and "512" in line for line in lines)
    read = json.loads(result.stdout)["read"]
    assert read["unread_fields"] == {"tenant": 30}
    assert read["format"] == "Mooncake"
    assert read["assumed"]["tokens an id"].startswith("512")
