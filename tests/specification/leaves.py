"""The order of eviction where full attention is alone: block by block, the oldest use first.

A prompt can continue after any block. A block that another one continues stays as long as that one.
Levels, pins and hints are found by a scan of all blocks in each call: there are no counters, queues
or propagated levels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from blockmgr.blocks import Pin, Priority
from blockmgr.errors import PinBudgetError, UnknownPinError
from tests.specification.admission import Plan, Terms
from tests.specification.blocks import Block, Content, Prefix, Seq, cut
from tests.specification.resuming import ModelResuming

__all__ = ["ModelLeaves"]


@dataclass(eq=False)
class Pinned:
    """A pin: its blocks, and the namespace of their share."""

    blocks: list[Block]
    share: bytes | None = None


class ModelLeaves(ModelResuming):
    """A manager for full attention alone."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.pins: dict[int, Pinned] = {}
        self.last_pin = 0
        self.now = 0.0

    # ---- what is in use -----------------------------------------------------------------

    def used(self) -> set[Block]:
        """What a used block continues is used, too."""
        used, roots = set(), list(super().used())
        while roots:
            block = roots.pop()
            if block not in used:
                used.add(block)
                roots += self.parents(block)
        return used

    def parents(self, block: Block) -> list[Block]:
        prefix = self.parent_of(block)
        if prefix is None or not prefix[1]:
            return []
        parent = self.find((0, prefix))
        assert parent is not None, "a cached block outlived its parent"
        return [parent]

    def parent_of(self, block: Block) -> Prefix | None:
        if block.content is None:
            return None
        return cut(block.content[1], (self.depth(block) - 1) * self.size)

    def is_tail(self, block: Block) -> bool:
        return block.content is not None and len(block.content[1][1]) % self.size > 0

    def continues(self, prefix: Prefix, start: Prefix) -> bool:
        """Nothing continues a tail: it was copied from or taken over."""
        if len(start[1]) % self.size and prefix != start:
            return False
        return super().continues(prefix, start)

    # ---- what becomes findable ----------------------------------------------------------

    def publish(self, block: Block, content: Content) -> None:
        """Shorter tails with the same beginning become useless."""
        prefix = content[1]
        start = (self.units(len(prefix[1])) - 1) * self.size
        for tail in self.children(0, cut(prefix, start)):
            assert tail.content is not None
            if self.is_tail(tail) and cut(prefix, len(tail.content[1][1])) == tail.content[1]:
                self.lose(tail)
        super().publish(block, content)

    def plans(self, seq: Seq, num_slots: int, terms: Terms | None = None) -> Iterator[Plan]:
        """Cached blocks are waited for, even if the slots asked for take fewer fresh ones."""
        *found, nothing = super().plans(seq, num_slots, terms)
        yield from found
        if not any(plan.cached % self.size == 0 for plan in found):
            yield nothing

    def may_fit(self, plan: Plan, num_slots: int, share: bytes | None) -> bool:
        return True  # ``check_fits`` has counted all slots, whatever is found

    def plan_in_vain(self, tried: list[Plan]) -> Plan:
        """The deepest of whole units: a copy keeps its source in use."""
        found = (plan for plan in tried if not plan.copied)
        return max(found, key=lambda plan: plan.cached, default=tried[0])

    def expect(self, seq: Seq, plan: Plan, terms: Terms) -> None:
        for block in plan.shared[0]:
            block.hint = Priority.NORMAL  # this is the expected reuse

    def take_over(self, block: Block) -> None:
        block.content = block.retention = None
        block.hint = Priority.NORMAL

    def give_back(
        self, seq: Seq, *, resumes: bool = False, expect_reuse: bool | None = None
    ) -> None:
        self.keep_end(seq)
        if expect_reuse is not None:
            self.hint(seq, expect_reuse)
        self.shorten(seq.tables[0], 0)

    # ---- eviction -----------------------------------------------------------------------

    def evict(self, share: bytes | None) -> None:
        victim = self.choose_victim(self.victims(share))
        if self.level(victim) == Priority.PINNED:
            self.count["evicted_pinned_blocks"] += 1
        self.lose(victim)
        self.count["evicted_blocks"] += 1
        self.evicted_of[share] = self.evicted_of.get(share, 0) + 1

    def victims(self, share: bytes | None) -> list[Block]:
        """The idle blocks of the lowest level that has any."""
        self.expire()
        idle = self.idle_of(share)
        lowest = min(map(self.level, idle))
        return [block for block in idle if self.level(block) == lowest]

    def choose_victim(self, idle: list[Block]) -> Block:
        """The least recently used one; tests of other policies override it."""
        return min(idle, key=lambda block: block.stamp or 0)

    def touch(
        self, tokens: Iterable[int], *, namespace: object = b"", extras: object = None
    ) -> int:
        """The path of a prompt counts as just used."""
        seq = self.prompt(tokens, namespace, extras)
        self.check_fits_row(seq)
        plan = next(self.plans(seq, len(seq.tokens), Terms()))
        idle = [block for block in reversed(plan.acquired()) if block in self.idle()]
        for block in idle:
            block.stamp = next(self.clock)
        self.count["touched_blocks"] += len(idle)
        return len(idle)

    def touch_blocks(self, blocks: Iterable[int]) -> None:
        for start in self.known(blocks):
            block: Block | None = start
            while block is not None and block.stamp is not None:
                if block in self.idle():
                    block.stamp = next(self.clock)
                    self.count["touched_blocks"] += 1
                block = next(iter(self.parents(block)), None)

    # ---- levels -------------------------------------------------------------------------

    def check_retention(self) -> None:
        if not self.config.retention:
            raise ValueError("needs retention=True")

    def is_pinned(self, block: Block) -> bool:
        return any(block in pinned.blocks for pinned in self.pins.values())

    def own_level(self, block: Block) -> int:
        if self.is_pinned(block):
            return Priority.PINNED
        return block.hint if block.retention is None else block.retention[0]

    def level(self, block: Block) -> int:
        """The level of a block, at least that of every block that continues it."""
        assert block.content is not None
        start = block.content[1]
        after = (b for b in self.live if b.content and self.continues(b.content[1], start))
        return max(map(self.own_level, after))

    def expire(self) -> None:
        for block in self.live:
            if block.retention is not None and block.retention[1] <= self.now:
                block.retention = None
                self.count["expired_blocks"] += 1

    def level_gauges(self) -> dict[str, int]:
        self.expire()
        levels = [self.level(block) for block in self.live if block.content is not None]
        return {
            "low_priority_blocks": levels.count(Priority.LOW),
            "expected_blocks": levels.count(Priority.EXPECTED),
            "high_priority_blocks": levels.count(Priority.HIGH),
            "pinned_blocks": levels.count(Priority.PINNED),
            "pins": len(self.pins),
        }

    def inherit(self, block: Block, twin: Block) -> None:
        """The higher retention wins. This is the expected reuse."""
        self.expire()
        twin.hint = Priority.NORMAL
        if block.retention is not None:
            twin.retention = max(twin.retention or (-1, 0.0), block.retention)

    def move(self, block: Block, to: Block) -> None:
        super().move(block, to)
        for pinned in self.pins.values():
            pinned.blocks = [to if other is block else other for other in pinned.blocks]

    def set_retention(self, blocks: Iterable[Block], priority: int | None, ttl: Any) -> None:
        end = math.inf if ttl is None else self.now + ttl
        for block in blocks:
            block.retention = None if priority is None else (priority, end)

    def node(self, block: Block) -> Block:
        """The findable block with the content of a block in a table."""
        return block.twin if block.content is None and block.twin is not None else block

    def retain(self, handle: int, start: int, stop: int, *, priority: Any, ttl: Any = None) -> int:
        self.check_retention()
        seq = self.running(handle)
        if not 0 <= start < stop <= min(seq.num_tokens, seq.num_slots):
            raise ValueError(f"[{start}, {stop}) is no range of {handle}")
        blocks = seq.blocks[start // self.size : self.units(stop)]
        self.set_retention([self.node(block) for block in blocks], priority, ttl)
        return len(blocks)

    def check_fits_row(self, seq: Seq) -> None:
        if self.units(len(seq.tokens)) > self.width:
            self.check_fits(seq, len(seq.tokens), -(2**31))

    def cached_prefix(
        self, tokens: Iterable[int], namespace: object, extras: object
    ) -> list[Block]:
        seq = self.prompt(tokens, namespace, extras)
        self.check_fits_row(seq)
        found: list[Block] = []
        while (len(found) + 1) * self.size <= len(seq.tokens):
            block = self.find((0, seq.prefix((len(found) + 1) * self.size)))
            if block is None:
                break
            found.append(block)
        return found

    def retain_prefix(
        self,
        tokens: Iterable[int],
        *,
        priority: Any,
        ttl: Any = None,
        namespace: object = b"",
        extras: object = None,
    ) -> int:
        self.check_retention()
        blocks = self.cached_prefix(tokens, namespace, extras)
        self.set_retention(blocks, priority, ttl)
        return len(blocks)

    @property
    def time(self) -> float:
        return self.now

    def set_time(self, seconds: float) -> None:
        self.check_retention()
        if not (math.isfinite(seconds) and seconds >= self.now):
            raise ValueError(f"seconds must be at least {self.now}, got {seconds}")
        self.now = float(seconds)

    def hint(self, seq: Seq, expect_reuse: bool) -> None:
        """Marks the path of a sequence that ends; what others use or continue is not marked low."""
        below: Block | None = None
        for block in reversed(seq.blocks):
            node = self.node(block)
            if node.content is None:
                continue
            prefix = node.content[1]
            children = [b for b in self.live if self.parent_of(b) == prefix and b is not below]
            in_use = self.references(node) > (node is block)
            if not expect_reuse and (in_use or children or node.hint == Priority.EXPECTED):
                return
            node.hint = Priority.EXPECTED if expect_reuse else Priority.LOW
            below = node

    # ---- pins ---------------------------------------------------------------------------

    def pin(self, tokens: Iterable[int], *, namespace: object = b"", extras: object = None) -> int:
        self.check_retention()
        blocks = self.cached_prefix(tokens, namespace, extras)
        needed = sum(not self.is_pinned(block) for block in blocks)
        share = self.share(bytes(namespace))  # type: ignore[call-overload]  # checked above
        budget = self.config.max_pinned_blocks * self.limit(share) // self.capacity
        pinned = (b for b in self.live if b.content is not None and self.is_pinned(b))
        left = budget - sum(block.share == share for block in pinned)
        if needed > left:
            raise PinBudgetError(needed, left, budget)
        if sum(pin.share == share for pin in self.pins.values()) >= budget:
            raise PinBudgetError(1, 0, budget)
        self.last_pin += 1
        self.pins[self.last_pin] = Pinned(blocks, share)
        return self.last_pin

    def unpin(self, pin: int) -> None:
        self.pinned(pin)
        del self.pins[pin]

    def pinned(self, pin: int) -> Pin:
        self.check_retention()
        if pin not in self.pins:
            raise UnknownPinError(pin)
        blocks = self.pins[pin].blocks
        return Pin(len(blocks), sum(block.content is not None for block in blocks))

    # ---- looking at it ------------------------------------------------------------------

    def check_invariants(self) -> None:
        used = self.used()
        assert all((block.stamp is None) == (block in used) for block in self.live)
        assert len({block.id for block in self.live}) == len(self.live) <= self.capacity
        contents = [block.content for block in self.live if block.content]
        for block in self.live:
            kept = block.twin is None or (block.twin.content and self.references(block.twin))
            assert kept, "a block is kept for its twin alone"
        assert len(set(contents)) == len(contents)
        assert all(block.share == self.owners[block.id] for block in self.live)
        assert all(b.share == self.share(b.content[1][0]) for b in self.live if b.content)
