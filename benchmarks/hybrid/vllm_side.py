"""Runs prompts through vLLM's ``KVCacheManager`` one at a time, as its scheduler would.

The chunks are those of its scheduler: a batch of at most ``max_num_batched_tokens`` tokens, cut by
its own ``_mamba_block_aligned_split`` where there are states. Its workers are not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from vllm import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request
from xxhash import xxh3_128_digest

from benchmarks.hybrid.prompts import NO_TOKEN
from benchmarks.hybrid.shapes import MAX_BATCHED_TOKENS
from blockmgr import ChunkedAttention, RecurrentState, SlidingWindow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.hybrid.prompts import Prompt
    from benchmarks.hybrid.shapes import Shape
    from blockmgr.groups import Group

Hashes = dict[tuple[int, bytes], list[bytes]]
"""The hashes of earlier prompts, by unit and digest."""

__all__ = ["VERSION", "Setting", "Vllm", "VllmManager", "settings_of"]

VERSION = version("vllm")
HASH = get_hash_fn_by_name("sha256_cbor")
kv_cache_utils.init_none_hash(HASH)


@dataclass(frozen=True, slots=True)
class Setting:
    """vLLM's ``prefix_cache_retention_interval`` and ``prefix_match_unit``; 0 is its default."""

    interval: int | None
    unit: int = 0

    def __str__(self) -> str:
        return f"interval {self.interval}, unit {self.unit or 'default'}"


def settings_of(shape: Shape) -> list[Setting]:
    """All settings that are compared. A finer unit matters only for recurrent states."""
    units = (0, shape.unit) if shape.unit else (0,)
    return [Setting(interval, unit) for interval in (0, None) for unit in units]


def spec_of(group: Group, size: int) -> Any:
    """The group as vLLM describes it. Its manager ignores bytes, because pages are equal."""
    attention: dict[str, Any] = {
        "block_size": size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float16,
    }  # fmt: skip
    if isinstance(group, SlidingWindow):
        return SlidingWindowSpec(**attention, sliding_window=group.width)
    if isinstance(group, ChunkedAttention):
        return ChunkedLocalAttentionSpec(**attention, attention_chunk_size=group.width)
    full = FullAttentionSpec(**attention)
    if isinstance(group, RecurrentState):
        return MambaSpec(
            block_size=size,
            shapes=((1,),),
            dtypes=(torch.float16,),
            page_size_padded=full.page_size_bytes,
            mamba_cache_mode="align",
        )
    return full


class VllmManager:
    """Its manager with groups, and the part of its scheduler that decides where a chunk ends."""

    def __init__(
        self,
        groups: Sequence[Group],
        size: int,
        num_pages: int,
        setting: Setting,
        *,
        max_batched_tokens: int = MAX_BATCHED_TOKENS,
    ) -> None:
        unit = setting.unit or size
        config = KVCacheConfig(
            num_blocks=num_pages + 1,  # it keeps one as its null block
            kv_cache_tensors=[],
            kv_cache_groups=[
                KVCacheGroupSpec([f"layer{number}"], spec_of(group, size))
                for number, group in enumerate(groups)
            ],
            prefix_cache_retention_interval=setting.interval,
        )
        self.manager = KVCacheManager(
            config, max_model_len=1 << 20, scheduler_block_size=size, hash_block_size=unit
        )
        self.has_states = any(isinstance(group, RecurrentState) for group in groups)
        self.max_batched_tokens = max_batched_tokens
        self.hasher = kv_cache_utils.get_request_block_hasher(unit, HASH)
        self.num_requests = 0
        # The fields of a scheduler that _mamba_block_aligned_split reads: no drafts, and no state
        # saved inside a chunk.
        finer = unit < size and self.manager.coordinator.enable_partial_hash_hits
        self._scheduler: Any = SimpleNamespace(
            cache_config=SimpleNamespace(block_size=size),
            block_size=size,
            hash_block_size=unit,
            mamba_partial_cache_hit=finer,
            mamba_has_prefill_checkpoint_blocks=False,
            mamba_prefill_checkpoint_alignment=None,
            mamba_shared_prefix_checkpoint=False,
            use_eagle_block_drop=False,
            num_hash_lookahead_tokens=0,
            max_num_scheduled_tokens=max_batched_tokens,
            scheduler_config=SimpleNamespace(long_prefill_token_threshold=0),
        )  # fmt: skip

    def request(self, tokens: Sequence[int], hashes: Sequence[bytes] | None = None) -> Any:
        """A request that has computed nothing; ``hashes`` are those of its tokens, if known."""
        self.num_requests += 1
        hasher = self.hasher if hashes is None else lambda _: list(hashes)
        return Request(
            str(self.num_requests), list(tokens), SamplingParams(max_tokens=1 << 16), None,
            block_hasher=hasher,
        )  # fmt: skip

    def look_up(self, request: Any) -> tuple[Any, int]:
        """The cached blocks of a request, and where full attention would find more."""
        blocks, found, request.shared_prefix_boundary = self.manager.get_computed_blocks(request)
        return blocks, int(found)

    def chunk(self, request: Any, at_most: int, found: int = 0) -> int:
        """Tokens of its next chunk."""
        num_new = min(at_most, self.max_batched_tokens)
        if self.has_states:
            num_new = Scheduler._mamba_block_aligned_split(self._scheduler, request, num_new, found)
        return int(num_new)

    def allocate(self, request: Any, num_new: int, found: int = 0, blocks: Any = None) -> bool:
        """Allocates slots for a chunk and counts it as computed; false if blocks are short."""
        self.manager.new_step_starts()
        taken = self.manager.allocate_slots(
            request, num_new, found, blocks, full_sequence_must_fit=blocks is not None
        )
        if taken is None:
            return False
        request.num_computed_tokens += found + num_new
        # Its copies run in this step.
        self.manager.block_pool.free_blocks(self.manager.take_kv_cache_block_copies()[1])
        return True

    def free(self, request: Any) -> None:
        """Frees the blocks of a request."""
        self.manager.free(request)


class Vllm:
    """Runs the prompts of a shape through vLLM's manager.

    Args:
        shape: Shape of the model.
        num_pages: Pages of the pool.
        setting: Settings of vLLM.
        hashes: Kept from one pool to the next, because computing them takes longer than the rest.
    """

    def __init__(
        self, shape: Shape, num_pages: int, setting: Setting, hashes: Hashes | None = None
    ) -> None:
        self.side = VllmManager(shape.groups, shape.page, num_pages, setting)
        self.unit = setting.unit or shape.page
        self.hashes: Hashes = {} if hashes is None else hashes

    def _request(self, prompt: Prompt, *more: int) -> Any:
        """A request for a prompt, followed by tokens that fill no unit."""
        key = (self.unit, xxh3_128_digest(prompt.tobytes()))
        request = self.side.request([*prompt.tolist(), *more], self.hashes.get(key))
        if not more:
            self.hashes[key] = list(request.block_hashes)
        return request

    def run(self, prompt: Prompt) -> tuple[int, list[int]] | None:
        """Tokens found, and where its chunks ended; ``None`` if there are too few pages for it."""
        request = self._request(prompt)
        blocks, found = self.side.look_up(request)
        ends: list[int] = []
        while request.num_computed_tokens < len(prompt):
            first = not ends
            before = found if first else 0
            left = len(prompt) - request.num_computed_tokens - before
            num_new = self.side.chunk(request, left, before)
            if not self.side.allocate(request, num_new, before, blocks if first else None):
                self.side.free(request)
                return None
            ends.append(request.num_computed_tokens)
        self.side.free(request)
        return found, ends

    def live_ends(self, prompt: Prompt, ends: Sequence[int]) -> list[int]:
        """Which of these lengths a prompt finds that diverges from this one there."""
        request = self._request(prompt, int(NO_TOKEN))
        find = self.side.manager.get_computed_blocks
        return [end for end in ends if find(request, end)[1] == end]

    def num_cached(self) -> int:
        """Pages that have a key, so that prompts can find them."""
        return sum(block.block_hash is not None for block in self.side.manager.block_pool.blocks)
