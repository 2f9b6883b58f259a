"""vLLM's ``KVCacheManager``, driven as its scheduler drives it: full attention, one group."""

from __future__ import annotations

from typing import Any

import torch
from vllm import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_manager, kv_cache_utils
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

from tests.differential.stream import BLOCK_SIZE

HASH = get_hash_fn_by_name("sha256_cbor")
kv_cache_utils.init_none_hash(HASH)


class Vllm:
    """The other side of a stream."""

    def __init__(self, num_blocks: int) -> None:
        spec = FullAttentionSpec(
            block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float16
        )
        config = KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        )
        self.manager = kv_cache_manager.KVCacheManager(
            config,
            max_model_len=1 << 16,
            scheduler_block_size=BLOCK_SIZE,
            hash_block_size=BLOCK_SIZE,
        )
        self.hasher = kv_cache_utils.get_request_block_hasher(BLOCK_SIZE, HASH)
        self.requests: dict[int, Any] = {}

    def request(self, name: int, tokens: list[int]) -> Any:
        return Request(
            str(name), list(tokens), SamplingParams(max_tokens=1 << 16), None,
            block_hasher=self.hasher,
        )  # fmt: skip

    def admit(self, name: int, tokens: list[int], chunk: int) -> int | None:
        request = self.request(name, tokens)
        blocks, found, _ = self.manager.get_computed_blocks(request)
        new = min(chunk, request.num_tokens - found)
        if self.manager.allocate_slots(request, new, found, blocks) is None:
            return None
        request.num_computed_tokens = found + new
        self.requests[name] = request
        return found

    def prefill(self, name: int, chunk: int) -> bool:
        request = self.requests[name]
        if self.manager.allocate_slots(request, chunk) is None:
            return False
        request.num_computed_tokens += chunk
        return True

    def decode(self, name: int, token: int) -> bool:
        request = self.requests[name]
        request.append_output_token_ids(token)
        if self.manager.allocate_slots(request, 1) is None:
            return False
        request.num_computed_tokens += 1
        return True

    def release(self, name: int) -> None:
        self.manager.free(self.requests.pop(name))

    def available(self) -> int:
        return self.manager.block_pool.get_num_free_blocks()

    def has_twins(self) -> bool:
        # As soon as two blocks have the same hash, vLLM keeps them in a nested dict.
        entries = self.manager.block_pool.cached_block_hash_to_block._cache.values()
        return any(isinstance(entry, dict) and len(entry) > 1 for entry in entries)
