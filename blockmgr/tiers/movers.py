"""``Mover``: carries out the transfers of a manager with tiers, on the K/V of a ``PagedKVCache``.

Needs torch, so ``blockmgr.tiers`` does not import it.
"""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
import xxhash

from blockmgr.arguments import positive, whole
from blockmgr.kv import PagedKVCache
from blockmgr.tiers.plans import DEVICE
from blockmgr.tiers.shared import SharedStorage
from blockmgr.tiers.storages import Storage, buffer_of
from blockmgr.uncopied import NotCopied

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from blockmgr.tiers.manager import TieredManager
    from blockmgr.tiers.plans import LookUp, Transfer, TransferPlan

__all__ = ["BlockBytes", "Mover"]


class BlockBytes(NotCopied):
    """The K/V of single blocks of a cache, as bytes: each layer's keys, then its values.

    Args:
        cache: The cache. Blocks of one on a GPU go through pinned memory of the host.

    Raises:
        TypeError: It is no ``PagedKVCache``.

    Attributes:
        size: Bytes of a block.
    """

    _instead = "make another one of the same cache"

    def __init__(self, cache: PagedKVCache) -> None:
        if not isinstance(cache, PagedKVCache):
            raise TypeError(f"cache must be a PagedKVCache, got {type(cache).__name__}")
        self._cache = cache
        self._staging = None if cache.device.type == "cpu" else cache.host_counterpart(1)
        host = self._staging or cache
        layers = range(cache.shape.num_layers)
        both = [part for i in layers for part in (host.keys(i), host.values(i))]
        self._parts = [part for part in both if part is not None]
        self._lock = threading.Lock()  # of the staging block
        self.size = sum(part[0].numel() * part.element_size() for part in self._parts)

    def read(self, block: int, into: memoryview) -> None:
        """Copies a block out of the cache, and waits until it is there."""
        target = torch.frombuffer(into, dtype=torch.uint8)
        with self._lock, torch.inference_mode():
            if self._staging is not None:
                self._cache.swap_out(self._staging, [block], [0])
                torch.cuda.current_stream(self._cache.device).synchronize()
                block = 0
            at = 0
            for part in self._parts:
                raw = part[block].contiguous().view(torch.uint8).reshape(-1)
                target[at : at + len(raw)] = raw
                at += len(raw)

    def write(self, block: int, data: memoryview) -> None:
        """Copies a block into the cache, and waits until it is there."""
        source = torch.frombuffer(data, dtype=torch.uint8)
        with self._lock, torch.inference_mode(False), torch.no_grad():
            place = block if self._staging is None else 0
            at = 0
            for part in self._parts:
                own = part[place]
                size = own.numel() * own.element_size()
                own.copy_(source[at : at + size].view(own.dtype).view(own.shape))
                at += size
            if self._staging is not None:
                self._cache.swap_in(self._staging, [0], [block])
                torch.cuda.current_stream(self._cache.device).synchronize()


class _Ended(NamedTuple):
    """How a transfer ended."""

    num_moved: int
    refused: bool


_FAILED: Final = _Ended(0, refused=False)


class Mover(NotCopied):
    """Moves bytes between a cache and tiers, on threads of its own.

    Call ``poll`` once a step, before admissions. It copies blocks that are to be stored at once, so
    that they may be evicted, and leaves the rest to the threads.

    Args:
        manager: The manager.
        blocks: The K/V of its blocks.
        storages: For each tier of the manager, its bytes.
        threads: Threads. Reads of a shared store have as many of their own, and writes to it.
        load_timeout: Seconds after which a load is late; see ``late``.

    Raises:
        ValueError: A value is out of its bounds.
        TypeError: A value is of the wrong type.

    Attributes:
        last_error: What a storage raised last; None if none did.
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
        if len(storages) != len(manager.tier_stats()):
            raise ValueError(
                f"storages must be one for each of {len(manager.tier_stats())} tiers, got "
                f"{len(storages)}"
            )
        self._manager = manager
        self._blocks = blocks
        self._storages = tuple(storages)
        self._timeout = positive("load_timeout", load_timeout)
        whole("threads", threads, 1, 256)
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="blockmgr-tiers")
        # A shared store that hangs holds up only what needs it, and its writes no reads.
        self._reader = ThreadPoolExecutor(threads, thread_name_prefix="blockmgr-shared-reads")
        self._writer = ThreadPoolExecutor(threads, thread_name_prefix="blockmgr-shared-writes")
        self._running: dict[Future[_Ended], Transfer] = {}
        self._asking: dict[Future[int], LookUp] = {}

    def poll(self) -> int:
        """Reports the transfers and look-ups that ended, and begins new ones; how many go on.

        Raises:
            Exception: A storage or the cache raised something else than an ``OSError``. That
                transfer has failed, and its blocks are free.
        """
        self._report()
        now = time.monotonic()
        for question in self._manager.take_lookups(now=now):
            self._asking[self._reader.submit(self._look_up, question)] = question
        deadline = now + self._timeout
        self._begin(self._begin_load, self._manager.take_loads(deadline=deadline))
        self._begin(self._begin_store, self._manager.take_stores())
        return len(self._running) + len(self._asking)

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
        """``drain``, and ends the threads."""
        self.drain()
        self._executor.shutdown()
        self._reader.shutdown()
        self._writer.shutdown()

    def _under_way(self) -> list[Future[Any]]:
        return [*self._running, *self._asking]

    def _report(self) -> None:
        for answer in [answer for answer in self._asking if answer.done()]:
            question = self._asking.pop(answer)
            failure = answer.exception()
            self._manager.lookups_done(question.ticket, 0 if failure else answer.result())
            if failure is not None:
                raise failure
        for future in [future for future in self._running if future.done()]:
            error = future.exception()
            self._end(self._running[future], future.result() if error is None else _FAILED)
            del self._running[future]
            if error is not None:
                raise error

    def _end(self, transfer: Transfer, ended: _Ended) -> None:
        is_load = transfer.target == DEVICE
        done = self._manager.loads_done if is_load else self._manager.stores_done
        done(transfer.ticket, ended.num_moved, refused=ended.refused)

    def _begin(self, begin: Callable[[Transfer], None], plan: TransferPlan) -> None:
        """Begins what was taken; if one fails, it and the rest have failed, and hold no block."""
        for i, transfer in enumerate(plan.transfers):
            try:
                begin(transfer)
            except BaseException:
                for left in plan.transfers[i:]:
                    self._end(left, _FAILED)
                raise

    def _begin_load(self, load: Transfer) -> None:
        self._running[self._executor_for(load).submit(self._load, load)] = load

    def _begin_store(self, store: Transfer) -> None:
        """Reads what the device may evict next, then leaves the writes to a thread."""
        data: list[memoryview] = []
        if store.source == DEVICE:
            for block in store.source_blocks.tolist():
                data.append(buffer_of(self._blocks.size))
                self._blocks.read(block, data[-1])
            digests = [xxhash.xxh3_128_digest(each) for each in data]
            count = self._manager.stores_read(store.ticket, len(data))
            task = self._executor_for(store).submit(self._store, store, data[:count], digests)
        else:
            task = self._executor_for(store).submit(self._pass_on, store)
        self._running[task] = store

    def _executor_for(self, transfer: Transfer) -> ThreadPoolExecutor:
        if self._is_shared(transfer.source):
            return self._reader
        return self._writer if self._is_shared(transfer.target) else self._executor

    def _is_shared(self, tier: int) -> bool:
        return tier != DEVICE and isinstance(self._storages[tier], SharedStorage)

    # On the threads.

    def _look_up(self, question: LookUp) -> int:
        """How many of the keys are in the shared store, from the first on; 0 if it fails."""
        storage = self._storages[question.tier]
        assert isinstance(storage, SharedStorage)
        try:
            return storage.exist(question.keys)
        except OSError as error:
            self.last_error = error
            return 0

    def _load(self, load: Transfer) -> _Ended:
        """Reads blocks of a tier into the cache, up to the first that is not proved."""
        targets = load.target_blocks.tolist()
        buffers = self._buffers(load)
        for part in self._parts_of(load, len(load)):
            data = buffers[: len(part)]
            for i, each, digest in zip(part, data, self._read(load, part, data), strict=False):
                if not digest:
                    return _Ended(i, refused=digest is None)
                self._blocks.write(targets[i], each)
        return _Ended(len(load), refused=False)

    def _store(self, store: Transfer, data: list[memoryview], digests: list[bytes]) -> _Ended:
        """Writes blocks to a tier, up to the first that fails."""
        moved = len(data)
        for part in self._parts_of(store, len(data)):
            some = slice(part.start, part.stop)
            count = self._write(store, part, data[some], digests[some])
            if count < len(part):
                moved = part.start + count
                if not self._is_shared(store.target):
                    break
        return _Ended(moved, refused=False)

    def _pass_on(self, store: Transfer) -> _Ended:
        """Copies blocks from one tier to another, with the checksums that they have."""
        ended = _Ended(len(store), refused=False)
        buffers = self._buffers(store)
        for part in self._parts_of(store, len(store)):
            data = buffers[: len(part)]
            digests = self._read(store, part, data)
            good = [digest for digest in itertools.takewhile(bool, digests) if digest]
            count = self._write(store, part[: len(good)], data[: len(good)], good)
            if count < len(part):
                refused = count == len(good) and digests[count] is None
                ended = _Ended(part.start + count, refused=refused)
                if not self._is_shared(store.target):
                    break
        return ended

    def _batch(self, transfer: Transfer) -> int:
        """Blocks to move at a time: one, but for a shared store, whose calls are expensive."""
        ends = [self._storages[i] for i in (transfer.source, transfer.target) if i != DEVICE]
        return max(each.batch if isinstance(each, SharedStorage) else 1 for each in ends)

    def _buffers(self, transfer: Transfer) -> list[memoryview]:
        count = min(self._batch(transfer), len(transfer))
        return [buffer_of(self._blocks.size) for _ in range(count)]

    def _parts_of(self, transfer: Transfer, count: int) -> list[range]:
        """The leading blocks of a transfer, some at a time, in the order in which to move them.

        A shared store gets the end first, because it may evict first what it got first.
        """
        size = self._batch(transfer)
        parts = [range(first, min(first + size, count)) for first in range(0, count, size)]
        return parts[::-1] if self._is_shared(transfer.target) else parts

    def _read(
        self, transfer: Transfer, part: range, into: list[memoryview]
    ) -> Sequence[bytes | None]:
        """Checksums of blocks, until one is not proved, None, or could not be read, empty."""
        storage, proofs = self._storages[transfer.source], transfer.source_proofs
        assert proofs is not None
        digests: list[bytes | None] = []
        try:
            if isinstance(storage, SharedStorage):
                return storage.read(proofs.keys[part.start : part.stop], into)
            for i, each in zip(part, into, strict=True):
                block, serial = int(transfer.source_blocks[i]), int(proofs.serials[i])
                digests.append(storage.read(block, serial, proofs.keys[i], each))
                if digests[-1] is None:
                    break
        except OSError as error:
            self.last_error = error
            digests.append(b"")
        return digests

    def _write(
        self, transfer: Transfer, part: range, data: list[memoryview], digests: list[bytes]
    ) -> int:
        """How many of these blocks were written, from the first on."""
        storage, proofs = self._storages[transfer.target], transfer.target_proofs
        assert proofs is not None
        count = 0
        try:
            if isinstance(storage, SharedStorage):
                keys = proofs.keys[part.start : part.stop]
                return storage.write(keys, data, digests[: len(part)])
            for i, each, digest in zip(part, data, digests, strict=False):
                block, serial = int(transfer.target_blocks[i]), int(proofs.serials[i])
                storage.write(block, serial, proofs.keys[i], each, digest)
                count += 1
        except OSError as error:
            self.last_error = error
        return count
