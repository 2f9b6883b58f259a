"""Eviction policies of ``BlockPool`` for the host memory of vLLM's offloading."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from vllm.v1.kv_offload.cpu.policies.base import CachePolicy

from blockmgr.pool import BlockPool
from blockmgr.ports.vllm_tiers.interface import check_installed
from blockmgr.ports.vllm_tiers.layout import KEY_WORDS, words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["ArcPolicy", "LfudaPolicy", "S3FifoPolicy"]


class PoolPolicy(CachePolicy):  # type: ignore[misc]  # vLLM is not installed here
    """A ``CachePolicy`` on a ``BlockPool``, in which each chunk is a block with one reference.

    A chunk that no transfer uses has no reference, so its block is idle and can be evicted.

    Args:
        cache_capacity: Chunks in the host memory.
    """

    eviction: ClassVar[str]

    def __init__(self, cache_capacity: int) -> None:
        check_installed()
        super().__init__(cache_capacity)
        self.clear()

    def clear(self) -> None:
        """Forgets every chunk."""
        self._pool = BlockPool(self.cache_capacity, KEY_WORDS, eviction=self.eviction)
        self._chunks: dict[bytes, Any] = {}
        self._blocks: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}

    def get(self, key: bytes) -> Any:
        """The chunk of a key; None: there is none."""
        return self._chunks.get(key)

    def insert(self, key: bytes, chunk: Any, req_context: Any = None) -> None:
        """Adds a chunk, in use until vLLM says that it can be evicted."""
        block = int(self._pool.take()[0])
        self._pool.promote(block, words(key))
        self._chunks[key], self._blocks[key], self._keys[block] = chunk, block, key
        if chunk.ref_cnt == 0:
            self.mark_evictable(key)

    def remove(self, key: bytes) -> None:
        """Removes a chunk whose transfer failed."""
        block = self._drop(key)
        self._pool.forget_blocks([block])
        if self._pool.ref_count(block):
            self._pool.release([block])

    def touch(self, keys: Iterable[bytes], req_context: Any) -> None:
        """Makes chunks the last to be evicted, those at the beginning of a prompt at the end."""
        self._pool.touch([self._blocks[key] for key in reversed(list(keys)) if key in self._blocks])

    def on_store_miss(self, keys: Iterable[bytes], req_context: Any) -> None:
        """Nothing: none of these keys has a chunk."""

    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[bytes]],
        insertion_only_keys: set[bytes],
        reused_keys: set[bytes],
        req_context: Any,
    ) -> None:
        """Tells the policy which chunks the request used again."""
        for keys in key_groups:
            again = [self._blocks[k] for k in keys if k in reused_keys and k in self._blocks]
            self._pool.acquire(again)
            self._pool.release(again[::-1])
            self.touch(keys, req_context)

    def evict(self, n: int, protected: set[bytes]) -> list[tuple[bytes, Any]] | None:
        """Evicts as many chunks that are in no use, and none of these keys; None: it cannot."""
        kept = [self._blocks[key] for key in protected if key in self._blocks]
        kept = [block for block in kept if self._pool.is_idle(block)]
        if self._pool.num_idle - len(kept) < n:
            return None
        self._pool.acquire(kept, found=False)
        blocks = self._pool.forget(n).tolist()
        self._pool.release(kept)
        gone = [(self._keys[block], self._chunks[self._keys[block]]) for block in blocks]
        for key, _ in gone:
            self._drop(key)
        return gone

    def mark_evictable(self, key: bytes) -> None:
        """No transfer uses the chunk any more."""
        self._pool.release([self._blocks[key]])

    def mark_non_evictable(self, key: bytes) -> None:
        """A transfer uses the chunk."""
        self._pool.acquire([self._blocks[key]], found=False)

    def _drop(self, key: bytes) -> int:
        del self._chunks[key]
        block = self._blocks.pop(key)
        del self._keys[block]
        return block


class S3FifoPolicy(PoolPolicy):
    """``s3fifo``, see the page on policies."""

    eviction = "s3fifo"


class ArcPolicy(PoolPolicy):
    """``arc``, see the page on policies."""

    eviction = "arc"


class LfudaPolicy(PoolPolicy):
    """``lfuda``, see the page on policies."""

    eviction = "lfuda"
