"""How long does ``import blockmgr`` take, and how much of it is NumPy?

Each round is a fresh interpreter; ``pass`` is the interpreter alone, so subtract it. Budget:
150 ms, NumPy included. The file cache is warm after the first round.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from benchmarks.fresh_process import modules_after_import

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture


@pytest.mark.benchmark(group="import, in a fresh interpreter", disable_gc=True)
@pytest.mark.parametrize("statement", ["pass", "import numpy", "import blockmgr"])
def test_import(benchmark: BenchmarkFixture, statement: str) -> None:
    command = [sys.executable, "-c", statement]
    result = benchmark.pedantic(
        subprocess.run, (command,), {"check": True}, rounds=9, warmup_rounds=1
    )
    assert result.returncode == 0


def test_the_import_brings_nothing_heavy() -> None:
    assert not {"torch", "triton", "click", "matplotlib"} & modules_after_import("blockmgr")
