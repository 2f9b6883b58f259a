"""The subscribers of an index, one for each worker."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from blockmgr.arguments import positive, whole
from blockmgr.events.codec import decode_hashes
from blockmgr.events.endpoints import endpoint_of_rank
from blockmgr.events.subscriber import Subscriber

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from blockmgr.events.codec import AnyBatch
    from blockmgr.events.reader import Sink
    from blockmgr.index.workers import WorkerIndex

__all__ = ["Feed", "Feeds", "Follower", "ReaderState"]

_WAIT_S: Final = 0.25
_CLOSE_S: Final = 2.0
_BURST_S: Final = 0.002
_PAUSES: Final = 8
_LOG = logging.getLogger(__name__)


class ReaderState(Protocol):
    """What is known of the reading of a worker's events."""

    @property
    def is_current(self) -> bool:
        """Whether all known batches were applied."""

    @property
    def ranks(self) -> list[int]:
        """The data-parallel ranks that batches have named."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Counts of batches by verdict, and of other events, as of a ``Subscriber``."""


class Feed(Protocol):
    """The events of one worker, which something reads."""

    @property
    def reader(self) -> ReaderState:
        """What is known of the reading."""

    def start(self, sink: Sink, tidy: Callable[[], None]) -> None:
        """Begins to read.

        Args:
            sink: Receiver of the events.
            tidy: Called after the last event.
        """

    def stop(self) -> None:
        """Ends the reading. Does not wait for anything."""

    def wait(self, seconds: float) -> None:
        """Waits until the reading has ended, at most so long."""


class Follower:
    """A feed that a thread of this process reads.

    Args:
        worker: Name of the worker.
        endpoint: Address at which it publishes.
        replay_endpoint: Address at which it answers requests; None if it does not.
        retry_s: Least time between two attempts to fill a gap.
        working: Held while events are decoded or applied, by one thread at a time: an answer to a
            request would wait for each of them in turn.

    Raises:
        ValueError: An address is not valid.
    """

    def __init__(
        self,
        worker: str,
        endpoint: str,
        replay_endpoint: str | None,
        retry_s: float,
        working: threading.Lock,
    ) -> None:
        self._gate = _Gate(working)
        self.reader = Subscriber(worker, endpoint, replay_endpoint, self._gate, retry_s=retry_s)
        self._gate.reader = self.reader
        self._again = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, sink: Sink, tidy: Callable[[], None]) -> None:
        """Begins to read, in a thread."""
        self._gate.sink = sink
        self._thread = threading.Thread(
            target=_follow,
            args=(self.reader, self._again, tidy),
            name=f"events of {self.reader.worker}",
            daemon=True,
        )
        self._thread.start()

    def stop(self) -> None:
        """Ends the reading: the thread closes the subscriber."""
        self.reader.stop()
        if self._thread is None:
            self.reader.close()

    def start_again(self) -> None:
        """Forgets the worker's state and asks for it: what was applied of it may be wrong."""
        self._again.set()

    def wait(self, seconds: float) -> None:
        """Waits until the thread has ended, at most so long."""
        if self._thread is not None:
            self._thread.join(seconds)


def _follow(reader: Subscriber, again: threading.Event, tidy: Callable[[], None]) -> None:
    with reader:
        while not reader.is_stopped:
            try:
                if again.is_set():
                    again.clear()
                    reader.start_again()
                reader.poll(_WAIT_S)
            except Exception:  # out of memory, say: do not trust a batch applied in part
                _LOG.exception("%s: starts again", reader.worker)
                reader.start_again()
                time.sleep(_WAIT_S)
    tidy()


class _Gate:
    """The sink of a subscriber, which is made before its worker is announced.

    A worker that floods the index gets a ninth of its thread's time.
    """

    def __init__(self, working: threading.Lock) -> None:
        self.sink: Sink | None = None
        self.reader: Subscriber | None = None
        self._working = working
        self._used_s = 0.0  # of the processor, since the last pause

    def decode_batch(self, payload: bytes) -> AnyBatch:
        with self._paced():
            return decode_hashes(payload)

    def reset(self, worker: str, rank: int | None = None) -> None:
        assert self.sink is not None
        self.sink.reset(worker, rank)

    def apply(self, worker: str, batch: AnyBatch) -> None:
        assert self.sink is not None
        with self._paced():
            self.sink.apply(worker, batch)

    @contextlib.contextmanager
    def _paced(self) -> Iterator[None]:
        with self._working:
            before = time.thread_time()
            try:
                yield
            finally:
                self._used_s += time.thread_time() - before
        if self._used_s > _BURST_S and self.reader is not None:
            self.reader.pause(_PAUSES * self._used_s)
            self._used_s = 0.0


class Feeds:
    """The events of workers, which an index gets: one subscriber for each worker.

    Args:
        index: Receiver of the events.
        retry_s: Least time between two attempts to fill a gap.
        make: Makes the feed of a worker from its name and addresses; it raises ValueError for a
            wrong one. None for threads of this process.
    """

    def __init__(
        self,
        index: WorkerIndex,
        *,
        retry_s: float = 1.0,
        make: Callable[[str, str, str | None], Feed] | None = None,
    ) -> None:
        self.index = index
        retry_s = positive("retry_s", retry_s)
        working = threading.Lock()
        self._make: Callable[[str, str, str | None], Feed] = make or (
            lambda worker, endpoint, replay: Follower(worker, endpoint, replay, retry_s, working)
        )
        self._feeds: dict[str, Feed] = {}
        self._lock = threading.Lock()

    def add(self, worker: str, endpoint: str, replay_endpoint: str | None = None) -> None:
        """Announces a worker and follows its events; restarts if the worker is followed already.

        Raises:
            ValueError: An address is invalid, or the index has no room for another worker.
        """
        self._add({worker: (endpoint, replay_endpoint)})

    def add_ranks(
        self, worker: str, endpoint: str, replay_endpoint: str | None = None, ranks: int = 1
    ) -> list[str]:
        """Announces an engine whose data-parallel ranks publish at consecutive ports.

        Args:
            worker: Name of the engine. With several ranks, each is a worker ``NAME/RANK``.
            endpoint: Address at which rank 0 publishes.
            replay_endpoint: Address at which rank 0 answers requests; None if it does not.
            ranks: Number of ranks.

        Returns:
            The names of the workers.

        Raises:
            ValueError: An address is invalid, or the index has no room for all of them. No
                additional worker is followed then.
        """
        count = whole("ranks", ranks, 1, 2**16)
        wanted = {}
        for rank in range(count):
            replay = replay_endpoint
            if replay is not None:
                replay = endpoint_of_rank("replay_endpoint", replay, rank)
            name = worker if count == 1 else f"{worker}/{rank}"
            wanted[name] = endpoint_of_rank("endpoint", endpoint, rank), replay
        self._add(wanted)
        return list(wanted)

    def _add(self, wanted: dict[str, tuple[str, str | None]]) -> None:
        """Follows all of these or changes nothing: steps that can fail come first."""
        made: dict[str, Feed] = {}
        announced: list[str] = []
        with self._lock:
            try:
                for worker, (endpoint, replay) in wanted.items():
                    made[worker] = self._make(worker, endpoint, replay)
                for worker in wanted:
                    if worker not in self.index.workers:
                        self.index.announce(worker)
                        announced.append(worker)
            except BaseException:
                for feed in made.values():
                    feed.stop()
                for worker in announced:
                    self.index.withdraw(worker)
                raise
            for worker, feed in made.items():
                if worker in self._feeds:
                    self._remove(worker)
                    self.index.announce(worker)
                self._feeds[worker] = feed
                feed.start(self.index.sink_of(worker), self.index.tidy)

    def remove(self, worker: str) -> None:
        """Forgets a worker with all its ranks. Does not wait for anything that the worker does.

        Raises:
            KeyError: It is not followed.
        """
        with self._lock:
            if worker not in self._feeds:
                raise KeyError(f"worker {worker!r} is not followed")
            self._remove(worker)

    def _remove(self, worker: str) -> Feed:
        feed = self._feeds.pop(worker)
        feed.stop()  # after its last event, its blocks are taken out of the table
        self.index.detach(worker)
        return feed

    def close(self) -> None:
        """Stops following all workers; the index keeps nothing of them."""
        with self._lock:
            ending = [self._remove(worker) for worker in list(self._feeds)]
        end = time.monotonic() + _CLOSE_S
        for feed in ending:
            feed.wait(max(0.0, end - time.monotonic()))
        self.index.tidy()

    def readers(self) -> dict[str, Any]:
        """What is known of the reading of each worker's events: a ``ReaderState``, by worker."""
        return {worker: feed.reader for worker, feed in list(self._feeds.items())}
