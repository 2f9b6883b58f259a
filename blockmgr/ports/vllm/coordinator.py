"""The parts below vLLM's KV cache manager that vLLM uses directly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from blockmgr.ports.vllm.blocks import Block, BlockPool
    from blockmgr.ports.vllm.held import Held
    from blockmgr.ports.vllm.layers import Layers

__all__ = ["Coordinator", "SingleTypeManager"]


class SingleTypeManager:
    """One group: its block size and its spec."""

    def __init__(self, layers: Layers, pool: BlockPool, group: int) -> None:
        self.block_size = layers.spec.block_size if layers.is_ring else layers.block_size
        self.kv_cache_spec: Any = layers.spec
        self.block_pool = pool
        self.kv_cache_group_id = group


class Coordinator:
    """Counts blocks of all groups."""

    enable_partial_hash_hits = False

    def __init__(self, layers: Sequence[Layers], pool: BlockPool, held: Mapping[str, Held]) -> None:
        self.single_type_managers = tuple(
            SingleTypeManager(each, pool, group) for group, each in enumerate(layers)
        )
        self.block_pool = pool
        self._layers = layers
        self._held = held

    def get_num_blocks_to_allocate(  # noqa: PLR0917  the order of vLLM
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: tuple[Sequence[Block], ...],
        num_encoder_tokens: int,
        total_computed_tokens: int,
        num_local_computed_tokens: int,
        num_tokens_main_model: int,
        apply_admission_cap: bool = False,
        prefill_end: int = 0,
    ) -> int:
        """Number of blocks that a request still needs for this many tokens."""
        held = self._held.get(request_id)
        total = 0
        for group, layers in enumerate(self._layers):
            if layers.has_states:
                total += 0 if held else layers.num_blocks(num_tokens)
                continue
            had = new_computed_blocks[group]
            has = layers.num_entries(held.num_slots) if held else len(had)
            most = layers.num_entries(num_tokens)
            if apply_admission_cap:
                most = layers.num_blocks(num_tokens)
            total += max(0, most - has)
        return total
