"""The compiled GPU code: accesses of 16 bytes, and well-formed launches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("triton", reason="needs triton")

TARGETS = ["sm_80", "sm_90", "sm_100", "gfx942"]
TABLE_LOADS = {"copy_kernel": 15, "copy_few_kernel": 11, "move_kernel": 11}
"""Numbers a kernel reads besides K/V, all of 4 or 8 bytes."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    environment = {
        **{name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
        "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton")),
    }
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-m", "tests.kv.compile_kernels"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("kernel", TABLE_LOADS)
@pytest.mark.parametrize("target", TARGETS)
def test_blocks_are_read_and_written_16_bytes_at_a_time(
    compiled: list[dict[str, Any]], target: str, kernel: str
) -> None:
    [code] = [c for c in compiled if (c["target"], c["kernel"]) == (target, kernel)]
    accesses = code["units"] // code["threads"]  # of each thread, for one tile
    assert code["store"] == [16] * accesses
    wide = [width for width in code["load"] if width == 16]
    assert len(wide) >= accesses
    if target != "gfx942":  # which reads neighbouring table entries together
        assert len(wide) == accesses
    narrow = [width for width in code["load"] if width != 16]
    assert len(narrow) <= TABLE_LOADS[kernel]
    assert min(narrow) >= 4  # 1 or 2 bytes would be K/V: the tables hold nothing so small
    assert code["shared"] == 0


def test_a_launch_passes_what_the_kernel_takes(compiled: list[dict[str, Any]]) -> None:
    """The compiled kernel is called directly, so nothing else would notice a missing argument."""
    types = {
        "copy_kernel": ["*i64", "*i64", *["*i32"] * 3, *["i32"] * 4],
        "copy_few_kernel": ["*i64", "*i64", "*i32", *["i32"] * 16],
        "move_kernel": ["*i64", "*i32", "*i32", "i32", "i32"],
    }
    for code in compiled:
        assert code["types"] == types[code["kernel"]]
        assert (code["arguments_arrive"], code["grid"], code["stream"]) == (True, [5, 1, 1], 7)
