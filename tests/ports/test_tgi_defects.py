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

from blockmgr import BlockManager, UnknownSequenceError
from blockmgr.ports.tgi import BlockAllocation
from tests.fingerprints import fingerprint
from tests.ports.tgi_engine import Engine, now, refused

SIZES = pytest.mark.parametrize("block_size", [1, 2, 4])


@SIZES
def test_a_prefix_that_was_matched_in_full_is_protected(block_size: int) -> None:
    """The original returns the parent of the last matched node, which is then not protected."""
    prompt = list(range(4 * block_size))
    engine = Engine(6, block_size)
    engine.cache(prompt)
    held = engine.reserve(len(prompt) + 1, [*prompt, 99])
    assert held.prefix_len == len(prompt)
    others = [engine.allocate(block_size, [50 + n]) for n in range(6)]
    assert sum(other is not None for other in others) == 1
    now(engine.forward((held, [*prompt, 99])))  # reads every token it found


@SIZES
def test_a_match_that_ends_within_a_node_takes_no_blocks_from_below_it(block_size: int) -> None:
    """The original descends below a partly matched node and returns blocks of other tokens."""
    engine = Engine(40, block_size)
    engine.cache([1, 2, 3, 4, 5])
    engine.cache([1, 2, 3, 4, 5, 6, 7, 8])  # below the first
    for prompt in ([1, 2, 6, 7, 8, 9], [1, 2, 3, 6, 7, 9], [1, 6, 7, 8]):
        longest = next(n for n, token in enumerate(prompt) if token == 6)
        allocation = engine.compute(10, prompt)  # checks what it reads
        assert allocation.prefix_len <= longest
        allocation.close()


@SIZES
def test_an_allocation_that_fails_evicts_nothing(block_size: int) -> None:
    """The original evicts what it can, then fails, and has thrown the cache away."""
    prompt = list(range(3 * block_size))
    engine = Engine(6, block_size)
    engine.cache(prompt)
    held = engine.reserve(2 * block_size)
    before = fingerprint(engine.allocator.manager)
    assert engine.allocate(5 * block_size, [99]) is None
    assert fingerprint(engine.allocator.manager) == before
    assert engine.allocator.manager.stats().evicted_blocks == 0
    assert engine.found([*prompt, 99]) == len(prompt)
    held.close()


@SIZES
def test_requests_that_run_at_the_same_time_share(block_size: int) -> None:
    """The original caches a prompt only when its request ends."""
    prompt = list(range(4 * block_size))
    engine = Engine(40, block_size)
    running = engine.compute(len(prompt) + 8, prompt)
    running.commit()
    other = engine.compute(len(prompt) + 8, [*prompt, 99])
    assert other.prefix_len == len(prompt)
    assert other.blocks[:4].tolist() == running.blocks[:4].tolist()


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


def test_freeing_what_is_unknown_or_freed_is_an_error_and_the_allocator_lives_on() -> None:
    """In the original this is "unreachable" and kills the background task."""
    engine = Engine(8, 2)
    allocation = engine.reserve(8)
    blocks, name = allocation.blocks.copy(), allocation.allocation_id
    with refused(engine.allocator, UnknownSequenceError):
        engine.allocator.free(blocks, name + 1)
    engine.allocator.free(blocks, name)
    with refused(engine.allocator, UnknownSequenceError):
        engine.allocator.free(blocks, name)
    assert engine.reserve(8).prefix_len == 0


def test_no_block_gets_two_owners_by_being_freed_twice() -> None:
    """The original allocates blocks twice that were freed twice or under another name."""
    engine = Engine(8, 2, prefix_caching=False)
    one, two = engine.reserve(4), engine.reserve(4)
    with refused(engine.allocator, ValueError, "blocks must be"):
        engine.allocator.free([*one.blocks, *two.blocks], one.allocation_id)
    one.close()
    with refused(engine.allocator, UnknownSequenceError):
        one.close()
    held = [engine.reserve(4) for _ in range(3)]
    blocks = [block for allocation in [*held, two] for block in allocation.blocks.tolist()]
    assert len(set(blocks)) == len(blocks) == 8


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


def test_without_prefix_caching_nothing_is_kept() -> None:
    """The original still stores prompts in the trie, where they are never found and take room."""
    engine = Engine(8, 1, prefix_caching=False)
    engine.cache([1, 2, 3, 4])
    stats = engine.allocator.manager.stats()
    assert (stats.free_blocks, stats.idle_blocks) == (8, 0)


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
