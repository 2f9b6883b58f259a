"""The index as a library: the blocks of each worker, and the best worker for a prompt."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from blockmgr import _core
from blockmgr.arguments import MOST, real, text, whole
from blockmgr.event_columns import EventKind, Tier
from blockmgr.events import wire
from blockmgr.events.codec import decode_hashes
from blockmgr.index.ranks import Cache, Layers, Worker, layers_of, longest_served
from blockmgr.uncopied import NotCopied

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from blockmgr.events.codec import AnyBatch
    from blockmgr.events.reader import Sink

__all__ = ["TIER_WEIGHTS", "Placement", "WorkerIndex", "slices"]

_MOST_GROUP: Final = 255
_PLACES_AT_ONCE: Final = 2**16
"""Places of a table that are looked at before another thread may use the index."""

_AT_ONCE: Final = 2**13
"""Most blocks that are applied before another thread may use the index; an event counts as 16."""

_KEY: Final = 8  # bytes
_SPREAD: Final = 0x9E3779B97F4A7C15  # the golden ratio: the keys of groups are far apart
_FULL: Final = Layers(wire.FULL_ATTENTION, 0, 0)
_LOG = logging.getLogger(__name__)
_REMOVED: Final = EventKind.REMOVED
_CLEARING: Final = frozenset(
    kind for kind, what in wire.KIND_OF.items() if what is EventKind.CLEARED
)

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
        rank: Its data-parallel rank; None if its batches name none.
    """

    worker: str
    num_blocks: int
    tiers: Mapping[Tier, int]
    score: float
    rank: int | None = None


class WorkerIndex(NotCopied):
    """Blocks by worker and tier, from events; a sink for ``blockmgr.events.Subscriber``.

    Its answers are only probable: keys are digests cut to 64 bits, and a block may be evicted while
    the answer is on its way. A wrong answer costs a hit.

    With several groups of layers, a prefix counts up to the point at which every group has what the
    next query reads: all blocks of full attention, the last ones of a window or chunk, a state at
    its end. A publisher of blockmgr names its groups in each batch, vLLM's with the first blocks of
    each group. Events are counted and ignored if the width or the block size of their group is
    unknown or unbelievable, or if their worker was not announced.

    A batch may name a data-parallel rank. Ranks of a worker have caches of their own and are placed
    on their own, as ``rows``; each counts as a worker.

    Calls may come from several threads.

    Args:
        max_workers: Most workers at a time, each rank counted.
        max_blocks: Most different blocks at a time. Further ones are counted and left out.
        tier_weights: Weight of a block in each tier.
        load_weight: Amount that a load of 1 subtracts from a score.
        max_ranks: Most ranks of a worker.
        block_size: Tokens per block of the prompts that are asked for. A worker whose blocks of
            full attention have another size is ignored, and is one of ``problems``. None accepts
            all sizes, and logs where two workers differ.

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

    _instead = "make another one, for readers of its own"

    decode_batch = staticmethod(decode_hashes)
    """Decoder of batches for a ``Subscriber``, which skips tokens."""

    def __init__(
        self,
        *,
        max_workers: int = 64,
        max_blocks: int = 2**26,
        tier_weights: Mapping[Tier, float] = TIER_WEIGHTS,
        load_weight: float = 1.0,
        max_ranks: int = 16,
        block_size: int | None = None,
    ) -> None:
        max_workers = whole("max_workers", max_workers, 1, 2**16)
        max_blocks = whole("max_blocks", max_blocks, 1, 2**40 - 1)
        self._max_ranks = whole("max_ranks", max_ranks, 1, 2**16)
        self._block_size = 0 if block_size is None else whole("block_size", block_size, 1, MOST)
        self._table = _core.WorkerTable(max_workers, max_blocks)
        self._parts = _core.WorkerTable(max_workers, max_blocks)  # of the other groups of layers
        self._max_workers = max_workers
        if not isinstance(tier_weights, Mapping):
            raise TypeError(
                f"tier_weights must map tiers to numbers, got {type(tier_weights).__name__}"
            )
        if unknown := [key for key in tier_weights if key not in list(Tier)]:
            raise ValueError(f"tier_weights must have a Tier as each key, got {unknown[0]!r}")
        weights = [_finite("tier_weights", tier_weights.get(tier, 0.0)) for tier in Tier]
        self._weights = np.array(weights, np.float64)
        self._load_weight = _finite("load_weight", load_weight)
        self._workers: dict[str, Worker] = {}
        self._rows: list[tuple[Worker, Cache]] = []
        self._slots = np.zeros(0, np.intp)  # of the rows
        self._free = list(range(max_workers))[::-1]
        self._loads = np.zeros(max_workers)
        self._leaving: list[Cache] = []  # of detached workers, with blocks in the tables
        self._logged: set[str] = set()
        self._lock = threading.RLock()
        self.counts: Counter[str] = Counter()
        """Counts of ignored items: ``unannounced``, ``other_length``, ``other_group``,
        ``other_medium``, ``other_block_size`` (events), ``other_rank`` (batches) and ``refused``
        (blocks beyond ``max_blocks``)."""

    # Workers.

    def announce(self, worker: str) -> None:
        """Adds a worker without known blocks. A worker that was announced already does not change.

        Raises:
            ValueError: There are ``max_workers`` already, or the name is empty or not printable.
            TypeError: The name is not a str.
        """
        if not text("worker", worker) or not worker.isprintable():
            raise ValueError(f"worker must have printable characters only, got {worker!r}")
        with self._lock:
            if worker in self._workers:
                return
            if not self._free:
                self.tidy()
            if not self._free:
                raise ValueError(f"worker must be one of at most {self._max_workers}, got more")
            self._workers[worker] = Worker(worker, self._new_cache(None))
            self._list_rows()

    def withdraw(self, worker: str) -> None:
        """Forgets a worker with all its ranks.

        Raises:
            KeyError: It was never announced.
        """
        self.detach(worker)
        self.tidy()

    def detach(self, worker: str) -> None:
        """Like ``withdraw``, but leaves the work to ``tidy``, so it takes no time.

        Raises:
            KeyError: It was never announced.
        """
        with self._lock:
            found = self._worker(worker)
            found.is_withdrawn = True
            self._leaving += found.caches
            del self._workers[worker]
            self._list_rows()

    def tidy(self) -> None:
        """Takes the blocks of detached workers out of the table. Others are answered meanwhile."""
        while True:
            with self._lock:
                if not self._leaving:
                    return
                cache = self._leaving.pop()
            self._empty(cache)
            with self._lock:
                cache.is_gone = True
                self._free.append(cache.slot)

    @property
    def workers(self) -> list[str]:
        """Names of the workers, in the order in which they were announced."""
        with self._lock:
            return list(self._workers)

    @property
    def rows(self) -> list[tuple[str, int | None]]:
        """Workers with their data-parallel ranks, in the order of the rows of ``found``.

        Like ``workers``, but a worker whose batches name several ranks is there for each of them.
        The rank is None if no batch named one.
        """
        with self._lock:
            return [(worker.name, cache.rank) for worker, cache in self._rows]

    @property
    def problems(self) -> dict[tuple[str, int | None], str]:
        """Why the blocks of some workers are not believed, by worker and rank."""
        with self._lock:
            return {(w.name, c.rank): c.problem for w, c in self._rows if c.problem is not None}

    def set_load(self, worker: str, load: float, rank: int | None = None) -> None:
        """Sets how busy a worker is.

        Args:
            worker: Its name.
            load: A measure of the caller's choice, the same for all workers: the share of blocks in
                use, say, which tells a few long contexts from many short ones, or the share of all
                requests.
            rank: The only rank that it concerns; None for all ranks of the worker.

        Raises:
            KeyError: It was never announced, or has no such rank.
            ValueError: The load is not finite.
            TypeError: It is not a number.
        """
        _finite("load", load)
        with self._lock:
            for cache in self._worker(worker).chosen(rank):
                self._loads[cache.slot] = load

    def _worker(self, worker: str) -> Worker:
        if worker not in self._workers:
            raise KeyError(f"worker {worker!r} was never announced")
        return self._workers[worker]

    def _list_rows(self) -> None:
        self._rows = [(worker, c) for worker in self._workers.values() for c in worker.caches]
        self._slots = np.array([cache.slot for _, cache in self._rows], np.intp)

    def _new_cache(self, rank: int | None) -> Cache:
        cache = Cache(self._free.pop(), rank)
        self._loads[cache.slot] = 0.0
        return cache

    def _empty(self, cache: Cache, tiers: Iterable[Tier] = Tier) -> None:
        """Forgets what a cache has. Other threads may use the index in between."""
        for tier in tiers:
            for table in (self._table, self._parts):
                place = 0
                while place >= 0:
                    with self._lock:
                        if cache.is_gone:  # another thread has emptied it, too
                            return
                        cache.is_emptying = True
                        place = table.clear(cache.slot, int(tier), place, _PLACES_AT_ONCE)
                    if place >= 0:
                        time.sleep(0)
        cache.is_emptying = False

    def _cache_of(self, worker: Worker, rank: int | None) -> Cache | None:
        """The cache that a batch is about; None if there are too many ranks."""
        cache = worker.named(rank)
        if cache is not None:
            return cache
        if not self._free or len(worker.caches) >= self._max_ranks:
            what = f"rank {rank} is one too many: max_ranks is {self._max_ranks}, max_workers"
            self._refuse("other_rank", worker.name, f"{what} {self._max_workers}")
            return None
        cache = self._new_cache(rank)
        worker.add(cache)
        self._list_rows()
        return cache

    # Events.

    def reset(self, worker: str, rank: int | None = None) -> None:
        """Forgets what a worker has, in all tiers; with a rank, only what that rank has."""
        with self._lock:
            found = self._workers.get(worker)
        if found is not None:
            self._reset(found, rank)

    def _reset(self, worker: Worker, rank: int | None) -> None:
        with self._lock:
            if worker.is_withdrawn:
                return
            cache = worker.caches[0] if rank is None else worker.of_rank(rank)
            if cache is None:
                return
            cache.forget()
            if rank is None:
                cache.rank = None
                self._leaving += worker.caches[1:]
                worker.caches = [cache]
                self._list_rows()
            cache.is_emptying = True
        self._empty(cache)
        self.tidy()

    def clear(self, worker: str, tier: Tier) -> None:
        """Forgets what a worker has in one tier.

        Raises:
            KeyError: It was never announced.
        """
        only = Tier(_tier(tier))
        with self._lock:
            caches = list(self._worker(worker).caches)
        for cache in caches:
            self._empty(cache, [only])

    def store(
        self,
        worker: str,
        digests: Sequence[bytes | int],
        tier: Tier = Tier.DEVICE,
        rank: int | None = None,
    ) -> None:
        """Records that a worker has blocks, by their digests or the low 64 bits of these.

        Raises:
            KeyError: It was never announced.
        """
        with self._lock:
            cache = self._cache_of(self._worker(worker), rank)
            if cache is not None:
                self.counts["refused"] += self._table.store(cache.slot, _tier(tier), _keys(digests))
                cache.groups.note([(0, _FULL)])

    def remove(
        self,
        worker: str,
        digests: Sequence[bytes | int],
        tier: Tier = Tier.DEVICE,
        rank: int | None = None,
    ) -> None:
        """Records that a worker no longer has blocks in a tier, or that one of its ranks does not.

        Raises:
            KeyError: It was never announced, or has no such rank.
        """
        with self._lock:
            for cache in self._worker(worker).chosen(rank):
                self._table.remove(cache.slot, _tier(tier), _keys(digests))

    def apply(self, worker: str, batch: AnyBatch) -> None:
        """Applies a batch of events of a worker, or of the rank that the batch names."""
        with self._lock:
            found = self._workers.get(worker)
        if found is None:
            self._refuse("unannounced", worker, "it was never announced")
        else:
            self._apply_to(found, batch)

    def sink_of(self, worker: str) -> Sink:
        """A sink for one worker, which does nothing any more once the worker is withdrawn.

        So a thread that still reads its events does not mix them with those of a later worker of
        the same name.

        Raises:
            KeyError: It was never announced.
        """
        with self._lock:
            return _WorkerSink(self, self._worker(worker))

    def _apply_to(self, worker: Worker, batch: AnyBatch) -> None:
        is_first = True
        for events in slices(batch.events):
            if not is_first:
                time.sleep(0)  # other threads wait for the lock, and may not get it otherwise
            with self._lock:
                cache = None
                if not worker.is_withdrawn:
                    cache = self._cache_of(worker, batch.data_parallel_rank)
                if cache is None:
                    return
                if is_first and (about := batch.about) is not None and about.groups:
                    self._note(worker, cache, [
                        (number, layers_of(kind, width, about.block_size))
                        for number, (kind, width) in enumerate(about.groups)
                    ])  # fmt: skip
                is_clearing = len(events) == 1 and events[0].__class__ in _CLEARING
                if not is_clearing:
                    self._apply(worker, cache, events)
            if is_clearing:
                self._apply_clearing(worker, cache, events[0])
            is_first = False

    def _apply_clearing(self, worker: Worker, cache: Cache, event: Any) -> None:
        tier = wire.tier_of(event)
        if tier is None:
            self._refuse("other_medium", worker.name, f"medium {event.medium!r} is unknown")
        else:  # without a medium it concerns all tiers, as in vLLM
            is_all = event.medium is None and event.locality is None
            self._empty(cache, Tier if is_all else [tier])

    def _apply(self, worker: Worker, cache: Cache, events: Sequence[Any]) -> None:
        """Applies stored and removed blocks in order; a run of similar events is one call."""
        run: list[Any] = []
        what = None
        groups = cache.groups
        # Removals come one block at a time: one like the last one is not examined again.
        alike: tuple[Any, ...] | None = None
        for event in events:
            kind = wire.KIND_OF[event.__class__]
            about = (event.medium, event.locality, event.group_idx) if kind is _REMOVED else None
            if about is not None and about == alike and event.block_hashes:
                run.append(event)
                continue
            alike = None
            tier = wire.tier_of(event)
            if tier is None:
                self._refuse("other_medium", worker.name, f"medium {event.medium!r} is unknown")
            elif event.block_hashes and self._counts(worker, cache, event, kind):
                group = event.group_idx or 0
                of = None if group == groups.first else group
                if what != (kind, tier, of):
                    self._apply_run(worker, cache, what, run)
                    run, what = [], (kind, tier, of)
                run.append(event)
                alike = about
        self._apply_run(worker, cache, what, run)

    def _apply_run(
        self,
        worker: Worker,
        cache: Cache,
        what: tuple[EventKind, Tier, int | None] | None,
        events: list[Any],
    ) -> None:
        """Applies events that store blocks of a group in a tier, or remove them."""
        if what is None:
            return
        hashes = events[0].block_hashes
        if len(events) > 1:
            hashes = [each for event in events for each in event.block_hashes]
        keys, size = _core.keys_of(hashes)
        if size >= 0 and cache.digest_bytes is None:
            cache.digest_bytes = size
        if size >= 0 and cache.digest_bytes == size:
            kind, tier, group = what
            table = self._table
            if group is not None:
                table, keys = self._parts, _keys_in(group, keys)
            if kind is EventKind.STORED:
                self.counts["refused"] += table.store(cache.slot, int(tier), keys)
            else:
                table.remove(cache.slot, int(tier), keys)
        elif len(events) > 1:  # some of them may be right
            for event in events:
                self._apply_run(worker, cache, what, [event])
        else:
            self._refuse("other_length", worker.name, "a digest has another length")

    def _note(
        self, worker: Worker, cache: Cache, described: list[tuple[int, Layers | None]]
    ) -> bool:
        """Records the kinds of groups; returns whether their blocks have the right size."""
        for group, layers in described:
            if layers is None or not layers.block_size:
                continue
            known = cache.groups.known.get(group)
            leads = cache.groups.first in (None, group) and layers.is_whole_prefix
            right = known.block_size if known else 0
            right = right or (self._block_size if leads else 0)
            if right and layers.block_size != right:
                whose = "before" if known and known.block_size else "in this index"
                self._refuse_size(worker, cache, layers.block_size, f"{right} {whose}")
                return False
            if leads and known is None:
                self._compare_sizes(worker, cache, layers.block_size)
        cache.groups.note(described)
        return True

    def _refuse_size(self, worker: Worker, cache: Cache, size: int, right: str) -> None:
        self.counts["other_block_size"] += 1
        if cache.problem is None:
            cache.problem = f"its blocks have {size} tokens, but {right}; its events are ignored"
            if worker.may_log():
                _LOG.error("%s: %s", worker.title(cache), cache.problem)

    def _compare_sizes(self, worker: Worker, cache: Cache, size: int) -> None:
        """Logs a size that differs from other workers'. Which one is right is not known."""
        for other, another in self._rows:
            if another is cache or (theirs := another.groups.block_size) in (0, size):
                continue
            if worker.may_log():
                said = "%s: its blocks have %d tokens, those of %s have %d: no prompt finds both"
                _LOG.warning(said, worker.title(cache), size, other.title(another), theirs)
            return

    def _counts(self, worker: Worker, cache: Cache, event: Any, kind: EventKind) -> bool:
        """Whether an event is of a known group; the first stored blocks describe it at the latest.

        Before those, the group has no blocks here to remove, and the blocks of other groups have
        the same digests.
        """
        groups = cache.groups
        group = event.group_idx or 0
        if not 0 <= group <= _MOST_GROUP:
            self.counts["other_group"] += 1
            return False
        if kind is EventKind.STORED:
            width = event.kv_cache_spec_sliding_window
            described = event.kv_cache_spec_kind, width, event.block_size
            if groups.described.get(group) != described:
                if not self._note(worker, cache, [(group, layers_of(*described))]):
                    return False
                if group in groups.known:
                    groups.described[group] = described
        if groups.counts(group):
            return True
        self.counts["other_group"] += kind is EventKind.STORED or group in groups.known
        return False

    def _refuse(self, what: str, worker: str, why: str) -> None:
        self.counts[what] += 1
        if what not in self._logged:
            self._logged.add(what)
            _LOG.warning("%s: ignored events: %s; others like it are only counted", worker, why)

    # Answers.

    def num_blocks(self, worker: str, tier: Tier = Tier.DEVICE, rank: int | None = None) -> int:
        """Number of a worker's blocks of full attention in a tier.

        Args:
            worker: Its name.
            tier: The tier.
            rank: The only rank whose blocks count; None for the sum of all ranks.

        Raises:
            KeyError: It was never announced, or has no such rank.
        """
        with self._lock:
            caches = self._worker(worker).chosen(rank)
            return sum(self._table.num_blocks(cache.slot, _tier(tier)) for cache in caches)

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
            ``int32[rows, tiers]`` on the host, in the order of ``rows``: each block counts in the
            first tier that has it.

        Cost: O(blocks), up to the first that no worker has.
        """
        keys = _keys(digests)
        with self._lock:
            table = self._find(keys)
            for _, cache in self._rows:
                if cache.is_emptying:
                    table[cache.slot] = 0
                if further := cache.groups.further:
                    self._limit(cache.slot, further, keys, table)
            return table[self._slots]

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
        """The score of each worker for a prompt, in the order of ``rows``.

        A score is the weight of the blocks found over the number of blocks, minus ``load_weight``
        times the load. For a prompt without a whole block, only the loads count.
        """
        known = _listed(digests)
        with self._lock:
            return self._scores(self.found(known), len(known))

    def _scores(self, found: npt.NDArray[np.int32], blocks: int) -> npt.NDArray[np.float64]:
        loads = self._loads[self._slots]
        scores: npt.NDArray[np.float64] = found @ self._weights / max(1, blocks)
        scores -= self._load_weight * loads
        return scores

    def place(self, digests: Sequence[bytes | int]) -> list[Placement]:
        """All workers, the best one for this prompt first; ties go to the one announced first.

        A worker with several data-parallel ranks is there once for each of them.
        """
        known = _listed(digests)
        with self._lock:
            found = self.found(known)
            scores = self._scores(found, len(known))
            names = self.rows
        placements = [
            Placement(
                name,
                int(row.sum()),
                {tier: int(row[tier]) for tier in Tier if row[tier]},
                float(score),
                rank,
            )
            for (name, rank), row, score in zip(names, found, scores, strict=True)
        ]
        return sorted(placements, key=lambda each: -each.score)


class _WorkerSink:
    """The sink of one worker."""

    decode_batch = staticmethod(decode_hashes)

    def __init__(self, index: WorkerIndex, worker: Worker) -> None:
        self._index = index
        self._worker = worker

    def reset(self, worker: str, rank: int | None = None) -> None:
        """Forgets what it has."""
        self._index._reset(self._worker, rank)

    def apply(self, worker: str, batch: AnyBatch) -> None:
        """Applies a batch."""
        self._index._apply_to(self._worker, batch)


def slices(events: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Parts of a batch that take little time; a clearing is a part, and so is an empty batch."""
    start = size = 0
    for number, event in enumerate(events):
        if event.__class__ in _CLEARING:
            if start < number:
                yield events[start:number]
            yield [event]
            start, size = number + 1, 0
            continue
        if len(event.block_hashes) > _AT_ONCE:
            if start < number:
                yield events[start:number]
            for part in range(0, len(event.block_hashes), _AT_ONCE):
                hashes = event.block_hashes[part : part + _AT_ONCE]
                yield [msgspec.structs.replace(event, block_hashes=hashes)]
            start, size = number + 1, 0
            continue
        size += 16 + len(event.block_hashes)
        if size >= _AT_ONCE:
            yield events[start : number + 1]
            start, size = number + 1, 0
    if start < len(events) or not start:
        yield events[start:]


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
