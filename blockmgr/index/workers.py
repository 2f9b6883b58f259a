"""The index as a library: the blocks of each worker, and the best worker for a prompt."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from blockmgr import _core
from blockmgr.arguments import real, text, whole
from blockmgr.event_columns import EventKind, Tier
from blockmgr.events import wire
from blockmgr.events.codec import decode_hashes
from blockmgr.index.layers import Groups, Layers, layers_of, longest_served

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from blockmgr.events.codec import AnyBatch

__all__ = ["TIER_WEIGHTS", "Placement", "WorkerIndex"]

_MOST_GROUP: Final = 255
_KEY: Final = 8  # bytes
_SPREAD: Final = 0x9E3779B97F4A7C15  # the golden ratio: the keys of groups are far apart
_FULL: Final = Layers(wire.FULL_ATTENTION, 0, 0)
_LOG = logging.getLogger(__name__)
_REMOVED: Final = EventKind.REMOVED
_KINDS: Final[Mapping[type, EventKind]] = {
    **dict.fromkeys((wire.BlockStored, wire.OldBlockStored, wire.StoredHashes), EventKind.STORED),
    **dict.fromkeys(
        (wire.BlockRemoved, wire.OldBlockRemoved, wire.RemovedHashes), EventKind.REMOVED
    ),
    **dict.fromkeys(
        (wire.AllBlocksCleared, wire.OldBlocksCleared, wire.HashesCleared), EventKind.CLEARED
    ),
}

TIER_WEIGHTS: Mapping[Tier, float] = MappingProxyType(
    {Tier.DEVICE: 1.0, Tier.HOST: 0.8, Tier.DISK: 0.5, Tier.REMOTE: 0.4}
)
"""Weight of a block in each tier, relative to one that need not be loaded."""


@dataclass(frozen=True, slots=True)
class Placement:
    """How good a worker is for a prompt.

    Attributes:
        worker: Its name.
        num_blocks: Leading blocks of the prompt that it has.
        tiers: Number of these in each tier; each counts in the first tier that has it.
        score: Weight of these blocks over the number of blocks of the prompt, minus the weighted
            load.
    """

    worker: str
    num_blocks: int
    tiers: Mapping[Tier, int]
    score: float


class WorkerIndex:
    """Blocks by worker and tier, from events; a sink for ``blockmgr.events.Subscriber``.

    Its answers are only probable: keys are digests cut to 64 bits, and a block may be evicted while
    the answer is on its way. A wrong answer costs a hit.

    With several groups of layers, a prefix counts up to the point at which every group has what the
    next query reads: all blocks of full attention, the last ones of a window or chunk, a state at
    its end. A publisher of blockmgr names its groups in each batch, vLLM's with the first blocks of
    each group. Events are counted and ignored if the width or the block size of their group is
    unknown, or if their worker was not announced.

    Calls may come from several threads.

    Args:
        max_workers: Most workers at a time.
        max_blocks: Most different blocks at a time. Further ones are counted and left out.
        tier_weights: Weight of a block in each tier.
        load_weight: Amount that a load of 1 subtracts from a score.

    Raises:
        ValueError: A value is out of its bounds.
        TypeError: A value is of the wrong type.

    >>> index = WorkerIndex(max_workers=2)
    >>> index.announce("a"), index.announce("b")
    (None, None)
    >>> index.store("a", [11, 12])
    >>> index.set_load("a", 0.5)
    >>> best = index.place([11, 12, 13])
    >>> [(each.worker, each.num_blocks, round(each.score, 2)) for each in best]
    [('a', 2, 0.17), ('b', 0, 0.0)]
    """

    decode_batch = staticmethod(decode_hashes)
    """Decoder of batches for a ``Subscriber``, which skips tokens."""

    def __init__(
        self,
        *,
        max_workers: int = 64,
        max_blocks: int = 2**26,
        tier_weights: Mapping[Tier, float] = TIER_WEIGHTS,
        load_weight: float = 1.0,
    ) -> None:
        max_workers = whole("max_workers", max_workers, 1, 2**16)
        max_blocks = whole("max_blocks", max_blocks, 1, 2**40)
        self._table = _core.WorkerTable(max_workers, max_blocks)
        self._parts = _core.WorkerTable(max_workers, max_blocks)  # of the other groups of layers
        self._max_workers = max_workers
        if not isinstance(tier_weights, Mapping):
            raise TypeError(
                f"tier_weights must map tiers to numbers, got {type(tier_weights).__name__}"
            )
        weights = [_finite("tier_weights", tier_weights.get(tier, 0.0)) for tier in Tier]
        self._weights = np.array(weights, np.float64)
        self._load_weight = _finite("load_weight", load_weight)
        self._slots: dict[str, int] = {}
        self._rows = np.zeros(0, np.intp)  # the same, in order
        self._free = list(range(max_workers))[::-1]
        self._loads = np.zeros(max_workers)
        self._sizes: dict[str, int] = {}  # bytes of a worker's digests; 0: numbers
        self._groups: dict[str, Groups] = {}
        self._logged: set[str] = set()
        self._lock = threading.RLock()
        self.counts: Counter[str] = Counter()
        """Counts of ignored items: ``unannounced``, ``other_length``, ``other_group``,
        ``other_medium`` (events) and ``refused`` (blocks beyond ``max_blocks``)."""

    # Workers.

    def announce(self, worker: str) -> None:
        """Adds a worker without known blocks. A worker that was announced already does not change.

        Raises:
            ValueError: There are ``max_workers`` already.
            TypeError: The name is not a str.
        """
        text("worker", worker)
        with self._lock:
            if worker in self._slots:
                return
            if not self._free:
                raise ValueError(f"worker must be one of at most {self._max_workers}, got more")
            self._slots[worker] = self._free.pop()
            self._rows = np.array(list(self._slots.values()), np.intp)
            self._loads[self._slots[worker]] = 0.0

    def withdraw(self, worker: str) -> None:
        """Forgets a worker.

        Raises:
            KeyError: It was never announced.
        """
        with self._lock:
            self._slot(worker)
            self.reset(worker)
            self._free.append(self._slots.pop(worker))
            self._rows = np.array(list(self._slots.values()), np.intp)

    @property
    def workers(self) -> list[str]:
        """Names of the workers, in the order in which they were announced."""
        with self._lock:
            return list(self._slots)

    def set_load(self, worker: str, load: float) -> None:
        """Sets how busy a worker is.

        Args:
            worker: Its name.
            load: A measure of the caller's choice, the same for all workers: the share of blocks in
                use, say, which tells a few long contexts from many short ones, or the share of all
                requests.

        Raises:
            KeyError: It was never announced.
            ValueError: The load is not finite.
            TypeError: It is not a number.
        """
        _finite("load", load)
        with self._lock:
            self._loads[self._slot(worker)] = load

    def _slot(self, worker: str) -> int:
        if worker not in self._slots:
            raise KeyError(f"worker {worker!r} was never announced")
        return self._slots[worker]

    # Events.

    def reset(self, worker: str) -> None:
        """Forgets what a worker has, in all tiers."""
        with self._lock:
            if worker not in self._slots:
                return
            for tier in Tier:
                self._clear(self._slots[worker], tier)
            self._sizes.pop(worker, None)
            self._groups.pop(worker, None)

    def clear(self, worker: str, tier: Tier) -> None:
        """Forgets what a worker has in one tier.

        Raises:
            KeyError: It was never announced.
        """
        with self._lock:
            self._clear(self._slot(worker), Tier(_tier(tier)))

    def _clear(self, slot: int, tier: Tier) -> None:
        for table in (self._table, self._parts):
            table.clear(slot, int(tier))

    def store(self, worker: str, digests: Sequence[bytes | int], tier: Tier = Tier.DEVICE) -> None:
        """Records that a worker has blocks, by their digests or the low 64 bits of these.

        Raises:
            KeyError: It was never announced.
        """
        with self._lock:
            slot = self._slot(worker)
            self.counts["refused"] += self._table.store(slot, _tier(tier), _keys(digests))
            self._groups.setdefault(worker, Groups()).note(0, _FULL)

    def remove(self, worker: str, digests: Sequence[bytes | int], tier: Tier = Tier.DEVICE) -> None:
        """Records that a worker no longer has blocks in a tier.

        Raises:
            KeyError: It was never announced.
        """
        with self._lock:
            self._table.remove(self._slot(worker), _tier(tier), _keys(digests))

    def apply(self, worker: str, batch: AnyBatch) -> None:
        """Applies a batch of events of a worker."""
        with self._lock:
            if worker not in self._slots:
                self._refuse("unannounced", worker, "it was never announced")
                return
            if batch.about is not None and batch.about.groups:
                known = self._groups.setdefault(worker, Groups())
                for number, (kind, width) in enumerate(batch.about.groups):
                    known.note(number, layers_of(kind, width, batch.about.block_size))
            self._apply(worker, batch.events)

    def _apply(self, worker: str, events: Sequence[Any]) -> None:
        """Applies events in order; a run of similar events is one call."""
        run: list[Any] = []
        what = None
        groups = self._groups.setdefault(worker, Groups())
        # Removals come one block at a time: one like the last one is not examined again.
        alike: tuple[Any, ...] | None = None
        for event in events:
            kind = _KINDS[event.__class__]
            about = (event.medium, event.locality, event.group_idx) if kind is _REMOVED else None
            if about is not None and about == alike and event.block_hashes:
                run.append(event)
                continue
            alike = None
            tier = wire.tier_of(event)
            if tier is None:
                self._refuse("other_medium", worker, f"medium {event.medium!r} is unknown")
            elif kind is EventKind.CLEARED:
                self._apply_run(worker, what, run)
                run, what = [], None
                # Without a medium it concerns all tiers, as in vLLM.
                for each in Tier if event.medium is None and event.locality is None else (tier,):
                    self._clear(self._slots[worker], each)
            elif event.block_hashes and self._counts(groups, event, kind):
                group = event.group_idx or 0
                of = None if group == groups.first else group
                if what != (kind, tier, of):
                    self._apply_run(worker, what, run)
                    run, what = [], (kind, tier, of)
                run.append(event)
                alike = about
        self._apply_run(worker, what, run)

    def _apply_run(
        self, worker: str, what: tuple[EventKind, Tier, int | None] | None, events: list[Any]
    ) -> None:
        """Applies events that store blocks of a group in a tier, or remove them."""
        if what is None:
            return
        hashes = events[0].block_hashes
        if len(events) > 1:
            hashes = [each for event in events for each in event.block_hashes]
        keys, size = _core.keys_of(hashes)
        if size >= 0 and self._sizes.setdefault(worker, size) == size:
            kind, tier, group = what
            table = self._table
            if group is not None:
                table, keys = self._parts, _keys_in(group, keys)
            if kind is EventKind.STORED:
                self.counts["refused"] += table.store(self._slots[worker], int(tier), keys)
            else:
                table.remove(self._slots[worker], int(tier), keys)
        elif len(events) > 1:  # some of them may be right
            for event in events:
                self._apply_run(worker, what, [event])
        else:
            self._refuse("other_length", worker, "a digest has another length")

    def _counts(self, groups: Groups, event: Any, kind: EventKind) -> bool:
        """Whether an event is of a known group; the first stored blocks describe it at the latest.

        Before those, the group has no blocks here to remove, and the blocks of other groups have
        the same digests.
        """
        group = event.group_idx or 0
        if not 0 <= group <= _MOST_GROUP:
            self.counts["other_group"] += 1
            return False
        if kind is EventKind.STORED:
            width = event.kv_cache_spec_sliding_window
            groups.note(group, layers_of(event.kv_cache_spec_kind, width, event.block_size))
        if groups.counts(group):
            return True
        self.counts["other_group"] += group in groups.known
        return False

    def _refuse(self, what: str, worker: str, why: str) -> None:
        self.counts[what] += 1
        if what not in self._logged:
            self._logged.add(what)
            _LOG.warning("%s: ignored events: %s; others like it are only counted", worker, why)

    # Answers.

    def num_blocks(self, worker: str, tier: Tier = Tier.DEVICE) -> int:
        """Number of a worker's blocks of full attention in a tier.

        Raises:
            KeyError: It was never announced.
        """
        with self._lock:
            return self._table.num_blocks(self._slot(worker), _tier(tier))

    @property
    def num_entries(self) -> int:
        """Number of different blocks that any worker has."""
        return self._table.num_entries()

    def memory_usage(self) -> int:
        """Bytes of the tables."""
        return self._table.memory_usage() + self._parts.memory_usage()

    def found(self, digests: Sequence[bytes | int]) -> npt.NDArray[np.int32]:
        """The number of leading blocks of a prompt that each worker has.

        Args:
            digests: Digests of the prompt's blocks, in order.

        Returns:
            ``int32[workers, tiers]`` on the host, in the order of ``workers``: each block counts in
            the first tier that has it.

        Cost: O(blocks), up to the first that no worker has.
        """
        keys = _keys(digests)
        with self._lock:
            table = self._find(keys)
            for worker, groups in self._groups.items():
                if further := groups.further:
                    self._limit(self._slots[worker], further, keys, table)
            return table[self._rows]

    def _find(self, keys: bytes) -> npt.NDArray[np.int32]:
        return self._table.find(keys).reshape(self._max_workers, len(Tier))

    def _limit(
        self, slot: int, groups: Mapping[int, Layers], keys: bytes, table: npt.NDArray[np.int32]
    ) -> None:
        """Cuts the blocks that full attention has down to those that all groups can serve."""
        if not (found := int(table[slot].sum())):
            return
        keys = keys[: found * _KEY]
        served = longest_served(
            found, groups, lambda group: self._parts.has(slot, _keys_in(group, keys))
        )
        if served < found:
            table[slot] = self._find(keys[: served * _KEY])[slot]

    def scores(self, digests: Sequence[bytes | int]) -> npt.NDArray[np.float64]:
        """The score of each worker for a prompt, in the order of ``workers``.

        A score is the weight of the blocks found over the number of blocks, minus ``load_weight``
        times the load. For a prompt without a whole block, only the loads count.
        """
        known = _listed(digests)
        with self._lock:
            return self._scores(self.found(known), len(known))

    def _scores(self, found: npt.NDArray[np.int32], blocks: int) -> npt.NDArray[np.float64]:
        loads = self._loads[self._rows]
        scores: npt.NDArray[np.float64] = found @ self._weights / max(1, blocks)
        scores -= self._load_weight * loads
        return scores

    def place(self, digests: Sequence[bytes | int]) -> list[Placement]:
        """All workers, the best one for this prompt first; ties go to the one announced first."""
        known = _listed(digests)
        with self._lock:
            found = self.found(known)
            scores = self._scores(found, len(known))
            names = list(self._slots)
        placements = [
            Placement(
                name,
                int(row.sum()),
                {tier: int(row[tier]) for tier in Tier if row[tier]},
                float(score),
            )
            for name, row, score in zip(names, found, scores, strict=True)
        ]
        return sorted(placements, key=lambda each: -each.score)


def _keys(digests: Iterable[bytes | int]) -> bytes:
    """The low 64 bits of each, as native numbers."""
    return _core.keys_of(_listed(digests))[0]


def _keys_in(group: int, keys: bytes) -> bytes:
    """Keys of the blocks of a group: for full attention, the digests alone."""
    salt = np.uint64((group + 1) * _SPREAD % 2**64)
    return (np.frombuffer(keys, np.uint64) ^ salt).tobytes()


def _listed(digests: Iterable[bytes | int]) -> list[bytes | int]:
    if isinstance(digests, list):
        return digests
    if isinstance(digests, bytes | bytearray) or not isinstance(digests, Iterable):
        raise TypeError(f"digests must be a sequence of them, got {type(digests).__name__}")
    return list(digests)


def _tier(tier: Tier) -> int:
    return whole("tier", tier, 0, len(Tier) - 1)


def _finite(name: str, value: float) -> float:
    if not np.isfinite(real(name, value)):
        raise ValueError(f"{name} must be finite, got {value}")
    return value
