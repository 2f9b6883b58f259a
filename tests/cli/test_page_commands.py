"""Every command of the pages runs as it is written there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from blockmgr.lab.trace import write_trace
from blockmgr.lab.workloads import generate

if TYPE_CHECKING:
    from tests.cli.conftest import Run

ROOT = Path(__file__).parents[2]
TRACES = ("trace.jsonl", "conversation_trace.jsonl")
SMALL = {"conversations": 120, "system_tokens": 64, "question_tokens": 24, "answer_tokens": 48}
# What runs elsewhere, and where.
ELSEWHERE = {
    "--ray": "tests/cli/test_on_ray.py",
    "generate": "tests/cli/test_generate.py",
    "index serve": "tests/unit/test_index_service.py",
}


def commands() -> list[str]:
    """The lines of code on the pages that begin with the command's name."""
    found = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for line in page.read_text(encoding="utf-8").splitlines():
            code = re.fullmatch(r"(?:    )?(blockmgr (?:--)?[a-z]+(?: .*)?)", line)
            if code and not re.search(r"[a-z]\.(?:$| )", line.partition("  #")[0]):
                found.append(code.group(1).partition("  #")[0].strip())
    return list(dict.fromkeys(found))


COMMANDS = commands()
HERE = [each for each in COMMANDS if not any(words in each for words in ELSEWHERE)]


def test_the_pages_have_commands_and_those_that_run_elsewhere_have_a_test() -> None:
    assert len(HERE) > 20
    for words, test in ELSEWHERE.items():
        assert any(words in each for each in COMMANDS), words
        assert (ROOT / test).is_file(), test


@pytest.mark.parametrize("command", HERE)
def test_a_command_of_a_page_runs_as_written(
    run: Run, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs" / "images").mkdir(parents=True)
    for name in TRACES:
        if name in command:
            write_trace(generate("chat", 1, **SMALL), tmp_path / name)
    result = run(*shlex.split(command.partition(" > ")[0])[1:])
    assert result.exit_code in (0, 1) if "--min-hit-rate" in command else result.exit_code == 0
