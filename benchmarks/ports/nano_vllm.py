"""``ports.nano_vllm``: a long cached prompt admitted and freed, and a sequence that grows."""

from __future__ import annotations

from collections.abc import Callable

import blockmgr
from benchmarks.cases import Prompts, cache
from benchmarks.ports.pair import Call, Pair
from blockmgr.ports.nano_vllm import BlockManager

BLOCK_SIZE = 16
NUM_BLOCKS = 4096
GROWTH = 64


class Seq:
    """What the port reads and writes of a sequence."""

    def __init__(self, token_ids: list[int]) -> None:
        self.token_ids = token_ids
        self.block_table: list[int] = []
        self.num_cached_tokens = 0
        self.num_scheduled_tokens = 0


def cached(manager: blockmgr.BlockManager, num_tokens: int) -> list[int]:
    """A prompt of which all but the last token is cached."""
    prompt = Prompts().draw(num_tokens + 1)
    cache(manager, prompt[:-1])
    return prompt.tolist()


def can_of_port(num_tokens: int) -> Callable[[], Call]:
    def build() -> Call:
        port = BlockManager(NUM_BLOCKS, BLOCK_SIZE)
        seq = Seq(cached(port.manager, num_tokens))

        def call() -> None:
            assert port.can_allocate(seq) == num_tokens // BLOCK_SIZE

        return call

    return build


def can_of_core(num_tokens: int) -> Callable[[], Call]:
    def build() -> Call:
        manager = blockmgr.BlockManager(NUM_BLOCKS, BLOCK_SIZE)
        prompt = cached(manager, num_tokens)
        return lambda: manager.can_admit(prompt)

    return build


def life_of_port(num_tokens: int) -> Callable[[], Call]:
    def build() -> Call:
        port = BlockManager(NUM_BLOCKS, BLOCK_SIZE)
        seq = Seq(cached(port.manager, num_tokens))

        def call() -> None:
            port.allocate(seq, num_tokens // BLOCK_SIZE)
            assert seq.num_cached_tokens == num_tokens
            port.deallocate(seq)

        return call

    return build


def life_of_core(num_tokens: int) -> Callable[[], Call]:
    def build() -> Call:
        manager = blockmgr.BlockManager(NUM_BLOCKS, BLOCK_SIZE)
        prompt = cached(manager, num_tokens)
        return lambda: manager.free(manager.admit(prompt))

    return build


def growth_of_port() -> Call:
    port = BlockManager(NUM_BLOCKS, BLOCK_SIZE)

    def call() -> None:
        seq = Seq([1])
        port.allocate(seq, 0)
        for token in range(GROWTH):
            seq.token_ids.append(token)
            port.can_append(seq)
            port.may_append(seq)
            seq.num_cached_tokens, seq.num_scheduled_tokens = token + 1, 1
            port.hash_blocks(seq)
        port.deallocate(seq)

    return call


def growth_of_core() -> Call:
    manager = blockmgr.BlockManager(NUM_BLOCKS, BLOCK_SIZE)

    def call() -> None:
        handle = manager.admit([1])
        for token in range(GROWTH):
            _ = manager.num_available
            manager.append(handle, [token])
            manager.commit(handle, token + 2)
        manager.free(handle)

    return call


PAIRS = [Pair(f"nano_vllm: a step of one, {GROWTH} times", growth_of_port, growth_of_core)]
for n in (1_024, 32_768):
    PAIRS += [
        Pair(f"nano_vllm: can_allocate, {n} tokens", can_of_port(n), can_of_core(n)),
        Pair(f"nano_vllm: allocate, deallocate, {n} tokens", life_of_port(n), life_of_core(n)),
    ]
