"""What the tests of the Aphrodite port share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from blockmgr.ports.aphrodite import (
    Block,
    BlockSpaceManager,
    BlockTable,
    CpuGpuBlockAllocator,
    Device,
    NaiveBlock,
    NaiveBlockAllocator,
    PrefixCachingBlockAllocator,
)
from tests.fingerprints import fingerprint, unchanged

Allocator = NaiveBlockAllocator | PrefixCachingBlockAllocator
Make = Callable[..., Allocator]
Kind = Literal["naive", "prefix_caching"]
MakePools = Callable[..., CpuGpuBlockAllocator]


def naive(num_blocks: int = 8, block_size: int = 4, **options: Any) -> NaiveBlockAllocator:
    return NaiveBlockAllocator(NaiveBlock, num_blocks, block_size, **options)


def caching(
    num_blocks: int = 8, block_size: int = 4, **options: Any
) -> PrefixCachingBlockAllocator:
    return PrefixCachingBlockAllocator(num_blocks, block_size, **options)


@contextmanager
def refused(allocator: Any, error: type[Exception], match: str | None = None) -> Iterator[Any]:
    """The call inside raises exactly this error and leaves the allocator unchanged."""

    def facts() -> tuple[Any, ...]:
        ids = sorted(allocator.all_block_ids)
        return (
            fingerprint(allocator.pool),
            [allocator.pool.ref_count(allocator.get_physical_block_id(i)) for i in ids],
            [allocator.is_computed(allocator.get_physical_block_id(i)) for i in ids],
            (allocator.num_queries, allocator.num_hits),
        )

    with unchanged(facts, error, match) as caught:
        yield caught
    allocator.pool.check_invariants()


def chain(allocator: Any, tokens: list[int]) -> list[Block]:
    """Blocks of a sequence: full ones, and one for the tail."""
    size = allocator.block_size
    blocks: list[Block] = []
    for i in range(0, len(tokens), size):
        previous = blocks[-1] if blocks else None
        part = tokens[i : i + size]
        if len(part) == size:
            blocks.append(allocator.allocate_immutable(previous, part))
        else:
            blocks.append(allocator.allocate_mutable(previous))
            blocks[-1].append_token_ids(part)
    return blocks


def ids(blocks: Any) -> list[int | None]:
    return [block.block_id for block in blocks]


def check(allocator: CpuGpuBlockAllocator) -> None:
    for device in Device:
        if allocator.get_num_total_blocks(device):
            allocator.pool_of(device).pool.check_invariants()


def facts(allocator: CpuGpuBlockAllocator, tables: Sequence[BlockTable]) -> tuple[Any, ...]:
    devices = [d for d in Device if allocator.get_num_total_blocks(d)]
    return (
        [fingerprint(allocator.pool_of(d).pool) for d in devices],
        [
            (t.physical_block_ids, [b.token_ids for b in t.blocks], t.device)
            for t in tables
            if t.blocks
        ],
    )


@contextmanager
def refused_tables(
    allocator: CpuGpuBlockAllocator,
    error: type[Exception],
    match: str | None = None,
    tables: Sequence[BlockTable] = (),
) -> Iterator[Any]:
    with unchanged(lambda: facts(allocator, tables), error, match) as caught:
        yield caught
    check(allocator)


def table_of(allocator: CpuGpuBlockAllocator, tokens: Sequence[int], **options: Any) -> BlockTable:
    table = BlockTable(allocator.block_size, allocator, **options)
    table.allocate(tokens)
    return table


@dataclass
class Seq:
    """A sequence of an engine of this lineage."""

    seq_id: int
    tokens: list[int] = field(default_factory=list)
    adapter: int | None = None
    in_prompt: bool = False

    def get_token_ids(self) -> list[int]:
        return self.tokens

    def extra_hash(self) -> int | None:
        return self.adapter

    def is_prefill(self) -> bool:
        return self.in_prompt


@dataclass
class Group:
    seqs: list[Seq]
    has_encoder: bool = False

    def get_seqs(self) -> list[Seq]:
        return self.seqs

    def is_encoder_decoder(self) -> bool:
        return self.has_encoder


def group(*prompts: Sequence[int], first: int = 0) -> Group:
    return Group([Seq(first + i, list(p)) for i, p in enumerate(prompts)])


def space(gpu: int = 8, cpu: int = 8, size: int = 4, **options: Any) -> BlockSpaceManager:
    return BlockSpaceManager(size, gpu, cpu, **{"watermark": 0, **options})
