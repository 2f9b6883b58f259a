"""A slow, obviously right model of ``blockmgr.BlockManager``.

It has no free queue, hashes, links or reference counts: every call scans everything. A cached block
stores its whole prefix, so a look-up is a scan for equal content. After every change, the model
recomputes from the block tables and the copies which blocks are in use; a block that has just
become unused gets a stamp, and stamps are the LRU order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from blockmgr.blocks import Remap
from blockmgr.errors import (
    OutOfBlocksError,
    SequenceStateError,
    StepError,
)
from tests.stress.model_admission import Plan, Terms, common, token_list, whole
from tests.stress.model_blocks import BlocksModel
from tests.stress.model_pool import Block, Content, Seq, chain

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ModelManager", "Plan", "common"]


class ModelManager(BlocksModel):
    """``BlockManager``, with a scan of everything in each call."""

    # ---- one sequence -------------------------------------------------------------------

    def must_copy(self, seq: Seq, leaving: Iterable[Block] = ()) -> Block | None:
        """The block of the next token, if another sequence may read it."""
        index = len(seq.tokens) // self.size
        if index >= len(seq.blocks):
            return None
        block = seq.blocks[index]
        shared = self.references(block) - list(leaving).count(block) > 1
        return block if shared or block.content is not None else None

    def make_writable(self, seq: Seq, fresh: Block | None) -> None:
        index = len(seq.tokens) // self.size
        start = index * self.size
        if fresh is None:
            if index < len(seq.blocks):
                seq.blocks[index].twin = None  # about to diverge from it
            return
        shared = seq.blocks[index]
        brought = max(0, min(seq.written, seq.num_computed_tokens) - start)
        if brought:
            self.record(shared, fresh, brought)
        # Tokens that cannot be copied, because they are not written yet, are computed again.
        self.limit_computed(seq, start + brought)
        seq.blocks[index] = fresh

    def check_written(self, seq: Seq) -> None:
        """The tokens of a copy must be written before the forward of this step."""
        start = len(seq.tokens) // self.size * self.size
        kept = seq.settled if self.taken is None else seq.num_computed_tokens
        if kept > max(seq.written, start):
            raise StepError(f"sequence {seq.handle} rests on what this step's forward writes")

    def grow(self, seqs: list[Seq], slots: list[int], write: bool = True) -> None:
        """Takes slots for every sequence and makes the next block private, or does nothing."""
        moving: list[Block] = []
        wanted: list[tuple[int, bool]] = []
        for seq, num_slots in zip(seqs, slots, strict=True):
            self.check_fits(seq, num_slots)
            shared = self.must_copy(seq, moving) if write else None
            if shared is not None:
                self.check_written(seq)
            moving += [shared] if shared else []
            more = max(0, -(-num_slots // self.size) - len(seq.blocks))
            wanted.append((more, shared is not None))
        shares = [self.share(seq.namespace) for seq in seqs]
        for share in (None, *self.config.quotas):
            pairs = zip(shares, wanted, strict=True)
            needed = sum(more + copy for own, (more, copy) in pairs if own == share)
            if needed > self.available(share):
                raise OutOfBlocksError(needed, self.available(share))
        taken = [
            (self.take(share) if copy else None, [self.take(share) for _ in range(more)])
            for share, (more, copy) in zip(shares, wanted, strict=True)
        ]
        for seq, (fresh, more_blocks) in zip(seqs, taken, strict=True):
            if write:
                self.make_writable(seq, fresh)
            seq.blocks += more_blocks
        self.settle_down()

    def reserve(self, handle: int, num_slots: int) -> None:
        seq = self.running(handle)
        num_slots = whole("num_slots", num_slots, 1, 2**62)
        self.grow([seq], [num_slots], write=num_slots > len(seq.tokens))

    def append(self, handle: int, tokens: Iterable[int]) -> None:
        seq, tokens = self.running(handle), token_list(tokens)
        self.grow([seq], [len(seq.tokens) + len(tokens)])
        seq.tokens += tokens

    def commit(self, handle: int, num_computed_tokens: int) -> None:
        seq = self.running(handle)
        self.check_no_open_ticket()
        high = min(seq.num_tokens, seq.num_slots)
        n = whole("num_computed_tokens", num_computed_tokens, seq.num_computed_tokens, high)
        if not self.config.early_commit:
            seq.settled = seq.written = n
        seq.num_computed_tokens = n
        self.promote(seq)

    def promote(self, seq: Seq) -> None:
        """Makes full computed blocks findable, in order, and deduplicates them."""
        caches = self.config.prefix_caching and not seq.outdated
        full = seq.num_computed_tokens // self.size if caches else 0
        while seq.promoted < full and not self.unresolved(seq.blocks[seq.promoted]):
            index, block = seq.promoted, seq.blocks[seq.promoted]
            content = seq.content(index + 1)
            twin = self.find(content)
            written = min(max(seq.written - index * self.size, 0), self.size)
            if twin not in (None, block) and twin.unwritten and written == self.size:
                return  # K/V in memory is not replaced by K/V that is not written yet
            if twin is None:
                self.publish(block, content)
                block.unwritten = self.size - written
                self.count["promoted_blocks"] += 1
            elif twin is not block and self.config.dedup == "remap":
                self.inherit(block, twin)
                seq.blocks[index] = twin
                self.remaps.append(Remap(seq.handle, index, block.id, twin.id))
                self.count["deduplicated_blocks"] += 1
            elif twin is not block and block.twin is not twin:
                self.inherit(block, twin)
                self.count["deduplicated_blocks"] += 1
                if self.references(twin):
                    block.twin, block.twinned = twin, next(self.clock)
                else:
                    self.move(twin, block)
                block.unwritten = self.size - written
            seq.promoted += 1
            self.settle_down()

    def publish(self, block: Block, content: Content) -> None:
        """Makes a block findable; shorter tails with the same beginning become useless."""
        extras, tokens = content[1][-1]
        for tail in self.children((content[0], content[1][:-1]), extras):
            if len(tail.tokens) < self.size and tail.tokens == tokens[: len(tail.tokens)]:
                self.lose(tail)
        block.content, block.linked = content, next(self.clock)

    def truncate(self, handle: int, num_tokens: int) -> None:
        seq = self.running(handle)
        n = whole("num_tokens", num_tokens, 1, seq.num_tokens)
        if n < seq.num_computed_tokens:
            self.check_not_promised(seq)
        del seq.tokens[n:]
        while len(seq.blocks) > -(-n // self.size):
            seq.blocks.pop()
            self.settle_down()
        self.limit_computed(seq, n)
        seq.num_cached_tokens = min(seq.num_cached_tokens, n)
        seq.promoted = min(seq.promoted, n // self.size)

    def check_not_promised(self, seq: Seq) -> None:
        if self.config.early_commit and seq.settled < seq.num_computed_tokens:
            raise StepError(f"sequence {seq.handle} has tokens committed early in this step")

    def shared_by_fork(self, seq: Seq) -> list[Block]:
        return seq.blocks[: -(-seq.num_tokens // self.size)]

    def become_fork(self, child: Seq, parent: Seq) -> None:
        child.tokens, child.blocks = list(parent.tokens), list(self.shared_by_fork(parent))
        child.namespace, child.extras = parent.namespace, dict(parent.extras)
        child.num_computed_tokens = parent.num_computed_tokens
        child.num_cached_tokens = parent.num_cached_tokens
        child.settled, child.written = parent.settled, parent.written
        child.promoted = parent.promoted
        child.outdated = parent.outdated

    def fork(self, handle: int, n: int = 1) -> list[int]:
        parent = self.running(handle)
        self.check_not_promised(parent)
        handles = self.new_rows(whole("n", n, 1, 2**31))
        for new in handles:
            self.seqs[new] = Seq(new, [], b"", {}, self.size)
            self.become_fork(self.seqs[new], parent)
        self.count["forks"] += n
        return handles

    def reparent(self, handles: Iterable[int], parents: Iterable[int]) -> None:
        handles, order = list(handles), list(parents)
        if len(handles) != len(order):
            raise ValueError(f"parents must be as many as handles, got {len(order)}")
        seqs: list[Seq] = []
        for index, (handle, parent) in enumerate(zip(handles, order, strict=True)):
            seq = self.running(handle)
            if seq in seqs:
                raise ValueError(f"handles must be distinct, got {handle} twice")
            if whole("parents", parent, 0, len(order) - 1) != index:
                self.check_not_promised(seq)
            seqs.append(seq)
        changed = [i for i, parent in enumerate(order) if parent != i]
        for i in changed:
            self.check_not_promised(seqs[order[i]])
        before = [Seq(-1, [], b"", {}, self.size) for _ in seqs]
        for old, seq in zip(before, seqs, strict=True):
            self.become_fork(old, seq)
        tables = [seqs[i].blocks for i in changed]
        self.leaving = [block for table in reversed(tables) for block in table]
        for i in changed:
            self.become_fork(seqs[i], before[order[i]])
        while self.leaving:
            self.leaving.pop()
            self.settle_down()

    def free(
        self, handle: int, *, expect_reuse: bool | None = None, withdraw: bool = False
    ) -> None:
        if expect_reuse is not None:
            self.check_retention()
        seq = self.sequence(handle)
        if withdraw:
            self.withdraw(seq)
        self.check_not_promised(seq)
        if expect_reuse is not None and not seq.is_preempted:
            self.keep_tail(seq)
            self.hint(seq, expect_reuse)
        self.give_back(seq)
        del self.seqs[handle]
        self.generations[seq.row] += 1

    def give_back(self, seq: Seq) -> None:
        """Releases every block, tail first: a prefix is only useful from its start."""
        self.check_not_promised(seq)
        self.keep_tail(seq)
        while seq.blocks:
            seq.blocks.pop()
            self.settle_down()

    def keep_tail(self, seq: Seq) -> None:
        start = seq.promoted * self.size
        n = seq.num_computed_tokens - start
        least = self.config.min_partial_tokens if self.config.prefix_caching else 0
        if seq.outdated or not least or not least <= n < self.size:
            return
        block = seq.blocks[seq.promoted]
        if self.references(block) > 1 or block.content is not None or self.unresolved(block):
            return
        key = seq.tokens[: start + n]
        content = chain(key, self.size, seq.namespace, seq.extras)
        extras, tokens = content[1][-1]
        siblings = self.children((content[0], content[1][:-1]), extras)
        if all(sibling.tokens[:n] != tokens for sibling in siblings):
            self.publish(block, content)
            self.count["cached_tails"] += 1

    def preempt(self, handle: int, *, withdraw: bool = False) -> None:
        seq = self.running(handle)
        if withdraw:
            self.withdraw(seq)
        self.give_back(seq)
        seq.num_computed_tokens = seq.num_cached_tokens = seq.promoted = 0
        seq.settled = seq.written = 0
        seq.is_preempted, seq.outdated = True, False
        self.count["preemptions"] += 1

    def resume(self, handle: int, *, num_slots: int | None = None, read_cache: bool = True) -> None:
        seq = self.sequence(handle)
        if not seq.is_preempted:
            raise SequenceStateError(f"sequence {handle} is running")
        slots = self.checked_slots(seq, num_slots, watermark=0)
        # A sequence that grew past the watermark must be able to resume in an empty pool.
        share = self.share(seq.namespace)
        spare = self.limit(share) - -(-max(seq.num_tokens, slots) // self.size)
        held_back = min(self.watermark(share), spare)
        plan = self.fitting_plan(seq, slots, Terms(held_back, read_cache))
        self.settle_in(seq, plan, "resumed_" if read_cache else None)

    def decode(self, handles: Iterable[int], tokens: Iterable[int]) -> Any:
        self.check_no_open_ticket()
        seqs: list[Seq] = []
        moving: list[Block] = []
        new = [int(t) for t in tokens]
        for handle in handles:
            seq = self.running(int(handle))
            if seq in seqs:
                raise ValueError(f"handles must be distinct, got {handle} twice")
            if seq.num_slots < seq.num_tokens:
                raise SequenceStateError(f"sequence {handle} has tokens without slots")
            self.check_not_promised(seq)
            self.check_fits(seq, seq.num_tokens + 1)
            shared = self.must_copy(seq, moving)
            if shared is not None:
                moving.append(shared)
                self.check_written(seq)
                self.check_brought(seq, shared)
            seqs.append(seq)
        before = [(seq.num_computed_tokens, seq.settled, seq.written) for seq in seqs]
        for seq in seqs:
            seq.num_computed_tokens = seq.settled = seq.written = seq.num_tokens
        try:
            self.grow(seqs, [seq.num_tokens + 1 for seq in seqs])
        except OutOfBlocksError:
            for seq, (computed, settled, written) in zip(seqs, before, strict=True):
                seq.num_computed_tokens, seq.settled, seq.written = computed, settled, written
            raise
        for seq, token in zip(seqs, new, strict=True):
            self.promote(seq)
            seq.tokens.append(token)
        ends = [self.slot_mapping(s.handle, s.num_tokens - 1, s.num_tokens)[0] for s in seqs]
        return np.array(ends, np.int64)

    def check_brought(self, seq: Seq, shared: Block) -> None:
        """Counts tokens of a block as computed only up to those that a pending copy brings."""
        offset = len(seq.tokens) % self.size
        for copy in self.pending:
            if copy.destination is shared and copy.num_tokens < offset:
                raise StepError(f"sequence {seq.handle} waits for a copy")

    def take_remaps(self) -> list[Remap]:
        taken, self.remaps = self.remaps, []
        return taken

    # ---- looking at it ------------------------------------------------------------------

    def slot_mapping(self, handle: int, start: int, stop: int) -> Any:
        seq = self.sequence(handle)
        whole("stop", stop, 0, seq.num_slots)
        whole("start", start, 0, stop)
        table, size = seq.blocks, self.size
        return np.array([table[p // size].id * size + p % size for p in range(start, stop)], int)

    @property
    def block_tables(self) -> Any:
        tables = np.zeros((self.config.max_seqs, self.width), np.int32)
        for seq in self.seqs.values():
            tables[seq.row, : seq.num_blocks] = seq.block_ids
        return tables

    @property
    def seq_lens(self) -> Any:
        lengths = np.zeros(self.config.max_seqs, np.int32)
        for seq in self.seqs.values():
            lengths[seq.row] = 0 if seq.is_preempted else seq.num_tokens
        return lengths

    def handles(self) -> list[int]:
        return list(self.seqs)

    def row(self, handle: int) -> int:
        return self.sequence(handle).handle & 0xFFFFFFFF
