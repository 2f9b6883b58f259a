"""``SlabTier``: a slab as a secondary tier of vLLM's ``TieringOffloadingManager``."""

from __future__ import annotations

import logging
import os
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    LookupResult,
    Medium,
    OffloadingCounterMetadata,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from blockmgr.arguments import whole
from blockmgr.pool import BlockPool
from blockmgr.ports.vllm_tiers.interface import check_installed
from blockmgr.ports.vllm_tiers.layout import KEY_BYTES, KEY_WORDS, file_of, layout_of, words
from blockmgr.tiers import Slab

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

__all__ = ["SlabTier"]

logger = logging.getLogger("vllm.blockmgr")
BLOCKS_A_TASK = 8
COUNTS = {
    "stored": "Chunks written to the slab.",
    "loaded": "Chunks read from the slab and proved.",
    "refused": "Chunks that were read from the slab and not proved; they are computed again.",
    "failed": "Chunks whose transfer the disk failed.",
    "dropped": "Chunks not stored, because every block was in use.",
    "restored": "Chunks that were in the slab when it was opened.",
}


@dataclass
class _Job:
    """A transfer of vLLM's, in parts of some blocks each."""

    number: int
    is_store: bool
    keys: list[bytes]
    blocks: list[int]
    tasks: list[Future[list[Any]]]
    is_whole: bool  # whether it has all that it was asked for


class SlabTier(SecondaryTierManager):  # type: ignore[misc]  # vLLM is not installed here
    """A tier of vLLM whose chunks are blocks of a slab.

    The blocks of a pool stand for them: the pool finds keys, orders evictions, and keeps what a
    transfer reads or writes. Threads only move and check bytes. All other work is done in
    the calls, which vLLM makes one at a time.

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

    medium: ClassVar[Medium] = Medium.STORAGE

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
        check_installed()
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        size = self.block_size_bytes
        num_blocks = whole("bytes_to_use", bytes_to_use, size) // size
        self._executor = ThreadPoolExecutor(
            whole("threads", threads, 1, 256), thread_name_prefix="blockmgr-slab"
        )
        self._host = primary_kv_view.cast("B")
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
        self._jobs: list[_Job] = []
        self._storing: set[bytes] = set()
        self._results: list[JobResult] = []
        self.counts = dict.fromkeys(COUNTS, 0)
        """What happened so far, by what the metrics call it."""
        self._reported = dict(self.counts)
        self._restore()
        logger.info(
            "blockmgr keeps KV in %s: %d chunks of %d bytes, %d of them from before",
            self._slab.path,
            num_blocks,
            size,
            self.counts["restored"],
        )

    def _restore(self) -> None:
        """Makes what the slab had findable, and first evicts what was used the longest ago."""
        blocks = self._slab.found["block"].tolist()
        self._pool.take_blocks(blocks)
        for block, serial, key in self._slab.found.tolist():
            self._pool.promote(block, words(key))
            self._serials[block] = serial
        self._pool.release(self._slab.order)
        self.counts["restored"] = len(blocks)

    # vLLM's interface.

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        """No preference for what is stored."""
        return RequestOffloadingContext()

    def lookup(self, key: bytes, req_context: Any) -> LookupResult:
        """Whether the slab has a chunk; it may still be refused when it is loaded."""
        return LookupResult.MISS if self._block_of(key) is None else LookupResult.HIT

    def touch(self, keys: Collection[bytes], req_context: Any) -> None:
        """Makes chunks the last to be evicted, those at the beginning of a prompt at the end."""
        blocks = [self._block_of(key) for key in keys]
        self._pool.touch([block for block in reversed(blocks) if block is not None])

    def submit_store(self, job_metadata: Any) -> None:
        """Begins to write those chunks of a job that the slab lacks."""
        keys, chunks = _from_the_end(job_metadata)
        self.touch(keys[::-1], job_metadata.req_context)
        fresh = {
            key: chunk
            for key, chunk in zip(keys, chunks, strict=True)
            if key not in self._storing and self._block_of(key) is None
        }
        count = min(len(fresh), self._pool.num_available)
        self.counts["dropped"] += len(fresh) - count
        # The chunks at the end are worth nothing without those before them.
        kept = list(fresh.items())[len(fresh) - count :]
        blocks = self._pool.take(count).tolist()
        self._storing.update(key for key, _ in kept)
        moves = [(block, key, chunk) for block, (key, chunk) in zip(blocks, kept, strict=True)]
        self._begin(job_metadata.job_id, self._write, moves, is_whole=count == len(fresh))

    def submit_load(self, job_metadata: Any) -> None:
        """Begins to read the chunks of a job."""
        asked = zip(job_metadata.keys, job_metadata.chunk_ids, strict=True)
        found = [(self._block_of(key), key, int(chunk)) for key, chunk in asked]
        moves = [(block, key, chunk) for block, key, chunk in found if block is not None]
        self._pool.acquire([block for block, _, _ in moves])
        is_whole = len(moves) == len(found)
        self._begin(job_metadata.job_id, self._read, moves, is_whole=is_whole)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """The jobs that ended since the last call."""
        running = []
        for job in self._jobs:
            if all(task.done() for task in job.tasks):
                self._results.append(self._ended(job))
            else:
                running.append(job)
        self._jobs = running
        results, self._results = self._results, []
        return results

    def has_pending_work(self) -> bool:
        """Whether there are jobs that have not ended, or whose end was not asked for."""
        return bool(self._jobs or self._results)

    def drain_jobs(self) -> None:
        """Ends all jobs, then empties the slab: vLLM calls this to reset its caches."""
        wait([task for job in self._jobs for task in job.tasks])
        self._results = list(self.get_finished_jobs())
        self._slab.reset(volatile=True)
        self._pool.reset()
        logger.info("blockmgr emptied %s for a reset of vLLM's caches", self._slab.path)

    def shutdown(self) -> None:
        """Ends all jobs and closes the slab, whose blocks stay, with the order of their uses."""
        self._executor.shutdown(wait=True, cancel_futures=True)
        try:
            self._slab.close(order=self._pool.idle_blocks())
        except OSError as error:
            logger.warning("blockmgr could not write to %s: %s", self._slab.path, error)
        self._host.release()  # vLLM unmaps the memory next

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        """The counters of the tier, for vLLM's Prometheus endpoint."""
        return {_metric(name): OffloadingCounterMetadata(text) for name, text in COUNTS.items()}

    def get_stats(self) -> OffloadingConnectorStats | None:
        """What the counters have grown by since the last call."""
        stats = OffloadingConnectorStats()
        for name, count in self.counts.items():
            if grown := count - self._reported[name]:
                stats.increase_counter(_metric(name), grown)
        self._reported = dict(self.counts)
        return stats

    # Transfers.

    def _block_of(self, key: bytes) -> int | None:
        found = self._pool.find(words(key))
        return int(found[0]) if found.size else None

    def _chunk(self, chunk: int) -> memoryview:
        size: int = self.block_size_bytes
        return self._host[chunk * size : (chunk + 1) * size]

    def _begin(
        self,
        number: int,
        move: Callable[[int, bytes, int], Any],
        moves: list[tuple[int, bytes, int]],
        *,
        is_whole: bool,
    ) -> None:
        """Moves blocks with their keys and chunks, a few in each task."""

        def run(part: list[tuple[int, bytes, int]]) -> list[Any]:
            return [move(*each) for each in part]

        parts = [moves[i : i + BLOCKS_A_TASK] for i in range(0, len(moves), BLOCKS_A_TASK)]
        tasks = [self._executor.submit(run, part) for part in parts]
        blocks, keys = [block for block, _, _ in moves], [key for _, key, _ in moves]
        is_store = move == self._write
        self._jobs.append(_Job(number, is_store, keys, blocks, tasks, is_whole))

    def _write(self, block: int, key: bytes, chunk: int) -> int | None:
        """The serial of a chunk that was written; None: the disk failed."""
        try:
            return self._slab.write(block, key, self._chunk(chunk))
        except OSError as error:
            logger.warning("blockmgr could not write to %s: %s", self._slab.path, error)
            return None

    def _read(self, block: int, key: bytes, chunk: int) -> bool | None:
        """Whether a chunk is proved; None: the disk failed."""
        try:
            serial = int(self._serials[block])
            return self._slab.read(block, key, serial, self._chunk(chunk))
        except OSError as error:
            logger.warning("blockmgr could not read from %s: %s", self._slab.path, error)
            return None

    def _ended(self, job: _Job) -> JobResult:
        results = [result for task in job.tasks for result in task.result()]
        good = self._stored(job, results) if job.is_store else self._loaded(job, results)
        success = job.is_whole and len(good) == len(job.keys)
        return JobResult(
            job.number,
            success,
            successful_keys=None if success or job.is_store else tuple(good),
            transfer_bytes=len(results) * self.block_size_bytes,
        )

    def _stored(self, job: _Job, serials: list[int | None]) -> list[bytes]:
        """Makes what was written findable; what was not leaves its block free."""
        good = []
        for block, key, serial in zip(job.blocks, job.keys, serials, strict=True):
            self._storing.discard(key)
            if serial is None:
                self.counts["failed"] += 1
            else:
                self._serials[block] = serial
                self._pool.promote(block, words(key))
                self.counts["stored"] += 1
                good.append(key)
            self._pool.release([block])
        return good

    def _loaded(self, job: _Job, proofs: list[bool | None]) -> list[bytes]:
        """Forgets what was not proved, so that it is stored again when it is computed again."""
        good, refused = [], 0
        for block, key, proof in zip(job.blocks, job.keys, proofs, strict=True):
            if proof:
                good.append(key)
                continue
            self.counts["failed" if proof is None else "refused"] += 1
            refused += proof is not None
            if self._pool.is_cached(block):  # another job may have been first
                self._pool.forget_blocks([block])
        if refused:
            logger.warning(
                "blockmgr refused %d chunks of %s, which are damaged; they are computed again",
                refused,
                self._slab.path,
            )
        self.counts["loaded"] += len(good)
        self._pool.release(job.blocks[::-1])
        return good


def _metric(name: str) -> str:
    return f"blockmgr:slab_{name}_chunks"


def _from_the_end(job: Any) -> tuple[list[bytes], list[int]]:
    """Keys and chunks of a job, the end of the prompt first, so that its beginning is the newest.

    The tier sees no parents: it keeps beginnings longer by the order of writes and touches alone.
    """
    position = job.req_context.get_offload_key_position
    pairs = list(zip(job.keys, (int(chunk) for chunk in job.chunk_ids), strict=True))
    if all(position(key) is not None for key, _ in pairs):
        pairs.sort(key=lambda pair: position(pair[0]))
    pairs.reverse()
    return [key for key, _ in pairs], [chunk for _, chunk in pairs]
