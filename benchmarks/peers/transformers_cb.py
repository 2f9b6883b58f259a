"""transformers' continuous batching: the host side of its ``PagedAttentionCache``.

Uses the classes of the installed package, without a model: the calls that its scheduler and its
batch processor make for a request, in the same order. The package sizes its cache by free memory;
here the number of blocks is given, with one layer and one head, so that the tensor is small enough
not to matter.

Left out of the timed part, in its favour: the loop of its scheduler around these calls, the index
tensors for a forward, and the deep copy of a forked request's tokens.
"""

from __future__ import annotations

from copy import copy
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from unittest import mock

from benchmarks.peers.adapter import BLOCK_SIZE, Operation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

__all__ = ["TransformersBatching"]

_CANNOT = {
    Operation.EVICTING_ADMIT: (
        "evicts all cached blocks when it runs short, so no admission evicts only what it needs"
    ),
    Operation.COPY_ON_WRITE: (
        "copies a block that is not full when it forks, and never on a write"
    ),
}
_UNBOUNDED = 1 << 62


class TransformersBatching:
    """transformers, with one group of full-attention layers."""

    def __init__(self, cannot: Mapping[str, str] | None = None) -> None:
        # Imports everything that the rows need, so that a missing package shows immediately.
        import torch
        from transformers import LlamaConfig
        from transformers.generation.configuration_utils import ContinuousBatchingConfig
        from transformers.generation.continuous_batching import cache, distributed, requests

        self.name = f"transformers {version('transformers')}, continuous batching"
        self.cannot: Mapping[str, str] = {**_CANNOT, **(cannot or {})}
        self.torch = torch
        self.model_config = LlamaConfig(
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
            head_dim=2,  # so that it aligns to blocks of 16 tokens, as with a real model
            hidden_size=2,
            vocab_size=2,
        )
        self.batching_config = ContinuousBatchingConfig
        self.cache = cache
        self.distributed = distributed
        self.request_class = requests.RequestState

    def prompt(self, tokens: npt.NDArray[np.uint32]) -> list[int]:
        """It takes tokens as lists."""
        return tokens.tolist()

    def open(
        self,
        num_blocks: int,
        block_size: int = BLOCK_SIZE,
        *,
        max_requests: int = 64,
        max_tokens: int = 1 << 18,
    ) -> _Cache:
        del max_requests, max_tokens  # it needs no size limits
        cpu = self.torch.device("cpu")
        measured = mock.patch.object(
            self.cache, "get_device_and_memory_breakdown", return_value=(cpu, _UNBOUNDED, 0, 0)
        )
        with measured:
            cache = self.cache.PagedAttentionCache(
                self.model_config,
                self.batching_config(
                    page_size=block_size,
                    num_blocks=num_blocks,
                    max_batch_tokens=1,
                    max_memory_percent=1.0,
                ),
                cpu,
                self.distributed.DistributedHelper(None, None),
            )
        return _Cache(cache, self.request_class)


class _Cache:
    def __init__(self, cache: Any, request_class: Any) -> None:
        self._cache = cache
        self._request_class = request_class
        [(self._group, self._allocator)] = cache.cache_allocators.items()
        self._num_requests = 0
        self._num_copies = 0

    def match(self, prompt: list[int]) -> int:
        allocator = self._allocator
        return len(allocator.match_prefix_blocks(prompt)) * allocator.tokens_per_page

    def _store(self, state: Any, num_tokens: int) -> None:
        """Allocates slots for this many further tokens; evicts cached blocks if necessary."""
        cache = self._cache
        if cache.can_store_request_tokens(state, num_tokens):
            return
        for make_room in (lambda: True, cache.evict_cached_blocks):
            make_room()
            cache.pool.try_to_free_sectors()
            if cache.can_store_request_tokens(state, num_tokens):
                return
        raise MemoryError("transformers has too few blocks")

    def _compute(self, state: Any, num_tokens: int) -> None:
        """The host's work before and after a forward over this many tokens."""
        cache = self._cache
        self._store(state, num_tokens)
        complete = cache.count_new_complete_blocks(state, num_tokens)
        state.position_offset += num_tokens
        if complete:
            cache.mark_complete_blocks(state, complete)

    def admit(self, prompt: list[int]) -> Any:
        self._num_requests += 1
        state = self._request_class(str(self._num_requests), prompt)
        found = self._cache.search_prefix_match(state.request_id, prompt)
        state.position_offset = found
        try:
            self._compute(state, len(prompt) - found)
        except MemoryError:
            self.free(state)
            raise
        return state

    def free(self, request: Any) -> None:
        self._cache.free_blocks(request.request_id)

    def batch(self, requests: Sequence[Any]) -> Sequence[Any]:
        return requests

    def step(self, batch: Sequence[Any], tokens: list[int]) -> None:
        for state, token in zip(batch, tokens, strict=True):
            state.generated_tokens.append(token)
            self._compute(state, 1)

    def fork(self, request: Any, count: int) -> list[Any]:
        children = []
        for _ in range(count):
            self._num_requests += 1
            child = copy(request)
            child.request_id = str(self._num_requests)
            child.generated_tokens = request.generated_tokens.copy()
            children.append(child)
        plan: dict[str, tuple[list[int], list[int]]] = {self._group: ([], [])}
        names = [child.request_id for child in children]
        if len(self._cache.prepare_fork_request(request, names, plan)) < count:
            raise MemoryError("transformers has too few blocks")
        self._num_copies += len(plan[self._group][0])
        return children

    def copies(self) -> int:
        num_copies, self._num_copies = self._num_copies, 0
        return num_copies

    def num_free(self) -> int:
        cache, allocator = self._cache, self._allocator
        free = cache.pool.num_free_sectors * allocator.blocks_per_sector
        free += cache.pool.count_free_blocks(allocator.index)
        return free + len(allocator.ledger.cached_blocks)

    def scatter(self, order: npt.NDArray[np.int64]) -> None:
        pool, allocator = self._cache.pool, self._allocator
        if allocator.blocks_per_sector != 1:
            raise NotImplementedError("blocks of a sector are allocated together")
        # Free sectors are taken from the end.
        pool.free_sectors = (order[::-1] + pool.num_reserved_sectors).tolist()
