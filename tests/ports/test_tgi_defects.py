"""Defects of TGI's allocators, shown to be absent.

The first four are known defects; the others show in a careful reading of the documents.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import subprocess
import sys
import threading
from typing import Any

import pytest

from blockmgr import BlockManager
from blockmgr.ports.tgi import BlockAllocation
from tests.ports.tgi_engine import Engine, refused


def test_a_prompt_that_was_never_computed_is_never_found() -> None:
    """The original caches the prompt at every end, even of a request without a prefill."""
    engine = Engine(20, 2)
    dropped = engine.reserve(8, [1, 2, 3, 4, 5])
    del dropped
    engine.reserve(8, [1, 2, 3, 4, 5]).discard()

    async def serve() -> None:
        async with engine.reserve(8, [1, 2, 3, 4, 5]):
            await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(serve())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    assert engine.found([1, 2, 3, 4, 5, 6]) == 0
    assert engine.is_empty()


def test_a_request_that_is_cancelled_while_it_waits_harms_nobody() -> None:
    """In the original, the background task sends to a closed channel and dies."""
    engine = Engine(8, 2)

    async def ask() -> BlockAllocation | None:
        await asyncio.sleep(0)
        return await engine.allocator.allocate(8, [1, 2, 3])

    async def main() -> None:
        for turns in range(4):
            task = asyncio.create_task(ask())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            del task
            assert await engine.allocator.allocate(8, [1, 2, 3]) is not None

    asyncio.run(main())
    gc.collect()
    assert engine.is_empty()


@pytest.mark.parametrize(
    "clone", [copy.copy, copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))]
)
def test_an_allocation_has_no_clones(clone: Any) -> None:
    """In the original, a clone frees the same blocks again."""
    engine = Engine(8, 2)
    allocation = engine.reserve(4)
    with refused(engine.allocator, TypeError, "cannot be copied"):
        clone(allocation)
    assert not allocation.is_closed


def test_an_allocation_is_dropped_in_the_middle_of_a_call_of_the_manager() -> None:
    """The garbage collector may run anywhere; its callback must not reach into a running call."""
    held: list[BlockAllocation] = []

    def digest(message: bytes) -> bytes:
        held.clear()
        return bytes(16)

    engine = Engine(12, 2)
    engine.allocator._manager = BlockManager(13, 2, null_block=True, digest=digest)
    held.append(engine.reserve(4))
    engine.cache([1, 2, 3, 4, 5])  # calls the digest, which drops the allocation
    assert not held
    assert engine.is_empty()


def test_an_allocation_is_dropped_in_another_thread() -> None:
    engine = Engine(12, 2)
    held = [engine.reserve(4) for _ in range(6)]
    threads = [threading.Thread(target=held.pop) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert engine.allocator.num_available == 6
    held.clear()
    assert engine.is_empty()


AT_EXIT = """
import asyncio
from blockmgr.ports.tgi import BlockAllocator

allocator = BlockAllocator(64, 4)
kept = asyncio.run(allocator.allocate(8, [1, 2, 3]))
cycle = [asyncio.run(allocator.allocate(8, [1, 2, 3]))]
cycle.append(cycle)

async def main():
    async def serve():
        async with await allocator.allocate(8, [1]):
            await asyncio.sleep(3600)
    asyncio.create_task(serve())
    await asyncio.sleep(0)

asyncio.run(main())
"""


def test_the_interpreter_ends_while_allocations_are_alive() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", AT_EXIT],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_allocation_outlives_its_allocator() -> None:
    allocation = Engine(8, 2).reserve(4)
    gc.collect()
    allocation.close()
    assert allocation.is_closed
