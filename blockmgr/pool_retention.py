"""The calls of ``BlockPool`` about retention, shares and hit rates."""

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
    """Retention, pins, shares and the hit rate curve: a part of ``BlockPool``."""

    __slots__ = ()

    _core: _core.PoolCore
    block_size: int

    def retain(self, blocks: Ints, *, priority: Priority | None, ttl: float | None = None) -> None:
        """Sets how long to keep these blocks.

        The retention of a block lasts until it loses its content or is retained again: the last
        call wins. On blocks that are not cached yet, it takes effect when they are. A block is not
        evicted before the blocks that continue it, and when ``promote`` merges two blocks, the
        higher priority wins.

        Args:
            blocks: Held or cached.
            priority: From ``LOW`` to ``HIGH``. None removes the retention.
            ttl: Seconds, measured by ``set_time``, after which the retention expires; None for
                never.

        Raises:
            BlockStateError: A block that is not held and not cached.
            ValueError: A block out of range, ``priority`` or ``ttl`` out of bounds, or no
                ``retention``.
            TypeError: A value of the wrong type.
        """
        level, seconds = retention(priority, ttl)
        self._core.retain(blocks, level, seconds)

    def pin(self, block: int) -> int:
        """Pins a cached block and all blocks it continues: they are evicted after all others.

        A pin is the highest priority, not a reference: ``num_available`` counts pinned blocks, and
        they are handed out if no other block is left. ``BlockManager.pin`` has the details.

        Args:
            block: The deepest block of a chain.

        Returns:
            The pin, for ``unpin``. Pins may overlap.

        Raises:
            PinBudgetError: More blocks, or pins, than the block's share has of
                ``max_pinned_blocks``.
            BlockStateError: The block is not cached.
            ValueError: The block is out of range, or ``retention`` is off.
        """
        return self._core.pin(block)

    def unpin(self, pin: int) -> None:
        """Releases a pin. Its blocks stay cached, as if they had never been pinned.

        Raises:
            UnknownPinError: The pin was released already, or never made.
            ValueError: ``retention`` is off.
        """
        self._core.unpin(pin)

    def pinned(self, pin: int) -> Pin:
        """The number of blocks of a pin, and how many of them are still cached.

        Raises:
            UnknownPinError: The pin was released already, or never made.
            ValueError: ``retention`` is off.
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
        """The time set last, in seconds; 0 before the first call of ``set_time``.

        Raises:
            ValueError: ``retention`` is off.
        """
        return self._core.time()

    def set_time(self, seconds: float) -> None:
        """Sets the time for ``ttl``, as ``BlockManager.set_time`` does.

        Raises:
            ValueError: Not finite, before the time set last, or ``retention`` is off.
            TypeError: Not a number.
        """
        self._core.set_time(number(seconds, "seconds"))

    def quota_usage(self, namespace: bytes = b"") -> QuotaUsage:
        """How many blocks a namespace may use, and how many it uses.

        Args:
            namespace: All namespaces without a quota share one part of the pool.

        Raises:
            ValueError: The namespace is too long.
            TypeError: It is not bytes.
        """
        return QuotaUsage(**self._core.quota_usage(namespace))

    def hit_rate_curve(self, namespace: bytes = b"") -> HitRateCurve:
        """The hits of ``acquire_prefix`` that pools of other sizes would have had.

        Args:
            namespace: Selects the share.

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
            PolicyError: As in ``BlockManager.check_policy``.
        """
        if error := self._core.policy_error():
            raise PolicyError(error) from error
