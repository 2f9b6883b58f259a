"""Calls on single blocks, on the whole cache, and on what was committed too early."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from blockmgr.blocks import Remap
from blockmgr.digest import digest_function, digest_size
from blockmgr.errors import BlockStateError, StepError
from blockmgr.stats import RecentHits
from tests.specification.admission import ModelAdmission, whole
from tests.specification.blocks import Block, Prefix, Seq, cut

__all__ = ["ModelForgetting"]


class ModelForgetting(ModelAdmission):
    """Holds, resets, withdrawals, and content that turns out to be wrong."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.remaps: list[Remap] = []
        self.lookups: list[tuple[int, int]] = []  # tokens and hits of each request

    # ---- single blocks ------------------------------------------------------------------

    def block(self, block_id: int) -> Block | None:
        whole("blocks", block_id, self.first_id, self.config.num_blocks - 1)
        return next((block for block in self.live if block.id == block_id), None)

    def known(self, blocks: Iterable[int]) -> list[Block]:
        """Blocks that a table names, that a prompt can find, or that a caller holds."""
        found = []
        for block_id in blocks:
            block = self.block(block_id)
            named = block is not None and (block.content or self.references(block))
            if block is None or not (named or block in self.holds):
                raise BlockStateError(block_id, "it is not held, and it is not cached")
            found.append(block)
        return found

    def acquire(self, blocks: Iterable[int]) -> None:
        """Holds blocks, so that they are not allocated."""
        self.holds += self.known(blocks)
        self.settle()

    def release(self, blocks: Iterable[int]) -> None:
        chosen = [self.block(block_id) for block_id in blocks]
        for block in chosen:
            if block is None or self.holds.count(block) < chosen.count(block):
                raise BlockStateError(0 if block is None else block.id, "it is not held so often")
        for block in chosen:
            assert block is not None
            self.holds.remove(block)
            self.settle()

    def is_cached(self, block: int) -> bool:
        found = self.block(block)
        return found is not None and found.content is not None

    def ref_count(self, block: int) -> int:
        found = self.block(block)
        return 0 if found is None else self.references(found) + self.holds.count(found)

    def block_ids(self, handle: int, start: int = 0) -> list[int]:
        return [block.id for block in self.sequence(handle).blocks[start:]]

    # ---- wrong content ------------------------------------------------------------------

    def forget_after(self, prefix: Prefix, wrong: set[Block]) -> int:
        """Forgets all that continues a prefix, in all groups; twins of it have no twin then."""
        gone = [b for b in self.live if b.content and self.continues(b.content[1], prefix)]
        for other in self.live:
            if other.twin in gone:
                other.twin = None
        for block in gone:
            wrong.add(block)
            self.lose(block)
        self.settle()
        return len(gone)

    def forget_table(self, seq: Seq, wrong: set[Block]) -> int:
        """A sequence has read the wrong block that it holds, so all its later blocks are wrong."""
        held = [(g, u) for g, t in enumerate(seq.tables) for u, b in enumerate(t) if b in wrong]
        if not held:
            return 0
        seq.outdated, seq.promoted = True, 0
        units = [unit for group, unit in held if group not in self.recurrent()]
        count = 0
        for group, _ in self.attention() if units else ():
            for later in seq.tables[group][min(units) :]:
                if later is not None:
                    later.twin = None
                    wrong.add(later)
                    count += self.forget_after(later.content[1], wrong) if later.content else 0
        if units and len(self.kinds) > 1:  # states that it kept, and windows that it has left
            count += self.forget_after(seq.prefix((min(units) + 1) * self.size), wrong)
        return count

    def forget(self, blocks: Iterable[int]) -> int:
        """No prompt finds these blocks any more, nor what was computed after them.

        Sequences that have one of them continue, and cache nothing more.
        """
        chosen = [self.block(block_id) for block_id in blocks]
        if any(map(self.promises, self.seqs.values())):
            raise StepError("a sequence has tokens committed early in this step")
        wrong = {block for block in chosen if block is not None}
        count = 0
        for block in chosen:
            if block is not None and block.content:
                count += self.forget_after(block.content[1], wrong)
        known = 0
        while known < len(wrong):
            known = len(wrong)
            count += sum(self.forget_table(seq, wrong) for seq in self.seqs.values())
        for seq in self.seqs.values():
            for group, _ in self.attention():
                blocks_of = enumerate(seq.tables[group])
                alone = (i for i, b in blocks_of if b and not b.content and b.twin is None)
                seq.promoted = min(seq.promoted, next(alone, seq.promoted))
        self.count["forgotten_blocks"] += count
        return count

    # ---- the size of a live pool --------------------------------------------------------
    # Which ids are out of use says ``out``: the last ones, but ids are compared up to renaming.

    def shrink(self, num_blocks: int, out: Iterable[int] | None = None) -> int:
        """Takes blocks out of use: what they hold is forgotten, and they are not handed out."""
        least, most = self.first_id + sum(self.quotas.values()), self.config.num_blocks
        limit = whole("num_blocks", num_blocks, least, most - len(self.out))
        if limit < most - len(self.out):
            gone = set(range(limit, most) if out is None else out) - self.out
            self.forget(sorted(gone))
            self.out |= gone
        return len(self.out) - self.num_withheld()

    def grow(self, num_blocks: int, out: Iterable[int] | None = None) -> None:
        """Takes blocks back into use; those that have not left just stay."""
        most = self.config.num_blocks
        limit = whole("num_blocks", num_blocks, most - len(self.out), most)
        self.out = set(range(limit, most) if out is None else out)

    def leaving(self) -> dict[int, list[int]]:
        """The blocks out of use that have not left, with the sequences that have them."""
        owned = {block.id: block for block in self.live}
        seqs = sorted(self.seqs.values(), key=lambda seq: seq.row)
        return {
            i: [s.handle for s in seqs if any(owned.get(i) in t for t in s.tables if i in owned)]
            for i in sorted(self.out)
            if i in owned or self.fenced(self.fence_of_id.get(i, 0))
        }

    # ---- the whole cache ----------------------------------------------------------------

    def reset_prefix_cache(self, *, reset_hit_rate: bool = True) -> int:
        running = [seq for seq in self.seqs.values() if not seq.preempted]
        if any(map(self.promises, running)):
            raise StepError("a sequence has tokens committed early in this step")
        for seq in running:
            seq.outdated, seq.promoted = True, 0
        cached = [block for block in self.live if block.content is not None]
        for block in self.live.copy():
            block.twin = None
            if block in cached:
                self.lose(block)
        self.settle()
        self.count["forgotten_blocks"] += len(cached)
        if reset_hit_rate:
            self.lookups.clear()
        return len(cached)

    def reset_hit_rate(self) -> None:
        self.lookups.clear()

    def recent_hits(self) -> RecentHits:
        window = self.config.hit_rate_window
        last = self.lookups[-window:] if window else []
        return RecentHits(
            requests=len(last),
            query_tokens=sum(query for query, _ in last),
            hit_tokens=sum(hit for _, hit in last),
        )

    def num_common_prefix_blocks(self, handles: Iterable[int] | None = None) -> int:
        running = [seq for seq in self.seqs.values() if not seq.preempted]
        chosen = running if handles is None else [self.running(handle) for handle in handles]
        computed = [seq.blocks[: seq.computed // self.size] for seq in chosen]
        columns = zip(*computed, strict=False)
        differing = (i for i, blocks in enumerate(columns) if len(set(blocks)) > 1)
        return next(differing, min(map(len, computed), default=0))

    def block_digests(
        self, tokens: Iterable[int], *, namespace: object = b"", extras: object = None
    ) -> list[bytes]:
        if not self.config.prefix_caching:
            raise ValueError("needs prefix_caching")
        seq = self.prompt(tokens, namespace, extras)
        function = digest_function(self.config.digest)
        before = function(seq.namespace) if seq.namespace else bytes(digest_size(function))
        digests: list[bytes] = []
        for unit in range(len(seq.tokens) // self.size):
            of_unit = seq.tokens[unit * self.size :][: self.size]
            numbers = b"".join(token.to_bytes(4, "little") for token in of_unit)
            before = function(before + seq.extra(unit) + numbers)
            digests.append(before)
        return digests

    # ---- early commits ------------------------------------------------------------------

    def promises(self, seq: Seq) -> bool:
        """Whether other sequences may rely on what its next forward writes."""
        return seq.computed > seq.settled or seq.replayed > seq.begun

    def check_not_promised(self, seq: Seq) -> None:
        if self.promises(seq):
            raise StepError(f"sequence {seq.handle} has tokens committed early in this step")

    def check_not_loading(self, seq: Seq) -> None:
        if seq.loads:
            raise StepError(f"sequence {seq.handle} is being loaded")

    def check_no_open_ticket(self) -> None:
        if self.early and self.taken is not None:  # it could be about this forward or the next one
            raise StepError(f"ticket {self.last_ticket} is open: this step's forward is fixed")

    def limit_computed(self, seq: Seq, most: int) -> None:
        seq.computed = min(seq.computed, most)
        seq.settled, seq.written = min(seq.settled, most), min(seq.written, most)

    def withdraw(self, seq: Seq) -> None:
        """Withdraws tokens that were committed ahead of a forward that will not write them."""
        if not self.promises(seq):
            return
        self.check_no_open_ticket()
        first = seq.settled // self.size
        tables = (seq.tables[group][first : seq.promoted] for group, _ in self.attention())
        unwritten = [block for table in tables for block in table if block and block.unwritten]
        if any(self.references(block) > 1 for block in unwritten):
            raise StepError(f"others share what sequence {seq.handle} committed")
        for block in reversed(unwritten):
            block.unwritten, block.twin = 0, None
            # The release passes the key to a twin that the same forward writes for another
            # sequence.
            if block.content and all(other.twin is not block for other in self.live):
                if block.content[0] == self.identity:  # it may have got children through a twin
                    self.forget_after(block.content[1], set())
                else:
                    self.lose(block)
        seq.promoted, seq.replayed = min(seq.promoted, first), seq.begun
        self.limit_computed(seq, seq.settled)
        self.settle()

    def continues(self, prefix: Prefix, start: Prefix) -> bool:
        """Whether what ends a prefix was computed from all of another one."""
        return cut(prefix, len(start[1])) == start
