"""The engine for the tests of ``ports.tgi``: a fake KV memory, and steps in one call."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from blockmgr.ports.tgi import BlockAllocation, BlockAllocator
from tests.stress.memory import Device, Work, prefixes_of
from tests.unit.snapshot import refused as manager_refused

T = TypeVar("T")


def now(call: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        call.send(None)
    except StopIteration as stop:
        return stop.value
    call.close()
    raise AssertionError("the call waits")


class Engine:
    """An allocator with a number of usable blocks, and the memory of its slots."""

    def __init__(self, num_blocks: int, block_size: int, *, seed: int = 0, **options: Any) -> None:
        total = (num_blocks + 1) * block_size + block_size - 1  # the remainder cannot be used
        self.allocator = BlockAllocator(total, block_size, **options)
        self.size = block_size
        self.device = Device(num_blocks + 1, block_size, random.Random(seed))

    def allocate(self, tokens: int, prompt: list[int] | None = None) -> BlockAllocation | None:
        return now(self.allocator.allocate(tokens, prompt))

    def reserve(self, tokens: int, prompt: list[int] | None = None) -> BlockAllocation:
        allocation = self.allocate(tokens, prompt)
        assert allocation is not None
        return allocation

    async def forward(
        self, *batch: tuple[BlockAllocation, list[int]], pauses: bool = False
    ) -> list[tuple[int, ...]]:
        """Copies, writes the uncached tokens of each prompt, then reads all tokens."""
        async with self.allocator.copies() as plan:
            if pauses:
                await asyncio.sleep(0)  # with the plan open
            step = self.device.launch(plan)
            step.work += [self.work(allocation, prompt) for allocation, prompt in batch]
            self.device.run(step)
        return step.copies

    def work(self, allocation: BlockAllocation, prompt: list[int]) -> Work:
        prefixes = prefixes_of(prompt, self.size)
        slots = allocation.slots[: len(prompt)]
        name = str(allocation.allocation_id)
        return Work(name, [slots], np.array(prefixes, np.int64), allocation.prefix_len)

    def compute(self, tokens: int, prompt: list[int]) -> BlockAllocation:
        """Reserves and computes without a commit."""
        allocation = self.reserve(tokens, prompt)
        now(self.forward((allocation, prompt)))
        return allocation

    def cache(self, prompt: list[int]) -> int:
        """Runs a whole request; returns how much of the prompt it found."""
        allocation = self.compute(len(prompt), prompt)
        allocation.close()
        return allocation.prefix_len

    def found(self, prompt: list[int]) -> int:
        """What a request would find, without changes."""
        return self.allocator.manager.match(prompt).num_cached_tokens

    def is_empty(self) -> bool:
        """Whether no allocation is left."""
        manager = self.allocator.manager
        manager.check_invariants()
        stats = manager.stats()
        return manager.handles() == [] and stats.used_blocks == stats.fenced_blocks == 0


@contextmanager
def refused(
    allocator: BlockAllocator, error: type[Exception], match: str | None = None
) -> Iterator[None]:
    """The call inside raises exactly this error and leaves the allocator unchanged."""

    def books() -> tuple[Any, ...]:
        return set(allocator._open), set(allocator._waiting), set(allocator._in_flight)

    manager = allocator.manager
    before = books()
    with manager_refused(manager, error, match):
        yield
    assert books() == before
