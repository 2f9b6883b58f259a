"""nano-vllm's block manager, driven as by its scheduler."""

from __future__ import annotations

from typing import Any, ClassVar

from blockmgr import NeverFitsError, OutOfBlocksError, SequenceStateError
from blockmgr.ports import nano_vllm
from tests.ports.nano_driver import Seq


class Present:
    """A block is shared from the moment that its forward is announced."""

    features: ClassVar[frozenset[str]] = frozenset(
        {"append", "shares", "caches", "evicts", "tail_first"}
    )
    shortage: ClassVar[Any] = (OutOfBlocksError, NeverFitsError)
    misuse: ClassVar[type[Exception]] = SequenceStateError

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.blocks = nano_vllm.BlockManager(num_blocks, block_size)
        self.capacity = num_blocks
        self.found: dict[Seq, int] = {}

    def start(self, tokens: list[int]) -> Seq:
        seq = Seq("seq", tokens, max_new_tokens=0)
        self.allocate(seq)
        self.found[seq] = seq.num_cached_tokens
        return seq

    def allocate(self, seq: Seq) -> None:
        found = self.blocks.can_allocate(seq)
        if found == -1:  # allocate will return this
            found = len(self.blocks.manager.match(seq.token_ids).block_ids)
        self.blocks.allocate(seq, found)

    def append(self, seq: Seq, token: int) -> None:
        seq.token_ids.append(token)
        try:
            self.blocks.may_append(seq)
        except self.shortage:
            del seq.token_ids[-1]
            raise

    def finish(self, seq: Seq) -> None:
        self.blocks.deallocate(seq)

    def slots(self, seq: Seq) -> list[int]:
        size = self.blocks.block_size
        return [seq.block_table[at // size] * size + at % size for at in range(len(seq))]

    def num_cached(self, seq: Seq) -> int:
        return self.found[seq]

    def take_copies(self) -> list[tuple[int, int]]:
        return []

    def num_available(self) -> int:
        return self.blocks.manager.num_available

    def check(self) -> None:
        self.blocks.manager.check_invariants()

    def computed(self, seq: Seq) -> None:
        seq.num_scheduled_tokens = len(seq) - seq.num_cached_tokens
        self.blocks.hash_blocks(seq)
        seq.num_cached_tokens = len(seq)
