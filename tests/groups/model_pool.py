"""The specification of groups, part one: blocks, boundaries, eviction and copies.

Every answer comes from a full scan. A cached block knows its group and the whole prefix that it
holds; whether it is in use is recomputed from the tables and the copies.

A *boundary* is a prefix at which a prompt can continue: every group holds what the next query
reads. The manager remembers and evicts boundaries, not blocks (rule 15). An idle block that no
boundary needs becomes free immediately.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.groups.kinds import Attention, FullAttention, Kind, RecurrentState
from tests.groups.memory import Prefix

Content = tuple[int, Prefix]
"""A group, and the prefix that ends with the block; for a state, the consumed prefix."""


class OutOfBlocks(Exception):
    """Too few blocks at the moment; nothing has changed."""


class NeverFits(Exception):
    """The call needs more blocks than there are."""


class WrongStep(Exception):
    """The call has to wait until a commit tells where the state is."""


@dataclass(eq=False)
class Block:
    id: int
    share: bytes | None = None  # the namespace whose quota has it; None: the common rest
    content: Content | None = None  # set: can be found
    unwritten: int = 0  # tokens at its end that the forward of this step has yet to write

    def __repr__(self) -> str:
        return f"<block {self.id}: {self.content}>"


@dataclass(eq=False)
class Copy:
    """A copy of the leading tokens of a block to another one; a state is copied whole."""

    group: int
    source: Block
    destination: Block
    num_tokens: int
    keeps: bool = False
    """The source is a state that was kept by this copy: it is found once the copy is applied."""

    def ends(self) -> tuple[int, Block, Block, int]:
        return self.group, self.source, self.destination, self.num_tokens


@dataclass(eq=False)
class Seq:
    handle: int
    namespace: bytes
    tokens: list[int]
    tables: list[list[Block | None]]
    """For each group its blocks by unit, None where it has none; for a state, one block."""

    computed: int = 0
    settled: int = 0
    """The part of these that was not committed early in this step: its forward begins here."""

    written: int = 0
    """The part of these that is in memory before the forward of this step."""

    cached: int = 0
    promoted: int = 0
    """Leading units of which every group has decided whose block is findable."""

    stops: set[int] = field(default_factory=set)
    diverges: int = 0
    """Where its prompt diverges from what full attention has; 0: from the beginning."""

    last: int = 0
    """The last unit boundary at which its prompt can be found again; 0: prompts diverge there."""

    prompt_end: int = 0
    """The stop near the end of the prompt, which the next turn repeats without the answer."""

    named: set[int] = field(default_factory=set)
    """Without states: where prompts may continue, so that boundaries there are not just passed."""

    """Where a forward should stop, so that a state can be kept there."""

    retained: dict[int, int] = field(default_factory=dict)
    """By unit, the level that it gets when it can be found."""

    retained_end: int = 0
    """The end of the retained prefix: prompts are expected to continue from there."""

    stands: bool = True
    """Whether its states are known to be at ``computed``: no launched forward has moved them."""

    moves: int = 0
    """Steps that were closed since, each of which may have moved them."""

    preempted: bool = False

    def prefix(self, length: int) -> Prefix:
        return self.namespace, tuple(self.tokens[:length])


def cut(prefix: Prefix, length: int) -> Prefix:
    return prefix[0], prefix[1][:length]


class ModelPool:
    """Blocks, found by scanning all of them."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        kinds: Sequence[Kind],
        quotas: Mapping[bytes, int] | None = None,
    ) -> None:
        self.size = block_size
        self.kinds = tuple(kinds)
        self.quotas = dict(quotas or {})
        owners: list[bytes | None] = [
            name for name, count in self.quotas.items() for _ in range(count)
        ]
        owners += [None] * (num_blocks - 1 - len(owners))
        self.owners = tuple(owners)
        self.blocks = [Block(i, owner) for i, owner in enumerate(owners, 1)]  # 0 is the null block
        self.seqs: dict[int, Seq] = {}
        self.pending: list[Copy] = []
        self.flight: list[Copy] = []
        self.held: list[Block] = []  # within a call
        self.holds: list[Block] = []  # one entry per hold
        self.stamps: dict[Prefix, int] = {}
        self.passed: dict[Prefix, None] = {}
        self.continued: set[Prefix] = set()
        """Boundaries from which a prompt has continued, or where prompts diverge."""

        self.shared: set[Prefix] = set()
        """Those from which a second prompt has continued, or where prompts diverge."""

        self.observed: set[Prefix] = set()
        """For one sequence in 32: where it continued, its last whole unit, and its end. Prompts
        that continue from these are counted."""

        self.wholes, self.ends, self.agains, self.num_ended = 1, 4, 1, 0

        self.levels: dict[Prefix, int] = {}
        """The levels of units that callers want kept longer, or less long; 0 for all others."""

        self.clock = itertools.count(1)
        self.evicted = 0
        self.open_steps: tuple[int, ...] = ()
        """Tickets of launched steps that are not complete, if the device may lag behind."""

        self.fences: dict[Block, int] = {}
        """The last step that was open when a block was released."""

        self.used: set[Block] = set()
        self.known_needs: dict[Prefix, list[Content]] = {}

    # ---- groups -------------------------------------------------------------------------

    def attention(self) -> Iterator[tuple[int, Attention]]:
        for group, kind in enumerate(self.kinds):
            if not isinstance(kind, RecurrentState):
                yield group, kind

    def full_attention(self) -> list[int]:
        return [g for g, kind in enumerate(self.kinds) if isinstance(kind, FullAttention)]

    def recurrent(self) -> list[int]:
        return [g for g, kind in enumerate(self.kinds) if isinstance(kind, RecurrentState)]

    def units(self, num_tokens: int) -> int:
        return -(-num_tokens // self.size)

    def first_unit(self, kind: Attention, position: int) -> int:
        """The first unit that the query at this position, or a later one, reads or writes."""
        return kind.first_read(position) // self.size

    def needs(self, prefix: Prefix) -> list[Content]:
        """What must be cached for a prompt to continue after this prefix (rules 11 and 13)."""
        if prefix not in self.known_needs:
            self.known_needs[prefix] = self.needs_of(prefix)
        return self.known_needs[prefix]

    def needs_of(self, prefix: Prefix) -> list[Content]:
        length = len(prefix[1])
        found: list[Content] = []
        for group, kind in self.attention():
            units = range(self.first_unit(kind, length), self.units(length))
            ends = (min((unit + 1) * self.size, length) for unit in units)
            found += [(group, cut(prefix, end)) for end in ends]
        return found + [(group, prefix) for group in self.recurrent() if length]

    # ---- blocks -------------------------------------------------------------------------

    def find(self, content: Content) -> Block | None:
        return next((block for block in self.blocks if block.content == content), None)

    def references(self, block: Block) -> int:
        """The number of references from tables."""
        return sum(table.count(block) for s in self.seqs.values() for table in s.tables)

    def in_use(self) -> set[Block]:
        used = {b for s in self.seqs.values() for table in s.tables for b in table if b}
        used.update(self.held, self.holds)
        for copy in self.pending + self.flight:
            used |= {copy.source, copy.destination}
        return used

    def share(self, namespace: bytes) -> bytes | None:
        """The share of a namespace; one without a quota uses the common rest."""
        return namespace if namespace in self.quotas else None

    def blocks_of(self, share: bytes | None) -> list[Block]:
        return [block for block in self.blocks if block.share == share]

    def free_blocks(self, share: bytes | None = None) -> list[Block]:
        used = self.in_use()
        free = [b for b in self.blocks_of(share) if b not in used and b.content is None]
        return [block for block in free if not self.fenced(block)]

    def idle_blocks(self) -> list[Block]:
        used = self.in_use()
        return [block for block in self.blocks if block not in used and block.content is not None]

    def fenced(self, block: Block) -> bool:
        """Whether a launched step may still read it; it can be found but not allocated."""
        return any(step <= self.fences.get(block, 0) for step in self.open_steps)

    def evictable(self, share: bytes | None = None) -> list[Block]:
        idle = self.idle_blocks()
        return [b for b in self.blocks_of(share) if b in idle and not self.fenced(b)]

    def available(self, share: bytes | None = None) -> int:
        return len(self.free_blocks(share)) + len(self.evictable(share))

    # ---- boundaries ---------------------------------------------------------------------

    def serves(self, prefix: Prefix) -> bool:
        """Whether every group has what the query after this prefix reads."""
        return all(self.find(content) for content in self.needs(prefix))

    def boundaries(self, prefix: Prefix) -> list[Prefix]:
        """The boundaries of a path, the deepest first: its end, and the end of each unit."""
        length = len(prefix[1])
        ends = {length, *range(self.size, length + 1, self.size)} - {0}
        return [cut(prefix, end) for end in sorted(ends, reverse=True)]

    def touch(self, prefix: Prefix) -> None:
        """Marks the path as just used; its deepest boundary will be evicted first."""
        for boundary in self.boundaries(prefix):
            if self.serves(boundary):
                self.stamps[boundary] = next(self.clock)

    def settle(self) -> None:
        """Updates copies, boundaries and free blocks after a change.

        Drops copies that no sequence waits for, forgets boundaries that have lost a block, and
        frees blocks that no boundary needs.
        """
        holders = {b for s in self.seqs.values() for table in s.tables for b in table if b}
        holders.update(self.held)
        self.pending = [copy for copy in self.pending if copy.destination in holders]
        self.stamps = {p: stamp for p, stamp in self.stamps.items() if self.serves(p)}
        self.passed = {p: None for p in self.passed if p in self.stamps}
        self.continued.intersection_update(self.stamps)
        self.shared.intersection_update(self.stamps)
        self.observed.intersection_update(self.stamps)
        needed = {content for prefix in self.stamps for content in self.needs(prefix)}
        for block in self.idle_blocks():
            if block.content not in needed:
                block.content = None
        known = self.known()
        self.levels = {p: level for p, level in self.levels.items() if p in known}
        self.give_levels(known)
        used = self.in_use()
        for block in self.used - used:
            self.fences[block] = max(self.open_steps, default=0)
        self.used = used

    def runs_along(self, boundary: Prefix) -> bool:
        """Whether a running sequence has this prefix computed."""
        length = len(boundary[1])
        return any(
            s.prefix(length) == boundary and s.computed >= length
            for s in self.seqs.values()
            if not s.preempted
        )

    def level(self, boundary: Prefix) -> int:
        """The highest level of the units that continue it: it never rises with depth (rule 3)."""
        length = len(boundary[1])
        longer = {boundary} | {p for p in self.known() if cut(p, length) == boundary}
        return max(self.levels.get(p, 0) for p in longer)

    def known(self) -> set[Prefix]:
        """The prefixes that cached blocks hold."""
        return {block.content[1] for block in self.blocks if block.content is not None}

    def retain(self, tokens: list[int], level: int, namespace: bytes = b"") -> int:
        """Gives the units of a prompt this level; returns their number.

        Only units up to the last boundary get it. With a level above normal, the end is more than
        passed.
        """
        prefix = (namespace, tuple(tokens))
        ends = range(len(tokens) // self.size * self.size, 0, -self.size)
        end = next((end for end in ends if self.can_go_on(cut(prefix, end))), 0)
        units = {cut(prefix, length) for length in range(self.size, end + 1, self.size)}
        self.levels |= dict.fromkeys(units & self.known(), level)
        if level > 0 and end:
            self.keep_boundary(cut(prefix, end))
        return end // self.size

    def can_go_on(self, prefix: Prefix) -> bool:
        """Whether a prompt finds this prefix."""
        return self.serves(prefix)

    def keep_boundary(self, boundary: Prefix) -> None:
        """Marks a boundary from which prompts will probably continue."""
        if boundary not in self.stamps:
            self.stamps[boundary] = next(self.clock)
        self.passed.pop(boundary, None)
        self.continued.add(boundary)

    def acquire(self, ids: list[int]) -> None:
        """Holds blocks, so that they are not allocated.

        A hold does not keep a boundary: if the boundary is evicted, its held blocks are freed with
        the hold.
        """
        self.holds += [self.blocks[block - 1] for block in ids]

    def release(self, ids: list[int]) -> None:
        for block in ids:
            self.holds.remove(self.blocks[block - 1])
        self.settle()

    def give_levels(self, known: set[Prefix]) -> None:
        """Gives units the levels that running sequences requested, once they can be found.

        With several requests, the highest level wins.
        """
        for seq in self.seqs.values():
            for unit, level in list(seq.retained.items()):
                prefix = seq.prefix(min((unit + 1) * self.size, seq.computed))
                if unit < self.units(seq.computed) and prefix in known:
                    self.levels[prefix] = max(level, self.levels.get(prefix, level))
                    del seq.retained[unit]

    def next_victim(self, share: bytes | None) -> Prefix:
        """The boundary to evict next.

        Boundaries that sequences only passed go first, whatever their level and whatever they free:
        the oldest path first, and of a path the deepest. Then the lowest level goes first; within a
        level the oldest path, with its deepest boundary first; paths in use go last. A boundary
        whose blocks are all in use frees nothing and is not a victim.
        """
        passed = [p for p in self.passed if self.share(p[0]) == share]
        if passed:
            return passed[0]
        idle = {block.content for block in self.evictable(share)}
        candidates = [p for p in self.stamps if idle.intersection(self.needs(p))]

        def order(prefix: Prefix) -> tuple[int, bool, int]:
            in_use, stamp = self.runs_along(prefix), self.stamps[prefix]
            return self.level(prefix), in_use, -stamp if in_use else stamp

        return min(candidates, key=order)

    def take(self, count: int, share: bytes | None) -> list[Block]:
        """Allocates free blocks; the caller has checked that there are enough."""
        while len(self.free_blocks(share)) < count:
            del self.stamps[self.next_victim(share)]
            self.settle()
            self.evicted += 1
        taken = self.free_blocks(share)[:count]
        self.held += taken
        return taken
