"""The calls that mean the same for ``BlockManager`` and for ``BlockPool``: a part of both."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from blockmgr.arguments import real
from blockmgr.blocks import CachedPrefix, CopyPlan, IdleFront, Pin, PrefixParts
from blockmgr.errors import InvariantError, PolicyError
from blockmgr.event_columns import Events, events_of
from blockmgr.stats import HitRateCurve, QuotaUsage

if TYPE_CHECKING:
    import numpy.typing as npt

    from blockmgr import _core
    from blockmgr.config import ManagerConfig
    from blockmgr.tokens import Ints

__all__ = ["CommonCalls"]


class CommonCalls:
    """Copies, pins, the time, shares, events, blocks that are evicted soon, and checks."""

    __slots__ = ()

    _core: _core.Core | _core.PoolCore
    _config: ManagerConfig

    # Copies.

    def take_copies(self) -> CopyPlan:
        """The block copies to run before this step's forward; ends the planning of the step.

        Raises:
            StepError: The previous ticket is not resolved, or ``steps_in_flight`` steps are
                launched and not complete.

        Leaves:
            Sources and destinations pinned until the ticket is resolved.
        """
        return self._core.take_copies(CopyPlan)

    def copies_applied(self, ticket: int) -> None:
        """Declares a plan's copies issued, ahead of any later write on the same stream.

        Raises:
            TicketError: The ticket was never taken, or is resolved.
        """
        self._core.copies_applied(ticket)

    def copies_aborted(self, ticket: int) -> None:
        """Makes a plan's copies pending again; the step counts as not launched.

        Raises:
            TicketError: The ticket was never taken, or is resolved.
        """
        self._core.copies_aborted(ticket)

    # Pins, and the time.

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

    @property
    def time(self) -> float:
        """The time set last, in seconds; 0 before the first call of ``set_time``.

        Raises:
            ValueError: ``retention`` is off.
        """
        return self._core.time()

    def set_time(self, seconds: float) -> None:
        """Sets the time for ``ttl``; a manager or pool has no clock.

        Any clock that never goes back works, such as ``time.monotonic`` read once per step. This
        call ends the retention that has expired.

        Args:
            seconds: Finite, and no less than the time set last.

        Raises:
            ValueError: Out of that range, or ``retention`` is off.
            TypeError: Not a number.

        Cost: O(shares), and that of ``retain`` for each block whose retention has expired.
        """
        self._core.set_time(real("seconds", seconds))

    # Numbers.

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out: free and idle. With quotas, those of all shares."""
        return self._core.num_available()

    def quota_usage(self, namespace: bytes = b"") -> QuotaUsage:
        """How many blocks a namespace may use, and how many it uses.

        For the operator. Namespaces without a quota share one part of the pool, so the numbers are
        those of this part: without ``quotas``, the whole pool.

        Args:
            namespace: The namespace, at most 1024 bytes.

        Raises:
            ValueError: A value out of its bounds.
            TypeError: A value of the wrong type.

        Cost: O(1).

        >>> from blockmgr import BlockManager
        >>> manager = BlockManager(num_blocks=8, block_size=4, quotas={b"tenant": 3})
        >>> manager.quota_usage(b"tenant").limit, manager.quota_usage(b"anybody else").limit
        (3, 5)
        """
        return QuotaUsage(**self._core.quota_usage(namespace))

    def hit_rate_curve(self, namespace: bytes = b"") -> HitRateCurve:
        """The hits that pools of other sizes would have had, up to ``num_blocks + ghost_blocks``.

        Of a ``BlockPool``, the hits are those of ``acquire_prefix``. With ``quotas``, the curve is
        that of the namespace's share and its requests.

        For a pool that evicts the least recently used block and reuses whole blocks only, the curve
        is exact if requests do not overlap; at the pool's own size it is exact under any load. If
        requests overlap, blocks that several of them compute at once after an eviction count as
        missed by larger pools as well.

        Args:
            namespace: Selects the share; all namespaces without a quota have one in common.

        Raises:
            ValueError: The manager has groups of layers, in which case no single order of blocks
                determines the hits at other sizes (use ``blockmgr sweep --model``). Or it was built
                without ``ghost_blocks`` or prefix caching, the namespace is too long, or the quotas
                leave it no block.
            TypeError: It is not bytes.

        Cost: O(num_blocks + ghost_blocks).

        >>> from blockmgr import BlockManager
        >>> manager = BlockManager(num_blocks=4, block_size=2, ghost_blocks=4)
        >>> for prompt in ([1, 1, 0], [2, 2, 0], [3, 3, 0], [4, 4, 0], [1, 1, 0]):
        ...     with manager.sequence(manager.admit(prompt)) as sequence:
        ...         sequence.commit(3)
        >>> manager.hit_rate_curve().hit_tokens.tolist()
        [0, 0, 0, 0, 0, 2, 2, 2, 2]
        """
        if self._config.groups:
            raise ValueError(
                f"groups must be empty for hit_rate_curve, got {len(self._config.groups)}: a hit "
                "ends where any group lacks a block, so hits do not follow from one order of "
                "blocks; replay a trace at several pool sizes instead (blockmgr sweep --model)"
            )
        counts = self._core.reuse_counts(namespace)
        if counts is None:
            raise ValueError(
                "hit_rate_curve needs prefix_caching, ghost_blocks above 0, and a namespace that "
                "the quotas leave blocks"
            )
        capacity, query_tokens, found = counts
        # Not numpy.cumsum: it leaks memory if it runs out of memory.
        hit_tokens = np.add.accumulate(found) * self._config.block_size
        return HitRateCurve(capacity, query_tokens, hit_tokens)

    def memory_usage(self) -> int:
        """Bytes held on the host, including the address space of unused rows of sequences.

        Cost: O(max_seqs).
        """
        return self._core.memory_usage()

    # Events.

    def take_events(self) -> Events:
        """The blocks that became findable or stopped being findable since the last call.

        A mirror that applies the events in order has, after each call, exactly the digests of the
        findable full blocks; with several groups of layers, those of each group. A partial tail has
        no digest and no events. A block counts as stored when it is committed, which is before its
        K/V is written with ``early_commit``; a withdrawn commit counts as a removal. A state counts
        as stored when the copy that keeps it is applied.

        If ``num_lost`` is above 0, the mirror is stale; ``take_snapshot`` repairs it.

        Raises:
            ValueError: The manager or pool was built without ``events``.

        Cost: O(blocks of the events).

        >>> from blockmgr import BlockManager
        >>> manager = BlockManager(num_blocks=8, block_size=2, events=True)
        >>> handle = manager.admit([1, 2, 3, 4, 5])
        >>> manager.commit(handle, 5)
        >>> [event] = manager.take_events()
        >>> event.kind.name, event.tokens.tolist(), event.parent
        ('STORED', [[1, 2], [3, 4]], None)
        >>> len(manager.take_events())
        0
        """
        events: Events = self._core.take_events(self._make_events("take_events"))
        return events

    def take_snapshot(self) -> Events:
        """All findable blocks, to fill an empty mirror or repair one that lost events.

        The first event clears the device's tier; then come the blocks, parents before children.
        Events that waited for ``take_events`` are dropped, because the snapshot includes their
        effect; later events come with the next ``take_events``.

        Raises:
            ValueError: The manager or pool was built without ``events``.

        Cost: O(cached blocks).
        """
        events: Events = self._core.take_snapshot(self._make_events("take_snapshot"))
        return events

    def resident_events(self) -> Events:
        """All findable blocks, in the form of ``take_snapshot``; changes nothing.

        For one mirror among several. It includes the effect of events that wait for
        ``take_events``. A mirror that applies both is still correct.

        Raises:
            ValueError: The manager or pool was built without ``events``.

        Cost: O(cached blocks).
        """
        events: Events = self._core.resident_events(self._make_events("resident_events"))
        return events

    def _make_events(self, call: str) -> partial[Events]:
        if not self._config.events:
            raise ValueError(f"{call} needs events=True")
        return partial(events_of, self._config.block_size)

    # Blocks that are evicted soon: what a caller needs to copy them elsewhere before.

    def idle_front(self, most: int) -> IdleFront:
        """The ends of the cached prefixes that are evicted soon; changes nothing.

        The order is that of the last use, the longest ago first, whatever the policy. With
        ``quotas``, each share has a part of the front in proportion to its size. With several
        groups of layers, a prefix ends where prompts can continue; the ends that sequences only
        passed come first, as in most evictions, and of a path the last one. With
        ``min_partial_tokens``, a prefix can end with a block that is not full.

        Args:
            most: Idle blocks to look at. With one group, those that another cached block continues
                are left out: ``prefix_of`` of that block includes them.

        Raises:
            ValueError: ``most`` below 0.
            TypeError: ``most`` is not an int.

        Cost: O(most).
        """
        return IdleFront(*self._core.idle_front(most))

    def prefix_of(self, block: int) -> CachedPrefix:
        """The prefix that ends with a cached block; changes nothing.

        It ends earlier, before the first block whose K/V is not written yet.

        Args:
            block: A cached block, of any group of layers. The cached tail of a sequence has fewer
                tokens than others.

        Raises:
            BlockStateError: The block is not cached.
            ValueError: The block is out of bounds.
            TypeError: ``block`` is not an int.

        Cost: O(blocks of the prefix).

        >>> from blockmgr import BlockManager
        >>> manager = BlockManager(num_blocks=8, block_size=2)
        >>> handle = manager.admit([1, 2, 3, 4, 5])
        >>> manager.commit(handle, 5)
        >>> manager.free(handle)
        >>> [last] = manager.idle_front(8).block_ids.tolist()
        >>> manager.prefix_of(last).tokens.tolist()
        [1, 2, 3, 4]
        """
        # By name: CPython leaks a starred list for which there is no memory.
        ids, contents, tokens, name, extras, levels, until, is_whole, parts = self._core.prefix_of(
            block
        )
        own = PrefixParts(*parts)
        return CachedPrefix(ids, contents, tokens, name, extras, levels, until, is_whole, own)

    def contents_of(self, blocks: Ints) -> npt.NDArray[np.int64]:
        """A number of the content of each block, which no other content ever has.

        If the number is the same before and after a read, the read has got that content.

        Args:
            blocks: ``int[n]``, of any group of layers.

        Returns:
            ``int64[n]`` on the host, owned by the caller; -1 for a block that is not cached.

        Raises:
            ValueError: A block out of bounds.
            TypeError: Blocks of the wrong type.
        """
        contents: npt.NDArray[np.int64] = self._core.contents_of(blocks)
        return contents

    # Checks.

    def check_invariants(self) -> None:
        """Recomputes and checks every count, link and invariant.

        References that callers of a ``BlockPool`` hold are not known, so they are not checked.

        Raises:
            InvariantError: An invariant is violated, which is a bug in blockmgr.
            PolicyError: As in ``check_policy``.

        Cost: O(blocks + entries of all block tables). For tests and debugging.
        """
        if violations := self._core.violations():
            raise InvariantError(tuple(violations))
        self.check_policy()

    def check_policy(self) -> None:
        """Raises the first error of an eviction policy written in Python, if there was one.

        Raises:
            PolicyError: The policy raised, or named a victim that cannot be evicted. The call in
                which that happened has finished, as have all later calls, which evict the least
                recently used block first.
        """
        if error := self._core.policy_error():
            raise PolicyError(error) from error
