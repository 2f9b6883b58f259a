"""Levels, pins and hints of the model, recomputed in each call.

The level of a block is found by a scan of all blocks that continue it, and the victim by a scan of
all idle blocks. There are no counters, queues or propagated levels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blockmgr.blocks import Pin, Priority
from blockmgr.errors import PinBudgetError, UnknownPinError
from tests.stress.model_admission import ModelAdmission, Terms

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.stress.model_pool import Block, Seq

__all__ = ["RetentionModel"]


@dataclass(eq=False)
class Held:
    """A pin: its blocks, and the namespace of their share."""

    blocks: list[Block]
    share: bytes | None = None


class RetentionModel(ModelAdmission):
    """The part of the model for retention."""

    def __init__(self, num_blocks: int, block_size: int, **options: Any) -> None:
        super().__init__(num_blocks, block_size, **options)
        self.pins: dict[int, Held] = {}
        self.last_pin = 0
        self.now = 0.0

    def check_retention(self) -> None:
        if not self.config.retention:
            raise ValueError("needs retention=True")

    # ---- levels -------------------------------------------------------------------------

    def is_pinned(self, block: Block) -> bool:
        return any(block in held.blocks for held in self.pins.values())

    def own_level(self, block: Block) -> int:
        if self.is_pinned(block):
            return Priority.PINNED
        return block.hint if block.retention is None else block.retention[0]

    def is_below(self, block: Block, ancestor: Block) -> bool:
        if block.content is None or ancestor.content is None:
            return False
        (space, chunks), (root, before) = block.content, ancestor.content
        return space == root and chunks[: len(before)] == before

    def level(self, block: Block) -> int:
        """The level of a block, at least that of every block that continues it."""
        return max(self.own_level(other) for other in self.live if self.is_below(other, block))

    def victims(self, share: bytes | None) -> list[Block]:
        """The idle blocks of the lowest level that has any."""
        self.expire()
        idle = self.idle_of(share)
        lowest = min(map(self.level, idle))
        return [block for block in idle if self.level(block) == lowest]

    def expire(self) -> None:
        for block in self.live:
            if block.retention is not None and block.retention[1] <= self.now:
                block.retention = None
                self.count["expired_blocks"] += 1

    def pinned_blocks(self) -> list[Block]:
        return [b for b in self.live if b.content is not None and self.is_pinned(b)]

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

    def inherit(self, block: Block, cached: Block) -> None:
        """Two blocks with equal content become one: the higher retention wins."""
        self.expire()
        if block.retention is not None:
            cached.retention = max(cached.retention or (-1, 0.0), block.retention)

    def move(self, block: Block, to: Block) -> None:
        super().move(block, to)
        for held in self.pins.values():
            held.blocks = [to if other is block else other for other in held.blocks]

    # ---- calls --------------------------------------------------------------------------

    def end_of(self, ttl: float | None) -> float:
        return math.inf if ttl is None else self.now + ttl

    def set_retention(self, blocks: Iterable[Block], priority: int | None, ttl: Any) -> None:
        for block in blocks:
            block.retention = None if priority is None else (priority, self.end_of(ttl))

    def node(self, block: Block) -> Block:
        """The cached block with the content of a block in a table."""
        return block.twin if block.content is None and block.twin is not None else block

    def retain(self, handle: int, start: int, stop: int, *, priority: Any, ttl: Any = None) -> int:
        self.check_retention()
        seq = self.running(handle)
        if not 0 <= start < stop <= min(seq.num_tokens, seq.num_slots):
            raise ValueError(f"[{start}, {stop}) is no range of {handle}")
        blocks = seq.blocks[start // self.size : -(-stop // self.size)]
        self.set_retention([self.node(block) for block in blocks], priority, ttl)
        return len(blocks)

    def cached_prefix(
        self, tokens: Iterable[int], namespace: object, extras: object
    ) -> list[Block]:
        seq = self.prompt(tokens, namespace, extras)
        self.check_row(seq)
        found: list[Block] = []
        while (len(found) + 1) * self.size <= len(seq.tokens):
            block = self.find(seq.content(len(found) + 1))
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

    def pin(self, tokens: Iterable[int], *, namespace: object = b"", extras: object = None) -> int:
        self.check_retention()
        blocks = self.cached_prefix(tokens, namespace, extras)
        needed = sum(not self.is_pinned(block) for block in blocks)
        share = self.share(bytes(namespace))  # type: ignore[call-overload]  # checked above
        budget = self.config.max_pinned_blocks * self.limit(share) // self.capacity
        left = budget - sum(block.share == share for block in self.pinned_blocks())
        if needed > left:
            raise PinBudgetError(needed, left, budget)
        if sum(held.share == share for held in self.pins.values()) >= budget:
            raise PinBudgetError(1, 0, budget)
        self.last_pin += 1
        self.pins[self.last_pin] = Held(blocks, share)
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

    def touch(
        self, tokens: Iterable[int], *, namespace: object = b"", extras: object = None
    ) -> int:
        seq = self.prompt(tokens, namespace, extras)
        self.check_row(seq)
        plan = self.plan(seq, len(seq.tokens), True, Terms(0))
        path = [*plan.hits, *([plan.source] if plan.source else [])]
        idle = [block for block in reversed(path) if block in self.idle()]
        for block in idle:
            block.stamp = next(self.clock)
        self.count["touched_blocks"] += len(idle)
        return len(idle)

    @property
    def time(self) -> float:
        return self.now

    def set_time(self, seconds: float) -> None:
        self.check_retention()
        if not (math.isfinite(seconds) and seconds >= self.now):
            raise ValueError(f"seconds must be at least {self.now}, got {seconds}")
        self.now = float(seconds)

    def hint(self, seq: Seq, expect_reuse: bool) -> None:
        below: Block | None = None
        for block in reversed(seq.blocks):
            node = self.node(block)
            if node.content is None:
                continue
            space, chunks = node.content
            children = [
                other
                for other in self.live
                if other.content is not None
                and other.content[0] == space
                and other.content[1][:-1] == chunks
                and other is not below
            ]
            in_use = self.references(node) > (node is block)
            if not expect_reuse and (in_use or children or node.hint == Priority.EXPECTED):
                return
            node.hint = Priority.EXPECTED if expect_reuse else Priority.LOW
            below = node
