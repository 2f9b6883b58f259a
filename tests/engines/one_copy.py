"""vLLM's own block pool, changed to keep one copy of a block that was computed twice.

Of such a block vLLM keeps every copy in its cache, and evicts each in its turn. blockmgr keeps one,
and hands the others out as soon as nobody uses them. Where no option is on and no load fails, that
is all in which their decisions differ: with it taken away, the schedules must be equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["keep_one_copy"]


def keep_one_copy(pool: Any) -> None:
    """Has a ``BlockPool`` of vLLM forget the idle copies of what it caches."""
    insert, free_blocks = pool._insert_block_hash, pool.free_blocks

    def others(key: Any, block: Any) -> list[Any]:
        found = pool.cached_block_hash_to_block._cache.get(key)
        copies = list(found.values()) if isinstance(found, dict) else [found]
        return [copy for copy in copies if copy is not None and copy is not block]

    def insert_as_the_only_idle(key: Any, block: Any, *arguments: Any, **named: Any) -> None:
        idle = [copy for copy in others(key, block) if copy.ref_cnt == 0]
        insert(key, block, *arguments, **named)
        for copy in idle:
            pool._remove_cached_block_hashes(copy)
            pool.free_block_queue.remove(copy)
            pool.free_block_queue.prepend_n([copy])

    def free_one_of_several(ordered_blocks: Iterable[Any]) -> None:
        blocks = list(ordered_blocks)
        for block in blocks:
            is_last = block.ref_cnt == 1 and not block.is_null and block.block_hash is not None
            if is_last and others(block.block_hash, block):
                pool._remove_cached_block_hashes(block)
        free_blocks(blocks)

    pool._insert_block_hash = insert_as_the_only_idle
    pool.free_blocks = free_one_of_several
