"""The examples run, and print what their stories say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_two_engines_and_an_index_route_by_what_is_cached() -> None:
    for name in ("msgspec", "zmq", "starlette", "prometheus_client"):
        pytest.importorskip(name, reason="the extra 'index'")
    example = EXAMPLES / "two_engines_and_an_index.py"
    done = subprocess.run(
        [sys.executable, str(example)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.splitlines() == [
        "a question after the system prompt: engine-0, 4 blocks found, 64 tokens cached",
        "another few-shot question: engine-1, 3 blocks found, 48 tokens cached",
        "the first again, with its engine overloaded: engine-1, 0 blocks found, 0 tokens cached",
    ]
