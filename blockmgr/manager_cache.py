"""The calls of ``BlockManager`` about its cache: look-ups, hit rates, reset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from blockmgr.explain import Explanation, explanation
from blockmgr.prompt import Prompt, parts_of
from blockmgr.stats import HitRateCurve, QuotaUsage, RecentHits
from blockmgr.tokens import extras_pairs

if TYPE_CHECKING:
    from collections.abc import Sequence as IntSequence

    import numpy.typing as npt

    from blockmgr import _core
    from blockmgr.blocks import Match
    from blockmgr.config import ManagerConfig
    from blockmgr.tokens import Extras, Tokens

__all__ = ["CacheCalls"]


class CacheCalls:
    """Look-ups and the cache as a whole: a part of ``BlockManager``."""

    __slots__ = ()

    _core: _core.Core
    _config: ManagerConfig

    def match(
        self,
        tokens: Tokens | Prompt,
        *,
        namespace: bytes = b"",
        extras: Extras | None = None,
        num_slots: int | None = None,
        max_cached_tokens: int | None = None,
        watermark_blocks: int | None = None,
    ) -> Match:
        """Finds what ``admit`` would find; changes nothing, not even recency.

        If that admission succeeds, it takes exactly ``num_cached_tokens`` from the cache, in these
        blocks. Neither call reuses part of a block if no block is left for the copy, or if
        ``num_slots`` ends before it. ``admit(match=...)`` takes exactly this match or raises,
        whatever happens in between. The prompt may be longer than any that the manager could admit.

        Args:
            tokens: The prompt, at least one token.
            namespace: As in ``admit``.
            extras: As in ``admit``.
            num_slots: As in ``admit``.
            max_cached_tokens: As in ``admit``.
            watermark_blocks: As in ``admit``.

        Raises:
            ValueError: A value out of its bounds.
            TypeError: A value of the wrong type.
        """
        if type(tokens) is Prompt:
            tokens, namespace, keys = tokens.parts(namespace, extras)
        else:
            keys = None if extras is None else extras_pairs(extras)
        return self._core.match(
            tokens, namespace, keys, num_slots, max_cached_tokens, watermark_blocks
        )

    def block_digests(
        self, tokens: Tokens | Prompt, *, namespace: bytes = b"", extras: Extras | None = None
    ) -> list[bytes]:
        """The digests of the whole blocks of a prompt, cached or not.

        Each digest covers its block and all blocks before it. It depends on ``digest`` and
        ``block_size`` only, so two managers with the same settings agree. Tokens after the last
        whole block have no digest. A block that the last token fills is a whole block.

        Args:
            tokens: The prompt, at least one token, of any length.
            namespace: As in ``admit``.
            extras: As in ``admit``.

        Returns:
            ``len(tokens) // block_size`` digests, in order.

        Raises:
            ValueError: A value out of its bounds, or ``prefix_caching`` is off.
            TypeError: A value of the wrong type.

        Cost: One digest for each block.
        """
        tokens, namespace, keys = parts_of(tokens, namespace, extras)
        return self._core.block_digests(tokens, namespace, keys)

    def explain(
        self, tokens: Tokens | Prompt, *, namespace: bytes = b"", extras: Extras | None = None
    ) -> Explanation:
        """Explains how much of a prompt is cached, and why the rest is not.

        The answer assumes that there is a block left to copy part of a block to.

        Changes nothing, not even recency. With ``ghost_blocks``, it distinguishes evicted blocks
        from blocks that were never cached, and says how many more blocks the pool would need to
        keep them. With several groups of layers, it names the group that lacks what full attention
        has cached. It reports that the same tokens are cached in another namespace, but neither
        which namespace nor which extra keys. Even that should stay hidden from other tenants, so
        this call is for the operator of the engine.

        Raises:
            NeverFitsError: The prompt is longer than a block table row.
            ValueError: A value out of its bounds.
            TypeError: A value of the wrong type.

        Cost: With ``ghost_blocks``, one digest for each whole block that is not found. If there is
        such a block, also O(cached blocks + blocks of running sequences) comparisons, most of which
        end at the first token.

        >>> from blockmgr import BlockManager
        >>> manager = BlockManager(num_blocks=8, block_size=4)
        >>> handle = manager.admit([1, 2, 3, 4, 5, 6])
        >>> manager.explain([1, 2, 3, 4, 7]).reason
        <MissReason.NOT_COMMITTED: 'computed but not committed'>
        """
        tokens, namespace, keys = parts_of(tokens, namespace, extras)
        return explanation(self._core.explain(tokens, namespace, keys))

    def hit_rate_curve(self, namespace: bytes = b"") -> HitRateCurve:
        """The hits that pools of other sizes would have had, up to ``num_blocks + ghost_blocks``.

        With ``quotas``, the curve is that of the namespace's share and its requests.

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

    def num_common_prefix_blocks(
        self, handles: IntSequence[int] | npt.NDArray[np.int64] | None = None
    ) -> int:
        """The number of leading blocks that all these sequences share, for cascade attention.

        Only whole, computed blocks count, which a forward may read for the whole batch at once,
        without a mask. For a single sequence, these are all of its computed blocks.

        Args:
            handles: ``int64[batch]``, running; None for all running sequences.

        Returns:
            The number of blocks; 0 without any sequence.

        Raises:
            UnknownSequenceError: A handle is not live.
            SequenceStateError: A sequence is preempted.
            TypeError: Handles of the wrong type.

        Cost: O(sequences x blocks they have in common).

        >>> from blockmgr import BlockManager
        >>> manager = BlockManager(num_blocks=8, block_size=2)
        >>> first = manager.admit([1, 2, 3, 4, 5])
        >>> manager.commit(first, 5)
        >>> second = manager.admit([1, 2, 3, 4, 6, 7])
        >>> manager.num_common_prefix_blocks()
        2
        """
        return self._core.num_common_prefix_blocks(handles)

    def reset_prefix_cache(self, *, reset_hit_rate: bool = True) -> int:
        """Forgets all cached blocks, as after a change of weights; running sequences continue.

        Prompts find nothing that was computed before this call. Idle blocks become free. Blocks in
        use stay with their sequences and become private. What those sequences and their forks
        compute later depends on K/V from before the call, so it is not cached until the sequence is
        preempted and resumed, which computes everything again.

        Planned copies stay planned. Pins stay held but cover no blocks, as ``pinned`` shows;
        retention and hints of cached blocks are forgotten. With ``ghost_blocks``, the ghosts are
        forgotten as well. The counters of ``stats`` and ``hit_rate_curve`` continue. An eviction
        policy keeps what it has learned.

        Args:
            reset_hit_rate: Whether to reset ``recent_hits`` as well.

        Returns:
            The number of blocks removed from the cache.

        Raises:
            StepError: With ``early_commit``, while a sequence is committed ahead of this step's
                forward.
            TypeError: ``reset_hit_rate`` is not a bool.

        Cost: O(num_blocks + entries of all block tables).

        >>> from blockmgr import BlockManager
        >>> manager = BlockManager(num_blocks=8, block_size=2)
        >>> handle = manager.admit([1, 2, 3])
        >>> manager.commit(handle, 3)
        >>> manager.reset_prefix_cache(), manager.match([1, 2, 3]).num_cached_tokens
        (1, 0)
        """
        return self._core.reset_prefix_cache(reset_hit_rate)

    def recent_hits(self) -> RecentHits:
        """The hits of the last ``hit_rate_window`` requests.

        Counted in tokens, at first admissions that read the cache.

        Cost: O(1).

        >>> from blockmgr import BlockManager
        >>> manager = BlockManager(num_blocks=8, block_size=2, hit_rate_window=2)
        >>> for prompt in ([1, 2, 3], [1, 2, 3], [1, 2, 9, 9]):
        ...     with manager.sequence(manager.admit(prompt)) as sequence:
        ...         sequence.commit(len(prompt))
        >>> manager.recent_hits()
        RecentHits(requests=2, query_tokens=7, hit_tokens=4)
        """
        requests, query_tokens, hit_tokens = self._core.recent_hits()
        return RecentHits(requests=requests, query_tokens=query_tokens, hit_tokens=hit_tokens)

    def reset_hit_rate(self) -> None:
        """Resets ``recent_hits``. The counters of ``stats`` continue."""
        self._core.reset_hit_rate()

    def quota_usage(self, namespace: bytes = b"") -> QuotaUsage:
        """How many blocks a namespace may use, and how many it uses.

        For the operator. Namespaces without a quota share one part of the pool, so the numbers are
        those of this part: without ``quotas``, the whole pool.

        Args:
            namespace: As in ``admit``.

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
