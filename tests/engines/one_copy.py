"""vLLM's own manager, changed in the two points in which blockmgr decides differently.

When a block is computed twice, vLLM caches every copy and evicts each in turn; blockmgr keeps one
and frees the others as soon as they are unused. When a request is preempted in the step in which it
was scheduled, vLLM keeps the blocks that this step has cached; blockmgr removes them, because no
forward writes them. Without options and failed loads there are no other differences, so schedules
must then be equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["keep_one_copy"]


def keep_one_copy(manager: Any) -> None:
    """Makes vLLM's ``KVCacheManager`` forget idle copies and blocks that are never written."""
    pool = manager.block_pool
    insert, free_blocks = pool._insert_block_hash, pool.free_blocks
    start, end = manager.new_step_starts, manager.take_kv_cache_block_copies
    published: set[int] = set()  # in the step that is being planned
    planning = False

    def others(key: Any, block: Any) -> list[Any]:
        found = pool.cached_block_hash_to_block._cache.get(key)
        copies = list(found.values()) if isinstance(found, dict) else [found]
        return [copy for copy in copies if copy is not None and copy is not block]

    def insert_as_the_only_idle(key: Any, block: Any, *arguments: Any, **named: Any) -> None:
        idle = [copy for copy in others(key, block) if copy.ref_cnt == 0]
        insert(key, block, *arguments, **named)
        if planning:
            published.add(block.block_id)
        for copy in idle:
            pool._remove_cached_block_hashes(copy)
            pool.free_block_queue.remove(copy)
            pool.free_block_queue.prepend_n([copy])

    def free_what_is_not_kept(ordered_blocks: Iterable[Any]) -> None:
        blocks = list(ordered_blocks)
        for block in blocks:
            is_last = block.ref_cnt == 1 and not block.is_null and block.block_hash is not None
            if not is_last:
                continue
            if others(block.block_hash, block) or (planning and block.block_id in published):
                pool._remove_cached_block_hashes(block)
        free_blocks(blocks)

    def new_step_starts() -> None:
        nonlocal planning
        planning = True
        published.clear()
        start()

    def take_kv_cache_block_copies() -> Any:
        nonlocal planning
        planning = False
        return end()

    pool._insert_block_hash = insert_as_the_only_idle
    pool.free_blocks = free_what_is_not_kept
    manager.new_step_starts = new_step_starts
    manager.take_kv_cache_block_copies = take_kv_cache_block_copies
