"""The calls of ``BlockPool`` that say which blocks will be used again, and ask about shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from blockmgr.blocks import Pin, Priority
from blockmgr.errors import PolicyError
from blockmgr.manager_retention import number, retention
from blockmgr.stats import HitRateCurve, QuotaUsage

if TYPE_CHECKING:
    from blockmgr import _core
    from blockmgr.pool import Ints

__all__ = ["PoolRetentionCalls"]


class PoolRetentionCalls:
    """Retention, pins, shares and what is remembered: a part of ``BlockPool``."""

    __slots__ = ()

    _core: _core.PoolCore
    block_size: int

    def retain(self, blocks: Ints, *, priority: Priority | None, ttl: float | None = None) -> None:
        """Says how long to keep these blocks.

        Each block remembers it until it loses its content or is retained again: the last call wins.
        Blocks that are not cached yet get it when they are. A block is not evicted before the
        blocks that continue it, and when ``promote`` merges two blocks the higher priority wins.

        Args:
            blocks: Held or cached.
            priority: From ``LOW`` to ``HIGH``. None withdraws the retention.
            ttl: Seconds, by ``set_time``, after which the call has no effect any more; None for no
                end.

        Raises:
            BlockStateError: A block that is not held and not cached.
            ValueError: A block out of range, ``priority`` or ``ttl`` out of bounds, or no
                ``retention``.
            TypeError: A value of the wrong type.
        """
        level, seconds = retention(priority, ttl)
        self._core.retain(blocks, level, seconds)

    def pin(self, block: int) -> int:
        """Keeps a cached block, and all that it continues, before all else.

        A pin is the highest priority, not a reference: ``num_available`` counts pinned blocks, and
        they are handed out where nothing else is left. ``BlockManager.pin`` has the details.

        Args:
            block: The deepest block of a chain.

        Returns:
            The pin, for ``unpin``. Pins may overlap.

        Raises:
            PinBudgetError: More blocks, or pins, than the block's share has of
                ``max_pinned_blocks``.
            BlockStateError: The block is not cached.
            ValueError: The block is out of range, or no ``retention``.
        """
        return self._core.pin(block)

    def unpin(self, pin: int) -> None:
        """Releases a pin. Its blocks stay cached, as if they had never been pinned.

        Raises:
            UnknownPinError: It was given back already, or never made.
            ValueError: No ``retention``.
        """
        self._core.unpin(pin)

    def pinned(self, pin: int) -> Pin:
        """The number of blocks of a pin, and how many of them are still cached.

        Raises:
            UnknownPinError: It was given back already, or never made.
            ValueError: No ``retention``.
        """
        return Pin(*self._core.view_pin(pin))

    def priority(self, block: int) -> Priority:
        """The priority of a cached block; ``NORMAL`` without ``retention``.

        Raises:
            BlockStateError: The block is not cached.
            ValueError: The block is out of range.
        """
        return Priority(self._core.level(block))

    @property
    def time(self) -> float:
        """The time set last, in seconds; 0 before the first.

        Raises:
            ValueError: No ``retention``.
        """
        return self._core.time()

    def set_time(self, seconds: float) -> None:
        """Tells the pool the time, for ``ttl``, as ``BlockManager.set_time`` does.

        Raises:
            ValueError: Not finite, before the time set last, or no ``retention``.
            TypeError: No number.
        """
        self._core.set_time(number(seconds, "seconds"))

    def quota_usage(self, namespace: bytes = b"") -> QuotaUsage:
        """The limit of the blocks of a namespace, and their use.

        Args:
            namespace: One without a quota shares with all others that have none.

        Raises:
            ValueError: The namespace is too long.
            TypeError: It is not bytes.
        """
        return QuotaUsage(**self._core.quota_usage(namespace))

    def hit_rate_curve(self, namespace: bytes = b"") -> HitRateCurve:
        """What pools of other sizes would have found of all that ``acquire_prefix`` looked up.

        Args:
            namespace: Whose share.

        Raises:
            ValueError: The pool was built without ``ghost_blocks``, or without prefix caching; the
                namespace is too long, or the quotas leave it no block.
            TypeError: It is not bytes.
        """
        counts = self._core.reuse_counts(namespace)
        if counts is None:
            raise ValueError(
                "hit_rate_curve needs prefix_caching, ghost_blocks above 0, and a namespace that "
                "the quotas leave blocks"
            )
        capacity, query_tokens, found = counts
        hit_tokens = np.add.accumulate(found) * self.block_size
        return HitRateCurve(capacity, query_tokens, hit_tokens)

    def check_policy(self) -> None:
        """Raises the first error of an eviction policy written in Python, if there was one.

        Raises:
            PolicyError: As ``BlockManager.check_policy`` does.
        """
        if error := self._core.policy_error():
            raise PolicyError(error) from error
