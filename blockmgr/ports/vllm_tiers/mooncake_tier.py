"""``MooncakeStoreTier``: Mooncake Store as a secondary tier of vLLM's offloading."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

import xxhash
from vllm.v1.kv_offload.base import LookupResult
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager

from blockmgr.ports.vllm_tiers.jobs import JobTier, Move, from_the_end, logger
from blockmgr.ports.vllm_tiers.layout import KEY_BYTES, layout_of
from blockmgr.tiers import MooncakeTier
from blockmgr.tiers.mooncake import connected

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from blockmgr.tiers import SharedStorage

__all__ = ["MooncakeStoreTier"]


class _LookUps(AsyncLookupManager):  # type: ignore[misc]  # vLLM is not installed here
    """Asks the store on a thread of vLLM's, once a step, for what requests looked up in it."""

    def __init__(self, kind: str, tier: MooncakeStoreTier) -> None:
        self._tier = tier
        super().__init__(kind)

    def batch_lookup(self, keys: Sequence[bytes], req_context: Any) -> list[bool]:
        return self._tier.has(keys)


class MooncakeStoreTier(JobTier):
    """A tier of vLLM whose chunks are objects in Mooncake Store, which engines share.

    A ``SharedStorage`` proves each chunk, whose name has the layout and vLLM's key: a SHA-256 of
    the whole prefix with its salt. If the store does not answer in time, it counts as empty for
    some seconds. After a reset of vLLM's caches with its connector, as for new weights or sleep,
    what is stored is found by this process alone.

    Args:
        offloading_spec: As vLLM passes it.
        primary_kv_view: As vLLM passes it: the host memory, by chunk.
        tier_type: As vLLM passes it.
        threads: Number of threads that transfer.
        backpressure_detector: As vLLM passes it.
        options: Those of ``blockmgr.tiers.MooncakeTier``: ``master``, ``host``, ``lent_bytes``,
            ``protocol``, ``devices``, ``timeout``, ``secret_file``, and ``revision``, which is that
            of ``SlabTier``.

    Raises:
        SharedStoreError: Mooncake is not installed, or there is no such store.
        UnsupportedConfigError: As of ``SlabTier``.
        ValueError: A value is out of its bounds.
        TypeError: A value is of the wrong type, or there is no option of this name.
    """

    metrics: ClassVar = {
        "asked": ("blockmgr:shared_asked_chunks", "Chunks that the store was asked for."),
        "found": ("blockmgr:shared_found_chunks", "Chunks that it said to have."),
        "written": ("blockmgr:shared_stored_chunks", "Chunks that it took."),
        "read": ("blockmgr:shared_loaded_chunks", "Chunks that were read and proved."),
        "missing": ("blockmgr:shared_missing_chunks", "Chunks that it said to have and had not."),
        "refused": ("blockmgr:shared_refused_chunks", "Chunks that were not proved, and removed."),
        "failed_calls": ("blockmgr:shared_failed_calls", "Calls that failed or took too long."),
        "skipped_calls": ("blockmgr:shared_skipped_calls", "Calls not made soon after a failure."),
    }

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        *,
        threads: int = 4,
        backpressure_detector: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(
            offloading_spec,
            primary_kv_view,
            tier_type,
            backpressure_detector=backpressure_detector,
            threads=threads,
            where=f"the store at {options.get('master')}",
        )
        where = MooncakeTier(**options)
        self._storage: SharedStorage = connected(
            where,
            layout_of(offloading_spec, where.revision),
            block_bytes=self.block_size_bytes,
            key_bytes=32 + KEY_BYTES,
            threads=threads + 1,  # so that look-ups wait for no transfer
        )
        self._lookups = _LookUps(tier_type, self)
        logger.info("blockmgr shares KV in Mooncake Store at %s", where.master)

    @property
    def counts(self) -> Mapping[str, int]:
        """What happened so far, as in ``SharedStats``."""
        return asdict(self._storage.stats())

    # vLLM's interface.

    def lookup(self, key: bytes, req_context: Any) -> LookupResult:
        """Whether the store says to have a chunk; RETRY while it is asked."""
        found = self._lookups.lookup(key, req_context)
        if found is None:
            return LookupResult.RETRY
        return LookupResult.HIT if found else LookupResult.MISS

    def on_schedule_end(self, context: Any) -> None:
        """Asks the store for what was looked up in this step."""
        self._lookups.flush()

    def on_request_finished(self, req_context: Any) -> None:
        """Forgets what the request looked up."""
        self._lookups.cleanup(req_context.req_id)

    def submit_store(self, job_metadata: Any) -> None:
        """Begins to store the chunks of a job."""
        moves = from_the_end(job_metadata)
        most = self._storage.batch
        self._begin(job_metadata, moves, self._write, most, is_store=True)

    def submit_load(self, job_metadata: Any) -> None:
        """Begins to read the chunks of a job."""
        moves = from_the_end(job_metadata)[::-1]
        most = self._storage.batch
        self._begin(job_metadata, moves, self._read, most, is_store=False)

    def drain_jobs(self) -> None:
        """Ends all jobs, then shares no more: vLLM calls this to reset its caches."""
        super().drain_jobs()
        self._storage.reset()
        logger.info("blockmgr shares no more KV, after a reset of vLLM's caches")

    def shutdown(self) -> None:
        """Ends all jobs and the connection; what this process has lent goes with it."""
        self._lookups.shutdown()
        super().shutdown()
        self._storage.close()

    # On the threads.

    def has(self, keys: Sequence[bytes]) -> list[bool]:
        """For each key, whether the store says to have its chunk; no, if it does not answer."""
        return self._outages.tried(self._storage.has, self._names(keys)) or [False] * len(keys)

    def _write(self, part: list[Move]) -> list[bool]:
        """Whether each chunk is in the store now."""
        part = part[::-1]  # the beginning of the prompt first, which is stored last
        data = [self._chunk(move.chunk) for move in part]
        digests = [xxhash.xxh3_128_digest(each) for each in data]
        names = self._names([move.key for move in part])
        n = self._outages.tried(self._storage.write, names, data, digests) or 0
        return [i < n for i in reversed(range(len(part)))]

    def _read(self, part: list[Move]) -> list[bool]:
        """Whether each chunk is read and proved."""
        into = [self._chunk(move.chunk) for move in part]
        names = self._names([move.key for move in part])
        found = self._outages.tried(self._storage.read, names, into) or [None] * len(part)
        return [digest is not None for digest in found]

    def _names(self, keys: Sequence[bytes]) -> list[bytes]:
        return [self._storage.root + key for key in keys]

    # Results.

    def _stored(self, pairs: list[tuple[Move, bool]]) -> list[bytes]:
        return [move.key for move, is_good in pairs if is_good]

    def _loaded(self, pairs: list[tuple[Move, bool]]) -> list[bytes]:
        """Looks no more for what was not proved, or vLLM would ask for it again and again."""
        self._lookups.mark_miss([move.key for move, is_good in pairs if not is_good])
        return self._stored(pairs)
