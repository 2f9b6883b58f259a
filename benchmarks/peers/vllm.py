"""vLLM's ``KVCacheManager`` with one group of full-attention layers.

The timed part is what its engine core and scheduler call: a ``Request``, which hashes its tokens
when it is created, then ``get_computed_blocks``, ``allocate_slots`` and ``free``. vLLM caches
blocks while it allocates them.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from benchmarks.peers.adapter import BLOCK_SIZE, Operation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

__all__ = ["Vllm"]

_NO_FORK = (
    "has no fork: parallel samples are requests of their own, each admitted by way of the cache"
)


class Vllm:
    """vLLM, with one of its hash functions."""

    def __init__(self, hash_name: str, cannot: Mapping[str, str] | None = None) -> None:
        # Imports everything that the rows need, so that a missing package shows immediately.
        from vllm import SamplingParams
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1 import kv_cache_interface
        from vllm.v1.core import kv_cache_manager, kv_cache_utils
        from vllm.v1.request import Request

        self.name = f"vLLM {version('vllm')}, {hash_name}"
        self.cannot: Mapping[str, str] = {
            Operation.FORK: _NO_FORK,
            Operation.COPY_ON_WRITE: _NO_FORK,
            **(cannot or {}),
        }
        # A global of vLLM that starts every chain of hashes. Changing it would make the content of
        # caches with another hash function impossible to find.
        if not hasattr(kv_cache_utils, "NONE_HASH"):
            kv_cache_utils.init_none_hash(get_hash_fn_by_name("sha256"))
        self.hash_function = get_hash_fn_by_name(hash_name)
        self.interface = kv_cache_interface
        self.manager_class = kv_cache_manager.KVCacheManager
        self.utilities = kv_cache_utils
        self.request_class = Request
        self.sampling = SamplingParams(max_tokens=1 << 20)

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
        return _Cache(self, num_blocks, block_size)


class _Cache:
    def __init__(self, peer: Vllm, num_blocks: int, block_size: int) -> None:
        import torch

        utilities, interface = peer.utilities, peer.interface
        self._hasher = utilities.get_request_block_hasher(block_size, peer.hash_function)
        self._request_class = peer.request_class
        self._sampling = peer.sampling
        self._num_requests = 0
        spec = interface.FullAttentionSpec(
            block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float16
        )
        config = interface.KVCacheConfig(
            num_blocks=num_blocks + 1,  # it keeps one as its null block
            kv_cache_tensors=[],
            kv_cache_groups=[interface.KVCacheGroupSpec(["layer"], spec)],
        )
        self._manager = peer.manager_class(
            config,
            max_model_len=1 << 20,
            scheduler_block_size=block_size,
            hash_block_size=block_size,
        )

    def _request(self, prompt: list[int]) -> Any:
        self._num_requests += 1
        return self._request_class(
            str(self._num_requests), prompt, self._sampling, None, block_hasher=self._hasher
        )

    def match(self, prompt: list[int]) -> int:
        return self._manager.get_computed_blocks(self._request(prompt))[1]

    def admit(self, prompt: list[int]) -> Any:
        request, manager = self._request(prompt), self._manager
        found, num_computed, _ = manager.get_computed_blocks(request)
        num_new = request.num_tokens - num_computed
        if manager.allocate_slots(request, num_new, num_computed, found) is None:
            raise MemoryError("vLLM has too few blocks")
        request.num_computed_tokens = request.num_tokens
        return request

    def free(self, request: Any) -> None:
        self._manager.free(request)

    def batch(self, requests: Sequence[Any]) -> Sequence[Any]:
        return requests

    def step(self, batch: Sequence[Any], tokens: list[int]) -> None:
        manager = self._manager
        manager.new_step_starts()
        for request, token in zip(batch, tokens, strict=True):
            request.append_output_token_ids(token)
            if manager.allocate_slots(request, 1) is None:
                raise MemoryError("vLLM has too few blocks")
            request.num_computed_tokens += 1

    def fork(self, request: Any, count: int) -> Sequence[Any]:
        raise NotImplementedError(_NO_FORK)

    def copies(self) -> int:
        return 0

    def num_free(self) -> int:
        return self._manager.block_pool.get_num_free_blocks()

    def scatter(self, order: npt.NDArray[np.int64]) -> None:
        pool = self._manager.block_pool
        blocks = pool.get_new_blocks(len(order))
        pool.free_blocks([blocks[i] for i in order.tolist()])
