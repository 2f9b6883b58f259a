"""The tiers of an engine: memory and files, transfers, and the jobs that wait for them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import torch
import xxhash

from blockmgr.errors import NeverFitsError, OutOfBlocksError
from blockmgr.tiers import DiskTier, HostTier, Slab, TierConfig, TieredManager, key_bytes
from blockmgr.tiers.movers import BlockBytes, Mover
from blockmgr.tiers.storages import HostStorage, SlabStorage, Storage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

    from blockmgr.config import ManagerConfig
    from blockmgr.manager import Sequence as SequenceView
    from blockmgr.ports.engine.jobs import Job
    from blockmgr.ports.transformers.model import PagedModel
    from blockmgr.prompt import Prompt

__all__ = ["EngineTiers"]


class EngineTiers:
    """What an engine with tiers has besides its scheduler.

    Args:
        model: The model and its K/V.
        config: Config of the manager.
        kinds: The tiers, the fastest first.

    Raises:
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
        self, model: PagedModel, config: ManagerConfig, kinds: Sequence[HostTier | DiskTier]
    ) -> None:
        self._config = config
        self._blocks = BlockBytes(model.cache)
        self._kinds = tuple(kinds)
        sizes = [_num_blocks(kind, self._blocks.size) for kind in self._kinds]
        self._slabs: list[Slab | None] = []
        self.loading: list[Job] = []
        try:
            for kind, size in zip(self._kinds, sizes, strict=True):
                self._slabs.append(self._opened(kind, size, model))
            self._start(sizes)
        except BaseException:
            self._close_slabs()
            raise
        self._sizes = sizes

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

    def _start(self, sizes: Sequence[int]) -> None:
        """Makes a manager, and the memory of its tiers."""
        tiers: list[TierConfig] = []
        storages: list[Storage] = []
        # An admission takes many blocks at once, so the first tier gets what is idle at once, and
        # each other one half of what is idle above it.
        ahead = self._config.num_blocks
        for kind, slab, size in zip(self._kinds, self._slabs, sizes, strict=True):
            tiers.append(
                TierConfig(num_blocks=size, slab=slab, eviction=kind.eviction, ahead=ahead)
            )
            memory = HostStorage(size, self._blocks.size) if slab is None else SlabStorage(slab)
            storages.append(memory)
            ahead = max(1, size // 2)
        capacity, storing = self._config.capacity, max(64, self._config.num_blocks // 8)
        self.manager = TieredManager.from_config(
            self._config, tiers=tiers, max_loading=capacity, max_storing=storing
        )
        self._mover = Mover(self.manager, self._blocks, storages)

    # Jobs.

    def enter(self, job: Job, prompt: Prompt) -> bool:
        """Admits a fresh job if a tier has a part of its prompt; returns whether it waits."""
        found = self.manager.match_tiers(prompt)
        if not found.num_loadable_tokens:
            return False
        # With several groups of layers, what does not fit is not shortened: it waits for room.
        load = found if self._config.groups else True
        try:
            handle = self.manager.admit(prompt, num_slots=1, load=load)
        except (OutOfBlocksError, NeverFitsError):
            return False
        track = job.tracks[0]
        track.handle, track.length = handle, len(prompt)
        self.loading.append(job)
        return True

    def landed(self) -> list[Job]:
        """Begins and reports transfers, and returns the jobs that no longer wait for any."""
        self._mover.poll()
        ended = [
            job
            for job in self.loading
            if not (self.manager.is_loading(job.tracks[0].live()) or self._view(job).is_preempted)
        ]
        self.loading = [job for job in self.loading if job not in ended]
        for job in ended:
            job.tracks[0].written = self._view(job).num_computed_tokens
        return ended

    def late(self) -> list[Job]:
        """Preempts the jobs that wait too long, and returns them.

        With them those that have lost their load: of several groups of layers, it did not arrive
        whole.
        """
        handles = self._mover.late()
        late = [
            job
            for job in self.loading
            if job.tracks[0].handle in handles or self._view(job).is_preempted
        ]
        self.loading = [job for job in self.loading if job not in late]
        for job in late:
            if not self._view(job).is_preempted:
                self.manager.preempt(job.tracks[0].live())
        return late

    def _view(self, job: Job) -> SequenceView:
        return self.manager.sequence(job.tracks[0].live())

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
        self._start(self._sizes)

    def close(self) -> None:
        """Stores what is idle, and closes the files."""
        while self._mover.poll():
            self._mover.drain()
        self._mover.close()
        self._close_slabs()

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
