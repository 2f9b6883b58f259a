"""The Aphrodite port: a block table for each sequence."""

from __future__ import annotations

from typing import ClassVar, Literal

from blockmgr import SequenceStateError
from blockmgr.ports.aphrodite import BlockTable, CpuGpuBlockAllocator, Device, NoFreeBlocksError


class _Tables:
    """Block tables on one allocator."""

    kind: ClassVar[Literal["naive", "prefix_caching"]]
    shortage: ClassVar[type[Exception]] = NoFreeBlocksError
    misuse: ClassVar[type[Exception]] = SequenceStateError

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.allocator = CpuGpuBlockAllocator.create(self.kind, num_blocks, 0, block_size)
        self.block_size = block_size
        self.capacity = num_blocks
        self.cached: dict[BlockTable, int] = {}

    def start(self, tokens: list[int]) -> BlockTable:
        table = BlockTable(self.block_size, self.allocator)
        table.allocate(tokens)
        ids = table.physical_block_ids
        computed = self.allocator.get_common_computed_block_ids([ids])
        self.cached[table] = len(computed) * self.block_size
        return table

    def computed(self, sequence: BlockTable) -> None:
        self.allocator.mark_blocks_as_computed(sequence.physical_block_ids)

    def append(self, sequence: BlockTable, token: int) -> None:
        sequence.append_token_ids([token])

    def fork(self, sequence: BlockTable) -> BlockTable:
        return sequence.fork()

    def finish(self, sequence: BlockTable) -> None:
        sequence.free()

    def slots(self, sequence: BlockTable) -> list[int]:
        ids = sequence.physical_block_ids
        size = self.block_size
        return [ids[p // size] * size + p % size for p in range(sequence.num_full_slots)]

    def num_cached(self, sequence: BlockTable) -> int:
        return self.cached[sequence]

    def take_copies(self) -> list[tuple[int, int]]:
        size = self.block_size
        return [
            (source * size + i, destination * size + i)
            for source, destination in self.allocator.clear_copy_on_writes()
            for i in range(size)
        ]

    def num_available(self) -> int:
        return self.allocator.get_num_free_blocks(Device.GPU)

    def check(self) -> None:
        self.allocator.pool_of(Device.GPU).pool.check_invariants()


class Naive(_Tables):
    """Without prefix caching: only forks share."""

    kind = "naive"
    features: ClassVar[frozenset[str]] = frozenset({"append", "fork", "copy_on_write"})


class PrefixCaching(_Tables):
    """With prefix caching."""

    kind = "prefix_caching"
    features: ClassVar[frozenset[str]] = frozenset(
        {"append", "fork", "copy_on_write", "shares", "caches", "evicts", "tail_first"}
    )
