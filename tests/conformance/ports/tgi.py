"""TGI's allocator, with and without prefixes, for the conformance suite."""

from __future__ import annotations

from blockmgr import NeverFitsError, UnknownSequenceError
from blockmgr.ports.tgi import BlockAllocation, BlockAllocator
from tests.ports.tgi_engine import now


class NoRoom(Exception):
    """``allocate`` returned None, or an error that the request never fits."""


class Tgi:
    """Requests that generate nothing: the interface has no way to grow one."""

    features = frozenset({"shares", "caches", "evicts", "tail_first"})
    shortage = NoRoom
    misuse = UnknownSequenceError
    prefix_caching = True

    def __init__(self, num_blocks: int, block_size: int) -> None:
        total = (num_blocks + 1) * block_size
        self.allocator = BlockAllocator(total, block_size, self.prefix_caching)
        self.capacity = num_blocks

    def start(self, tokens: list[int]) -> BlockAllocation:
        try:
            allocation = now(self.allocator.allocate(len(tokens), tokens))
        except NeverFitsError as error:
            raise NoRoom from error
        if allocation is None:
            raise NoRoom
        return allocation

    def computed(self, sequence: BlockAllocation) -> None:
        sequence.commit()

    def finish(self, sequence: BlockAllocation) -> None:
        sequence.close()

    def slots(self, sequence: BlockAllocation) -> list[int]:
        return sequence.slots.tolist()

    def num_cached(self, sequence: BlockAllocation) -> int:
        return sequence.prefix_len

    def take_copies(self) -> list[tuple[int, int]]:
        size = self.allocator.block_size

        async def taken() -> list[tuple[int, int]]:
            async with self.allocator.copies() as plan:
                return [
                    (source * size + offset, destination * size + offset)
                    for source, destination, num_tokens in plan
                    for offset in range(num_tokens)
                ]

        return now(taken())

    def num_available(self) -> int:
        return self.allocator.num_available

    def check(self) -> None:
        self.allocator.manager.check_invariants()


class TgiSimple(Tgi):
    """The allocator without sharing."""

    features = frozenset()
    prefix_caching = False
