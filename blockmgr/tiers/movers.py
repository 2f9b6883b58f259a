"""``Mover``: carries out the transfers of a manager with tiers, on the memory of a cache.

Needs torch, so ``blockmgr.tiers`` does not import it.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final, NamedTuple

import torch
import xxhash

from blockmgr.arguments import positive, whole
from blockmgr.kv import GroupedKVCache, PagedKVCache
from blockmgr.tiers.plans import DEVICE
from blockmgr.tiers.storages import Storage, buffer_of
from blockmgr.uncopied import NotCopied

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from blockmgr.kv.swaps import Swaps
    from blockmgr.tiers.manager import TieredManager
    from blockmgr.tiers.plans import Transfer, TransferPlan

__all__ = ["BlockBytes", "Mover"]


class BlockBytes(NotCopied):
    """The K/V of single blocks of a cache, as bytes: each layer's keys, then its values.

    A block of a ``GroupedKVCache`` is a page of each tensor, whichever group has it.

    Args:
        cache: The cache. Blocks of one on a GPU go through pinned memory of the host.

    Raises:
        TypeError: It is no ``PagedKVCache`` and no ``GroupedKVCache``.

    Attributes:
        size: Bytes of a block.
    """

    _instead = "make another one of the same cache"

    def __init__(self, cache: PagedKVCache | GroupedKVCache) -> None:
        if not isinstance(cache, PagedKVCache | GroupedKVCache):
            raise TypeError(
                f"cache must be a PagedKVCache or a GroupedKVCache, got {type(cache).__name__}"
            )
        self._cache: Swaps = cache
        self._staging = None if cache.device.type == "cpu" else cache.host_counterpart(1)
        host = self._staging or cache
        pages = host._pages if isinstance(host, GroupedKVCache) else host
        layers = range(pages.shape.num_layers)
        both = [part for i in layers for part in (pages.keys(i), pages.values(i))]
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
        threads: Threads.
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
        storages: Sequence[Storage],
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
        self._executor = ThreadPoolExecutor(
            whole("threads", threads, 1, 256), thread_name_prefix="blockmgr-tiers"
        )
        self._running: dict[Future[_Ended], Transfer] = {}

    def poll(self) -> int:
        """Reports the transfers that ended, and begins new ones; how many are under way.

        Raises:
            Exception: A storage or the cache raised something else than an ``OSError``. That
                transfer has failed, and its blocks are free.
        """
        self._report()
        deadline = time.monotonic() + self._timeout
        self._begin(self._begin_load, self._manager.take_loads(deadline=deadline))
        self._begin(self._begin_store, self._manager.take_stores())
        return len(self._running)

    def late(self) -> list[int]:
        """The sequences that wait for a load longer than ``load_timeout``; preempt them."""
        return self._manager.loads_late(time.monotonic())

    def wait(self) -> None:
        """Waits for the end of a transfer, for ``load_timeout`` at most, and reports it."""
        wait(self._running, timeout=self._timeout, return_when=FIRST_COMPLETED)
        self._report()

    def drain(self) -> None:
        """Ends all transfers, and reports them; begins none."""
        wait(self._running)
        self._report()

    def close(self) -> None:
        """``drain``, and ends the threads."""
        self.drain()
        self._executor.shutdown()

    def _report(self) -> None:
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
        self._running[self._executor.submit(self._load, load)] = load

    def _begin_store(self, store: Transfer) -> None:
        """Reads what the device may evict next, then leaves the writes to a thread."""
        data: list[memoryview] = []
        if store.source == DEVICE:
            for block in store.source_blocks.tolist():
                data.append(buffer_of(self._blocks.size))
                self._blocks.read(block, data[-1])
            digests = [xxhash.xxh3_128_digest(each) for each in data]
            count = self._manager.stores_read(store.ticket, len(data))
            task = self._executor.submit(self._store, store, data[:count], digests)
        else:
            task = self._executor.submit(self._pass_on, store)
        self._running[task] = store

    # On the threads.

    def _load(self, load: Transfer) -> _Ended:
        """Reads blocks of a tier into the cache, up to the first that is not proved."""
        data = buffer_of(self._blocks.size)
        for i, block in enumerate(load.target_blocks.tolist()):
            digest = self._read(load, i, data)
            if not digest:
                return _Ended(i, refused=digest is None)
            self._blocks.write(block, data)
        return _Ended(len(load), refused=False)

    def _store(self, store: Transfer, data: list[memoryview], digests: list[bytes]) -> _Ended:
        """Writes blocks to a tier, up to the first that fails."""
        for i, each in enumerate(data):
            if not self._write(store, i, each, digests[i]):
                return _Ended(i, refused=False)
        return _Ended(len(data), refused=False)

    def _pass_on(self, store: Transfer) -> _Ended:
        """Copies blocks from one tier to another, with the checksums that they have."""
        data = buffer_of(self._blocks.size)
        for i in range(len(store)):
            digest = self._read(store, i, data)
            if not digest:
                return _Ended(i, refused=digest is None)
            if not self._write(store, i, data, digest):
                return _Ended(i, refused=False)
        return _Ended(len(store), refused=False)

    def _read(self, transfer: Transfer, i: int, into: memoryview) -> bytes | None:
        """The checksum of block ``i``, which is proved; None: it is not; empty: a failure."""
        proofs, block = transfer.source_proofs, int(transfer.source_blocks[i])
        assert proofs is not None
        storage = self._storages[transfer.source]
        try:
            return storage.read(block, int(proofs.serials[i]), proofs.keys[i], into)
        except OSError as error:
            self.last_error = error
            return b""

    def _write(self, transfer: Transfer, i: int, data: memoryview, digest: bytes) -> bool:
        """Whether block ``i`` was written."""
        proofs, block = transfer.target_proofs, int(transfer.target_blocks[i])
        assert proofs is not None
        storage = self._storages[transfer.target]
        try:
            storage.write(block, int(proofs.serials[i]), proofs.keys[i], data, digest)
        except OSError as error:
            self.last_error = error
            return False
        return True
