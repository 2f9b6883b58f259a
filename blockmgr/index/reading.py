"""A process that reads the events of workers for an index in another process.

What workers send takes time to receive and to decode, and a thread that does it holds the
interpreter, also while the system runs something else. So the process that answers requests does
none of it: it gets batches that are decoded, checked, in order and short.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from blockmgr.event_columns import EventKind
from blockmgr.events import wire
from blockmgr.index.feeds import Follower
from blockmgr.index.workers import slices

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from blockmgr.events.codec import AnyBatch
    from blockmgr.events.reader import Sink
    from blockmgr.index.feeds import ReaderState

__all__ = ["ReadingProcess"]

_BURST_S: Final = 0.002
_PAUSES: Final = 3
_REPORT_S: Final = 0.25
_ERRORS: Final[dict[str, type[Exception]]] = {"ValueError": ValueError, "TypeError": TypeError}
_LOG = logging.getLogger(__name__)


class _Status(msgspec.Struct, array_like=True, tag=True):
    """What is known of the reading, as of a ``Subscriber``."""

    feed: int
    is_current: bool
    ranks: list[int]
    counts: dict[str, int]


class _Apply(msgspec.Struct, array_like=True, tag=True, gc=False):
    """A short batch."""

    feed: int
    batch: wire.HashBatch


class _Reset(msgspec.Struct, array_like=True, tag=True, gc=False):
    """The state of a worker or of its rank is unknown."""

    feed: int
    rank: int | None


class _End(msgspec.Struct, array_like=True, tag=True, gc=False):
    """The reading has ended."""

    feed: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Status | _Apply | _Reset | _End).decode


# In the process that answers.


@dataclass(eq=False)
class _Reading:
    """The last news of a feed."""

    is_current: bool = False
    ranks: list[int] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


class _RemoteFeed:
    """A feed that another process reads."""

    def __init__(self, process: ReadingProcess, number: int, worker: str) -> None:
        self.reader = _Reading()
        self.worker = worker
        self.sink: Sink | None = None
        self.tidy: Callable[[], None] | None = None
        self.is_lost = False  # until the reset that an error of the sink asked for
        self.ended = threading.Event()
        self._process = process
        self._number = number

    def start(self, sink: Sink, tidy: Callable[[], None]) -> None:
        self.sink, self.tidy = sink, tidy
        self._process.tell("start", self._number)

    def stop(self) -> None:
        self._process.tell("stop", self._number)
        if self.sink is None:
            self._process.forget(self._number)

    def wait(self, seconds: float) -> None:
        self.ended.wait(seconds)


class ReadingProcess:
    """The process, and the thread that applies what it sends.

    Args:
        when_lost: Called if the process has ended on its own.
        retry_s: Least time between two attempts to fill a gap.
    """

    def __init__(self, when_lost: Callable[[], None], *, retry_s: float = 1.0) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._commands, commands = spawn.Pipe()
        self._events, events = spawn.Pipe(duplex=False)
        self._process = spawn.Process(
            target=_read, args=(commands, events, retry_s), name="events of workers", daemon=True
        )
        self._process.start()
        commands.close()
        events.close()
        self._lock = threading.Lock()
        self._feeds: dict[int, _RemoteFeed] = {}
        self._last = 0
        self._when_lost = when_lost
        self._is_closing = False
        self._thread = threading.Thread(
            target=self._apply_all, name="events of workers", daemon=True
        )
        self._thread.start()

    def make(self, worker: str, endpoint: str, replay_endpoint: str | None) -> _RemoteFeed:
        """The feed of a worker.

        Raises:
            ValueError: An address is invalid.
        """
        with self._lock:
            self._last += 1
            number = self._last
            self._commands.send_bytes(_encode(("make", number, worker, endpoint, replay_endpoint)))
            refused = msgspec.msgpack.decode(self._commands.recv_bytes())
        if refused is not None:
            kind, message = refused
            raise _ERRORS.get(kind, OSError)(message)
        feed = self._feeds[number] = _RemoteFeed(self, number, worker)
        return feed

    def tell(self, what: str, number: int) -> None:
        """Sends a command about a feed, without an answer."""
        with self._lock, contextlib.suppress(OSError):  # the thread notices that it has ended
            self._commands.send_bytes(_encode((what, number)))

    def forget(self, number: int) -> None:
        """Forgets a feed, which sends nothing more."""
        del self._feeds[number]

    def close(self) -> None:
        """Ends the process."""
        self._is_closing = True
        self._process.terminate()
        self._process.join()
        self._thread.join()

    def _apply_all(self) -> None:
        used_s = 0.0
        while True:
            try:
                data = self._events.recv_bytes()
            except (EOFError, OSError):
                break
            before = time.thread_time()
            self._take(_decode(data))
            used_s += time.thread_time() - before
            if used_s > _BURST_S:
                time.sleep(_PAUSES * used_s)
                used_s = 0.0
        if not self._is_closing:
            self._process.join()
            if self._process.exitcode != -signal.SIGTERM:  # which may be for the whole group
                _LOG.critical("the process that reads the events of workers has ended")
            self._when_lost()

    def _take(self, told: _Status | _Apply | _Reset | _End) -> None:
        feed = self._feeds.get(told.feed)
        if feed is None or feed.sink is None:
            return
        try:
            if isinstance(told, _Apply):
                if not feed.is_lost:
                    feed.sink.apply(feed.worker, told.batch)
            elif isinstance(told, _Reset):
                feed.is_lost = feed.reader.is_current = False
                feed.sink.reset(feed.worker, told.rank)
            elif isinstance(told, _Status):
                feed.reader.is_current, feed.reader.ranks = told.is_current, told.ranks
                feed.reader.counts = Counter(told.counts)
            else:
                self.forget(told.feed)
                if feed.tidy is not None:
                    feed.tidy()
                feed.ended.set()
        except Exception:  # out of memory, say: do not trust a batch applied in part
            _LOG.exception("%s: starts again", feed.worker)
            feed.is_lost = True
            self.tell("again", told.feed)


# In the process that reads.


class _Sender:
    """The sink of a feed, which sends on what it gets, in parts that take little time."""

    def __init__(self, number: int, events: Connection, sending: threading.Lock) -> None:
        self._number = number
        self._events = events
        self._sending = sending
        self._reported: _Status | None = None

    def send(self, told: _Status | _Apply | _Reset | _End) -> None:
        data = _encode(told)
        with self._sending:
            self._events.send_bytes(data)

    def reset(self, worker: str, rank: int | None = None) -> None:
        self.send(_Reset(self._number, rank))

    def apply(self, worker: str, batch: AnyBatch) -> None:
        about = batch.about
        for events in slices(batch.events):
            plain = [event if type(event) in _PLAIN else _plain(event) for event in events]
            part = wire.HashBatch(batch.ts, plain, batch.data_parallel_rank, about)
            self.send(_Apply(self._number, part))
            about = None

    def end(self) -> None:
        self.send(_End(self._number))

    def report(self, reader: ReaderState) -> None:
        status = _Status(self._number, reader.is_current, reader.ranks, dict(reader.counts))
        if status != self._reported:
            self.send(status)
            self._reported = status


_PLAIN: Final = frozenset({wire.StoredHashes, wire.RemovedHashes, wire.HashesCleared})


def _plain(event: Any) -> wire.HashEvent:
    """An event of any layout without what an index does not need."""
    kind = wire.KIND_OF[type(event)]
    if kind is EventKind.CLEARED:
        return wire.HashesCleared(event.medium, event.locality)
    if kind is EventKind.REMOVED:
        return wire.RemovedHashes(event.block_hashes, event.medium, event.group_idx, event.locality)
    return wire.StoredHashes(
        event.block_hashes, event.block_size, event.medium, event.group_idx,
        event.kv_cache_spec_kind, event.kv_cache_spec_sliding_window, event.locality,
    )  # fmt: skip


def _read(commands: Connection, events: Connection, retry_s: float) -> NoReturn:
    """Carries out commands until the other process ends. It must not wait for that process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process ends this one
    feeds: dict[int, tuple[Follower, _Sender]] = {}
    working, sending = threading.Lock(), threading.Lock()
    threading.Thread(target=_report, args=(feeds,), daemon=True).start()
    while True:
        try:
            what, number, *about = msgspec.msgpack.decode(commands.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)
        if what == "make":
            refused = None
            try:
                sender = _Sender(number, events, sending)
                worker, endpoint, replay = about
                follower = Follower(worker, endpoint, replay, retry_s, working)
                feeds[number] = follower, sender
            except Exception as caught:
                refused = type(caught).__name__, str(caught)
            commands.send_bytes(_encode(refused))
            continue
        if number not in feeds:  # stopped meanwhile
            continue
        follower, sender = feeds[number]
        if what == "start":
            follower.start(sender, sender.end)
        elif what == "again":
            follower.start_again()
        else:
            follower.stop()
            del feeds[number]


def _report(feeds: dict[int, tuple[Follower, _Sender]]) -> None:
    """Sends what is known of each feed when it has changed."""
    while True:
        for follower, sender in list(feeds.values()):
            sender.report(follower.reader)
        time.sleep(_REPORT_S)
