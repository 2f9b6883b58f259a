"""The manager for models with several groups of layers: windows and chunks.

Every group has its own table, and all take blocks from one pool. Workers keep tables that they
append to, and the manager's tables never change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blockmgr.ports.vllm.blocks import GroupedBlocks
from blockmgr.ports.vllm.held import ROW
from blockmgr.ports.vllm.manager import KVCacheManager

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from vllm.v1.request import Request

    from blockmgr import Match, Prompt
    from blockmgr.ports.vllm.blocks import SomeBlocks
    from blockmgr.ports.vllm.held import Held, Room

__all__ = ["HybridKVCacheManager"]


class HybridKVCacheManager(KVCacheManager):
    """``KVCacheManager`` for several groups, one of which has full attention."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._tables = [self.manager.group_table(g) for g in range(self.num_kv_cache_groups)]
        # Windows release blocks after commits, so requests commit as often as a block ends.
        self._commit_every = min(each.block_size for each in self.layers)

    def _caching(self) -> dict[str, Any]:
        # Without caching in vLLM, no request reads the cache. Windows release blocks by commits.
        return {"groups": tuple(each.group for each in self.layers)}

    def _no_blocks(self) -> GroupedBlocks:
        return GroupedBlocks(self.manager, ([],) * self.num_kv_cache_groups, self.layers)

    # Look-ups.

    def get_computed_blocks(
        self, request: Request, max_cache_hit_length: int | None = None
    ) -> tuple[SomeBlocks, int, int]:
        """Looks the request up without taking blocks; returns blocks, tokens, and a 0.

        The ids are those of the first group with full attention, if its blocks have the manager's
        block size. The others are unknown until they are taken, and are 0.
        """
        if not self.prefix_cache_lookup_enabled(request):
            return self.empty_kv_cache_blocks, 0, 0
        prompt = self.prompts.of(request)
        most = len(prompt) - 1
        if max_cache_hit_length is not None and max_cache_hit_length < most:
            most = max_cache_hit_length - max_cache_hit_length % self.block_size
        found = self._match(prompt, 1, most)
        whole = found.num_cached_tokens - found.num_partial_tokens
        least = self.options.min_partial_tokens
        partly = request.request_id not in self._whole_only
        if found.num_partial_tokens and not partly:
            found = self._match(prompt, 1, whole)
        elif least and partly and not found.num_partial_tokens and whole + least <= most:
            found = self._match(prompt, min(len(prompt), whole + self.block_size), most)
        if self.use_eagle and whole:  # the draft head computes the last block again
            found = self._match(prompt, 1, whole - self.block_size)
        if not found.num_cached_tokens:
            return self.empty_kv_cache_blocks, 0, 0
        ids = [[0] * each.num_entries(found.num_cached_tokens) for each in self.layers]
        if self.kv_events is not None:
            self.kv_events.reused_by(request, found.num_cached_tokens)
        full = self.coordinator.full_attention_group_id
        if self.layers[full].block_size == self.block_size:
            ids[full] = found.block_ids.tolist()
        return GroupedBlocks(self.manager, tuple(ids), self.layers), found.num_cached_tokens, 0

    def _match(self, prompt: Prompt, num_slots: int, most: int) -> Match:
        """Not with slots for all of a long prompt: windows would need that many blocks."""
        return self.manager.match(
            prompt, num_slots=num_slots, max_cached_tokens=most, watermark_blocks=0
        )

    def truncate_computed_blocks(self, blocks: Any, num_computed_tokens: int) -> SomeBlocks:
        """The leading blocks of a look-up, for this many tokens."""
        if num_computed_tokens % self.block_size:
            raise ValueError(
                f"num_computed_tokens must be whole blocks of {self.block_size}, "
                f"got {num_computed_tokens}"
            )
        leading: GroupedBlocks = blocks.first(num_computed_tokens)
        return leading

    # Growth.

    def _admit(self, request: Request, num_found: int, room: Room) -> Held | None:
        held = super()._admit(request, num_found, room)
        if held is not None:
            held.num_committed = num_found
            held.next_full = self._next_end(num_found)
        return held

    def _next_end(self, num_tokens: int) -> int:
        """The next number of tokens at which a block of the smallest size ends."""
        return num_tokens - num_tokens % self._commit_every + self._commit_every

    def _whole_fits(self, prompt: Prompt, room: Room, match: Match | None) -> bool:
        """As in vLLM: a window holds at most a chunk and the tokens that it reads."""
        slots = max(room.whole, room.slots)
        available = self._available(prompt) - room.headroom
        # An upper bound, without any hit and with the sources of a copy.
        most = sum(each.num_blocks(slots) + 1 for each in self.layers)
        if most <= available:
            return True
        num_found = 0 if match is None else match.num_cached_tokens
        idle = 0
        if num_found:
            idle = self._match(prompt, 1, num_found).num_idle_blocks
        fresh = sum(each.num_fresh_blocks(slots, num_found) for each in self.layers)
        return fresh + idle <= available

    def _available(self, prompt: Prompt) -> int:
        """Blocks available to a request with this prompt, in its share if there are quotas."""
        if not self._has_shares:
            return self.manager.num_available
        return self.manager.quota_usage(prompt.namespace).available

    def _grow(self, held: Held, request: Request, slots: int) -> bool:
        self._release_passed(held, request)
        return super()._grow(held, request, slots)

    def _release_passed(self, held: Held, request: Request) -> None:
        """Commits what earlier steps wrote, so that windows release the blocks behind them."""
        self._commit_to(held, request, held.num_committed)

    def _publish(self, held: Held, request: Request, num_computed: int) -> None:
        if num_computed < held.next_full:
            return
        num_computed = min(num_computed, self._learn(held, request, num_computed))
        if num_computed < held.next_full:
            return
        self._commit_to(held, request, num_computed)
        held.next_full = self._next_end(num_computed)
        self._committed_late |= not self._in_step

    def _commit_to(self, held: Held, request: Request, num_tokens: int) -> None:
        """Commits, again if need be: a block may become findable once its step has ended."""
        self.manager.commit(held.handle, num_tokens)
        held.num_committed = num_tokens
        if self.kv_events is not None:
            self.kv_events.stored_by(request)

    def estimate_cached_tokens(self, request: Request) -> int:
        """Number of the request's tokens that others can find in attention groups."""
        held = self._held.get(request.request_id)
        if held is None or not self.enable_caching:
            return 0
        return held.num_committed - held.num_committed % self.block_size

    def _blocks_from(self, held: Held, start: int) -> GroupedBlocks:
        return GroupedBlocks(self.manager, self._by_group(held, start), self.layers)

    def _by_group(self, held: Held, start: int) -> tuple[list[int], ...]:
        """The ids of a request's blocks behind those of its first slots, for the workers."""
        return tuple(ids.tolist() for ids in self._entries(held, start))

    def _ids_from(self, held: Held, start: int) -> list[int]:
        return [
            block
            for ids, layers in zip(self._entries(held, start), self.layers, strict=True)
            if not layers.has_states  # which workers do not zero
            for block in ids[ids > 0].tolist()
        ]

    def _entries(self, held: Held, start: int) -> list[npt.NDArray[np.int32]]:
        """The entries of a request's tables behind those of its first slots."""
        row = held.handle & ROW
        return [
            table[row, layers.num_entries(start) : layers.num_entries(held.num_slots)]
            for table, layers in zip(self._tables, self.layers, strict=True)
        ]

    # Tables.

    def get_blocks(self, request_id: str) -> SomeBlocks:
        """The request's blocks by group, those it found first."""
        held = self._held.get(request_id)
        if held is None:
            return self.empty_kv_cache_blocks
        return GroupedBlocks(self.manager, self._by_group(held, 0), self.layers)

    def get_block_ids_for_computed_tokens(
        self, request_id: str, num_computed_tokens: int
    ) -> tuple[list[int], ...]:
        """The ids of the blocks that hold this many tokens."""
        ids = zip(self.get_block_ids(request_id), self.layers, strict=True)
        return tuple(group[: each.num_entries(num_computed_tokens)] for group, each in ids)
