"""The tiers of an engine: memory and files, transfers, and the jobs that wait for them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import torch
import xxhash

from blockmgr.errors import NeverFitsError, OutOfBlocksError, UnsupportedModelError
from blockmgr.kv import PagedKVCache
from blockmgr.tiers import DiskTier, HostTier, Slab, TierConfig, TieredManager, key_bytes
from blockmgr.tiers.movers import BlockBytes, Mover
from blockmgr.tiers.storages import HostStorage, SlabStorage, Storage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from transformers import PreTrainedModel

    from blockmgr.config import ManagerConfig
    from blockmgr.ports.engine.jobs import Job
    from blockmgr.ports.transformers.model import PagedModel

__all__ = ["EngineTiers"]


class EngineTiers:
    """What an engine with tiers has besides its scheduler.

    Args:
        model: The model and its K/V.
        config: Config of the manager.
        kinds: The tiers, the fastest first.
        load_timeout: Seconds after which a job computes what it waits for.

    Raises:
        UnsupportedModelError: Not all layers have full attention.
        SlabError: A slab cannot be opened.
        ValueError: A value is out of its bounds.
        TypeError: A value is of the wrong type.

    Attributes:
        manager: The manager.
        loading: The jobs whose prompts wait for bytes.
    """

    manager: TieredManager
    _mover: Mover

    def __init__(
        self,
        model: PagedModel,
        config: ManagerConfig,
        kinds: Sequence[HostTier | DiskTier],
        load_timeout: float,
    ) -> None:
        if not isinstance(model.cache, PagedKVCache):
            raise UnsupportedModelError(
                model.model.config.model_type, "tiers need full attention in all layers"
            )
        self._config = config
        self._blocks = BlockBytes(model.cache)
        self._kinds = tuple(kinds)
        sizes = [_num_blocks(kind, self._blocks.size) for kind in self._kinds]
        self._slabs: list[Slab | None] = []
        self._sizes = sizes
        self._timeout = load_timeout
        self._asked: dict[int, Job] = {}
        self.loading: list[Job] = []
        try:
            for kind, size in zip(self._kinds, sizes, strict=True):
                self._slabs.append(self._opened(kind, size, model))
            self._start()
        except BaseException:
            self._close_slabs()
            raise

    def _opened(self, kind: HostTier | DiskTier, size: int, model: PagedModel) -> Slab | None:
        if not isinstance(kind, DiskTier):
            return None
        return Slab(
            kind.path,
            _layout_of(model, kind.revision),
            num_blocks=size,
            block_bytes=self._blocks.size,
            key_bytes=key_bytes(self._config.block_size),
        )

    def _start(self) -> None:
        """Makes a manager, and the memory of its tiers."""
        tiers: list[TierConfig] = []
        storages: list[Storage] = []
        # An admission takes many blocks at once, so the first tier gets what is idle at once, and
        # each other one half of what is idle above it.
        ahead = self._config.num_blocks
        for kind, slab, size in zip(self._kinds, self._slabs, self._sizes, strict=True):
            tiers.append(
                TierConfig(
                    num_blocks=size,
                    slab=slab,
                    eviction=kind.eviction,
                    ahead=ahead,
                    store=kind.store,
                )
            )
            memory = HostStorage(size, self._blocks.size) if slab is None else SlabStorage(slab)
            storages.append(memory)
            ahead = max(1, size // 2)
        capacity, storing = self._config.capacity, max(64, self._config.num_blocks // 8)
        self.manager = TieredManager.from_config(
            self._config, tiers=tiers, max_loading=capacity, max_storing=storing
        )
        self._mover = Mover(self.manager, self._blocks, storages, load_timeout=self._timeout)

    # Jobs.

    def prefetch(self, waiting: Iterable[Job]) -> None:
        """Begins to copy what slower tiers have of queued prompts to the fastest one.

        Of the oldest jobs only, as many as fit half of that tier: those of others would be evicted
        before their turn.
        """
        if len(self._sizes) == 1:
            return
        room = self._sizes[0] // 2
        asked = self._asked
        self._asked = {}
        for job in waiting:
            room -= len(job.tracks[0].tokens) // self._config.block_size
            if room < 0:
                break
            if job.tracks[0].handle is None and id(job) not in asked:
                self.manager.prefetch(job.tracks[0].prompt())
            self._asked[id(job)] = job  # which keeps its id

    def enter(self, job: Job) -> bool:
        """Admits a fresh job if a tier has a part of its prompt; returns whether it waits."""
        prompt = job.tracks[0].prompt()
        if not self.manager.match_tiers(prompt).num_loadable_tokens:
            return False
        try:
            handle = self.manager.admit(prompt, num_slots=1, load=True)
        except (OutOfBlocksError, NeverFitsError):
            return False
        track = job.tracks[0]
        track.handle, track.length = handle, len(prompt)
        self.loading.append(job)
        return True

    def landed(self) -> list[Job]:
        """Begins and reports transfers, and returns the jobs that no longer wait for any."""
        self._mover.poll()
        ended = [job for job in self.loading if not self.manager.is_loading(job.tracks[0].live())]
        self.loading = [job for job in self.loading if job not in ended]
        for job in ended:
            track = job.tracks[0]
            track.written = self.manager.sequence(track.live()).num_computed_tokens
        return ended

    def late(self) -> list[Job]:
        """Preempts the jobs that wait too long, and returns them."""
        handles = self._mover.late()
        late = [job for job in self.loading if job.tracks[0].handle in handles]
        self.loading = [job for job in self.loading if job not in late]
        for job in late:
            # Not the job's own call, which commits first.
            self.manager.preempt(job.tracks[0].live())
        return late

    @property
    def num_loads(self) -> int:
        """Loads under way, also those for which a job waits no longer."""
        return self._mover.num_loads

    def wait(self) -> None:
        """Waits until a transfer has ended."""
        self._mover.wait()

    # Ends.

    def restart(self) -> None:
        """Empties all tiers and the device, whose K/V may be of other weights or half written."""
        self._mover.close()
        for slab in self._slabs:
            if slab is not None:
                slab.reset(volatile=True)
        self.loading = []
        self._start()

    def close(self) -> None:
        """Stores what is idle, and closes the files."""
        while self._mover.poll():
            self._mover.drain()
        self._mover.close()
        self.manager.close()

    def _close_slabs(self) -> None:
        for slab in self._slabs:
            if slab is not None:
                slab.close()


def _num_blocks(kind: HostTier | DiskTier, size: int) -> int:
    if not isinstance(kind, HostTier | DiskTier):
        raise TypeError(f"tiers must have HostTier and DiskTier only, got {type(kind).__name__}")
    if kind.bytes_to_use < size:
        raise ValueError(
            f"bytes_to_use must be at least {size}, the bytes of a block, got {kind.bytes_to_use}"
        )
    return kind.bytes_to_use // size


def _layout_of(model: PagedModel, revision: str) -> dict[str, str | int]:
    """What decides the bytes of a block."""
    cache = model.cache
    config = json.dumps(model.model.config.to_dict(), sort_keys=True, default=str)
    return {
        "model": type(model.model).__name__,
        "config": xxhash.xxh3_128_hexdigest(config.encode()),
        "weights": revision or _checksum(model.model),
        "shape": str(cache.shape),
        "block_size": cache.block_size,
    }


def _checksum(model: PreTrainedModel) -> str:
    """A checksum of all weights."""
    total = xxhash.xxh3_128()
    for name, tensor in sorted(model.state_dict().items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        total.update(flat.view(torch.uint8).numpy())
    return total.hexdigest()
