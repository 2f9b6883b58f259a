"""What a block has, with any block sizes; first read ``layouts.py``."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.specification.blocks import ANY_NUMBER, Block, Content, Copy, Prefix, Seq, cut
from tests.specification.boundaries import ModelBoundaries
from tests.specification.layers import Attention, Kind, RecurrentState, Ring, check_layout

__all__ = ["LayoutSeq", "ModelParts"]


@dataclass(eq=False)
class LayoutSeq(Seq):
    """A sequence, and what the fields of its groups ask to remember."""

    kinds: tuple[Kind, ...] = ()
    hit: int = 0  # up to here, cached groups were found; ``cached`` is where its forward began
    since: int = 0  # from here on, groups that are not cached have all that they computed
    proved: int = 0  # up to here, groups that look ahead were found
    begin: int = 0  # where the last step began, and
    reached: int = 0  # where it ended
    farthest: int = 0  # what a launched forward may have written, when it was last cut
    live: dict[int, int] = field(default_factory=dict)
    """By group of states, the slot in which the state is."""

    @property
    def num_slots(self) -> int:
        tables = zip(self.kinds, self.tables, strict=True)
        growing = [(kind, t) for kind, t in tables if isinstance(kind, Attention) or kind.moves]
        return min((len(t) * (k.block_size or self.size) for k, t in growing), default=ANY_NUMBER)


class ModelParts(ModelBoundaries):
    """What blocks have, who writes them, and which boundaries they serve."""

    index: dict[tuple[int, int], list[Block]] | None = None
    """Blocks by group and place, while what they have stays the same: all are looked up then."""

    has_nodes = False

    def __init__(self, *args: Any, stop_tokens: int | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        check_layout(self.kinds, self.size)
        sizes = [self.tokens_of(group) for group, _ in self.cached()]
        self.stop_tokens = stop_tokens or max(sizes, default=self.size)
        self.replay = max(kind.replay for kind in self.kinds)
        self.look_ahead = max(kind.look_ahead for kind in self.kinds)
        asked = (k.restart for k in self.kinds if not self.is_replayed(k))
        self.restart = math.lcm(*asked)
        self.to_zero: list[Block | None] = []
        self.zeroed: list[Block] = []  # in the step that is open

    # ---- groups ---------------------------------------------------------------------------

    def tokens_of(self, group: int) -> int:
        return self.kinds[group].block_size or self.size

    def is_replayed(self, kind: Kind) -> bool:
        """Whether a replay computes all that its query at the hit reads (G17)."""
        return self.replay > 0 and (kind.replay > 0 or kind.restart <= self.replay + 1)

    def attention(self) -> Iterator[tuple[int, Attention]]:
        return ((g, kind) for g, kind in enumerate(self.kinds) if isinstance(kind, Attention))

    def uncached(self) -> list[tuple[int, Attention]]:
        return []  # here, they are in ``attention``

    def cached(self) -> Iterator[tuple[int, Attention]]:
        return ((group, kind) for group, kind in self.attention() if kind.cached)

    def rings(self) -> list[int]:
        return [g for g, kind in enumerate(self.kinds) if isinstance(kind, Ring)]

    def growing(self) -> list[int]:
        return [g for g, k in enumerate(self.kinds) if isinstance(k, Attention) or k.moves]

    def num_entries(self, group: int, num_tokens: int) -> int:
        return -(-num_tokens // self.tokens_of(group))

    def goes_on(self, group: int, position: int) -> int:
        """The first entry that a sequence which goes on here reads or writes."""
        kind = self.kinds[group]
        if isinstance(kind, RecurrentState):  # one column, or the live one
            return max(0, position - 1) // self.tokens_of(group) if kind.moves else 0
        return kind.first_read(position) // self.tokens_of(group)

    def position(self, seq: LayoutSeq, group: int) -> int:
        """Where its next forward begins to write in a group."""
        kind = self.kinds[group]
        if not kind.cached or not isinstance(kind, Attention):
            return seq.computed
        # What looks ahead waits for the tokens after it (G14).
        written = max(seq.proved, seq.computed - kind.look_ahead) if kind.look_ahead else 0
        return written if kind.look_ahead else max(seq.hit, seq.computed)

    # ---- what blocks have -------------------------------------------------------------------

    def new_seq(self, handle: int = -1) -> LayoutSeq:
        tables: list[list[Block | None]] = [[] for _ in self.kinds]
        return LayoutSeq(
            handle, b"", [], {}, self.size, self.lead, self.lead, tables, kinds=self.kinds
        )

    def reaches(self, block: Block) -> int:
        """The end of the tokens that a block has."""
        assert block.content is not None
        return len(block.content[1][1]) - self.kinds[block.content[0]].look_ahead

    def holding(self, content: Content, ahead: Prefix | None = None) -> list[Block]:
        """The blocks that have this: those in use, and then the oldest, first.

        ahead: the prompt, which must agree as far as the group looks ahead; None: any prompt.
        """
        group, prefix = content
        if group in self.recurrent():
            return [block for block in self.live if block.content == content]
        end, size, ahead_by = len(prefix[1]), self.tokens_of(group), self.kinds[group].look_ahead
        start, seen, most = (end - 1) // size * size, end + ahead_by, ahead_by + size
        index = self.index
        blocks = self.live if index is None else index[group, start]
        found = [
            block
            for block in blocks
            if block.content is not None
            and block.content[0] == group
            and seen <= len(block.content[1][1]) <= start + most
            and cut(block.content[1], end) == prefix
            and (ahead is None or cut(block.content[1], seen) == cut(ahead, seen))
        ]
        return sorted(found, key=lambda b: (b.unwritten, b.stamp is not None, b.linked))

    @contextmanager
    def indexed(self) -> Iterator[None]:
        """Within it, no block changes."""
        self.index = defaultdict(list)
        for block in self.live:
            if block.content is not None and block.content[0] not in self.recurrent():
                size = self.tokens_of(block.content[0])
                start = (self.reaches(block) - 1) // size * size
                self.index[block.content[0], start].append(block)
        try:
            yield
        finally:
            self.index = None

    def find(self, content: Content) -> Block | None:
        return next(iter(self.holding(content)), None)

    def writer(self, block: Block) -> Seq | None:
        """The sequence that may write in it, if any (G2)."""
        own = block.writer
        held = own is not None and any(block in table for table in own.tables)
        return own if held else None

    def is_needed_behind(self, block: Block, position: int, seq: Seq | None = None) -> bool:
        """Whether anybody else needs what a block has from a position on."""
        if any(block in t for s in self.seqs.values() if s is not seq for t in s.tables):
            return True
        if block.content is None or self.reaches(block) <= position:
            return False
        contents = {c for p in self.stamps for c in self.needs(p) if len(c[1][1]) > position}
        return any(self.holding(c) == [block] for c in contents if c[0] == block.content[0])

    def may_write(self, block: Block, position: int) -> bool:
        """Whether a sequence may become its writer there (G2, G3)."""
        return (
            block.stamp is not None  # a copy that waits may have kept it from its fence
            and not self.fenced(block.fence)
            and not block.unwritten
            and not self.is_needed_behind(block, position)
        )

    def shorten_content(self, block: Block, position: int) -> None:
        """What is behind will be overwritten (G4)."""
        if block.content is not None and self.reaches(block) > position:
            group, prefix = block.content
            prefix = cut(prefix, position + self.kinds[group].look_ahead)
            has_some = position % self.tokens_of(group) > 0
            block.content = (group, prefix) if has_some else None

    def adopt(self, seq: Seq) -> None:
        """Nobody else has what is new in its tables."""
        for block in (block for table in seq.tables for block in table if block):
            if block.content is None and self.writer(block) is None:
                block.writer = seq

    def served(self) -> dict[Prefix, int]:
        with self.indexed():
            return super().served()

    def useless(self) -> list[Block]:
        """The idle blocks of which no boundary needs anything (G5, G6, G7)."""
        kept = {block for block in self.live if block.stamp is None}
        needed = {content for prefix in self.stamps for content in self.needs(prefix)}
        with self.indexed():
            for content in sorted(needed, key=lambda content: -len(content[1][1])):
                found = self.holding(content)
                if not kept.intersection(found):
                    kept.update(found[:1])
        return [block for block in self.live if block not in kept]

    def is_awaited(self, copy: Copy) -> bool:
        """A kept state is in no table (G9)."""
        return super().is_awaited(copy) or copy.destination.content is not None

    def is_being_kept(self, block: Block) -> bool:
        return any(block is copy.destination and copy.keeps for copy in self.waiting())

    # ---- boundaries -----------------------------------------------------------------------

    def may_hit(self, length: int) -> bool:
        """Whether rings are right there when they begin empty, or are computed again (G17, G19)."""
        return length == 0 or (length % self.restart == 0 and length > self.replay)

    def needs_of(self, prefix: Prefix, first: int | None = None) -> list[Content]:
        assert first is None, "of a margin, it has none"
        length = len(prefix[1])
        found: list[Content] = []
        for group, _ in self.cached():
            size = self.tokens_of(group)
            entries = range(self.goes_on(group, length), self.num_entries(group, length))
            found += [(group, cut(prefix, min((j + 1) * size, length))) for j in entries]
        return found + [(group, prefix) for group in self.recurrent() if length]

    def serves(self, prefix: Prefix) -> bool:
        return self.may_hit(len(prefix[1])) and super().serves(prefix)

    def cached_prefixes(self) -> set[Prefix]:
        ends = {block.content[1] for block in self.live if block.content is not None}
        nodes = {cut(p, n) for p in ends for n in range(self.size, len(p[1]) + 1, self.size)}
        return nodes | set(self.stamps)

    def evict(self, share: bytes | None) -> None:
        """If nothing is free then, the boundary above it in the same block goes, too (G22)."""
        victim: Prefix | None = self.next_victim(share)
        free = len(self.free_blocks(share))
        while victim is not None and len(self.free_blocks(share)) == free:
            self.stamps.pop(victim, None)
            self.settle()
            victim = self.above(victim)
        self.count["evicted_blocks"] += 1

    def candidates(self, share: bytes | None) -> list[Prefix]:
        idle = self.idle_of(share)
        return [p for p in self.stamps if any(self.find(c) in idle for c in self.needs(p))]

    def above(self, boundary: Prefix) -> Prefix | None:
        length = len(boundary[1])
        largest = max((self.tokens_of(group) for group, _ in self.cached()), default=1)
        start = (length - 1) // largest * largest
        over = [p for p in self.stamps if start < len(p[1]) < length]
        over = [p for p in over if cut(boundary, len(p[1])) == p]
        return max(over, key=lambda p: len(p[1]), default=None)
