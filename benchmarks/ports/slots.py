"""``ports.slots``: a slot allocated and freed, and prefixes found, pinned and inserted."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.cases import Prompts
from benchmarks.ports.pair import Call, Pair
from blockmgr.pool import BlockPool
from blockmgr.ports.slots import PrefixCacheManager, SlotAllocator

NUM_SLOTS = 64
CAPACITY = 1 << 17


def slot_of_port() -> Call:
    slots = SlotAllocator(NUM_SLOTS)

    def call() -> None:
        slots.free(slots.alloc())

    return call


def slot_of_core() -> Call:
    pool = BlockPool(NUM_SLOTS, 1)

    def call() -> None:
        slot = int(pool.take(1)[0])
        pool.promote(slot, [slot])
        pool.release([slot])

    return call


def filled(num_tokens: int) -> tuple[PrefixCacheManager, list[int]]:
    """A cache that holds one prompt in each slot."""
    slots = SlotAllocator(NUM_SLOTS)
    cache = PrefixCacheManager(CAPACITY, slots=slots)
    prompts = Prompts()
    prompt: list[int] = []
    for _ in range(min(NUM_SLOTS, CAPACITY // num_tokens)):
        prompt = prompts.draw(num_tokens).tolist()
        slot = slots.alloc()
        cache.insert(prompt, slot, slots.version(slot))
        cache.release(prompt)
    return cache, prompt


def chained(num_tokens: int) -> tuple[BlockPool, list[int]]:
    """A pool with the same chains."""
    pool = BlockPool(CAPACITY, 1)
    prompts = Prompts()
    prompt: list[int] = []
    for _ in range(min(NUM_SLOTS, CAPACITY // num_tokens)):
        prompt = prompts.draw(num_tokens).tolist()
        blocks = pool.take(num_tokens)
        blocks = pool.promote(blocks, prompt)  # two prompts may have the same prefix
        pool.release(blocks)
    return pool, prompt


def find_of_port(num_tokens: int) -> Callable[[], Call]:
    def build() -> Call:
        cache, prompt = filled(num_tokens)

        def call() -> None:
            assert cache.find(prompt)[0] == num_tokens

        return call

    return build


def find_of_core(num_tokens: int) -> Callable[[], Call]:
    def build() -> Call:
        pool, prompt = chained(num_tokens)

        def call() -> None:
            path = pool.find(prompt)
            assert len(path) == num_tokens
            pool.touch(path[-1:])

        return call

    return build


def pin_of_port(num_tokens: int) -> Callable[[], Call]:
    def build() -> Call:
        cache, prompt = filled(num_tokens)

        def call() -> None:
            cache.pin(prompt)
            cache.release(prompt)

        return call

    return build


def pin_of_core(num_tokens: int) -> Callable[[], Call]:
    def build() -> Call:
        pool, prompt = chained(num_tokens)

        def call() -> None:
            pool.acquire(pool.find(prompt)[-1:])
            pool.release(pool.find(prompt)[-1:])

        return call

    return build


PAIRS = [Pair("slots: alloc, free", slot_of_port, slot_of_core)]
for n in (16, 128, 1024):
    PAIRS += [
        Pair(f"slots: find, {n} tokens", find_of_port(n), find_of_core(n)),
        Pair(f"slots: pin, release, {n} tokens", pin_of_port(n), pin_of_core(n)),
    ]
