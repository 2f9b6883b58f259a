"""``ports.tgi``: a request from ``allocate`` to its end, and its single calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.cases import Prompts
from benchmarks.ports.pair import Call, Pair
from blockmgr import BlockManager
from blockmgr.ports.tgi import BlockAllocator

NUM_BLOCKS = 4096
BLOCK_SIZE = 16


def now(call: Any) -> Any:
    """The result of a coroutine that never waits, without the cost of an event loop."""
    try:
        call.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("the call waits")


def of_port(num_prompt: int, num_tokens: int) -> Callable[[], Call]:
    """Allocates for a cached prompt, commits, and frees."""

    def build() -> Call:
        allocator = BlockAllocator(NUM_BLOCKS * BLOCK_SIZE, BLOCK_SIZE)
        prompt = Prompts().draw(num_prompt).tolist()
        now(allocator.allocate(num_tokens, prompt)).close()

        def call() -> None:
            allocation = now(allocator.allocate(num_tokens, prompt))
            assert allocation.prefix_len == num_prompt - 1
            allocation.close()

        return call

    return build


def of_core(num_prompt: int, num_tokens: int) -> Callable[[], Call]:
    """The same calls of a ``BlockManager``, with the same results."""

    def build() -> Call:
        manager = BlockManager(
            NUM_BLOCKS, BLOCK_SIZE, dedup="append_only", min_partial_tokens=1, null_block=True
        )
        prompt = Prompts().draw(num_prompt).tolist()
        handle = manager.admit(prompt)
        manager.commit(handle, num_prompt)
        manager.free(handle)

        def call() -> None:
            handle = manager.admit(prompt, num_slots=num_tokens)
            view = manager.sequence(handle)
            assert view.num_cached_tokens == num_prompt - 1
            _ = view.block_ids
            manager.slot_mapping(handle, 0, num_tokens)
            manager.commit(handle, num_prompt)
            manager.free(handle)

        return call

    return build


# The whole blocks of a prompt, a token to compute, and the tokens to be generated.
SIZES = ((17, 15), (129, 127), (1025, 255), (8193, 511))

PAIRS = [
    Pair(f"tgi: allocate, close; {prompt} + {more} tokens", of_port(*size), of_core(*size))
    for prompt, more in SIZES
    for size in [(prompt, prompt + more)]
]
