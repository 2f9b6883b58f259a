"""``SharedStorage``: blocks in a store of objects that several processes share, each proved."""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

import xxhash

from blockmgr.arguments import positive, whole
from blockmgr.digest import KeyedDigest
from blockmgr.tiers.paths import DIGEST_BYTES
from blockmgr.tiers.records import FORMAT, Identity, Records, checked_layout, up
from blockmgr.uncopied import NotCopied

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["ObjectStore", "SharedStats", "SharedStorage"]

T = TypeVar("T")
MOST_BLOCKS = 64
MOST_BYTES = 1 << 24
SERIAL = 1  # of each record: names, not serials, tell the writes to a shared store apart


class ObjectStore(Protocol):
    """Bytes by name. Several threads may call it, and each call ends in time.

    Nothing that it says is trusted: what it returns is proved, and what it lacks is computed.
    """

    def buffer(self, size: int) -> memoryview:
        """Memory for ``put`` and ``get``, which the store may register with its network.

        Raises:
            OSError: There is none.
        """
        ...

    def exist(self, names: Sequence[str]) -> list[bool]:
        """For each name, whether there is an object.

        Raises:
            OSError: The store cannot be reached.
        """
        ...

    def put(self, names: Sequence[str], data: Sequence[memoryview]) -> list[bool]:
        """Stores objects, and returns for each whether it is there now.

        An object that is there already may be left as it is.

        Args:
            names: Their names.
            data: Their bytes: parts of a ``buffer``.

        Raises:
            OSError: The store cannot be reached.
        """
        ...

    def get(self, names: Sequence[str], into: Sequence[memoryview]) -> list[int]:
        """Reads objects, and returns for each the number of its bytes.

        That is 0 if it is not there, and -1 if it is and cannot be read.

        Args:
            names: Their names.
            into: For each, memory as large as the object: parts of a ``buffer``.

        Raises:
            OSError: The store cannot be reached.
        """
        ...

    def remove(self, names: Sequence[str]) -> None:
        """Removes objects, if they are there.

        Raises:
            OSError: The store cannot be reached.
        """
        ...

    def close(self) -> None:
        """Ends the connection. The objects stay."""
        ...


@dataclass(slots=True)
class SharedStats:
    """What happened in a shared store so far.

    Attributes:
        asked: Blocks that were asked for in look-ups.
        found: Blocks that it said to have.
        written: Blocks that it took.
        read: Blocks that were read and proved.
        missing: Blocks that were to be read and were not there.
        refused: Blocks that were there and could not be read or proved; they were removed.
        failed_calls: Calls that failed or took too long.
        skipped_calls: Calls that were not made, because one had failed shortly before.
    """

    asked: int = 0
    found: int = 0
    written: int = 0
    read: int = 0
    missing: int = 0
    refused: int = 0
    failed_calls: int = 0
    skipped_calls: int = 0


class _Breaker:
    """Lets no call through for some time after a failure, then one to try."""

    def __init__(self, retry: float) -> None:
        self.resume = 0.0
        self._retry = retry

    def lets_through(self) -> bool:
        now = time.monotonic()
        if now < self.resume:
            return False
        if self.resume:
            self.failed()  # until the call that tries says otherwise
        return True

    def failed(self) -> None:
        self.resume = time.monotonic() + self._retry


class SharedStorage(NotCopied):
    """The blocks of a tier in a store that others share.

    An object is a page with a record, as in a slab, and the bytes of a block. Its name is a
    SHA-256 of the layout and the key. A call that takes too long fails; after a failure, calls fail
    at once for some time, so nothing waits for a store that is gone.

    Args:
        store: The store. ``close`` closes it.
        layout: What decides the bytes of a block: model, revision of the weights, and so on, by
            name. Engines with the same layout share blocks.
        block_bytes: Bytes of a block.
        key_bytes: Bytes of a key, which identifies the content of a block.
        timeout: Seconds after which a call fails.
        retry: Seconds after a failure in which no call is made.
        threads: Calls at a time.
        keyed: A digest with a secret that all engines have, so that others cannot know names.

    Raises:
        OSError: The store has no memory for transfers.
        ValueError: A value is out of its bounds.
        TypeError: A value is of the wrong type.

    Attributes:
        block_bytes: As given.
        batch: Most blocks of a ``read`` or a ``write``.
        key_bytes: As given.
        root: What the keys of first blocks begin with, 32 bytes: zeros until a ``reset``.
    """

    _instead = "make another one, with a connection of its own"

    def __init__(
        self,
        store: ObjectStore,
        layout: Mapping[str, str | int],
        *,
        block_bytes: int,
        key_bytes: int,
        timeout: float = 2.0,
        retry: float = 5.0,
        threads: int = 4,
        keyed: KeyedDigest | None = None,
    ) -> None:
        if keyed is not None and not isinstance(keyed, KeyedDigest):
            raise TypeError(f"keyed must be a KeyedDigest or None, got {type(keyed).__name__}")
        self.block_bytes = whole("block_bytes", block_bytes, 1, 2**40)
        self.key_bytes = whole("key_bytes", key_bytes, 1, 1 << 18)
        self._timeout = positive("timeout", timeout)
        positive("retry", retry)
        whole("threads", threads, 1, 256)
        identity = Identity(FORMAT, 0, self.block_bytes, self.key_bytes, checked_layout(layout))
        self._identity = hashlib.sha256(identity.page()).digest()
        self._records = Records(identity)
        self._page = up(self._records.size)
        self.batch = max(1, min(MOST_BLOCKS, MOST_BYTES // (self._page + self.block_bytes)))
        self._keyed = keyed
        self.root = bytes(DIGEST_BYTES)
        self._store = store
        self._free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        for _ in range(threads):
            self._free.put(store.buffer(self.batch * (self._page + self.block_bytes)))
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="blockmgr-shared")
        self._lock = threading.Lock()
        self._is_closed = False
        self._stats = SharedStats()
        self._calls, self._writes = _Breaker(retry), _Breaker(retry)

    def digest(self, key: bytes) -> bytes:
        """What the name of a key is made of, 32 bytes."""
        secret = b"" if self._keyed is None else self._keyed(self._identity + key)
        return hashlib.sha256(self._identity + secret + key).digest()

    def reset(self) -> None:
        """Shares nothing with others from here on, because the weights may have changed.

        Until the process ends, keys begin with a random ``root``.
        """
        self.root = os.urandom(DIGEST_BYTES)

    def stats(self) -> SharedStats:
        """What happened so far."""
        with self._lock:
            return replace(self._stats)

    def exist(self, keys: Sequence[bytes]) -> int:
        """How many of these keys, from the first on, the store says to have.

        Raises:
            OSError: It cannot be reached, or was not shortly before.
        """
        return _leading(self.has(keys))

    def has(self, keys: Sequence[bytes]) -> list[bool]:
        """For each of these keys, whether the store says to have its block.

        Raises:
            OSError: It cannot be reached, or was not shortly before.
        """
        names = self._names(keys)[::-1]  # so that beginnings are the last that it touches
        answers = self._call(len(names), lambda: self._store.exist(names))
        said = [bool(each) for each in reversed(answers)]
        self._count(asked=len(keys), found=sum(said))
        return said

    def write(
        self, keys: Sequence[bytes], data: Sequence[memoryview], digests: Sequence[bytes]
    ) -> int:
        """Stores blocks, the last one first, and returns how many, from the first on, are there.

        Args:
            keys: Their keys.
            data: Their bytes.
            digests: Their XXH3 checksums with 128 bits, made when the bytes left the device.

        Raises:
            OSError: The store cannot be reached, or was not shortly before.
            ValueError: There are no ``keys`` or more than ``batch``, or bytes of another length.
        """
        names = self._names(keys)[::-1]
        whole("keys", len(keys), 1, self.batch)
        self._check(self._writes)
        staging = self._take()
        try:
            places = self._places(staging, len(keys))
            size = self._records.size
            headers = self._records.make([SERIAL] * len(keys), keys, digests)
            for i, (place, each) in enumerate(zip(places, data, strict=True)):
                place[:size] = headers[i * size : (i + 1) * size]
                place[self._page :] = each
        except BaseException:
            self._free.put(staging)
            raise
        done = self._call(len(names), lambda: self._store.put(names, places[::-1]), staging)[::-1]
        self._free.put(staging)
        with self._lock:
            # If it takes nothing, as when its memory is full or gone, reads go on.
            if any(done):
                self._writes.resume = 0.0
            else:
                self._writes.failed()
        count = _leading(done)
        self._count(written=count)
        return count

    def read(self, keys: Sequence[bytes], into: Sequence[memoryview]) -> list[bytes | None]:
        """Reads blocks, and returns their checksums; None for each that is missing or not proved.

        What cannot be read or proved is removed, so that it can be stored again.

        Args:
            keys: Their keys.
            into: Memory for their bytes; rubbish where a block is not proved.

        Raises:
            OSError: The store cannot be reached, or was not shortly before.
            ValueError: There are no ``keys`` or more than ``batch``, or memory of another length.
        """
        names = self._names(keys)
        whole("keys", len(keys), 1, self.batch)
        staging = self._take()
        places = self._places(staging, len(keys))
        sizes = self._call(len(names), lambda: self._store.get(names, places), staging)
        found: list[bytes | None] = []
        refused = []
        try:
            for place, key, name, target, size in zip(
                places, keys, names, into, sizes, strict=True
            ):
                digest = None
                if size > 0:
                    target[:] = place[self._page :]
                    said = self._records.digest_of(bytes(place[: self._records.size]), SERIAL, key)
                    is_whole = size == len(place) and xxhash.xxh3_128_digest(target) == said
                    digest = said if is_whole else None
                refused += [name] if size and digest is None else []
                found.append(digest)
        finally:
            self._free.put(staging)
        if min(sizes) < 0 and max(sizes) <= 0:  # its owner is gone, which can take long to see
            self._failure(OSError("nothing could be read"))
        good = len(keys) - found.count(None)
        missing = len(keys) - good - len(refused)
        self._count(read=good, refused=len(refused), missing=missing)
        if refused:  # if that fails, it is refused again
            self._remove(refused)
        return found

    def discard(self, keys: Sequence[bytes]) -> None:
        """Has blocks removed, without a wait, if the store can be reached."""
        self._remove(self._names(keys))

    def close(self) -> None:
        """Ends the calls and closes the store, whose objects stay; a second time does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._executor.shutdown()
            self._store.close()

    def _remove(self, names: list[str]) -> None:
        with contextlib.suppress(OSError):
            self._submit(lambda: self._store.remove(names))

    def _submit(self, work: Callable[[], T]) -> Future[T]:
        try:
            return self._executor.submit(work)
        except RuntimeError as error:  # it is closed, or there are no more threads
            raise ConnectionError(f"the shared store cannot be called: {error}") from None

    def _names(self, keys: Sequence[bytes]) -> list[str]:
        return [f"blockmgr-{self.digest(key).hex()}" for key in keys]

    def _places(self, staging: memoryview, count: int) -> list[memoryview]:
        size = self._page + self.block_bytes
        return [staging[i * size : (i + 1) * size] for i in range(count)]

    def _take(self) -> memoryview:
        """Memory for a transfer."""
        self._check(self._calls)
        try:
            return self._free.get(timeout=self._timeout)
        except queue.Empty:
            raise self._failure(TimeoutError("all calls of the shared store hang")) from None

    def _call(
        self, count: int, work: Callable[[], list[T]], staging: memoryview | None = None
    ) -> list[T]:
        """Does this on a thread, for so many answers.

        If that takes too long, the memory is free when it has ended.
        """
        if staging is None:
            self._check(self._calls)
        try:
            future = self._submit(work)
        except BaseException as error:
            self._give(staging)
            if isinstance(error, OSError):
                raise self._failure(error) from None
            raise
        try:
            result = future.result(self._timeout)
            if len(result) != count:
                raise OSError(f"the shared store gave {len(result)} answers to {count} questions")
        except BaseException as error:
            future.add_done_callback(lambda _: self._give(staging))
            future.cancel()
            if isinstance(error, OSError):
                raise self._failure(error) from None
            raise
        self._calls.resume = 0.0
        return result

    def _give(self, staging: memoryview | None) -> None:
        if staging is not None:
            self._free.put(staging)

    def _check(self, breaker: _Breaker) -> None:
        """Raises if there was a failure shortly before."""
        with self._lock:
            if not breaker.lets_through():
                self._stats.skipped_calls += 1
                raise ConnectionError("the shared store failed shortly before")

    def _failure(self, error: OSError) -> OSError:
        """Notes that a call failed."""
        with self._lock:
            self._stats.failed_calls += 1
            self._calls.failed()
        said = f"the shared store did not answer within {self._timeout} s"
        return error if str(error) else TimeoutError(said)

    def _count(self, **more: int) -> None:
        with self._lock:
            for name, count in more.items():
                setattr(self._stats, name, getattr(self._stats, name) + count)


def _leading(good: Sequence[bool]) -> int:
    return next((i for i, each in enumerate(good) if not each), len(good))
