"""The calls of vLLM's KV cache manager that change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.metrics.stats import PrefixCacheStats

from blockmgr.ports.vllm.blocks import Blocks, FoundBlocks
from blockmgr.ports.vllm.held import ROW

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from blockmgr import BlockManager, Match
    from blockmgr.ports.vllm.blocks import BlockPool, SomeBlocks
    from blockmgr.ports.vllm.events import KVEvents
    from blockmgr.ports.vllm.held import Held
    from blockmgr.ports.vllm.id_lists import IdLists
    from blockmgr.ports.vllm.prompts import Prompts

__all__ = ["Lookups"]


class Lookups:
    """Look-ups, tables and counts: a part of the manager."""

    manager: BlockManager
    block_pool: BlockPool
    block_size: int
    num_kv_cache_groups: int
    enable_caching: bool
    use_eagle: bool
    log_stats: bool
    prefix_cache_stats: PrefixCacheStats | None
    kv_events: KVEvents | None
    empty_kv_cache_blocks: SomeBlocks
    _held: dict[str, Held]
    prompts: Prompts
    _told: tuple[str, Match] | None
    _ids: IdLists
    _whole_only: set[str]

    # What is cached.

    @property
    def usage(self) -> float:
        """Fraction of the blocks that are in use, 0.0 to 1.0."""
        return self.block_pool.get_usage()

    def prefix_cache_lookup_enabled(self, request: Request) -> bool:
        """Whether the request may be served from the cache."""
        return self.enable_caching and not request.skip_reading_prefix_cache

    def make_prefix_cache_stats(self) -> PrefixCacheStats | None:
        """The statistics of look-ups since the last call."""
        stats = self.prefix_cache_stats
        if self.log_stats:
            self.prefix_cache_stats = PrefixCacheStats()
        return stats

    def record_prefix_cache_stats(self, request: Request, num_hits: int) -> None:
        """Counts a request's look-up."""
        if self.prefix_cache_stats is None or not self.prefix_cache_lookup_enabled(request):
            return
        self.prefix_cache_stats.record(
            num_tokens=request.num_tokens,
            num_hits=num_hits,
            preempted=request.num_preemptions > 0,
        )

    def get_computed_blocks(
        self, request: Request, max_cache_hit_length: int | None = None
    ) -> tuple[SomeBlocks, int, int]:
        """Looks the request up without taking blocks; returns blocks, tokens, and a 0.

        Args:
            request: The request, which finds at most all tokens except its last one.
            max_cache_hit_length: Most tokens to find; if this limits the hit, only whole blocks are
                found.
        """
        if not self.prefix_cache_lookup_enabled(request):
            return self.empty_kv_cache_blocks, 0, 0
        found = self.manager.match(self.prompts.of(request), watermark_blocks=0)
        self._told = request.request_id, found
        most = found.num_cached_tokens
        if max_cache_hit_length is not None and max_cache_hit_length < most:
            most = max_cache_hit_length - max_cache_hit_length % self.block_size
        if self.use_eagle:  # the draft head recomputes the hidden states of the last block
            most = max(0, most // self.block_size - 1) * self.block_size
        elif most % self.block_size and request.request_id in self._whole_only:
            most -= most % self.block_size
        count = most // self.block_size
        if self.kv_events is not None:
            self.kv_events.reused_by(request, most)
        if not most:
            return self.empty_kv_cache_blocks, 0, 0
        return FoundBlocks(self.manager, found.block_ids, count), most, 0

    def get_computed_blocks_for_connector(
        self, request: Request, max_cache_hit_length: int | None = None
    ) -> tuple[SomeBlocks, int, int, bool]:
        """Likewise, with the number of tokens on which all groups agree."""
        return *self.get_computed_blocks(request, max_cache_hit_length), False

    def truncate_computed_blocks(self, blocks: Any, num_computed_tokens: int) -> SomeBlocks:
        """The leading blocks of a look-up, for this many tokens."""
        if num_computed_tokens % self.block_size:
            raise ValueError(
                f"num_computed_tokens must be whole blocks of {self.block_size}, "
                f"got {num_computed_tokens}"
            )
        return Blocks(self.manager, blocks.ids[: num_computed_tokens // self.block_size])

    def estimate_cached_tokens(self, request: Request) -> int:
        """Number of the request's tokens that others can find."""
        held = self._held.get(request.request_id)
        return held.next_full - self.block_size if held and self.enable_caching else 0

    # Tables.

    def get_blocks(self, request_id: str) -> SomeBlocks:
        """The request's blocks, those it found first."""
        held = self._held.get(request_id)
        if held is None:
            return self.empty_kv_cache_blocks
        return Blocks(
            self.manager,
            self._ids.of(
                self.manager.block_tables[held.handle & ROW, : held.num_slots // self.block_size]
            ),
        )

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        """Their ids."""
        return self.get_blocks(request_id).by_group

    def get_block_ids_for_computed_tokens(
        self, request_id: str, num_computed_tokens: int
    ) -> tuple[list[int], ...]:
        """The ids of the blocks that hold this many tokens."""
        most = -(-num_computed_tokens // self.block_size)
        return tuple(ids[:most] for ids in self.get_block_ids(request_id))

    def get_num_common_prefix_blocks(self, running_request_id: str) -> list[int]:
        """0 for each group, because vLLM has no cascade attention."""
        return [0] * self.num_kv_cache_groups
