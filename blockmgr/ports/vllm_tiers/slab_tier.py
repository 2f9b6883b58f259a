"""``SlabTier``: a slab as a secondary tier of vLLM's ``TieringOffloadingManager``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from vllm.v1.kv_offload.base import LookupResult

from blockmgr.arguments import whole
from blockmgr.pool import BlockPool
from blockmgr.ports.vllm_tiers.jobs import JobTier, Move, from_the_end, logger
from blockmgr.ports.vllm_tiers.layout import KEY_BYTES, KEY_WORDS, file_of, layout_of, words
from blockmgr.tiers import Slab

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["SlabTier"]

BLOCKS_A_TASK = 8
TEXTS = {
    "stored": "Chunks written to the slab.",
    "loaded": "Chunks read from the slab and proved.",
    "refused": "Chunks that were read from the slab and not proved; they are computed again.",
    "failed": "Chunks whose transfer the disk failed.",
    "dropped": "Chunks not stored, because every block was in use.",
    "restored": "Chunks that were in the slab when it was opened.",
}


class SlabTier(JobTier):
    """A tier of vLLM whose chunks are blocks of a slab.

    The blocks of a pool stand for them: the pool finds keys, orders evictions, and keeps what a
    transfer reads or writes.

    A reset of vLLM's caches with its connector, as for new weights or sleep, empties the slab, and
    what is stored after it does not survive a restart, because then the weights may be others than
    those that vLLM started with.

    Args:
        offloading_spec: As vLLM passes it.
        primary_kv_view: As vLLM passes it: the host memory, by chunk.
        tier_type: As vLLM passes it.
        path: The file of the slab, made at the first start; its folder must exist. Of several
            data-parallel engines, each has a file of its own, with ``-dp`` and its number added.
        bytes_to_use: Bytes that its chunks take; all at once, at the first start.
        eviction: Eviction policy, as in ``ManagerConfig``, by name.
        threads: Number of threads that transfer.
        revision: A name for the weights, which must change whenever they do. Without it, weights
            are known by vLLM's revision, or by the files in the model's folder.
        backpressure_detector: As vLLM passes it.

    Raises:
        SlabError: The slab cannot be opened; a subclass says why.
        UnsupportedConfigError: The installed vLLM has another interface, or its configuration does
            not say what the keys or the weights are.
        ValueError: A value is out of its bounds.
        TypeError: A value is of the wrong type.
    """

    _must_reset = False
    metrics: ClassVar = {name: (f"blockmgr:slab_{name}_chunks", TEXTS[name]) for name in TEXTS}

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        *,
        path: str,
        bytes_to_use: int,
        eviction: str = "lru",
        threads: int = 4,
        revision: str = "",
        backpressure_detector: Any = None,
    ) -> None:
        super().__init__(
            offloading_spec,
            primary_kv_view,
            tier_type,
            backpressure_detector=backpressure_detector,
            threads=threads,
            where=path,
        )
        size = self.block_size_bytes
        num_blocks = whole("bytes_to_use", bytes_to_use, size) // size
        self._pool = BlockPool(num_blocks, KEY_WORDS, eviction=eviction)
        file = file_of(path, offloading_spec.config)
        if not os.path.exists(file):
            logger.info("blockmgr makes %s and writes it over once, which may take a while", file)
        self._slab = Slab(
            file,
            layout_of(offloading_spec, revision),
            num_blocks=num_blocks,
            block_bytes=size,
            key_bytes=KEY_BYTES,
        )
        self._serials = np.zeros(num_blocks, np.uint64)
        self._storing: set[bytes] = set()
        self._counts = dict.fromkeys(TEXTS, 0)
        self._restore()
        logger.info(
            "blockmgr keeps KV in %s: %d chunks of %d bytes, %d of them from before",
            self._slab.path,
            num_blocks,
            size,
            self._counts["restored"],
        )

    def _restore(self) -> None:
        """Makes what the slab had findable, and first evicts what was used the longest ago."""
        blocks = self._slab.found["block"].tolist()
        self._pool.take_blocks(blocks)
        for block, serial, key in self._slab.found.tolist():
            self._pool.promote(block, words(key))
            self._serials[block] = serial
        self._pool.release(self._slab.order)
        self._counts["restored"] = len(blocks)

    @property
    def counts(self) -> Mapping[str, int]:
        """What happened so far, by what the metrics call it."""
        return self._counts

    # vLLM's interface.

    def lookup(self, key: bytes, req_context: Any) -> LookupResult:
        """Whether the slab has a chunk; it may still be refused when it is loaded."""
        return LookupResult.MISS if self._block_of(key) is None else LookupResult.HIT

    def touch(self, keys: Collection[bytes], req_context: Any) -> None:
        """Makes chunks the last to be evicted, those at the beginning of a prompt at the end."""
        blocks = [self._block_of(key) for key in keys]
        self._pool.touch([block for block in reversed(blocks) if block is not None])

    def submit_store(self, job_metadata: Any) -> None:
        """Begins to write those chunks of a job that the slab lacks."""
        moves = from_the_end(job_metadata)
        self.touch([move.key for move in reversed(moves)], job_metadata.req_context)
        fresh = {
            move.key: move
            for move in moves
            if move.key not in self._storing and self._block_of(move.key) is None
        }
        count = min(len(fresh), self._pool.num_available)
        self._counts["dropped"] += len(fresh) - count
        # The chunks at the end are worth nothing without those before them.
        kept = list(fresh.values())[len(fresh) - count :]
        blocks = sorted(self._pool.take(count).tolist())  # neighbours are written at once
        self._storing.update(move.key for move in kept)
        moves = [move._replace(block=block) for move, block in zip(kept, blocks, strict=True)]
        self._begin(
            job_metadata,
            moves,
            self._write,
            BLOCKS_A_TASK,
            is_store=True,
            is_whole=count == len(fresh),
        )

    def submit_load(self, job_metadata: Any) -> None:
        """Begins to read the chunks of a job."""
        asked = zip(job_metadata.keys, job_metadata.chunk_ids, strict=True)
        found = [(self._block_of(key), key, int(chunk)) for key, chunk in asked]
        # Neighbours in the file are read at once.
        known = sorted((block, key, chunk) for block, key, chunk in found if block is not None)
        moves = [Move(key, chunk, block) for block, key, chunk in known]
        self._pool.acquire([move.block for move in moves])
        self._begin(
            job_metadata,
            moves,
            self._read,
            BLOCKS_A_TASK,
            is_store=False,
            is_whole=len(moves) == len(found),
        )

    def drain_jobs(self) -> None:
        """Ends all jobs, then empties the slab: vLLM calls this to reset its caches.

        It raises no error, because vLLM could not go on after one. If the disk fails, the slab
        keeps blocks of the weights that vLLM started with, and gets no others until it is empty.
        """
        super().drain_jobs()
        self._must_reset = True
        self._outages.tried(self._empty)
        self._pool.reset()

    def shutdown(self) -> None:
        """Ends all jobs and closes the slab, whose blocks stay, with the order of their uses."""
        super().shutdown()
        try:
            self._slab.close(order=self._pool.idle_blocks())
        except OSError as error:
            logger.warning("blockmgr could not write to %s: %s", self._slab.path, error)

    # Transfers.

    def _empty(self) -> None:
        """Empties the slab, if a reset is due."""
        if self._must_reset:
            self._slab.reset(volatile=True)
            self._must_reset = False
            logger.info("blockmgr emptied %s for a reset of vLLM's caches", self._slab.path)

    def _block_of(self, key: bytes) -> int | None:
        found = self._pool.find(words(key))
        return int(found[0]) if found.size else None

    def _write(self, part: list[Move]) -> list[int | None]:
        """The serial of each chunk that was written; None: the disk failed."""
        first = self._slab.take_serials(len(part))
        serials = range(first, first + len(part))
        keys, chunks, blocks = zip(*part, strict=True)
        data = [self._chunk(chunk) for chunk in chunks]

        def write() -> bool:
            self._empty()
            for _ in self._slab.write_blocks(blocks, keys, data, serials=serials):
                pass
            return True

        return [*serials] if self._outages.tried(write) else [None] * len(part)

    def _read(self, part: list[Move]) -> list[bool | None]:
        """Whether each chunk is proved; None: the disk failed."""
        blocks, into = [move.block for move in part], [self._chunk(move.chunk) for move in part]
        keys, serials = [move.key for move in part], self._serials[blocks].tolist()
        read = self._slab.read_digests
        found = self._outages.tried(lambda: [*read(blocks, keys, serials, into)])
        return [None] * len(part) if found is None else [each is not None for each in found]

    def _stored(self, pairs: list[tuple[Move, int | None]]) -> list[bytes]:
        """Makes what was written findable; what was not leaves its block free."""
        good = []
        for (key, _, block), serial in pairs:
            self._storing.discard(key)
            if serial is None:
                self._counts["failed"] += 1
            else:
                self._serials[block] = serial
                self._pool.promote(block, words(key))
                self._counts["stored"] += 1
                good.append(key)
            self._pool.release([block])
        return good

    def _loaded(self, pairs: list[tuple[Move, bool | None]]) -> list[bytes]:
        """Forgets what was not proved, so that it is stored again when it is computed again."""
        good, refused = [], 0
        for (key, _, block), proof in pairs:
            if proof:
                good.append(key)
                continue
            self._counts["failed" if proof is None else "refused"] += 1
            refused += proof is not None
            if self._pool.is_cached(block):  # another job may have been first
                self._pool.forget_blocks([block])
        if refused:
            logger.warning(
                "blockmgr refused %d chunks of %s, which are damaged; they are computed again",
                refused,
                self._slab.path,
            )
        self._counts["loaded"] += len(good)
        self._pool.release([move.block for move, _ in reversed(pairs)])
        return good
