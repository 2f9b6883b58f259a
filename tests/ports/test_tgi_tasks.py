"""Two hundred asyncio tasks that allocate, compute and free in every possible way.

Bounded by operations, not by time: 200 tasks of 150 requests each, 30,000 in all. A fake KV
memory checks what each request reads.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter, deque
from contextlib import suppress

from blockmgr.ports.tgi import BlockAllocation
from tests.ports.tgi_engine import Engine

NUM_TASKS = 200
REQUESTS = 150

Queue = deque[asyncio.Future[None]]


class GivesUp(Exception):
    """Raised inside an ``async with``."""


class Client:
    """One task: requests for prompts with common prefixes, ended in a random way."""

    def __init__(self, engine: Engine, seed: int, ends: Counter[str], queue: Queue) -> None:
        self.engine = engine
        self.rng = random.Random(seed)
        self.ends = ends
        self.queue = queue

    async def run(self, num_requests: int) -> None:
        for _ in range(num_requests):
            await self.request()
            for _ in range(min(2, len(self.queue))):  # possibly room for one more small request
                self.queue.popleft().set_result(None)

    async def request(self) -> None:
        rng = self.rng
        prompt = [rng.choice((0, 0, 0, 1)) for _ in range(rng.randint(1, 14))]
        allocation = await self.allocated(len(prompt) + rng.randint(0, 6), prompt)
        if rng.random() < 0.1:
            self.ends["dropped before its forward"] += 1
            return
        if rng.random() < 0.3:
            await asyncio.sleep(0)
        if rng.random() < 0.1:
            with suppress(GivesUp):
                async with self.engine.allocator.copies():
                    raise GivesUp  # the copies are pending again
        await self.engine.forward((allocation, prompt), pauses=rng.random() < 0.3)
        if rng.random() < 0.5:
            allocation.commit(rng.randint(allocation.prefix_len, len(prompt)))
        if rng.random() < 0.3:
            await asyncio.sleep(0)
        await self.end(allocation)

    async def allocated(self, tokens: int, prompt: list[int]) -> BlockAllocation:
        while True:
            allocation = await self.engine.allocator.allocate(tokens, prompt)
            if allocation is not None:
                return allocation
            self.ends["turned away"] += 1
            self.queue.append(asyncio.get_running_loop().create_future())
            await self.queue[-1]

    async def end(self, allocation: BlockAllocation) -> None:
        how = self.rng.choice(("dropped", "closed", "discarded", "freed", "left", "failed", "cut"))
        self.ends[how] += 1
        if how == "closed":
            allocation.close()
        elif how == "discarded":
            allocation.discard()
        elif how == "freed":
            self.engine.allocator.free(allocation.blocks, allocation.allocation_id)
        elif how == "left":
            async with allocation:
                await asyncio.sleep(0)
        elif how == "failed":
            with suppress(GivesUp):
                async with allocation:
                    raise GivesUp
        elif how == "cut":
            task = asyncio.create_task(self.held(allocation))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def held(self, allocation: BlockAllocation) -> None:
        async with allocation:
            await asyncio.Event().wait()


def test_nothing_is_leaked_by_200_tasks_that_allocate_and_drop() -> None:
    engine = Engine(64, 4)
    ends: Counter[str] = Counter()

    async def main() -> None:
        queue: Queue = deque()
        clients = [Client(engine, seed, ends, queue) for seed in range(NUM_TASKS)]
        await asyncio.gather(*(client.run(REQUESTS) for client in clients))

    asyncio.run(main())
    gc.collect()
    assert ends.pop("turned away") > NUM_TASKS
    assert ends.total() == NUM_TASKS * REQUESTS
    assert len(ends) == 8
    assert all(count > NUM_TASKS * REQUESTS / 20 for count in ends.values())
    stats = engine.allocator.manager.stats()
    assert stats.partial_hit_tokens > 0
    assert stats.planned_copies > stats.cancelled_copies > 0
    assert stats.evicted_blocks > 0
    assert engine.allocator.num_available == 64
    assert engine.is_empty()
