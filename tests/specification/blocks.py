"""Blocks, what they contain, who uses them, and which of them are free.

Nothing here is counted, linked or hashed: every answer comes from a scan of the block tables and
the copies. A findable block stores the whole prefix that it ends, so a look-up is a scan for equal
content.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from blockmgr.blocks import Priority
from blockmgr.config import ManagerConfig
from blockmgr.stats import QuotaUsage, Stats
from tests.specification.layers import (
    Attention,
    FullAttention,
    Kind,
    Nodes,
    RecurrentState,
    Ring,
    kinds_of,
)

__all__ = ["Block", "Content", "Copy", "ModelBlocks", "Prefix", "Seq", "common", "cut", "marked"]

ANY_NUMBER = 1 << 40
"""Of slots: states alone need no blocks for their tokens. And of nodes, if none is given."""

NODES = b"nodes"
"""The share of blocks without memory, see ``layers.Nodes``; no namespace has it."""

FIRST_CHILDREN = 32
"""How many continuations of a block a prompt is compared with to continue within a block."""

Prefix = tuple[bytes, tuple[Any, ...]]
"""A namespace, and all tokens from the first on. A token of a block with extras comes with them."""

Content = tuple[int, Prefix]
"""A group, and the prefix that ends with the block; of a state, the prefix it has consumed."""


def marked(tokens: Iterable[int], extra: bytes) -> tuple[Any, ...]:
    """The tokens of one block, as they stand in a prefix."""
    return tuple((token, extra) for token in tokens) if extra else tuple(tokens)


def cut(prefix: Prefix, length: int) -> Prefix:
    return prefix[0], prefix[1][:length]


def common(left: Sequence[object], right: Sequence[object]) -> int:
    """The length of the longest common beginning."""
    pairs = zip(left, right, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


@dataclass(eq=False)
class Block:
    """One use of a physical block, from when it is taken until its content is lost."""

    id: int
    serial: int
    share: bytes | None = None  # the namespace whose quota it belongs to; None: the common rest
    content: Content | None = None  # set: findable
    linked: int = 0  # when it became findable
    unwritten: int = 0  # tokens at its end that the forward of this step has yet to write
    twin: Block | None = None  # the findable block with the same content, if this one is private
    twinned: int = 0  # when it got that twin
    stamp: int | None = None  # when it became unused; None: in use
    fence: int = 0  # the ticket that must complete before it is handed out
    retention: tuple[int, float] | None = None  # a level, and the time it ends
    hint: int = Priority.NORMAL  # the hint of its last user

    def __repr__(self) -> str:
        return f"<block {self.id}: {self.content}>"


@dataclass(eq=False)
class Copy:
    """A copy of the leading tokens of a block to another one; a state is copied whole."""

    group: int
    source: Block
    destination: Block
    num_tokens: int
    keeps: bool = False  # the source is a state, which is found once the copy is applied


@dataclass(eq=False)
class Seq:
    """A sequence, and the view ``sequence()`` gives of it."""

    handle: int
    namespace: bytes
    tokens: list[int]
    extras: Mapping[int, bytes]
    size: int
    lead: int | None  # the first group with full attention, or else with any; None: states alone
    counted: int | None  # the group with a block for each of its units; None: states alone
    tables: list[list[Block | None]] = field(default_factory=list)
    """For each group its blocks by unit, None where it has none; for a state, its slots."""

    computed: int = 0
    settled: int = 0  # of those, what was not committed early in this step: its forward begins here
    written: int = 0  # of those, what is in memory before the forward of this step
    cached: int = 0
    promoted: int = 0  # leading units of which every group has decided whose block is findable
    preempted: bool = False
    outdated: bool = False  # continues K/V that the cache has forgotten: it caches nothing more

    stops: set[int] = field(default_factory=set)
    """Where a forward should stop, so that a state can be kept there."""

    named: set[int] = field(default_factory=set)
    """Without states: where prompts may continue, so that boundaries there are not just passed."""

    diverges: int = 0  # where its prompt diverges from what full attention has; 0: at its beginning
    last: int = 0  # the last end of a unit at which it can be found again; 0: prompts diverge there
    prompt_end: int = 0  # the stop near its end, which the next turn repeats without the answer
    retained: dict[int, int] = field(default_factory=dict)
    """By unit, the level that it gets when it can be found."""

    retained_end: int = 0  # the end of the retained prefix: prompts will continue from there
    stands: bool = True  # its states are at ``computed``: no launched forward has moved them
    moves: int = 0  # steps that were closed since, each of which may have moved them
    slot: int = 0  # of the slots of a state, the one that it is in
    since: int = 0  # its rings were empty here
    farthest: int = 0  # up to here, launched forwards may have written them
    again: tuple[int, int] = (0, 0)  # computed again, for uncached groups alone: see ``computed``
    replayed: int = 0  # up to here, they are
    begun: int = 0  # of those, what was not committed early in this step
    loads: int = 0  # so many leading tokens are being loaded; 0: none, or they are committed

    row = property(lambda self: self.handle & 0xFFFFFFFF)
    num_tokens = property(lambda self: len(self.tokens))
    replays = property(lambda self: self.replayed < self.again[1])
    begins = property(lambda self: self.begun if self.begun < self.again[1] else self.settled)
    num_computed_tokens = property(lambda s: s.replayed if s.replays else s.computed)
    num_replayed_tokens = property(lambda self: self.again[1] - self.again[0])
    num_cached_tokens = property(lambda self: self.cached - self.num_replayed_tokens)
    is_preempted = property(lambda self: self.preempted)
    blocks = property(lambda self: self.tables[self.lead or 0])
    num_blocks = property(lambda self: len(self.blocks))
    block_ids = property(lambda self: np.array([b.id if b else 0 for b in self.blocks], np.int32))

    @property
    def num_slots(self) -> int:
        return ANY_NUMBER if self.counted is None else len(self.tables[self.counted]) * self.size

    def prefix(self, length: int) -> Prefix:
        tokens = self.tokens[:length]
        if not self.extras:
            return self.namespace, tuple(tokens)
        units = range(0, len(tokens), self.size)
        parts = (marked(tokens[s : s + self.size], self.extra(s // self.size)) for s in units)
        return self.namespace, tuple(itertools.chain.from_iterable(parts))

    def extra(self, unit: int) -> bytes:
        return self.extras.get(unit, b"")

    def state(self, group: int) -> Block:
        block = self.tables[group][self.slot]
        assert block is not None
        return block

    def own(self, group: int, unit: int) -> Block | None:
        table = self.tables[group]
        return table[unit] if unit < len(table) else None


class ModelBlocks:
    """Blocks; of sequences it knows only the tables, and of groups what a query reads."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        kinds: Sequence[Kind] = (),
        **options: Any,
    ) -> None:
        self.kinds = tuple(kinds) or kinds_of(options.pop("groups", ()))
        self.nodes: int | None = None  # their group
        if not self.full_attention():
            self.nodes, self.kinds = len(self.kinds), (*self.kinds, Nodes())
        self.num_nodes: int = options.pop("num_nodes", None) or ANY_NUMBER
        # The config allows these only together with groups, one of them with full attention.
        self.lookahead: int = options.pop("max_rollback_tokens", 0)
        """Tokens that may be truncated after their commit: drafts."""
        self.prompt_end_stop: int | None = options.pop("prompt_end_stop", None)
        self.config = ManagerConfig(num_blocks=num_blocks, block_size=block_size, **options)
        self.size = block_size
        self.replay = max(kind.replay for kind in self.kinds)
        """Tokens before a hit that are computed again, for groups that are not cached alone."""

        self.ring_restart = math.lcm(*(kind.restart for kind in self.kinds))
        self.restart = 1 if self.replay else self.ring_restart
        """Where a sequence begins, all rings are right if they are empty: at its multiples."""

        self.due_zeros: list[Block] = []
        """Rings that are to be empty after the copies of the next step."""

        self.taken_zeros: list[Block] = []  # the same of the ticket that is open
        self.quotas: Mapping[bytes, int] = self.config.quotas
        self.min_partial_tokens = self.config.min_partial_tokens
        self.first_id = int(self.config.null_block)
        self.capacity = num_blocks - self.first_id
        owners: list[bytes | None] = [n for n, count in self.quotas.items() for _ in range(count)]
        owners += [None] * (self.capacity - len(owners))
        self.owners = dict(enumerate(owners, self.first_id))  # by block id
        self.out: set[int] = set()  # ids out of use: of some, tables or steps still have the block
        self.live: list[Block] = []  # in use, or findable
        self.fence_of_id: dict[int, int] = {}  # of blocks that are neither
        self.held: list[Block] = []  # within a call
        self.dropped: list[Block] = []  # table entries being released within a call
        self.holds: list[Block] = []  # by callers, as often as each is held
        self.seqs: dict[int, Seq] = {}
        self.pending: list[Copy] = []
        self.taken: list[Copy] | None = None  # None: no ticket open
        self.in_flight: list[int] = []  # tickets that are not complete
        self.clock = itertools.count(1)
        self.count = dict.fromkeys(Stats.__dataclass_fields__, 0)
        self.evicted_of: dict[bytes | None, int] = {}

    # ---- groups -------------------------------------------------------------------------

    def attention(self) -> Iterator[tuple[int, Attention]]:
        for group, kind in enumerate(self.kinds):
            if isinstance(kind, Attention) and kind.cached:
                yield group, kind

    def in_memory(self) -> list[tuple[int, Attention]]:
        """Those of them whose blocks have memory."""
        return [(group, kind) for group, kind in self.attention() if group != self.nodes]

    def uncached(self) -> list[tuple[int, Attention]]:
        """Windows that prompts do not find: each block has one sequence."""
        kinds = enumerate(self.kinds)
        return [(g, k) for g, k in kinds if isinstance(k, Attention) and not k.cached]

    def full_attention(self) -> list[int]:
        return [g for g, kind in enumerate(self.kinds) if isinstance(kind, FullAttention)]

    def recurrent(self) -> list[int]:
        return [g for g, kind in enumerate(self.kinds) if isinstance(kind, RecurrentState)]

    def rings(self) -> list[int]:
        return [g for g, kind in enumerate(self.kinds) if isinstance(kind, Ring)]

    def singles(self) -> list[int]:
        """The groups of the blocks that a sequence has whatever its length: slots and rings."""
        slots = [[g] * (1 + self.kinds[g].extra_blocks) for g in self.recurrent()]
        return [*itertools.chain.from_iterable(slots), *self.rings()]

    def can_start(self, length: int) -> bool:
        """Whether a sequence can begin here with empty rings (G17), or behind a replay (G19)."""
        return length % self.restart == 0 and (length > self.replay or length == 0)

    def start_of(self, hit: int) -> int:
        """Where the first forward behind a hit begins (G19)."""
        return hit - min(self.replay, hit)

    @property
    def lead(self) -> int | None:
        """The group of ``block_tables``."""
        groups = [*self.full_attention(), *(g for g, _ in self.attention())]
        return next((group for group in groups if group != self.nodes), None)

    @property
    def identity(self) -> int | None:
        """The group that has a block of each unit, as long as anything continues it."""
        return self.lead if self.nodes is None else self.nodes

    def units(self, num_tokens: int) -> int:
        return -(-num_tokens // self.size)

    def num_entries(self, group: int, num_tokens: int) -> int:
        """The length of a group's table for so many tokens."""
        del group
        return self.units(num_tokens)

    def first_unit(self, kind: Attention, position: int) -> int:
        """The first unit that the query at this position, or a later one, reads or writes."""
        return kind.first_read(position) // self.size

    # ---- who uses a block ---------------------------------------------------------------

    def references(self, block: Block) -> int:
        """The number of references from tables."""
        tables = (table for seq in self.seqs.values() for table in seq.tables)
        return sum(table.count(block) for table in tables) + self.dropped.count(block)

    def used(self) -> set[Block]:
        """Blocks in a table, kept by a copy, or held."""
        used = {b for s in self.seqs.values() for table in s.tables for b in table if b}
        used.update(self.dropped, self.held, self.holds, self.taken_zeros)
        for copy in self.waiting():
            used |= {copy.source, copy.destination}
        return used

    @contextmanager
    def call(self) -> Iterator[None]:
        """Blocks taken within a call are in use until it returns."""
        try:
            yield
        finally:
            self.held.clear()
            self.settle()

    def settle(self) -> None:
        """Drops copies without a reader, and stamps the blocks that became unused."""
        kept = [copy for copy in self.pending if self.is_awaited(copy)]
        of_memory = (copy for copy in self.pending if copy.group != self.nodes)
        self.count["cancelled_copies"] += sum(copy not in kept for copy in of_memory)
        self.pending = kept
        self.due_zeros = [block for block in self.due_zeros if self.is_in_use(block)]
        self.part_twins()
        used = self.used()
        for block in used:
            block.stamp = None
        gone = [block for block in self.live if block.stamp is None and block not in used]
        # A block before the one that it continues, so that it is evicted first.
        for block in sorted(gone, key=lambda b: -self.depth(b) if b.content else -(2**62)):
            block.stamp, block.fence = next(self.clock), self.last_fence()
            if block.content is None:
                self.lose(block)

    def is_awaited(self, copy: Copy) -> bool:
        """Whether the destination of a copy is still of use."""
        return self.is_in_use(copy.destination)

    def is_in_use(self, block: Block) -> bool:
        return block in self.held or self.references(block) > 0

    def depth(self, block: Block) -> int:
        """The number of units up to its end."""
        assert block.content is not None
        return self.units(len(block.content[1][1]))

    def let_go(self, blocks: list[Block]) -> None:
        """Takes blocks out of tables, the last first: a prefix is only useful from its start."""
        self.dropped = blocks
        while self.dropped:
            self.dropped.pop()
            self.settle()

    # ---- what can be found --------------------------------------------------------------

    def find(self, content: Content) -> Block | None:
        return next((block for block in self.live if block.content == content), None)

    def children(self, group: int, parent: Prefix) -> list[Block]:
        """The first of the blocks that continue a prefix, the last linked first."""
        start = len(parent[1])
        found = [
            block
            for block in self.live
            if block.content is not None
            and block.content[0] == group
            and start < len(block.content[1][1]) <= start + self.size
            and cut(block.content[1], start) == parent
        ]
        found.sort(key=lambda block: -block.linked)
        return found[:FIRST_CHILDREN]

    def publish(self, block: Block, content: Content) -> None:
        """Makes a block findable."""
        block.content, block.linked = content, next(self.clock)

    def lose(self, block: Block) -> None:
        """The block loses its content; if it is unused, it is free."""
        block.content = block.retention = None
        block.hint = Priority.NORMAL
        if block.stamp is not None:
            self.live.remove(block)
            self.fence_of_id[block.id] = block.fence

    def part_twins(self) -> None:
        """When a findable block loses its last table, its twin becomes the findable one."""
        for block in self.live:
            if block.twin is not None and not self.references(block):
                block.twin = None
        if not any(block.twin for block in self.live):
            return
        for block in list(self.live):
            twins = [other for other in self.live if other.twin is block]
            if twins and not self.references(block):
                self.move(block, max(twins, key=lambda other: other.twinned))

    def move(self, block: Block, to: Block) -> None:
        """Passes the key and children of a findable block to a block in use with its content."""
        to.content, to.linked = block.content, block.linked
        to.retention, to.hint = block.retention, block.hint
        to.twin = None
        for other in self.live:
            if other.twin is block:
                other.twin = to
        self.lose(block)

    # ---- shares -------------------------------------------------------------------------
    # A quota is a range of blocks for one namespace; all others share the rest.

    def share(self, namespace: bytes) -> bytes | None:
        return namespace if namespace in self.quotas else None

    def limit(self, share: bytes | None) -> int:
        if share == NODES:
            return self.num_nodes
        return sum(owner == share for owner in self.owners.values())

    def watermark(self, share: bytes | None, asked: int | None = None) -> int:
        held_back = self.config.watermark_blocks if asked is None else min(asked, self.capacity)
        return held_back * self.limit(share) // self.capacity

    def last_fence(self) -> int:
        return self.in_flight[-1] if self.in_flight else 0

    def fenced(self, fence: int) -> bool:
        """Whether a launched step may still read a block: it can be found, but not taken."""
        return fence in self.in_flight

    def free_blocks(self, share: bytes | None = None) -> list[int]:
        taken = {block.id for block in self.live} | self.out
        owned = (i for i, own in self.owners.items() if own == share and i not in taken)
        return [i for i in owned if not self.fenced(self.fence_of_id.get(i, 0))]

    def idle_blocks(self) -> list[Block]:
        """The findable blocks that nobody uses."""
        return [block for block in self.live if block.stamp is not None]

    def idle(self) -> list[Block]:
        """Those that can be taken."""
        return [block for block in self.idle_blocks() if not self.fenced(block.fence)]

    def idle_of(self, share: bytes | None) -> list[Block]:
        return [block for block in self.idle() if block.share == share]

    def available(self, share: bytes | None = None) -> int:
        if share == NODES:
            return self.num_free_nodes() + len(self.idle_of(NODES))
        return len(self.free_blocks(share)) + len(self.idle_of(share))

    def num_withheld(self) -> int:
        """Blocks that are out of use and belong to nobody any more."""
        taken = {block.id for block in self.live}
        return sum(not self.fenced(self.fence_of_id.get(i, 0)) for i in self.out - taken)

    def evict(self, share: bytes | None) -> None:
        """Makes a block free, or brings one nearer to it."""
        raise NotImplementedError

    def take(self, count: int, share: bytes | None) -> list[Block]:
        """Allocates blocks, free ones first; the caller has checked that there are enough."""
        taken = []
        for _ in range(count):
            while not (ids := self.free_blocks(share)):
                self.evict(share)
            taken.append(Block(ids[0], next(self.clock), self.owners[ids[0]]))
            self.live.append(taken[-1])
            self.held.append(taken[-1])
        return taken

    def take_nodes(self, count: int) -> list[Block]:
        """The same of those without memory."""
        taken = []
        for _ in range(count):
            while self.num_free_nodes() < 1:
                self.evict(NODES)
            serial = next(self.clock)
            taken.append(Block(-serial, serial, NODES))
            self.live.append(taken[-1])
            self.held.append(taken[-1])
        return taken

    def num_free_nodes(self) -> int:
        fenced = sum(i < 0 and self.fenced(fence) for i, fence in self.fence_of_id.items())
        return self.num_nodes - sum(b.share == NODES for b in self.live) - fenced

    def of_memory(self, blocks: Iterable[Block]) -> list[Block]:
        return [block for block in blocks if block.share != NODES]

    def waiting(self) -> list[Copy]:
        """The copies that are not applied."""
        return [*(self.taken or ()), *self.pending]

    # ---- looking at it ------------------------------------------------------------------

    def quota_usage(self, namespace: bytes = b"") -> QuotaUsage:
        share = self.share(namespace)
        used = sum(block.stamp is None for block in self.live if block.share == share)
        limit = self.limit(share) - (share is None) * self.num_withheld()
        return QuotaUsage(
            limit=limit,
            free_blocks=len(self.free_blocks(share)),
            idle_blocks=len(self.idle_of(share)),
            fenced_blocks=limit - self.available(share) - used,
            used_blocks=used,
            evicted_blocks=self.evicted_of.get(share, 0),
        )

    def level_gauges(self) -> dict[str, int]:
        """The counts of levels and pins in the statistics."""
        return {}

    def stats(self) -> Stats:
        shares = (None, *self.quotas)
        live = self.of_memory(self.live)
        idle = len(self.of_memory(self.idle()))
        free = sum(len(self.free_blocks(share)) for share in shares)
        used = sum(block.stamp is None for block in live)
        self.count["peak_used_blocks"] = max(self.count["peak_used_blocks"], used)
        capacity = self.capacity - self.num_withheld()
        gauges = {
            "capacity": capacity,
            "free_blocks": free,
            "idle_blocks": idle,
            "used_blocks": used,
            "fenced_blocks": capacity - free - idle - used,
            "cached_blocks": sum(block.content is not None for block in live),
            "num_sequences": len(self.seqs),
            "pending_copies": sum(copy.group != self.nodes for copy in self.pending),
            **self.level_gauges(),
        }
        return Stats(**{**self.count, **gauges})
