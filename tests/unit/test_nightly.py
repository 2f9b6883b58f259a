"""``tests/nightly`` runs for hours, so a command that cannot start would be noticed late."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

from tests.stress.__main__ import _parser
from tests.stress.profiles import PROFILES

NIGHTLY = Path(__file__).parents[1] / "nightly"
RUN = """run() { printf '$ %s\\n' "$*"; "$@"; }"""


def commands() -> list[list[str]]:
    """The words of each command that it would run with ``python -m``."""
    text = NIGHTLY.read_text(encoding="utf-8")
    assert text.count(RUN) == text.count("rm -f") == 1
    script = text.replace(RUN, """run() { printf '%s\\n' "$*"; }""")
    script = script.replace("rm -f", ": ").replace("$(mktemp -d)", "results")  # alike in each run
    shell = ["bash", "-c", script, str(NIGHTLY), "7"]
    env = {"PATH": "/usr/bin:/bin", "PYTHON": "python"}
    printed = subprocess.run(shell, env=env, capture_output=True, text=True, check=True).stdout
    lines = [line.split() for line in printed.splitlines()]
    return [words[2:] for words in lines if words[:2] == ["python", "-m"]]


COMMANDS = commands()


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_of_the_night_can_start(words: list[str]) -> None:
    module, *options = words
    assert importlib.util.find_spec(module)
    if module == "tests.stress":
        args = _parser().parse_args(options)
        assert args.profile in {*PROFILES, "all"}


def test_every_profile_runs_at_night() -> None:
    named = {words[words.index("--profile") + 1] for words in COMMANDS if "--profile" in words}
    assert {name for name, each in PROFILES.items() if each.layouts or each.together} <= named
