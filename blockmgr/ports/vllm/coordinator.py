"""What is asked of the parts below vLLM's KV cache manager."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from blockmgr.ports.vllm.blocks import Block, BlockPool
    from blockmgr.ports.vllm.held import Held

__all__ = ["Coordinator", "SingleTypeManager"]


class SingleTypeManager:
    """The one group: its block size and what its layers are."""

    def __init__(self, block_size: int, spec: Any, pool: BlockPool) -> None:
        self.block_size = block_size
        self.kv_cache_spec = spec
        self.block_pool = pool
        self.kv_cache_group_id = 0
        self.retains_longer_hit = False
        self.records_new_block_ids = False


class Coordinator:
    """Counts blocks for one group of full attention."""

    enable_partial_hash_hits = False
    num_reprefillable_tokens = 0
    full_attention_group_id = 0

    def __init__(
        self, manager: SingleTypeManager, held: Mapping[str, Held], use_eagle: bool
    ) -> None:
        self.single_type_managers = (manager,)
        self.block_pool = manager.block_pool
        self.group_block_sizes = (manager.block_size,)
        self.eagle_group_ids = {0} if use_eagle else set()
        self._block_size = manager.block_size
        self._held = held

    def get_num_blocks_to_allocate(  # noqa: PLR0917  as vLLM has it
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
        """Blocks that a request still takes to hold so many tokens."""
        held = self._held.get(request_id)
        has = held.num_blocks if held else len(new_computed_blocks[0])
        return max(0, -(-num_tokens // self._block_size) - has)

    def get_num_cacheable_tokens(self, num_computed_tokens: int, kv_cache_group_id: int) -> int:
        """Of computed tokens, those whose K/V is final."""
        return num_computed_tokens
