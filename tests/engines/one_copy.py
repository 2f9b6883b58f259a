"""vLLM's own manager, changed in the two things in which blockmgr decides otherwise.

Of a block that was computed twice, vLLM keeps every copy in its cache, and evicts each in its turn.
blockmgr keeps one, and hands the others out as soon as nobody uses them. Of a request that is
preempted in the step in which it was scheduled, vLLM keeps what that step has published; blockmgr
takes it back, for no forward follows. Where no option is on and no load fails, that is all: with it
taken away, the schedules must be equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["keep_one_copy"]


def keep_one_copy(manager: Any) -> None:
    """Has a ``KVCacheManager`` of vLLM forget idle copies, and what nobody is going to write."""
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
