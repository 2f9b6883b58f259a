"""vLLM's KV offloading on its CPU build: specs whose worker copies between CPU tensors.

vLLM's own worker copies with CUDA streams. Its ``spec_name`` and ``spec_module_path`` select these
specs; all else is vLLM's.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class CopyWorker(OffloadingWorker):
    """Copies at once; vLLM gets the result when it asks for it."""

    def __init__(self, caches: Any, per_chunk: int, num_chunks: int, region: Any) -> None:
        self.region, self.per_chunk, self.refs = region, per_chunk, caches.group_data_refs
        self.device: list[Any] = []
        self.host: list[Any] = []
        self.done: list[TransferResult] = []
        for cache in caches.tensors:
            size = cache.page_size_bytes
            self.device.append(cache.tensor.view(torch.int8).view(-1, size))
            shape = (num_chunks, size * per_chunk)
            host = region.create_next_worker_view(shape[1]) if region is not None else None
            self.host.append(torch.zeros(shape, dtype=torch.int8) if host is None else host)

    def copy(self, number: int, device: Any, host: Any, *, to_host: bool) -> bool:
        start, total = time.perf_counter(), 0
        at_device = at_host = 0
        sizes = zip(device.group_sizes, device.block_indices, strict=True)
        for group, (count, first) in enumerate(sizes):
            skip = first % self.per_chunk
            chunks = -(-(count + skip) // self.per_chunk) if count else 0
            blocks = device.block_ids[at_device : at_device + count]
            homes = host.block_ids[at_host : at_host + chunks]
            at_device, at_host = at_device + count, at_host + chunks
            for ref in self.refs[group]:
                ours, theirs = self.device[ref.tensor_idx], self.host[ref.tensor_idx]
                page, size = ours.shape[1], ref.page_size_bytes
                for i, block in enumerate(blocks):
                    chunk, part = divmod(i + skip, self.per_chunk)
                    near = ours[int(block), :size]
                    far = theirs[int(homes[chunk]), part * page : part * page + size]
                    far.copy_(near) if to_host else near.copy_(far)
                    total += size
        self.done.append(TransferResult(number, True, total, time.perf_counter() - start))
        return True

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self.copy(job_id, src_spec, dst_spec, to_host=True)

    def submit_load(
        self, job_id: int, src_spec: Any, dst_spec: Any, expedited: bool = False
    ) -> bool:
        return self.copy(job_id, dst_spec, src_spec, to_host=False)

    def get_finished(self) -> list[TransferResult]:
        done, self.done = self.done, []
        return done

    def wait(self, job_ids: Any) -> None:
        pass

    def shutdown(self) -> None:
        self.device.clear()
        self.host.clear()
        if self.region is not None:
            self.region.cleanup()


class Host(CPUOffloadingSpec):
    """Host memory alone."""

    def get_worker(self, kv_caches: Any) -> Any:
        if not self._worker:
            self._worker = CopyWorker(kv_caches, self.blocks_per_chunk, self.num_chunks, None)
        return self._worker


class HostAndTiers(TieringOffloadingSpec):
    """Host memory with tiers below it."""

    def get_worker(self, kv_caches: Any) -> Any:
        if not self._worker:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = CopyWorker(kv_caches, self.blocks_per_chunk, self.num_chunks, region)
        return self._worker
