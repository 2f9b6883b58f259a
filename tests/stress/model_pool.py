"""The model's blocks, copies and steps.

There is no free queue, hash, link or reference count. After every change, the model recomputes from
the block tables and the copies which blocks are in use; a block that has just become unused gets a
stamp, and stamps are the LRU order. A cached block stores its whole prefix, so a look-up is a scan
for equal content.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from blockmgr.blocks import CopyPlan, Priority, Remap
from blockmgr.config import ManagerConfig
from blockmgr.errors import StepError, TicketError
from blockmgr.stats import QuotaUsage, Stats

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Block", "Content", "Copy", "ModelPool", "Seq", "chain"]

FIRST_CHILDREN = 32  # how many children token-granular reuse looks at

Chunk = tuple[bytes, tuple[int, ...]]  # extras and tokens of one block
Content = tuple[bytes, tuple[Chunk, ...]]  # namespace and every block from the first to this one


@dataclass(eq=False)
class Block:
    """One use of a physical block, from when it is taken until its content is lost."""

    id: int
    serial: int
    content: Content | None = None  # set: findable
    twin: Block | None = None  # the cached block with the same content, if this one is private
    twinned: int = 0  # when it got that twin
    stamp: int | None = None  # when it became unused; None: in use
    linked: int = 0  # when it became findable
    unwritten: int = 0  # tokens at its end that the forward of this step has yet to write
    retention: tuple[int, float] | None = None  # a level, and the time it ends
    hint: int = Priority.NORMAL  # the hint of its last user
    fence: int = 0  # the ticket that must complete before it is handed out
    share: bytes | None = None  # namespace whose quota it counts in; None: the shared rest

    @property
    def tokens(self) -> tuple[int, ...]:
        assert self.content is not None
        return self.content[1][-1][1]

    @property
    def written(self) -> tuple[int, ...]:
        """Its tokens that a copy in this step can copy."""
        return self.tokens[: len(self.tokens) - self.unwritten]


@dataclass(eq=False)
class Seq:
    """A sequence, and the view ``sequence()`` gives of it."""

    handle: int
    tokens: list[int]
    namespace: bytes
    extras: dict[int, bytes]
    block_size: int
    blocks: list[Block] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    settled: int = 0  # computed tokens that were not committed early in this step
    written: int = 0  # of those, what is in memory before the forward of this step
    promoted: int = 0  # leading blocks that are cached, or twins of cached ones
    is_preempted: bool = False
    outdated: bool = False  # continues K/V from before the cache was reset

    row = property(lambda self: self.handle & 0xFFFFFFFF)
    num_tokens = property(lambda self: len(self.tokens))
    num_blocks = property(lambda self: len(self.blocks))
    num_slots = property(lambda self: len(self.blocks) * self.block_size)
    block_ids = property(lambda self: np.array([b.id for b in self.blocks], np.int32))

    def content(self, num_blocks: int) -> Content:
        size = self.block_size
        return chain(self.tokens[: num_blocks * size], size, self.namespace, self.extras)


@dataclass(eq=False)
class Copy:
    """Leading tokens that go from one block to another."""

    source: Block
    destination: Block
    num_tokens: int


def chain(tokens: list[int], size: int, namespace: bytes, extras: Mapping[int, bytes]) -> Content:
    starts = range(0, len(tokens), size)
    chunks = ((extras.get(s // size, b""), tuple(tokens[s : s + size])) for s in starts)
    return namespace, tuple(chunks)


class ModelPool:
    """The part of the model for blocks and copies; of sequences it knows only the tables."""

    def __init__(self, num_blocks: int, block_size: int, **options: Any) -> None:
        self.config = ManagerConfig(num_blocks=num_blocks, block_size=block_size, **options)
        self.size = block_size
        self.first_id = int(self.config.null_block)
        self.capacity = num_blocks - self.first_id
        self.width = self.config.max_blocks_per_seq or self.capacity
        self.live: list[Block] = []  # in use, or findable
        self.leaving: list[Block] = []  # table entries being released within a call
        self.held: list[Block] = []  # by their ids, as often as each is held
        self.fence_of_id: dict[int, int] = {}  # of blocks that are neither
        self.share_of_id: dict[int, bytes | None] = {}
        self.evicted_of: dict[bytes | None, int] = {}
        self.seqs: dict[int, Seq] = {}
        self.generations = [0] * self.config.max_seqs
        self.pending: list[Copy] = []
        self.taken: list[Copy] | None = None  # None: no ticket open
        self.last_ticket = 0
        self.in_flight: list[int] = []  # tickets that are not complete
        self.remaps: list[Remap] = []
        self.clock = itertools.count(1)
        self.count = dict.fromkeys(Stats.__dataclass_fields__, 0)
        self.lookups: list[tuple[int, int]] = []  # prompt tokens and hit tokens of each request

    # ---- blocks -------------------------------------------------------------------------

    def references(self, block: Block) -> int:
        tables = [seq.blocks for seq in self.seqs.values()]
        return sum(table.count(block) for table in [*tables, self.leaving])

    def used(self) -> list[Block]:
        """Blocks in a table or pinned by a copy, and the parents of those."""
        roots = [block for seq in self.seqs.values() for block in seq.blocks] + self.leaving
        roots += [*self.held, *(copy.source for copy in self.pending)]
        roots += [end for c in self.taken or () for end in (c.source, c.destination)]
        found: dict[Block, None] = {}
        while roots:
            block = roots.pop()
            if block in found:
                continue
            found[block] = None
            if block.content is not None and len(block.content[1]) > 1:
                parent = self.find((block.content[0], block.content[1][:-1]))
                assert parent is not None, "a cached block outlived its parent"
                roots.append(parent)
        return list(found)

    def settle_down(self) -> None:
        """Drops copies without a reader, and stamps the blocks that became unused."""
        dead = [copy for copy in self.pending if not self.references(copy.destination)]
        self.count["cancelled_copies"] += len(dead)
        self.pending = [copy for copy in self.pending if copy not in dead]
        self.part_twins()
        used = self.used()
        for block in used:
            block.stamp = None
        gone = [b for b in self.live if b.stamp is None and b not in used]
        # A child before its parent, so that it is evicted before its parent.
        for block in sorted(gone, key=lambda b: -len(b.content[1]) if b.content else -(2**62)):
            block.stamp, block.fence = next(self.clock), self.fence()
            if block.content is None:
                self.lose(block)

    def part_twins(self) -> None:
        """When a cached block loses its last table, its twin becomes the cached one."""
        for block in self.live:
            if block.twin is not None and not self.references(block):
                block.twin = None
        for block in list(self.live):
            if block.content is not None and not self.references(block):
                twins = [other for other in self.live if other.twin is block]
                if twins:
                    self.move(block, max(twins, key=lambda other: other.twinned))

    def move(self, block: Block, to: Block) -> None:
        """Passes the key and children of a cached block to a block in use with the same content."""
        to.content, to.linked = block.content, block.linked
        to.retention, to.hint = block.retention, block.hint
        to.twin = None
        for other in self.live:
            if other.twin is block:
                other.twin = to
        self.lose(block)

    def fence(self) -> int:
        return self.in_flight[-1] if self.in_flight else 0

    def lose(self, block: Block) -> None:
        """The block loses its content; if it is unused, it is free."""
        block.content = block.retention = None
        block.hint = Priority.NORMAL
        if block.stamp is not None:
            self.live.remove(block)
            self.fence_of_id[block.id] = block.fence
            self.share_of_id[block.id] = block.share

    def find(self, content: Content) -> Block | None:
        return next((block for block in self.live if block.content == content), None)

    def children(self, parent: Content, extras: bytes) -> list[Block]:
        """The children with these extras among the first ones of a cached block."""
        found = [
            block
            for block in self.live
            if block.content is not None
            and block.content[0] == parent[0]
            and block.content[1][:-1] == parent[1]
        ]
        found.sort(key=lambda block: -block.linked)
        return [b for b in found[:FIRST_CHILDREN] if b.content and b.content[1][-1][0] == extras]

    def free_ids(self) -> list[int]:
        taken = {block.id for block in self.live}
        ids = [i for i in range(self.first_id, self.config.num_blocks) if i not in taken]
        return [i for i in ids if self.fence_of_id.get(i, 0) not in self.in_flight]

    def idle(self) -> list[Block]:
        return [b for b in self.live if b.stamp is not None and b.fence not in self.in_flight]

    @property
    def num_available(self) -> int:
        return len(self.free_ids()) + len(self.idle())

    # A quota is only a number: a free block has no owner, because the owner is forgotten with the
    # content. This is correct because no share ever holds more than its limit.

    def share(self, namespace: bytes) -> bytes | None:
        return namespace if namespace in self.config.quotas else None

    def limit(self, share: bytes | None) -> int:
        quotas = self.config.quotas
        return self.capacity - sum(quotas.values()) if share is None else quotas[share]

    def free_of(self, share: bytes | None) -> int:
        """Blocks that it may take without an eviction."""
        live = {block.id for block in self.live}
        fenced = [i for i, f in self.fence_of_id.items() if f in self.in_flight and i not in live]
        charged = sum(block.share == share for block in self.live)
        return self.limit(share) - charged - sum(self.share_of_id[i] == share for i in fenced)

    def idle_of(self, share: bytes | None) -> list[Block]:
        return [block for block in self.idle() if block.share == share]

    def available(self, share: bytes | None) -> int:
        return self.free_of(share) + len(self.idle_of(share))

    def watermark(self, share: bytes | None, asked: int | None = None) -> int:
        all_held = self.config.watermark_blocks if asked is None else min(asked, self.capacity)
        return all_held * self.limit(share) // self.capacity

    def quota_usage(self, namespace: bytes = b"") -> QuotaUsage:
        share = self.share(namespace)
        used = sum(block.stamp is None for block in self.live if block.share == share)
        return QuotaUsage(
            limit=self.limit(share),
            free_blocks=self.free_of(share),
            idle_blocks=len(self.idle_of(share)),
            fenced_blocks=self.limit(share) - self.available(share) - used,
            used_blocks=used,
            evicted_blocks=self.evicted_of.get(share, 0),
        )

    def level(self, block: Block) -> int:
        raise NotImplementedError

    def level_gauges(self) -> dict[str, int]:
        raise NotImplementedError

    def victims(self, share: bytes | None) -> list[Block]:
        """The idle blocks of a share that any policy may evict next."""
        raise NotImplementedError

    def choose_victim(self, idle: list[Block]) -> Block:
        """The least recently used one; tests of other policies override it."""
        return min(idle, key=lambda block: block.stamp or 0)

    def take(self, share: bytes | None) -> Block:
        ids = self.free_ids()
        if not self.free_of(share):
            victim = self.choose_victim(self.victims(share))
            if self.level(victim) == Priority.PINNED:
                self.count["evicted_pinned_blocks"] += 1
            self.lose(victim)
            self.count["evicted_blocks"] += 1
            self.evicted_of[share] = self.evicted_of.get(share, 0) + 1
            ids = [victim.id]
        block = Block(ids[-1], next(self.clock), share=share)
        self.live.append(block)
        return block

    # ---- copies and steps ---------------------------------------------------------------

    def take_copies(self) -> CopyPlan:
        if self.taken is not None:
            raise StepError(f"ticket {self.last_ticket} is not resolved")
        if self.config.steps_in_flight:
            if len(self.in_flight) >= self.config.steps_in_flight:
                raise StepError(f"{len(self.in_flight)} steps are in flight")
            self.in_flight.append(self.last_ticket + 1)
        self.taken, self.pending = self.pending, []
        self.last_ticket += 1
        rows = [(copy.source.id, copy.destination.id, copy.num_tokens) for copy in self.taken]
        return CopyPlan(self.last_ticket, *np.array(rows, np.int32).reshape(-1, 3).T)

    def resolve(self, ticket: int) -> list[Copy]:
        if self.taken is None or ticket != self.last_ticket:
            raise TicketError(f"ticket {ticket} is not open")
        return self.taken

    def copies_applied(self, ticket: int) -> None:
        copies = self.resolve(ticket)
        while copies:
            del copies[0]
            self.settle_down()
        self.taken = None
        # This step's forward writes the tokens committed ahead of it.
        for block in self.live:
            block.unwritten = 0
        for seq in self.seqs.values():
            seq.settled = seq.written = seq.num_computed_tokens

    def copies_aborted(self, ticket: int) -> None:
        again, later = self.resolve(ticket), self.pending
        self.taken, self.pending = None, again
        for copy in later:  # copies recorded since may read blocks that were not filled
            self.record(copy.source, copy.destination, copy.num_tokens)
        self.count["planned_copies"] -= len(later)
        self.settle_down()
        if ticket in self.in_flight:  # it was never launched: wait for the previous step
            self.in_flight.remove(ticket)
            fences = self.fence_of_id.items()
            self.fence_of_id = {i: self.fence() if f == ticket else f for i, f in fences}
            released = [block for block in self.live if block.fence == ticket]
            for block in released:
                block.fence = self.fence()
            if not self.in_flight:
                self.wait_no_longer(released)

    def complete(self, ticket: int) -> None:
        if not self.in_flight or not self.in_flight[0] <= ticket <= self.last_ticket:
            raise StepError(f"step {ticket} cannot complete")
        done = [t for t in self.in_flight if t <= ticket]
        self.in_flight = [t for t in self.in_flight if t > ticket]
        self.wait_no_longer([block for block in self.live if block.fence in done])

    def wait_no_longer(self, blocks: list[Block]) -> None:
        """A step in flight may read its blocks, so its end counts as their last use."""
        for block in sorted(blocks, key=lambda block: block.stamp or 0):
            if block.stamp is not None:
                block.stamp = next(self.clock)

    def record(self, source: Block, destination: Block, num_tokens: int) -> None:
        """A copy of a copy not yet taken is a copy of the first source."""
        for copy in self.pending:
            if copy.destination is source:
                source, num_tokens = copy.source, min(num_tokens, copy.num_tokens)
        self.pending.append(Copy(source, destination, num_tokens))
        self.count["planned_copies"] += 1

    def unresolved(self, block: Block) -> bool:
        return any(copy.destination is block for copy in [*self.pending, *(self.taken or ())])

    # ---- looking at it ------------------------------------------------------------------

    def stats(self) -> Stats:
        idle = len(self.idle())
        free = len(self.free_ids())
        used = sum(block.stamp is None for block in self.live)
        self.count["peak_used_blocks"] = max(self.count["peak_used_blocks"], used)
        gauges = {
            "capacity": self.capacity,
            "free_blocks": free,
            "idle_blocks": idle,
            "used_blocks": used,
            "fenced_blocks": self.capacity - free - idle - used,
            "cached_blocks": sum(block.content is not None for block in self.live),
            "num_sequences": len(self.seqs),
            "pending_copies": len(self.pending),
            **self.level_gauges(),
        }
        return Stats(**{**self.count, **gauges})

    def check_invariants(self) -> None:
        used = self.used()
        assert all((block.stamp is None) == (block in used) for block in self.live)
        assert len({block.id for block in self.live}) == len(self.live) <= self.capacity
        contents = [block.content for block in self.live if block.content]
        for block in self.live:
            kept = block.twin is None or (block.twin.content and self.references(block.twin))
            assert kept, "a block is kept for its twin alone"
        assert len(set(contents)) == len(contents)
        for share in (None, *self.config.quotas):
            assert 0 <= self.free_of(share) <= len(self.free_ids())
        assert all(b.share == self.share(b.content[0]) for b in self.live if b.content)
