"""``ports.aphrodite``: single blocks, whole prompts, forks, a sequence that grows."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.cases import Prompts
from benchmarks.ports.pair import Call, Pair
from blockmgr.pool import BlockPool
from blockmgr.ports.aphrodite import (
    BlockTable,
    CpuGpuBlockAllocator,
    NaiveBlock,
    NaiveBlockAllocator,
    PrefixCachingBlockAllocator,
)

BLOCK_SIZE = 16
NUM_BLOCKS = 16_384
GROWTH = 64


def one_block_of_port() -> Call:
    allocator = NaiveBlockAllocator(NaiveBlock, NUM_BLOCKS, BLOCK_SIZE)
    return lambda: allocator.free(allocator.allocate_mutable(None))


def one_block_of_core() -> Call:
    pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE, prefix_caching=False)
    return lambda: pool.release([int(pool.take(1)[0])])


def hit_of_port() -> Call:
    allocator = PrefixCachingBlockAllocator(NUM_BLOCKS, BLOCK_SIZE)
    tokens = Prompts().draw(BLOCK_SIZE).tolist()
    allocator.free(allocator.allocate_immutable(None, tokens))
    return lambda: allocator.free(allocator.allocate_immutable(None, tokens))


def hit_of_core() -> Call:
    pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE)
    tokens = Prompts().draw(BLOCK_SIZE).tolist()
    pool.release([pool.promote(int(pool.take(1)[0]), tokens)])

    def call() -> None:
        found = pool.find(tokens).tolist()
        pool.acquire(found)
        pool.release(found)

    return call


def prompt_of_port(num_blocks: int) -> Callable[[], Call]:
    def build() -> Call:
        allocator = CpuGpuBlockAllocator.create("prefix_caching", NUM_BLOCKS, 0, BLOCK_SIZE)
        table = BlockTable(BLOCK_SIZE, allocator)
        tokens = Prompts().draw(num_blocks * BLOCK_SIZE).tolist()

        def call() -> None:
            table.allocate(tokens)
            table.free()

        return call

    return build


def prompt_of_core(num_blocks: int) -> Callable[[], Call]:
    def build() -> Call:
        pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE)
        tokens = Prompts().draw(num_blocks * BLOCK_SIZE).tolist()
        pool.release(pool.promote(pool.take(num_blocks), tokens))

        def call() -> None:
            found = pool.find(tokens).tolist()
            pool.acquire(found)
            pool.release(found[::-1])

        return call

    return build


def fork_of_port(num_blocks: int) -> Callable[[], Call]:
    def build() -> Call:
        allocator = CpuGpuBlockAllocator.create("prefix_caching", NUM_BLOCKS, 0, BLOCK_SIZE)
        table = BlockTable(BLOCK_SIZE, allocator)
        table.allocate(Prompts().draw(num_blocks * BLOCK_SIZE).tolist())
        return lambda: table.fork().free()

    return build


def fork_of_core(num_blocks: int) -> Callable[[], Call]:
    def build() -> Call:
        pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE)
        blocks = pool.take(num_blocks)
        tokens = Prompts().draw(num_blocks * BLOCK_SIZE)
        table = pool.promote(blocks, tokens).tolist()

        def call() -> None:
            child = table.copy()
            pool.acquire(child)
            pool.release(child[::-1])

        return call

    return build


def growth_of_port() -> Call:
    allocator = PrefixCachingBlockAllocator(NUM_BLOCKS, BLOCK_SIZE)

    def call() -> None:
        block = None
        blocks = []
        for token in range(GROWTH):
            if block is None or block.is_full:
                block = allocator.allocate_mutable(block)
                blocks.append(block)
            block.append_token_ids([token])
        for held in reversed(blocks):
            allocator.free(held)

    return call


def growth_of_core() -> Call:
    pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE)

    def call() -> None:
        blocks: list[int] = []
        tokens: list[int] = []
        for token in range(GROWTH):
            if len(tokens) % BLOCK_SIZE == 0:
                blocks.append(int(pool.take(1)[0]))
            offset = len(tokens) % BLOCK_SIZE
            blocks[-1] = pool.make_writable(blocks[-1], offset)
            tokens.append(token)
            if offset + 1 == BLOCK_SIZE:
                parent = blocks[-2] if len(blocks) > 1 else -1
                blocks[-1] = pool.promote(blocks[-1], tokens[-BLOCK_SIZE:], parent=parent)
        for held in reversed(blocks):
            pool.release([held])

    return call


PAIRS = [
    Pair("aphrodite: allocate_mutable, free", one_block_of_port, one_block_of_core),
    Pair("aphrodite: allocate_immutable (hit), free", hit_of_port, hit_of_core),
    Pair(f"aphrodite: {GROWTH} appends, free", growth_of_port, growth_of_core),
    *(
        Pair(f"aphrodite: prompt of {n:,} blocks, free", prompt_of_port(n), prompt_of_core(n))
        for n in (64, 2_048)
    ),
    *(
        Pair(f"aphrodite: fork of {n:,} blocks, free", fork_of_port(n), fork_of_core(n))
        for n in (64, 10_000)
    ),
]
