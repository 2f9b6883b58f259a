"""Interrupts calls of vLLM's block manager and of ours: ``python -m tests.differential.faults``.

Each call is made in fresh worlds, with only its first allocation failing, then only its second, and
so on; and with an exception at its first line inside its package, its second, and so on, as Ctrl-C
may cause. A point counts as broken if the call raised and left a state that is neither the one
before the call nor the one after a complete call: leaked blocks, a queue whose length differs from
its count, and the like. vLLM makes no promise about this; the comparison shows what our promise is
worth.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import vllm

import blockmgr
from blockmgr import BlockManager
from blockmgr.pool import BlockPool
from tests.differential.vllm_side import Vllm
from tests.faults import lines
from tests.faults.memory import attempt
from tests.fingerprints import fingerprint

NEXT = [*range(100, 108), *range(400, 420)]
PROMPTS = ([*range(100, 118)], [*range(100, 110), *range(200, 210)], [*range(300, 312)])
MANY_POINTS = 20_000


class Theirs:
    """vLLM with one running request, and two that have ended and are cached."""

    package = str(Path(vllm.__file__).parent / "v1" / "core")

    def __init__(self) -> None:
        self.side = Vllm(20)
        for name, prompt in enumerate(PROMPTS):
            self.side.admit(name, prompt, len(prompt))
        self.side.release(0)
        self.side.release(1)
        self.pool = self.side.manager.block_pool
        self.next = self.side.request(9, NEXT)
        self.found = self.side.manager.get_computed_blocks(self.next)
        self.idle = [block for block in self.pool.blocks if block.block_hash and not block.ref_cnt]
        self.held = self.side.manager.get_blocks("2").blocks[0]

    def state(self) -> Any:
        queue = self.pool.free_block_queue
        free, block = [], queue.fake_free_list_head.next_free_block
        while block is not None and len(free) <= len(self.pool.blocks):
            free.append(block.block_id)
            block = block.next_free_block
        [tables] = self.side.manager.coordinator.single_type_managers
        return (
            free,
            queue.num_free_blocks,
            [(block.ref_cnt, block.block_hash) for block in self.pool.blocks],
            {
                request: [block.block_id for block in blocks]
                for request, blocks in tables.req_to_blocks.items()
                if blocks
            },
            {request: count for request, count in tables.num_cached_block.items() if count},
        )

    def lost(self) -> int:
        """Leaked blocks: neither free nor held by a request."""
        free, _, _, tables, _ = self.state()
        known = {*free, *(b for table in tables.values() for b in table)}
        return sum(block.block_id not in known for block in self.pool.blocks if not block.is_null)

    def allocate(self, new: int) -> None:
        blocks, found, _ = self.found
        self.side.manager.allocate_slots(self.next, new, found, blocks)


class OurManager:
    """The same requests in ``BlockManager``."""

    package = lines.PACKAGE

    def __init__(self) -> None:
        self.core = BlockManager(20, 4, null_block=True, max_seqs=8)
        handles = [self.core.admit(prompt) for prompt in PROMPTS]
        for handle, prompt in zip(handles, PROMPTS, strict=True):
            self.core.commit(handle, len(prompt))
        for handle in handles[:2]:
            self.core.free(handle)
        self.held = handles[2]

    def state(self) -> Any:
        return fingerprint(self.core)

    def lost(self) -> int:
        self.core.check_invariants()
        return 0


class OurPool(OurManager):
    """And in ``BlockPool``, where the caller holds the references."""

    def __init__(self) -> None:
        self.core = BlockPool(20, 4, null_block=True)
        for prompt in PROMPTS[:2]:
            whole = prompt[: len(prompt) // 4 * 4]
            blocks = self.core.promote_chain(self.core.take(len(whole) // 4), whole)
            self.core.release(blocks)
        self.idle = self.core.idle_blocks()
        self.held = self.core.take(3)


CALLS: dict[str, tuple[type[Any], Callable[[Any], Any]]] = {
    "vLLM BlockPool.get_new_blocks(5)": (Theirs, lambda w: w.pool.get_new_blocks(5)),
    "vLLM BlockPool.free_blocks(3)": (Theirs, lambda w: w.pool.free_blocks(w.held)),
    "vLLM BlockPool.touch(2)": (Theirs, lambda w: w.pool.touch(w.idle[:2])),
    "vLLM KVCacheManager.allocate_slots": (Theirs, lambda w: w.allocate(20)),
    "vLLM KVCacheManager.free": (Theirs, lambda w: w.side.manager.free(w.side.requests[2])),
    "BlockPool.take(5)": (OurPool, lambda w: w.core.take(5)),
    "BlockPool.release(3)": (OurPool, lambda w: w.core.release(w.held)),
    "BlockPool.acquire(2)": (OurPool, lambda w: w.core.acquire(w.idle[:2])),
    "BlockManager.admit": (OurManager, lambda w: w.core.admit(NEXT)),
    "BlockManager.append(20)": (OurManager, lambda w: w.core.append(w.held, [*range(20)])),
    "BlockManager.free": (OurManager, lambda w: w.core.free(w.held)),
}  # fmt: skip


def strike(world: Any, make: Callable[[], Any], number: int) -> bool:
    """Makes the call with an exception at a line; returns whether it was reached."""
    before, lines.PACKAGE = lines.PACKAGE, world.package
    try:
        return bool(lines.strike(make, number + 1).place)
    finally:
        lines.PACKAGE = before


def starve(world: Any, make: Callable[[], Any], number: int) -> bool:
    """Makes the call with an allocation failing; returns whether it raised."""
    done, error = attempt(make, number, number + 1)
    del error
    return not done


def count(
    kind: type[Any], call: Callable[[Any], Any], interrupt: Callable[[Any, Any, int], bool]
) -> tuple[int, int, int]:
    """The points at which the call raised, the broken ones, and the most blocks lost at one."""
    whole = kind()
    call(whole)
    after = whole.state()
    points = broken = lost = 0
    for number in range(MANY_POINTS):
        world = kind()
        before, lost_before = world.state(), world.lost()
        if not interrupt(world, lambda: call(world), number):  # noqa: B023
            break
        points += 1
        if world.state() not in (before, after):
            broken += 1
            lost = max(lost, world.lost() - lost_before)
    return points, broken, lost


def main() -> int:
    print(f"blockmgr {blockmgr.__version__}, vLLM {vllm.__version__}, broken/points (blocks lost)")
    print(f"{'call':36} {'a line raises':>22} {'an allocation fails':>22}")
    ours = 0
    gc.disable()
    for name, (kind, call) in CALLS.items():
        cells = []
        for interrupt in (strike, starve):
            points, broken, lost = count(kind, call, interrupt)
            cells.append(f"{broken}/{points} ({lost})")
            ours += broken if kind is not Theirs else 0
        print(f"{name:36} {cells[0]:>22} {cells[1]:>22}", flush=True)
    return bool(ours)


if __name__ == "__main__":
    sys.exit(main())
