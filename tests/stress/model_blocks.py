"""The model's calls on single blocks and withdrawals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockmgr.errors import BlockStateError, StepError
from tests.stress.model_admission import whole
from tests.stress.model_cache import CacheModel

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.stress.model_pool import Block, Seq

__all__ = ["BlocksModel"]


class BlocksModel(CacheModel):
    """The part of the model for calls on single blocks."""

    def block(self, block_id: int) -> Block | None:
        whole("blocks", block_id, self.first_id, self.config.num_blocks - 1)
        return next((block for block in self.live if block.id == block_id), None)

    def known(self, blocks: Iterable[int]) -> list[Block]:
        """Blocks that a table names, that a prompt can find, or that a caller holds."""
        found = []
        for block_id in blocks:
            block = self.block(block_id)
            named = block is not None and (block.content or self.references(block))
            if block is None or not (named or block in self.held):
                raise BlockStateError(block_id, "it is not held, and it is not cached")
            found.append(block)
        return found

    def acquire(self, blocks: Iterable[int]) -> None:
        self.held += self.known(blocks)
        self.settle_down()

    def release(self, blocks: Iterable[int]) -> None:
        chosen = [self.block(block_id) for block_id in blocks]
        for block in chosen:
            if block is None or self.held.count(block) < chosen.count(block):
                raise BlockStateError(0 if block is None else block.id, "it is not held so often")
        for block in chosen:
            assert block is not None
            self.held.remove(block)
            self.settle_down()

    def touch_blocks(self, blocks: Iterable[int]) -> None:
        for start in self.known(blocks):
            block: Block | None = start
            while block is not None and block.stamp is not None:
                if block in self.idle():
                    block.stamp = next(self.clock)
                    self.count["touched_blocks"] += 1
                assert block.content is not None
                parent = (block.content[0], block.content[1][:-1])
                block = self.find(parent) if parent[1] else None

    def is_cached(self, block: int) -> bool:
        found = self.block(block)
        return found is not None and found.content is not None

    def ref_count(self, block: int) -> int:
        found = self.block(block)
        return 0 if found is None else self.references(found) + self.held.count(found)

    def block_ids(self, handle: int, start: int = 0) -> list[int]:
        return [block.id for block in self.sequence(handle).blocks[start:]]

    # ---- forgetting ---------------------------------------------------------------------

    def forget_chain(self, block: Block, wrong: set[int]) -> int:
        """Forgets a cached block and all that continue it; their twins have no twin then."""
        assert block.content is not None
        namespace, chunks = block.content
        gone = [
            b
            for b in self.live
            if b.content and b.content[0] == namespace and b.content[1][: len(chunks)] == chunks
        ]
        for other in self.live:
            if other.twin in gone:
                other.twin = None
        for each in gone:
            wrong.add(each.id)
            self.lose(each)
        self.settle_down()
        return len(gone)

    def forget_table(self, seq: Seq, wrong: set[int]) -> int:
        """A sequence has read the wrong block that it holds, so all its later blocks are wrong."""
        first = next((i for i, b in enumerate(seq.blocks) if b.id in wrong), None)
        if first is None:
            return 0
        seq.outdated, seq.promoted = True, 0
        count = 0
        for later in seq.blocks[first:]:
            later.twin = None
            wrong.add(later.id)
            count += self.forget_chain(later, wrong) if later.content else 0
        return count

    def forget(self, blocks: Iterable[int]) -> int:
        chosen = [self.block(block_id) for block_id in blocks]
        if any(seq.settled < seq.num_computed_tokens for seq in self.seqs.values()):
            raise StepError("a sequence has tokens committed early in this step")
        wrong = {block.id for block in chosen if block is not None}
        count = 0
        for block in chosen:
            if block is not None and block.content:
                count += self.forget_chain(block, wrong)
        known = 0
        while known < len(wrong):
            known = len(wrong)
            count += sum(self.forget_table(seq, wrong) for seq in self.seqs.values())
        for seq in self.seqs.values():
            alone = (i for i, b in enumerate(seq.blocks) if not b.content and b.twin is None)
            seq.promoted = min(seq.promoted, next(alone, seq.promoted))
        self.count["forgotten_blocks"] += count
        return count

    # ---- withdrawal ---------------------------------------------------------------------

    def limit_computed(self, seq: Seq, most: int) -> None:
        seq.num_computed_tokens = min(seq.num_computed_tokens, most)
        seq.settled, seq.written = min(seq.settled, most), min(seq.written, most)

    def check_no_open_ticket(self) -> None:
        if self.config.early_commit and self.taken is not None:
            raise StepError(f"ticket {self.last_ticket} is open: this step's forward is fixed")

    def withdraw(self, seq: Seq) -> None:
        """Withdraws tokens that were committed ahead of a forward that will not write them."""
        if seq.settled >= seq.num_computed_tokens:
            return
        self.check_no_open_ticket()
        first = seq.settled // self.size
        unwritten = [block for block in seq.blocks[first : seq.promoted] if block.unwritten]
        if any(self.references(block) > 1 for block in unwritten):
            raise StepError(f"others share what sequence {seq.handle} committed")
        for block in reversed(unwritten):
            block.unwritten, block.twin = 0, None
            # The release passes the key to a twin that the same forward writes for another
            # sequence.
            if block.content and all(other.twin is not block for other in self.live):
                self.forget_chain(block, set())  # it may have got children through a twin
        seq.promoted = min(seq.promoted, first)
        self.limit_computed(seq, seq.settled)
        self.settle_down()
