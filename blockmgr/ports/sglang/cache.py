"""SGLang's prefix cache on a ``BlockPool``."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sglang.srt.mem_cache.base_prefix_cache import (
    BasePrefixCache,
    DecLockRefParams,
    DecLockRefResult,
    EvictParams,
    EvictResult,
    IncLockRefResult,
    InsertParams,
    InsertResult,
    MatchPrefixParams,
    MatchResult,
)
from sglang.srt.mem_cache.radix_cache import RadixKey

from blockmgr.errors import BlockStateError
from blockmgr.pool import BlockPool
from blockmgr.ports.sglang.hinting import RequestHints
from blockmgr.ports.sglang.keys import Prompt, prompt_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["Node", "PrefixCache"]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """The end of a cached prefix, which SGLang passes between calls.

    Attributes:
        pages: ``int32[num_pages]`` from the first page of the prompt on; empty for the root.
        generation: Generation of the last page; it changes when the page loses its content.
    """

    pages: npt.NDArray[np.int32]
    generation: int

    def __repr__(self) -> str:
        return f"Node({len(self.pages)} pages)"


class PrefixCache(BasePrefixCache):  # type: ignore[misc]
    """SGLang's interface of a tree cache, for full attention.

    A page of SGLang's slots is a block of the pool. Blocks that are not cached belong to the
    caller: free slots are in SGLang's allocator, and slots of a request in its row. A cached block
    without a lock is idle, and returns to the allocator when it is evicted. Page 0 is SGLang's
    target for padded writes, and is never cached.

    Args:
        params: SGLang's ``CacheInitParams``, for a supported configuration.
    """

    def __init__(self, params: Any) -> None:
        self.disable = params.disable
        self.req_to_token_pool = params.req_to_token_pool
        self.token_to_kv_pool_allocator = params.token_to_kv_pool_allocator
        self.page_size: int = params.page_size
        self.sliding_window_size = None
        self.device = torch.device(self.token_to_kv_pool_allocator.device)
        self._offsets = torch.arange(self.page_size, device=self.device)
        self.reset()
        if params.enable_metrics:
            self.init_metrics_collector()

    def reset(self) -> None:
        """Forgets everything. SGLang calls it when no request runs, and frees every slot itself."""
        num_pages = self.token_to_kv_pool_allocator.size // self.page_size + 1
        self.pool = BlockPool(num_pages, self.page_size, retention=True)
        self.pool.take(num_pages)
        self.hints = RequestHints(self.pool, len(self.req_to_token_pool.req_to_token))
        self.root_node = Node(np.empty(0, np.int32), 0)

    # The cache.

    def supports_prefix_sharing(self) -> bool:
        """Whether caching is on; ``--disable-radix-cache`` turns it off."""
        return not self.disable

    def supports_fast_match_prefix(self) -> bool:
        """Whether the scheduler may look up every waiting request in each step."""
        return True

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        """The longest cached prefix, in whole pages. A match counts as a use, as in SGLang."""
        node = self.root_node
        if not self.disable and len(params.key) >= self.page_size:
            pages = self._find(prompt_of(params.key, self.page_size))
            if len(pages):
                self.pool.touch(pages[-1:])
            node = self._node(pages)
        return MatchResult(len(node.pages) * self.page_size, node, node, node)

    def touch_prefix(self, key: RadixKey) -> None:
        """Records that a waiting request will use this prefix, which delays its eviction."""
        pages = self._find(prompt_of(key, self.page_size))
        if len(pages):
            self.pool.touch(pages[-1:])

    def path_device_indices(self, node: Node) -> torch.Tensor:
        """``int64[num_pages * page_size]`` on the device: the slots of a prefix."""
        pages = torch.from_numpy(node.pages.astype(np.int64)).to(self.device)
        slots: torch.Tensor = pages[:, None] * self.page_size + self._offsets
        return slots.reshape(-1)

    def insert(self, params: InsertParams) -> InsertResult:
        """Caches whole pages, whose slots then belong to the cache.

        The slots of the ``prefix_len`` tokens that are cached already stay with the caller, which
        frees them.
        """
        prompt = prompt_of(params.key, self.page_size)
        found = self._find(prompt)
        known = len(found)
        num_pages = len(prompt.tokens) // self.page_size
        slots = params.value[known * self.page_size : num_pages * self.page_size : self.page_size]
        # On a GPU this waits for the device, because the pool and the page numbers are on the host.
        own = (slots.cpu().numpy() // self.page_size).astype(np.int32)
        if len(own):
            self._promote(own, prompt.after(known, self.page_size), found)
        elif known:
            self.pool.touch(found[-1:])
        return InsertResult(
            prefix_len=known * self.page_size,
            last_device_node=self._node(np.concatenate([found, own])),
        )

    def checkpoint(self, req: Any, *, up_to: int, **_: Any) -> None:
        """Caches the computed pages of a request, and writes the cache's slots to its row."""
        if self.disable:
            return
        row = self.req_to_token_pool.req_to_token[req.kv.req_pool_idx]
        key = RadixKey(
            req.full_untruncated_fill_ids[:up_to], req.extra_key, cache_salt=req.cache_salt
        )
        have = req.kv.cache_protected_len
        result = self.insert(InsertParams(key=key, value=row[:up_to]))
        node = result.last_device_node
        length = len(node.pages) * self.page_size
        req.kv.cache_inserted_len = max(req.kv.cache_inserted_len, length)
        if length <= have:
            return
        self.token_to_kv_pool_allocator.free_segment(
            row[have : max(have, result.prefix_len)], start_pos=have
        )
        slots = self.path_device_indices(node)[have:].to(row.dtype)
        self.req_to_token_pool.write((req.kv.req_pool_idx, slice(have, length)), slots)
        req.kv.cache_protected_len = length
        before, req.lock = req.lock, self.lock(node)
        self.unlock(before)
        req.last_node = node

    def on_release(self, req: Any, *, checkpointed: bool) -> None:
        """Carries out the hints of a request that has ended, not of one that is retracted."""
        if checkpointed and req.finished():
            self.hints.end(req, req.last_node.pages.tolist())

    # Locks and eviction.

    def inc_lock_ref(self, node: Node) -> IncLockRefResult:
        """Keeps a prefix from being evicted.

        Raises:
            BlockStateError: It was evicted since it was found.
        """
        if len(node.pages):
            last = int(node.pages[-1])
            if self.pool.generation(last) != node.generation:
                raise BlockStateError(last, f"{node} was evicted after it was found")
            self.pool.acquire([last])
        return IncLockRefResult(delta=0)

    def dec_lock_ref(self, node: Node, params: DecLockRefParams | None = None) -> DecLockRefResult:
        """Removes one lock."""
        del params
        if len(node.pages):
            self.pool.release(node.pages[-1:])
        return DecLockRefResult(delta=0)

    def evict(self, params: EvictParams) -> EvictResult:
        """Evicts pages for at least this many tokens, or all idle ones, and frees their slots."""
        start = time.perf_counter()
        self.hints.set_time()
        count = min(-(-params.num_tokens // self.page_size), self.pool.num_idle)
        if count <= 0:
            return EvictResult()
        slots = self.path_device_indices(Node(self.pool.evict(count), 0))
        self.token_to_kv_pool_allocator.free_segment(slots, start_pos=0)
        self.update_eviction_metrics(len(slots), start)
        return EvictResult(num_tokens_evicted=len(slots))

    def evictable_size(self) -> int:
        """Tokens that are cached and not locked."""
        return self.pool.num_idle * self.page_size

    def full_evictable_size(self) -> int:
        """The same: all layers are of full attention."""
        return self.evictable_size()

    def protected_size(self) -> int:
        """Tokens that are cached and locked."""
        return (self.pool.num_cached - self.pool.num_idle) * self.page_size

    def full_protected_size(self) -> int:
        """The same: all layers are of full attention."""
        return self.protected_size()

    def total_size(self) -> int:
        """Tokens that are cached."""
        return self.pool.num_cached * self.page_size

    # For schedulers, checks and logs.

    def dfs_weight_order(self, node_handles: Sequence[Node]) -> list[int]:
        """Sorts requests along the tree of their matches, the most requested branches first.

        Cost: O(pages of all of them).
        """
        chains = [node.pages.tolist() for node in node_handles]
        weights = Counter(page for chain in chains for page in chain)
        # Longer chains come before the one that ends here.
        ends = (1, 0)
        keys = [[*((-weights[page], page) for page in chain), ends] for chain in chains]
        return sorted(range(len(chains)), key=keys.__getitem__)

    def all_values_flatten(self) -> torch.Tensor:
        """``int64[n]`` on the device: every slot that is cached."""
        every = np.arange(self.pool.num_blocks, dtype=np.int32)
        return self.path_device_indices(Node(every[self.pool.is_cached(every)], 0))

    def pretty_print(self) -> None:
        """Prints the sizes of the cache."""
        print(self.pool)

    def sanity_check(self) -> None:
        """Recomputes and checks the state of the pool.

        Raises:
            InvariantError: An invariant is violated, which is a bug in blockmgr.
        """
        self.pool.check_invariants()

    def _find(self, prompt: Prompt) -> npt.NDArray[np.int32]:
        return self.pool.find(prompt.tokens, namespace=prompt.namespace, extras=prompt.extras)

    def _promote(
        self, own: npt.NDArray[np.int32], rest: Prompt, found: npt.NDArray[np.int32]
    ) -> None:
        parent = int(found[-1]) if len(found) else -1
        namespace = b"" if len(found) else rest.namespace
        self.pool.promote(own, rest.tokens, parent=parent, namespace=namespace, extras=rest.extras)
        self.pool.release(own)

    def _node(self, pages: npt.NDArray[np.int32]) -> Node:
        if not len(pages):
            return self.root_node
        return Node(pages, self.pool.generation(int(pages[-1])))
