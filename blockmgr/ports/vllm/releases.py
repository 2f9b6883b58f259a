"""Ends of requests, removal of blocks, and resets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockmgr import StepError
from blockmgr.ports.vllm.blocks import Block
from blockmgr.ports.vllm.publishing import Publishing

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm.v1.metrics.stats import PrefixCacheStats
    from vllm.v1.request import Request

    from blockmgr.ports.vllm.held import Held
    from blockmgr.ports.vllm.hinting import RequestHints
    from blockmgr.ports.vllm.prompts import Prompts

__all__ = ["Releases"]


class Releases(Publishing):
    """Ends of requests, removal of wrong blocks, and resets: a part of the manager."""

    prompts: Prompts
    hints: RequestHints | None
    prefix_cache_stats: PrefixCacheStats | None
    publish_events: Callable[[], None] | None
    _nothing_to_do: dict[str, int]
    _whole_only: set[str]

    def free(self, request: Request) -> None:
        """Releases the request's blocks in an order that evicts the last ones first."""
        held = self._held.pop(request.request_id, None)
        self._nothing_to_do.pop(request.request_id, None)
        self._whole_only.discard(request.request_id)
        self.prompts.forget(request.request_id)
        if held is not None:
            self._end(held, request)

    def _end(self, held: Held, request: Request) -> None:
        if not self._in_step:
            self._publish_tail(held, request)
            self._close_late_commits()
        if self.hints is not None:
            self.hints.finish(held.handle)
        wish = held.wish
        stop = min(request.num_prompt_tokens, held.num_known, held.num_slots)
        if wish.priority is not None and stop > 0:
            self.manager.retain(held.handle, 0, stop, priority=wish.priority, ttl=wish.ttl)
        try:
            # A preempted request may have been scheduled earlier in this step.
            self.manager.free(held.handle, expect_reuse=wish.expect_reuse, withdraw=self._in_step)
        except StepError:
            self._leaving.append(held.handle)

    def pop_blocks_for_free(self, request: Request) -> list[Block]:
        """Ends the request; holds its blocks until ``block_pool.free_blocks`` releases them."""
        held = self._held.get(request.request_id)
        if held is None:
            return []
        ids = self.manager.block_ids(held.handle)
        self.manager.acquire(ids)
        self.free(request)
        return [Block(self.manager, block) for block in ids]

    def evict_blocks(self, block_ids: set[int]) -> None:
        """Removes these blocks from the cache, in use or not."""
        self._close_late_commits()
        self.block_pool.evict_blocks(block_ids)

    def reset_prefix_cache(self) -> bool:
        """Forgets everything, unless a block is in use."""
        self._close_late_commits()
        if self.manager.num_available < self.manager.config.capacity:
            return False
        self.manager.reset_prefix_cache()
        if self.prefix_cache_stats is not None:
            self.prefix_cache_stats.reset = True
        if self.publish_events is not None:
            self.publish_events()
        return True
