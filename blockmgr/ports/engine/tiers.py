"""The tiers of an engine: memory and files, transfers, and the jobs that wait for them."""

from __future__ import annotations

import itertools
import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeAlias

import torch
import xxhash

from blockmgr.arguments import MOST, whole
from blockmgr.digest import KeyedDigest
from blockmgr.errors import NeverFitsError, OutOfBlocksError
from blockmgr.tiers import (
    DiskTier,
    HostTier,
    MooncakeTier,
    SharedStorage,
    Slab,
    TierConfig,
    TieredManager,
    key_bytes,
    shared_key_bytes,
)
from blockmgr.tiers.mooncake import connected
from blockmgr.tiers.movers import BlockBytes, Mover
from blockmgr.tiers.storages import HostStorage, SlabStorage, Storage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from transformers import PreTrainedModel

    from blockmgr.config import ManagerConfig
    from blockmgr.manager import Sequence as SequenceView
    from blockmgr.ports.engine.jobs import Job
    from blockmgr.ports.transformers.model import PagedModel

__all__ = ["EngineTiers", "TierKind"]

TierKind: TypeAlias = HostTier | DiskTier | MooncakeTier
MOST_ASKED = 64  # jobs at the head of the queue for which a shared store is asked


class EngineTiers:
    """What an engine with tiers has besides its scheduler.

    Args:
        model: The model and its K/V.
        config: Config of the manager.
        kinds: The tiers, the fastest first.
        load_timeout: Seconds after which a job computes what it waits for.

    Raises:
        SlabError: A slab cannot be opened.
        SharedStoreError: A shared store cannot be reached.
        ValueError: A value is out of its bounds.
        TypeError: A value is of the wrong type.

    Attributes:
        manager: The manager.
        loading: The jobs whose prompts wait for bytes.
        is_closed: Whether the tiers are closed.
    """

    manager: TieredManager
    _mover: Mover

    def __init__(
        self,
        model: PagedModel,
        config: ManagerConfig,
        kinds: Sequence[TierKind],
        load_timeout: float,
    ) -> None:
        self._config = config
        self._blocks = BlockBytes(model.cache)
        self._kinds = tuple(kinds)
        sizes = [_num_blocks(kind, self._blocks.size) for kind in self._kinds]
        self._places: list[Slab | SharedStorage | None] = []
        self._sizes = sizes
        self._timeout = load_timeout
        self._fetched: dict[int, Job] = {}
        self.loading: list[Job] = []
        self._asked: dict[tuple[int, int], int] = {}  # number of the look-up of each job
        try:
            for kind, size in zip(self._kinds, sizes, strict=True):
                self._places.append(self._opened(kind, size, model))
            self._start()
        except BaseException:
            self._close_places()
            raise

    def _opened(self, kind: TierKind, size: int, model: PagedModel) -> Slab | SharedStorage | None:
        if isinstance(kind, HostTier):
            return None
        if isinstance(kind, MooncakeTier):
            return self._connected(kind, _layout_of(model, kind.revision))
        return Slab(
            kind.path,
            _layout_of(model, kind.revision),
            num_blocks=size,
            block_bytes=self._blocks.size,
            key_bytes=key_bytes(self._config.block_size),
        )

    def _connected(self, kind: MooncakeTier, layout: dict[str, str | int]) -> SharedStorage:
        digest = self._config.digest
        if self._config.groups:  # whose numbers are in the keys
            layout["groups"] = str(self._config.groups)
        return connected(
            kind,
            layout,
            block_bytes=self._blocks.size,
            key_bytes=shared_key_bytes(self._config.block_size),
            keyed=digest if isinstance(digest, KeyedDigest) else None,
        )

    def _start(self) -> None:
        """Makes a manager, and the memory of its tiers."""
        tiers: list[TierConfig] = []
        storages: list[Storage | SharedStorage] = []
        # An admission takes many blocks at once, so the first tier gets what is idle at once, and
        # each other one half of what is idle above it; a shared one all, for others to find.
        above = self._config.num_blocks
        for kind, place, size in zip(self._kinds, self._places, self._sizes, strict=True):
            ahead = above if not tiers or isinstance(kind, MooncakeTier) else max(1, above // 2)
            tiers.append(_tier_of(kind, place, size, ahead))
            if isinstance(place, Slab):
                storages.append(SlabStorage(place))
            else:
                storages.append(place or HostStorage(size, self._blocks.size))
            above = size
        capacity, storing = self._config.capacity, max(64, self._config.num_blocks // 8)
        self.manager = TieredManager.from_config(
            self._config, tiers=tiers, max_loading=capacity, max_storing=storing
        )
        self._mover = Mover(self.manager, self._blocks, storages, load_timeout=self._timeout)
        self.is_closed = False

    # Jobs.

    @property
    def is_busy(self) -> bool:
        """Whether a job waits for bytes, or for what a shared store says.

        A load that came too late counts: it keeps its blocks until it ends.
        """
        is_asking = any(map(self.manager.is_looking_up, self._asked.values()))
        return is_asking or bool(self.loading) or self._mover.num_loads > 0

    def ask(self, waiting: Iterable[Job]) -> None:
        """Has a shared store asked for the fresh jobs at the head of the queue."""
        if not isinstance(self._places[-1], SharedStorage):
            return
        for job in itertools.islice(waiting, MOST_ASKED):
            if job.order not in self._asked and job.tracks[0].handle is None:
                self._asked[job.order] = self.manager.look_up(job.tracks[0].prompt())

    def is_asking(self, job: Job) -> bool:
        """Whether a shared store was asked for a job, and has not answered."""
        return self.manager.is_looking_up(self._asked.get(job.order, 0))

    def clear(self) -> None:
        """Drops all jobs."""
        self.loading.clear()
        self._asked.clear()
        self._fetched.clear()

    def prefetch(self, waiting: Iterable[Job]) -> None:
        """Begins to copy what slower tiers have of queued prompts to the fastest one.

        Of the oldest jobs only, as many as fit half of that tier: those of others would be evicted
        before their turn.
        """
        if len(self._sizes) == 1:
            return
        room = self._sizes[0] // 2
        fetched = self._fetched
        self._fetched = {}
        for job in waiting:
            room -= len(job.tracks[0].tokens) // self._config.block_size
            if room < 0:
                break
            if job.tracks[0].handle is None and id(job) not in fetched:
                self.manager.prefetch(job.tracks[0].prompt())
            self._fetched[id(job)] = job  # which keeps its id

    def enter(self, job: Job) -> bool:
        """Admits a fresh job if a tier has a part of its prompt; returns whether it waits."""
        prompt = job.tracks[0].prompt()
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
                # Not the job's own call, which commits first.
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
        for place in self._places:
            if isinstance(place, Slab):
                place.reset(volatile=True)
                place.is_used = False  # the manager that had it is replaced
            elif place is not None:
                place.reset()
        self.clear()
        self._start()

    def close(self) -> None:
        """Stores what is idle, and closes the files, also if that fails; once."""
        self.is_closed = True
        with ExitStack() as stack:
            for close in (self._close_places, self.manager.close, self._mover.close):
                stack.callback(close)
            while not self._mover.is_closed and self._mover.poll():
                self._mover.drain()

    def _close_places(self) -> None:
        for place in self._places:
            if place is not None:
                place.close()


def _tier_of(
    kind: TierKind, place: Slab | SharedStorage | None, size: int, ahead: int
) -> TierConfig:
    if isinstance(kind, MooncakeTier):
        assert isinstance(place, SharedStorage)
        return TierConfig(
            num_blocks=size, shared=place, known_seconds=kind.known_seconds, ahead=ahead
        )
    slab = place if isinstance(place, Slab) else None
    return TierConfig(
        num_blocks=size, slab=slab, eviction=kind.eviction, ahead=ahead, store=kind.store
    )


def _num_blocks(kind: TierKind, size: int) -> int:
    if isinstance(kind, MooncakeTier):
        return kind.known_blocks
    if not isinstance(kind, HostTier | DiskTier):
        raise TypeError(
            f"tiers must have HostTier, DiskTier and MooncakeTier only, got {type(kind).__name__}"
        )
    return whole("bytes_to_use", kind.bytes_to_use, size, MOST * size) // size


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
