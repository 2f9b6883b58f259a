"""Measurements that need a fresh process: the time of an import, and resident memory.

Both are read inside a child, so the start of the interpreter is not part of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["import_seconds", "modules_after_import", "resident_bytes"]

REPOSITORY = Path(__file__).resolve().parents[1]

_IMPORT = """
import json, sys, time
start = time.perf_counter()
import {module}
print(json.dumps([time.perf_counter() - start, sorted(sys.modules)]))
"""

_FILL = """
import json
from pathlib import Path
from blockmgr import BlockManager
from benchmarks.cases import Prompts, cache

def resident():
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * {page_size}

prompts = Prompts()
length = 2048 * {block_size}
cache(BlockManager(2048, {block_size}), prompts.draw(length))
before = resident()
manager = BlockManager({num_blocks}, {block_size}, max_seqs=1, max_blocks_per_seq=2048)
built = resident()
for _ in range({num_blocks} // 2048):
    cache(manager, prompts.draw(length))
assert manager.stats().cached_blocks == {num_blocks}
print(json.dumps([before, built, resident()]))
"""


def _run(code: str) -> Any:
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, check=True, text=True
    )
    return json.loads(result.stdout)


def import_seconds(module: str) -> float:
    """How long ``import module`` takes in a fresh interpreter, once."""
    seconds: float = _run(_IMPORT.format(module=module))[0]
    return seconds


def modules_after_import(module: str) -> frozenset[str]:
    """Everything in ``sys.modules`` after ``import module`` in a fresh interpreter."""
    return frozenset(_run(_IMPORT.format(module=module))[1])


def resident_bytes(num_blocks: int, block_size: int) -> tuple[int, int] | None:
    """Resident bytes that a manager adds when it is built, and once all its blocks are cached.

    ``num_blocks`` is a multiple of 2,048. ``None`` where there is no ``/proc``.
    """
    if not Path("/proc/self/statm").exists():
        return None
    import resource

    before, built, full = _run(
        _FILL.format(num_blocks=num_blocks, block_size=block_size, page_size=resource.getpagesize())
    )
    return built - before, full - before
