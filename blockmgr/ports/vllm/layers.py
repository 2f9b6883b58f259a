"""Converts vLLM's specs to groups of a ``BlockManager``, and counts their blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.v1 import kv_cache_interface
from vllm.v1.kv_cache_interface import KVCacheSpecKind, get_kv_cache_spec_kind, iter_layer_specs

from blockmgr import ChunkedAttention, FullAttention, RecurrentState, Ring, SlidingWindow
from blockmgr.groups import is_cached

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockmgr.groups import Group

__all__ = [
    "Layers",
    "group_of",
    "has_states",
    "num_nodes",
    "tokens_of_block",
    "tokens_per_entry",
]

FULL = (KVCacheSpecKind.FULL_ATTENTION, KVCacheSpecKind.MLA_ATTENTION)
WINDOW = (KVCacheSpecKind.SLIDING_WINDOW, KVCacheSpecKind.SLIDING_WINDOW_MLA)
RING = getattr(kv_cache_interface, "CircularBufferSpec", ())
MOST_NODES = 2**22  # one takes some 160 bytes, and 5 for each of its tokens


def group_of(spec: Any, block_size: int | None = None) -> Group | None:
    """The group for the layers of a spec; None if blockmgr has none.

    Args:
        spec: vLLM's spec.
        block_size: Tokens per block; None if that is the manager's block size.
    """
    kind = get_kv_cache_spec_kind(spec)
    layers = list(iter_layer_specs(spec))
    if kind in FULL:
        return FullAttention(block_size)
    if kind in WINDOW:
        return _window_of(layers, block_size)
    if kind is KVCacheSpecKind.CHUNKED_LOCAL_ATTENTION:
        widths = {layer.attention_chunk_size for layer in layers}
        return ChunkedAttention(widths.pop(), block_size) if len(widths) == 1 else None
    if kind is KVCacheSpecKind.MAMBA:
        return _state_of(layers)
    if all(isinstance(layer, RING) for layer in layers):
        # It holds the tokens that wait to be compressed and the drafts of a step. How many are
        # compressed to one is not told, but the ring is a multiple of it.
        widths = {layer.block_size for layer in layers}
        width = widths.pop()
        return None if widths else Ring(width, restart=width)
    return None


def _window_of(layers: list[Any], block_size: int | None) -> SlidingWindow | None:
    """The group for layers with windows, by their specs; None if blockmgr has none."""
    # Some are not cached, and computed again before a hit (DeepSeek-V4.1, since vLLM 0.33).
    read = {(each.sliding_window, getattr(each, "prefix_replay_tokens", 0)) for each in layers}
    if len(read) > 1 or any(layer.extra_retained_tokens for layer in layers):
        return None
    width, again = read.pop()
    return SlidingWindow(width, block_size, cached=not again, replay=again)


def _state_of(layers: list[Any]) -> RecurrentState | None:
    """The group for layers with recurrent states, by their specs; None if blockmgr has none."""
    # In another mode, a forward writes the states of all blocks that it computes.
    drafts = {layer.num_speculative_blocks for layer in layers}
    most = max(drafts)
    # A step ends in one column; the tokens before its drafts end there or in the one before.
    is_short = len(drafts) > 1 or most >= min(layer.block_size for layer in layers)
    if is_short or any(layer.mamba_cache_mode != "align" for layer in layers):
        return None
    # Those after each draft, and one in the column before: a verified draft passed the end of
    # that block, or the forward of a prompt did.
    passes = any(getattr(layer, "num_prefill_checkpoint_blocks", 0) for layer in layers)
    return RecurrentState(extra_blocks=most + 1 if most or passes else 0)


def tokens_of_block(spec: Any, ranks: int) -> int:
    """Tokens whose K/V one block of all ranks holds.

    Args:
        spec: vLLM's spec.
        ranks: Ranks of decode context parallelism. Each has a part of the tokens of full
            attention; windows and states, each rank has as a whole.
    """
    return int(spec.block_size) * (ranks if spec.dcp_sharded else 1)


def tokens_per_entry(spec: Any) -> int:
    """Tokens that the layers of a spec store as one entry; more than 1 if they compress."""
    return max((math.ceil(layer.tokens_per_state) for layer in iter_layer_specs(spec)), default=1)


def has_states(spec: Any) -> bool:
    """Whether layers of this spec have a recurrent state."""
    return get_kv_cache_spec_kind(spec) is KVCacheSpecKind.MAMBA


def num_nodes(layers: Sequence[Layers], capacity: int, longest: int) -> int:
    """Nodes of a manager for a model in which no layers have full attention.

    Whatever the blocks can hold then has its nodes: a cached prefix and a request keep the blocks
    that the query behind them reads, so at most so many of the longest ones end in the pool. In
    pools for which that is more than ``MOST_NODES``, prefixes may be evicted for their nodes.

    Args:
        layers: The groups of layers.
        capacity: Blocks.
        longest: Nodes of the longest request.
    """
    ends = capacity // max(1, sum(each.least_blocks for each in layers)) + 1
    return max(longest, capacity, min(ends * longest, MOST_NODES))


@dataclass(frozen=True)
class Layers:
    """The layers of one group.

    Attributes:
        spec: vLLM's spec.
        group: The group for a ``BlockManager``.
        block_size: Tokens per block.
        most_blocks: Most blocks of a request of any length at a time; None for no limit.
    """

    spec: Any
    group: Group
    block_size: int
    most_blocks: int | None

    @classmethod
    def of(
        cls, spec: Any, block_size: int, node_size: int, max_in_flight: int, max_model_len: int
    ) -> Layers:
        """The layers of a group that ``group_of`` knows.

        Args:
            spec: vLLM's spec.
            block_size: Tokens per block of the group; not used for rings, whose block serves all.
            node_size: The manager's block size, a multiple of it.
            max_in_flight: Most tokens of a request that are computed at a time.
            max_model_len: Most tokens of a request.
        """
        group = group_of(spec, None if block_size == node_size else block_size)
        assert group is not None, "what has no group is refused at start-up"
        most = None
        if isinstance(group, Ring):
            block_size, most = node_size, 1
        elif isinstance(group, RecurrentState):
            most = 1 + group.extra_blocks
        elif not isinstance(group, FullAttention):
            most = max(
                layer.max_admission_blocks_per_request(
                    max_in_flight_tokens=max_in_flight, max_model_len=max_model_len
                )
                for layer in iter_layer_specs(spec)
            )
        return cls(spec, group, block_size, most)

    @property
    def has_states(self) -> bool:
        """Whether a request has one state in this group, instead of a block for some tokens."""
        return isinstance(self.group, RecurrentState)

    @property
    def is_ring(self) -> bool:
        """Whether a request has one block of this group, which prompts do not find."""
        return isinstance(self.group, Ring)

    @property
    def is_passed(self) -> bool:
        """Whether a request gives back blocks that no later query reads."""
        return isinstance(self.group, SlidingWindow | ChunkedAttention)

    @property
    def is_found(self) -> bool:
        """Whether prompts find its blocks."""
        return is_cached(self.group)

    @property
    def least_blocks(self) -> int:
        """Fewest blocks that a long prefix has in this group, where a prompt can continue it."""
        if isinstance(self.group, SlidingWindow):
            return -(-(self.group.width - 1) // self.block_size)
        return int(self.has_states or self.is_ring)

    def num_entries(self, num_slots: int) -> int:
        """Entries of a worker's table for this many slots; each names a block."""
        return min(1, num_slots) if self.is_ring else -(-num_slots // self.block_size)

    def num_found_entries(self, num_tokens: int) -> int:
        """Entries of its table for this many tokens that were found."""
        return self.num_entries(num_tokens) if self.is_found else 0

    @property
    def num_drafts(self) -> int:
        """Of states: the drafts of a step, for each of which a forward writes one more column."""
        group = self.group
        return max(0, group.extra_blocks - 1) if isinstance(group, RecurrentState) else 0

    def num_blocks(self, num_tokens: int) -> int:
        """Most blocks that a request of this many tokens has at a time."""
        whole = self.num_entries(num_tokens)
        if self.most_blocks is None:
            return whole
        return self.most_blocks if self.has_states else min(whole, self.most_blocks)

    def num_fresh_blocks(self, num_tokens: int, num_found: int) -> int:
        """Blocks that it takes besides the found ones."""
        if self.has_states:  # a match counts the copy of a state that it finds
            return self.num_blocks(num_tokens) - (num_found > 0)
        passed = self._num_passed(num_found) // self.block_size
        found = max(passed, num_found // self.block_size) if not self.is_ring else 0
        return max(0, self.num_blocks(num_tokens) - found)

    def num_more_entries(self, num_slots: int, num_had: int) -> int:
        """Entries that its table gets when it grows from one number of slots to another."""
        return max(0, self.num_entries(num_slots) - self.num_entries(num_had))

    def num_more_blocks(self, num_tokens: int, num_had: int) -> int:
        """Most blocks that a request with this many slots still takes for this many tokens."""
        more = self.num_blocks(num_tokens) - self.num_entries(num_had)
        return 0 if self.has_states else max(0, more)

    def _num_passed(self, num_tokens: int) -> int:
        """Leading tokens that the query after this many tokens does not read."""
        if isinstance(self.group, SlidingWindow):
            return max(0, num_tokens - self.group.width + 1)
        if isinstance(self.group, ChunkedAttention):
            return num_tokens - num_tokens % self.group.width
        return 0
