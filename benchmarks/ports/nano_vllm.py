"""``ports.nano_vllm``: a long cached prompt admitted and freed, and a sequence that grows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import blockmgr
from benchmarks.cases import Prompts, cache
from benchmarks.ports.pair import Call, Pair
from blockmgr.ports.nano_vllm import BlockManager, LegacyBlockManager

BLOCK_SIZE = 16
NUM_BLOCKS = 4096
GROWTH = 64
KINDS = {"nano_vllm": BlockManager, "nano_vllm, first": LegacyBlockManager}


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


def can_of_port(kind: Any, num_tokens: int) -> Callable[[], Call]:
    def build() -> Call:
        port = kind(NUM_BLOCKS, BLOCK_SIZE)
        seq = Seq(cached(port.manager, num_tokens))

        def call() -> None:
            assert port.can_allocate(seq) == (num_tokens // BLOCK_SIZE if counts else True)

        counts = kind is BlockManager
        return call

    return build


def can_of_core(num_tokens: int) -> Callable[[], Call]:
    def build() -> Call:
        manager = blockmgr.BlockManager(NUM_BLOCKS, BLOCK_SIZE)
        prompt = cached(manager, num_tokens)
        return lambda: manager.can_admit(prompt)

    return build


def life_of_port(kind: Any, num_tokens: int) -> Callable[[], Call]:
    def build() -> Call:
        port = kind(NUM_BLOCKS, BLOCK_SIZE)
        seq = Seq(cached(port.manager, num_tokens))
        arguments = (num_tokens // BLOCK_SIZE,) if kind is BlockManager else ()

        def call() -> None:
            port.allocate(seq, *arguments)
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


def growth_of_port(kind: Any) -> Callable[[], Call]:
    def build() -> Call:
        port = kind(NUM_BLOCKS, BLOCK_SIZE)
        announces = kind is BlockManager

        def call() -> None:
            seq = Seq([1])
            port.allocate(seq, *([0] if announces else []))
            for token in range(GROWTH):
                seq.token_ids.append(token)
                port.can_append(seq)
                port.may_append(seq)
                if announces:
                    seq.num_cached_tokens, seq.num_scheduled_tokens = token + 1, 1
                    port.hash_blocks(seq)
            port.deallocate(seq)

        return call

    return build


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


PAIRS = []
for name, kind in KINDS.items():
    for n in (1_024, 32_768):
        PAIRS += [
            Pair(f"{name}: can_allocate, {n} tokens", can_of_port(kind, n), can_of_core(n)),
            Pair(
                f"{name}: allocate, deallocate, {n} tokens", life_of_port(kind, n), life_of_core(n)
            ),
        ]
    PAIRS.append(
        Pair(f"{name}: a step of one, {GROWTH} times", growth_of_port(kind), growth_of_core)
    )
