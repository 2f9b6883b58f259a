"""What tiers of vLLM share: jobs that threads do in parts, and counters."""

from __future__ import annotations

import logging
from abc import abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from prometheus_client import REGISTRY
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import Medium, OffloadingCounterMetadata, RequestOffloadingContext
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from blockmgr.arguments import whole
from blockmgr.ports.outages import Outages
from blockmgr.ports.vllm_tiers.interface import check_installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["JobTier", "Move", "from_the_end", "logger"]

logger = logging.getLogger("vllm.blockmgr")


class Move(NamedTuple):
    """A chunk of host memory that is stored or loaded under a key."""

    key: bytes
    chunk: int
    block: int = -1  # of the slab


class _Job(NamedTuple):
    """A transfer of vLLM's, in parts of some chunks each."""

    number: int
    is_store: bool
    moves: list[Move]
    tasks: list[Future[list[Any]]]
    is_whole: bool  # whether it has all that it was asked for


class JobTier(SecondaryTierManager):  # type: ignore[misc]  # vLLM is not installed here
    """A tier whose jobs are done by threads, which only move and check bytes.

    All other work is done in the calls, which vLLM makes one at a time. ``threads`` is the number
    of threads, ``where`` what messages call the tier; the rest is as vLLM passes it.
    """

    medium: ClassVar[Medium] = Medium.STORAGE
    metrics: ClassVar[dict[str, tuple[str, str]]]
    """For each count, the name of its metric, and what it says."""

    def __init__(self, *passed: Any, backpressure_detector: Any, threads: int, where: str) -> None:
        check_installed()
        super().__init__(*passed, backpressure_detector)
        self._outages = Outages(logger, where)
        whole("threads", threads, 1, 255)
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="blockmgr-tier")
        self._host: memoryview = passed[1]
        self._jobs: list[_Job] = []
        self._results: list[JobResult] = []
        self._reported: dict[str, int] = dict.fromkeys(self.metrics, 0)

    @property
    @abstractmethod
    def counts(self) -> Mapping[str, int]:
        """What happened so far, by the names in ``metrics``."""

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        """No preference for what is stored."""
        return RequestOffloadingContext()

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
        """Ends all jobs: vLLM calls this to reset its caches."""
        wait([task for job in self._jobs for task in job.tasks])
        self._results = list(self.get_finished_jobs())

    def shutdown(self) -> None:
        """Ends all jobs."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        """The counters of the tier, for vLLM's Prometheus endpoint."""
        for name, _ in cls.metrics.values():
            # Of an engine that this process had before: vLLM removes only its own.
            if (known := REGISTRY._names_to_collectors.get(name)) is not None:
                REGISTRY.unregister(known)
        return {name: OffloadingCounterMetadata(text) for name, text in cls.metrics.values()}

    def get_stats(self) -> OffloadingConnectorStats | None:
        """What the counters have grown by since the last call."""
        stats, counts = OffloadingConnectorStats(), dict(self.counts)
        for key, (name, _) in self.metrics.items():
            if grown := counts[key] - self._reported[key]:
                stats.increase_counter(name, grown)
        self._reported = counts
        return stats

    # Transfers.

    def _chunk(self, chunk: int) -> memoryview:
        size: int = self.block_size_bytes
        # A view of our own that outlives this keeps vLLM from unmapping the memory at its end, or
        # when a tier cannot start.
        return self._host.cast("B")[chunk * size : (chunk + 1) * size]

    def _begin(
        self,
        job: Any,
        moves: list[Move],
        run: Callable[[list[Move]], list[Any]],
        most: int,
        *,
        is_store: bool,
        is_whole: bool = True,
    ) -> None:
        """Runs parts of ``most`` moves on the threads; a result for each move."""
        parts = [moves[i : i + most] for i in range(0, len(moves), most)]
        tasks = [self._executor.submit(run, part) for part in parts]
        self._jobs.append(_Job(job.job_id, is_store, moves, tasks, is_whole))

    def _ended(self, job: _Job) -> JobResult:
        results = [result for task in job.tasks for result in task.result()]
        pairs = list(zip(job.moves, results, strict=True))
        good = self._stored(pairs) if job.is_store else self._loaded(pairs)
        success = job.is_whole and len(good) == len(job.moves)
        return JobResult(
            job.number,
            success,
            successful_keys=None if success or job.is_store else tuple(good),
            transfer_bytes=len(results) * self.block_size_bytes,
        )

    @abstractmethod
    def _stored(self, pairs: list[tuple[Move, Any]]) -> list[bytes]:
        """Notes the results of a store; the keys that are stored."""

    @abstractmethod
    def _loaded(self, pairs: list[tuple[Move, Any]]) -> list[bytes]:
        """Notes the results of a load; the keys that are loaded and proved."""


def from_the_end(job: Any) -> list[Move]:
    """The chunks of a job, the end of the prompt first, so that its beginning is the newest.

    A tier sees no parents: it keeps beginnings longer by the order of writes and touches alone.
    """
    position = job.req_context.get_offload_key_position
    moves = [Move(key, int(chunk)) for key, chunk in zip(job.keys, job.chunk_ids, strict=True)]
    if all(position(move.key) is not None for move in moves):
        moves.sort(key=lambda move: position(move.key))
    moves.reverse()
    return moves
