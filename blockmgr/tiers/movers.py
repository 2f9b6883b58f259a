"""``Mover``: carries out the transfers of a manager with tiers, on the memory of a cache.

Needs torch, so ``blockmgr.tiers`` does not import it.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
import xxhash

from blockmgr.arguments import positive, whole
from blockmgr.kv import PagedKVCache
from blockmgr.tiers.manager import TieredManager
from blockmgr.tiers.plans import DEVICE
from blockmgr.tiers.records import runs_of
from blockmgr.tiers.shared import SharedStorage
from blockmgr.tiers.storages import HostStorage, Storage, buffer_of
from blockmgr.uncopied import NotCopied

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from blockmgr.tiers.plans import LookUp, Transfer, TransferPlan
    from blockmgr.tiers.tier import TierBooks

__all__ = ["BlockBytes", "Mover"]

RUN_BYTES = 1 << 22  # what is moved at once, in few long reads and copies
MOST_RUN = 64  # blocks


class BlockBytes(NotCopied):
    """The K/V of single blocks of a cache, as bytes: each layer's keys, then its values.

    A block of a ``GroupedKVCache`` is a page of each tensor, whichever group has it.

    Args:
        cache: The cache. Blocks of one on a GPU go through pinned memory of the host.

    Raises:
        TypeError: It is no ``PagedKVCache`` and no ``GroupedKVCache``.

    Attributes:
        size: Bytes of a block.
        block_size: Tokens of a block.
        num_blocks: Blocks of the cache.
        run: Most blocks that are copied at once, if they are neighbours.
    """

    _instead = "make another one of the same cache"

    def __init__(self, cache: PagedKVCache) -> None:
        if not isinstance(cache, PagedKVCache):
            raise TypeError(
                f"cache must be a PagedKVCache or a GroupedKVCache, got {type(cache).__name__}"
            )
        self._cache = cache
        self.block_size, self.num_blocks = cache.block_size, cache.num_blocks
        self.size = sum(part[0].numel() * part.element_size() for part in _parts_of(cache))
        self.run = max(1, min(MOST_RUN, RUN_BYTES // self.size))
        self._staging = None if cache.device.type == "cpu" else cache.host_counterpart(self.run)
        self._parts = _parts_of(self._staging or cache)
        # Of the staging blocks; without them, threads copy at the same time.
        self._lock: AbstractContextManager[object] = (
            nullcontext() if self._staging is None else threading.Lock()
        )

    def read(self, blocks: Sequence[int], into: memoryview) -> None:
        """Copies blocks out of the cache, one after the other, and waits until they are there."""
        target = torch.frombuffer(into, dtype=torch.uint8).view(len(blocks), self.size)
        with self._lock, torch.inference_mode():
            for at, first, count in runs_of(blocks, self.run):
                place = first
                if self._staging is not None:
                    numbers = list(range(count))
                    self._cache.swap_out(self._staging, [first + i for i in numbers], numbers)
                    torch.cuda.current_stream(self._cache.device).synchronize()
                    place = 0
                start = 0
                for part in self._parts:
                    raw = part[place : place + count].contiguous().view(torch.uint8)
                    raw = raw.reshape(count, -1)
                    target[at : at + count, start : start + raw.shape[1]] = raw
                    start += raw.shape[1]

    def write(self, blocks: Sequence[int], data: memoryview) -> None:
        """Copies blocks into the cache, one after the other, and waits until they are there."""
        source = torch.frombuffer(data, dtype=torch.uint8).view(len(blocks), self.size)
        with self._lock, torch.inference_mode(False), torch.no_grad():
            for at, first, count in runs_of(blocks, self.run):
                place = first if self._staging is None else 0
                start = 0
                for part in self._parts:
                    own = part[place : place + count]
                    size = own[0].numel() * own.element_size()
                    raw = source[at : at + count, start : start + size]
                    own.copy_(raw.view(own.dtype).view(own.shape))
                    start += size
                if self._staging is not None:
                    numbers = list(range(count))
                    self._cache.swap_in(self._staging, numbers, [first + i for i in numbers])
                    torch.cuda.current_stream(self._cache.device).synchronize()


def _parts_of(cache: PagedKVCache) -> list[torch.Tensor]:
    """The tensors of a cache, layer by layer."""
    return [part for pair in cache._tensors.views for part in pair if part is not None]


class _Ended(NamedTuple):
    """How a transfer ended."""

    num_moved: int
    refused: bool


def _checked(
    storages: object, tiers: Sequence[TierBooks], size: int
) -> tuple[Storage | SharedStorage, ...]:
    """The storages of these tiers, for blocks of so many bytes."""
    count = len(tiers)
    if not isinstance(storages, list | tuple):
        raise TypeError(f"storages must be a list or tuple, got {type(storages).__name__}")
    for each in storages:
        if not isinstance(each, Storage | SharedStorage):
            raise TypeError(
                f"storages must have Storage or SharedStorage, got {type(each).__name__}"
            )
    if len(storages) != count:
        raise ValueError(f"storages must be one for each of {count} tiers, got {len(storages)}")
    if len({id(each) for each in storages}) < count:  # the serials of two tiers may be the same
        raise ValueError("storages must be another one for each tier, got one of them twice")
    for books, each in zip(tiers, storages, strict=True):
        if (found := getattr(each, "block_bytes", size)) != size:
            raise ValueError(f"storages must have blocks of {size} bytes, got {found}")
        least = books.pool.num_blocks
        if (found := getattr(each, "num_blocks", least)) < least:
            raise ValueError(f"storages must have the {least} blocks of their tier, got {found}")
        if getattr(each, "slab", books.slab) is not books.slab:
            raise ValueError("storages must have the slab of their tier, got another one or none")
    return tuple(storages)


_FAILED: Final = _Ended(0, refused=False)


class _Job(NamedTuple):
    """A transfer under way, in parts that follow each other."""

    transfer: Transfer
    parts: list[tuple[int, Future[_Ended]]]  # blocks of each

    def ended(self) -> _Ended:
        """How it ended: what counts is the leading run. Raises what a part raised."""
        total = 0
        for size, part in self.parts:
            ended = part.result()
            total += ended.num_moved
            if ended.num_moved < size:
                return _Ended(total, ended.refused)
        return _Ended(total, refused=False)


class Mover(NotCopied):
    """Moves bytes between a cache and tiers, on threads of its own.

    Call ``poll`` once a step, before admissions. It copies blocks that are to be stored at once, so
    that they may be evicted, and leaves the rest to the threads.

    Args:
        manager: The manager.
        blocks: The K/V of its blocks.
        storages: For each tier of the manager, its bytes: an object of its own, which no other
            mover has.
        threads: Threads. Reads of a shared store have as many of their own, and writes to it.
        load_timeout: Seconds after which a load is late; see ``late``.

    Raises:
        ValueError: A value is out of its bounds, or manager, cache and storages do not fit.
        TypeError: A value is of the wrong type.

    Attributes:
        last_error: What a storage raised last; None if none did.
        is_closed: Whether it was closed.
    """

    last_error: OSError | None = None
    _instead = "make another one, for another manager"

    def __init__(
        self,
        manager: TieredManager,
        blocks: BlockBytes,
        storages: Sequence[Storage | SharedStorage],
        *,
        threads: int = 2,
        load_timeout: float = 30.0,
    ) -> None:
        if not isinstance(manager, TieredManager):
            raise TypeError(f"manager must be a TieredManager, got {type(manager).__name__}")
        if not isinstance(blocks, BlockBytes):
            raise TypeError(f"blocks must be a BlockBytes, got {type(blocks).__name__}")
        if blocks.block_size != manager.config.block_size:
            raise ValueError(
                f"blocks must have {manager.config.block_size} tokens, got {blocks.block_size}"
            )
        if blocks.num_blocks < manager.config.num_blocks:
            raise ValueError(
                f"blocks must be at least {manager.config.num_blocks}, got {blocks.num_blocks}"
            )
        self._manager = manager
        self._blocks = blocks
        self._storages = _checked(storages, manager._tiers, blocks.size)
        hosts = [each for each in self._storages if isinstance(each, HostStorage)]
        if any(each.user not in (None, manager._tickets) for each in hosts):
            raise ValueError("storages must be of no other manager, got one that another has")
        self._timeout = positive("load_timeout", load_timeout)
        self._threads = whole("threads", threads, 1, 256)
        for each in hosts:
            each.user = manager._tickets  # which does not keep the manager
        self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix="blockmgr-tiers")
        # A shared store that hangs holds up only what needs it, and its writes no reads.
        self._reader = ThreadPoolExecutor(threads, thread_name_prefix="blockmgr-shared-reads")
        self._writer = ThreadPoolExecutor(threads, thread_name_prefix="blockmgr-shared-writes")
        self._running: list[_Job] = []
        self._asking: dict[Future[list[bool]], LookUp] = {}
        self.is_closed = False

    def poll(self) -> int:
        """Reports the transfers and look-ups that ended, and begins new ones; how many go on.

        Raises:
            ValueError: The mover is closed.
            Exception: A storage or the cache raised something else than an ``OSError``. That
                transfer has failed, and its blocks are free.
        """
        if self.is_closed:
            raise ValueError("the mover is closed; make another one, with the same storages")
        self._report()
        now = time.monotonic()
        questions = self._manager.take_lookups(now=now)
        for i, question in enumerate(questions):
            try:
                self._asking[self._reader.submit(self._look_up, question)] = question
            except BaseException:
                for left in questions[i:]:
                    self._manager.lookups_done(left.ticket, [])
                raise
        deadline = now + self._timeout
        self._begin(self._begin_load, self._manager.take_loads(deadline=deadline))
        self._begin(self._begin_store, self._manager.take_stores())
        return len(self._running) + len(self._asking)

    @property
    def num_loads(self) -> int:
        """Loads that are under way, and keep blocks of the device."""
        return sum(job.transfer.target == DEVICE for job in self._running)

    def late(self) -> list[int]:
        """The sequences that wait for a load longer than ``load_timeout``; preempt them."""
        return self._manager.loads_late(time.monotonic())

    def wait(self) -> None:
        """Waits for the end of a transfer or look-up, ``load_timeout`` at most, and reports it."""
        wait(self._under_way(), timeout=self._timeout, return_when=FIRST_COMPLETED)
        self._report()

    def drain(self) -> None:
        """Ends all transfers and look-ups, and reports them; begins none."""
        wait(self._under_way())
        self._report()

    def close(self) -> None:
        """``drain``, and ends the threads, also if it raises; a second time does nothing."""
        self.is_closed = True
        try:
            self.drain()
        finally:
            for executor in (self._executor, self._reader, self._writer):
                executor.shutdown()

    def _under_way(self) -> list[Future[Any]]:
        """Look-ups, and the parts of transfers that have not ended; all parts, if all have."""
        futures: list[Future[Any]] = [*self._asking]
        for job in self._running:
            parts = [part for _, part in job.parts]
            futures += [part for part in parts if not part.done()] or parts
        return futures

    def _report(self) -> None:
        """Reports all that has ended, then raises the first error of it."""
        raised = []
        for answer in [answer for answer in self._asking if answer.done()]:
            question = self._asking.pop(answer)
            failure = answer.exception()
            self._manager.lookups_done(question.ticket, [] if failure else answer.result())
            raised += [] if failure is None else [failure]
        for job in [job for job in self._running if all(part.done() for _, part in job.parts)]:
            errors = [error for _, part in job.parts if (error := part.exception()) is not None]
            self._end(job.transfer, _FAILED if errors else job.ended())
            self._running.remove(job)
            raised += errors
        if raised:
            raise raised[0]

    def _end(self, transfer: Transfer, ended: _Ended) -> None:
        is_load = transfer.target == DEVICE
        done = self._manager.loads_done if is_load else self._manager.stores_done
        done(transfer.ticket, ended.num_moved, refused=ended.refused)

    def _begin(self, begin: Callable[[Transfer], None], plan: TransferPlan) -> None:
        """Begins what was taken; if one fails, those that did not begin have failed.

        They hold no block. One that began in part keeps its blocks until its parts have ended.
        """
        for i, transfer in enumerate(plan.transfers):
            try:
                begin(transfer)
            except BaseException:
                begun = self._running[-1].transfer if self._running else None
                for left in plan.transfers[i:]:
                    if left is not begun:
                        self._end(left, _FAILED)
                raise

    def _begin_load(self, load: Transfer) -> None:
        """Divides a load between the threads, in parts that are worth a thread."""
        count = max(1, min(self._threads, len(load) // self._run_of(load)))
        ends = [len(load) * i // count for i in range(count + 1)]
        self._submit(load, self._load, *pairwise(ends))

    def _begin_store(self, store: Transfer) -> None:
        """Reads what the device may evict next, then leaves the writes to a thread."""
        if store.source != DEVICE:
            self._submit(store, self._pass_on, (0, len(store)))
            return
        size = self._blocks.size
        memory = buffer_of(size * len(store))
        self._blocks.read(store.source_blocks.tolist(), memory)
        data = [memory[i * size : (i + 1) * size] for i in range(len(store))]
        digests = [xxhash.xxh3_128_digest(each) for each in data]
        count = self._manager.stores_read(store.ticket, len(data))
        job = _Job(store, [])
        self._running.append(job)
        self._add(job, len(store), self._store, store, data[:count], digests)

    def _submit(
        self,
        transfer: Transfer,
        call: Callable[[Transfer, int, int], _Ended],
        *bounds: tuple[int, int],
    ) -> None:
        job = _Job(transfer, [])
        self._running.append(job)
        for a, b in bounds:
            self._add(job, b - a, call, transfer, a, b)

    def _add(self, job: _Job, size: int, call: Callable[..., _Ended], *arguments: object) -> None:
        """Adds a part to a job. If that fails, the part never runs, or the job waits for it."""
        part: Future[_Ended] = Future()
        job.parts.append((size, part))

        def run() -> None:
            if part.set_running_or_notify_cancel():
                try:
                    part.set_result(call(*arguments))
                except BaseException as error:  # which ``_report`` raises
                    part.set_exception(error)

        try:  # without memory for a thread, an executor raises, and may still run it later
            self._executor_for(job.transfer).submit(run)
        except BaseException:
            if part.cancel():
                job.parts.pop()
            raise

    def _executor_for(self, transfer: Transfer) -> ThreadPoolExecutor:
        if self._shared(transfer.source) is not None:
            return self._reader
        return self._writer if self._shared(transfer.target) is not None else self._executor

    def _shared(self, tier: int) -> SharedStorage | None:
        """The storage of a tier, if it is one that others share."""
        storage = None if tier == DEVICE else self._storages[tier]
        return storage if isinstance(storage, SharedStorage) else None

    def _run_of(self, transfer: Transfer) -> int:
        """Most blocks to move at once."""
        shared = self._shared(transfer.source) or self._shared(transfer.target)
        return self._blocks.run if shared is None else shared.batch

    # On the threads.

    def _look_up(self, question: LookUp) -> list[bool]:
        """For each key, whether the shared store says to have it; no answer if it fails."""
        storage = self._shared(question.tier)
        assert storage is not None
        try:
            return storage.has(question.keys)
        except OSError as error:
            self.last_error = error
            return []

    def _load(self, load: Transfer, first: int, stop: int) -> _Ended:
        """Reads blocks of a tier into the cache, up to the first that is not proved."""

        def write(at: int, data: list[memoryview], digests: list[bytes], memory: memoryview) -> int:
            blocks = load.target_blocks[at : at + len(digests)].tolist()
            self._blocks.write(blocks, memory[: len(digests) * self._blocks.size])
            return len(digests)

        return self._copy(load, first, stop, write)

    def _store(self, store: Transfer, data: list[memoryview], digests: list[bytes]) -> _Ended:
        """Writes blocks to a tier, up to the first that fails."""

        def write(first: int, stop: int) -> tuple[int, bool]:
            return self._write(store, first, data[first:stop], digests[first:stop]), False

        return self._in_runs(store, 0, len(data), write)

    def _pass_on(self, store: Transfer, first: int, stop: int) -> _Ended:
        """Copies blocks from one tier to another, with the checksums that they have."""

        def write(at: int, data: list[memoryview], digests: list[bytes], _: memoryview) -> int:
            return self._write(store, at, data, digests)

        return self._copy(store, first, stop, write)

    def _copy(
        self,
        transfer: Transfer,
        first: int,
        stop: int,
        write: Callable[[int, list[memoryview], list[bytes], memoryview], int],
    ) -> _Ended:
        """Reads blocks ``[first, stop)`` of a tier a run at a time, and has each run written.

        Args:
            transfer: Of these blocks.
            first: The first one.
            stop: One after the last.
            write: Called with the position of the first block of a run, memory for each, checksums
                of those that are proved, and the whole memory; returns how many it has written.
        """
        size, run = self._blocks.size, min(self._run_of(transfer), stop - first)
        memory = buffer_of(size * run)
        data = [memory[i * size : (i + 1) * size] for i in range(run)]

        def copy(at: int, end: int) -> tuple[int, bool]:
            digests, refused = self._read(transfer, at, end, data[: end - at])
            count = write(at, data, digests, memory) if digests else 0
            return count, refused and count == len(digests)

        return self._in_runs(transfer, first, stop, copy)

    def _in_runs(
        self,
        transfer: Transfer,
        first: int,
        stop: int,
        move: Callable[[int, int], tuple[int, bool]],
    ) -> _Ended:
        """Moves blocks ``[first, stop)`` a run at a time, up to the first that is not moved.

        A shared store gets the end first, because it may evict first what it got first.

        Args:
            transfer: Of these blocks.
            first: The first one.
            stop: One after the last.
            move: Called with the bounds of a run; returns how many it has moved, and whether the
                next one was refused.
        """
        run = self._run_of(transfer)
        starts = range(first, stop, run)
        is_backward = self._shared(transfer.target) is not None
        ended = _Ended(stop - first, refused=False)
        for at in reversed(starts) if is_backward else starts:
            end = min(at + run, stop)
            count, refused = move(at, end)
            if count < end - at:
                ended = _Ended(at + count - first, refused)
                if not is_backward:
                    break
        return ended

    def _read(
        self, transfer: Transfer, first: int, stop: int, into: list[memoryview]
    ) -> tuple[list[bytes], bool]:
        """The checksums of leading blocks that are proved, and whether the next one is refused."""
        proofs, storage = transfer.source_proofs, self._storages[transfer.source]
        assert proofs is not None
        keys = proofs.keys[first:stop]
        digests: list[bytes] = []
        try:
            if isinstance(storage, SharedStorage):
                found = iter(storage.read(keys, into))
            else:
                blocks = transfer.source_blocks[first:stop].tolist()
                found = storage.read_run(blocks, proofs.serials[first:stop].tolist(), keys, into)
            for digest in found:
                if not isinstance(digest, bytes):
                    return digests, True
                digests.append(digest)
        except OSError as error:
            self.last_error = error
        return digests, False

    def _write(
        self, transfer: Transfer, first: int, data: list[memoryview], digests: list[bytes]
    ) -> int:
        """How many of these blocks were written, up to the first that fails."""
        proofs, storage = transfer.target_proofs, self._storages[transfer.target]
        assert proofs is not None
        keys = proofs.keys[first : first + len(digests)]
        count = 0
        try:
            if isinstance(storage, SharedStorage):
                return storage.write(keys, data[: len(keys)], digests)
            stop = first + len(digests)
            blocks = transfer.target_blocks[first:stop].tolist()
            serials = proofs.serials[first:stop].tolist()
            for _ in storage.write_run(blocks, serials, keys, data[: len(keys)], digests):
                count += 1
        except OSError as error:
            self.last_error = error
        return count
