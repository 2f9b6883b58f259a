"""Publishes a manager's events in vLLM's format, with replay and snapshots.

A reader may ask and never read. So answers to requests are made message by message while they are
sent, few at a time, and a reader that takes nothing for a while gets no more.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final, Literal, Protocol, Self

import zmq

from blockmgr.arguments import milliseconds, text, whole
from blockmgr.events.codec import Encoder
from blockmgr.events.endpoints import bind, bounded, endpoint_of_rank
from blockmgr.events.wire import FULL_ATTENTION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from blockmgr.event_columns import Events
    from blockmgr.events.codec import Group

__all__ = ["END", "SNAPSHOT", "Frames", "Publisher", "Replies"]

Frames = tuple[bytes, bytes, bytes]
"""Topic, number and payload of a message."""

_MOST_BYTES: Final = 4096
"""Most bytes of a frame of a request."""

_MOST_QUEUED: Final = 16
_MOST_OPEN: Final = 4
_MOST_WAITING: Final = 1024
_MOST_AT_ONCE: Final = 64
_PATIENCE_S: Final = 5.0
"""Longest time for which a reader takes nothing of its answer."""


class _Reply:
    """An answer that is being sent."""

    __slots__ = ("moved_at", "next", "rest")

    def __init__(self, rest: Iterator[Frames], now: float) -> None:
        self.rest = rest
        self.next: Frames | None = next(rest, None)
        self.moved_at = now


class Replies:
    """The socket for requests, and the answers that are being sent.

    Args:
        context: ZMQ context of the socket.
        answer: The messages of the answer to a request, made one at a time.
        clock: Monotonic time in seconds.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        answer: Callable[[bytes], Iterator[Frames]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.socket = bounded(context, zmq.ROUTER, most_bytes=_MOST_BYTES, most_queued=_MOST_QUEUED)
        self.socket.router_mandatory = True  # otherwise what does not fit is lost without an error
        self._answer = answer
        self._clock = clock
        self._waiting: dict[bytes, bytes] = {}  # the last request of each reader
        self._open: dict[bytes, _Reply] = {}

    @property
    def is_sending(self) -> bool:
        """Whether an answer has messages left."""
        return bool(self._open)

    def take(self) -> None:
        """Receives requests; one that comes while many wait is dropped, and asked again."""
        for _ in range(_MOST_AT_ONCE):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) != 3 or frames[1]:
                continue
            client, request = frames[0], frames[2]
            if client in self._waiting or len(self._waiting) < _MOST_WAITING:
                self._waiting[client] = request

    def send(self) -> None:
        """Sends what the readers have room for."""
        for client in list(self._waiting):
            if len(self._open) >= _MOST_OPEN:
                break
            if client not in self._open:
                messages = self._answer(self._waiting.pop(client))
                self._open[client] = _Reply(messages, self._clock())
        for client, reply in list(self._open.items()):
            if not self._send_some(client, reply):
                del self._open[client]

    def _send_some(self, client: bytes, reply: _Reply) -> bool:
        """Sends some messages of an answer; returns whether it goes on."""
        for _ in range(_MOST_AT_ONCE):
            if reply.next is None:
                return False
            try:
                self.socket.send_multipart((client, b"", *reply.next), zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return self._clock() - reply.moved_at < _PATIENCE_S
            except zmq.ZMQError as error:
                if error.errno != errno.EHOSTUNREACH:
                    raise
                return False  # it has left
            reply.moved_at = self._clock()
            reply.next = next(reply.rest, None)
        return True


END: Final = (-1).to_bytes(8, "big", signed=True)
"""Number of the message that ends a replay."""

SNAPSHOT: Final = b"blockmgr snapshot"
"""Requests of a client other than a number."""

_MOST_BATCHES: Final = 2**24


class HasEvents(Protocol):
    """A manager or pool with events."""

    def take_events(self) -> Events:
        """The events since the last call."""

    def take_snapshot(self) -> Events:
        """All findable blocks; drops the events that wait."""

    def resident_events(self) -> Events:
        """All findable blocks; changes nothing."""


def _groups_of(manager: HasEvents) -> Sequence[Group]:
    config = getattr(manager, "config", None)  # a pool has none, and one group
    return getattr(config, "groups", ()) or (FULL_ATTENTION,)


class Publisher:
    """Sends the events of one manager to its subscribers.

    ``publish`` sends the events since the last call; call it after each step. A thread answers
    replay requests at once, and publishes the remaining events when the engine is idle. The
    publisher never waits for a reader: a slow reader misses batches, and asks for them again.
    Answers are made while they are sent, four at a time; a reader that takes nothing of its answer
    for five seconds gets no more of it.

    vLLM's clients do not read the additions to vLLM's format: an epoch in each batch, which
    distinguishes a restart from a gap; snapshots for readers that start late; the tier of a
    clearing. A snapshot in the stream replaces events that the manager lost.

    Args:
        manager: A manager built with ``events=True``. It can have one publisher only: each event
            would reach only one of two.
        block_size: Tokens per block of the manager.
        endpoint: Address to bind for publishing, with ``rank`` added to its port. Port 0 takes a
            free one.
        replay_endpoint: Address for replay requests, likewise; None for none.
        topic: First frame of each message.
        rank: Data-parallel rank; None for an engine without ranks.
        hashes: As in ``Encoder``.
        layout: As in ``Encoder``.
        groups: As in ``Encoder``; None for those of the manager's config.
        sessions: As in ``Encoder``.
        buffer_batches: Batches kept for replay.
        max_queued: Most batches that wait for a slow reader before it misses some.
        flush_s: Longest time, in seconds, that events wait without a call of ``publish``.
        clock: Time in seconds, for time stamps.

    Raises:
        EndpointError: An address is taken.
        ValueError: A value is out of its bounds, or the manager has no events.
        TypeError: A value is of the wrong type.
    """

    def __init__(
        self,
        manager: HasEvents,
        block_size: int,
        endpoint: str = "tcp://127.0.0.1:5557",
        replay_endpoint: str | None = None,
        *,
        topic: str = "",
        rank: int | None = None,
        hashes: Literal["int", "bytes"] = "int",
        layout: Literal["maps", "arrays"] = "maps",
        groups: Sequence[Group] | None = None,
        sessions: bool = False,
        buffer_batches: int = 10_000,
        max_queued: int = 100_000,
        flush_s: float = 0.005,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not hasattr(manager, "resident_events"):
            raise TypeError(f"manager must be a manager or a pool, got {type(manager).__name__}")
        self._manager = manager
        self._clock = clock
        self._topic = text("topic", topic).encode()
        listen = endpoint_of_rank("endpoint", endpoint, rank)
        replay = None
        if replay_endpoint is not None:
            replay = endpoint_of_rank("replay_endpoint", replay_endpoint, rank)
        self.epoch = time.time_ns()
        self._encoder = Encoder(
            whole("block_size", block_size, 1, 2**16 - 1),
            hashes=hashes,
            layout=layout,
            rank=rank,
            epoch=self.epoch,
            groups=_groups_of(manager) if groups is None else groups,
            sessions=sessions,
        )
        self._kept: deque[tuple[int, bytes]] = deque(
            maxlen=whole("buffer_batches", buffer_batches, 1, _MOST_BATCHES)
        )
        self._flush_ms = milliseconds("flush_s", flush_s)
        tokens = manager.resident_events().tokens
        if tokens.shape[1] != block_size:
            raise ValueError(
                f"block_size must be the manager's, {tokens.shape[1]}, got {block_size}"
            )
        self._next = 0
        self._lock = threading.Lock()
        self._context = zmq.Context()
        try:
            # What comes in are subscriptions.
            self._pub = bounded(self._context, zmq.PUB, most_bytes=4096, most_queued=1000)
            self._pub.sndhwm = whole("max_queued", max_queued, 1, _MOST_BATCHES)
            self.endpoint = bind(self._pub, listen)
            self._replies = Replies(self._context, self._answer)
            self.replay_endpoint = None
            if replay is not None:
                self.replay_endpoint = bind(self._replies.socket, replay)
            self._stop = self._context.socket(zmq.PAIR)
            self._stop.bind(f"inproc://stop-{id(self)}")
            self._stopper = self._context.socket(zmq.PAIR)
            self._stopper.connect(f"inproc://stop-{id(self)}")
            # Replaces older events, which had no subscriber.
            self._waiting: Events | None = manager.take_snapshot()
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="blockmgr-events", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def num_published(self) -> int:
        """Batches so far: the number of the next one."""
        return self._next

    def publish(self) -> int:
        """Sends the events since the last call. Never waits for a reader.

        Returns:
            The number of blocks in the events that were sent.

        Raises:
            ValueError: The publisher is closed.
        """
        with self._lock:
            if self._closed:
                raise ValueError("the publisher is closed")
            return self._publish()

    def _publish(self) -> int:
        told = 0
        if self._waiting is not None:
            told += self._send(self._waiting)
            self._waiting = None
        events = self._manager.take_events()
        told += self._send(events)
        if events.num_lost:
            told += self._send(self._manager.take_snapshot())
        return told

    def _send(self, events: Events) -> int:
        for payload in self._encoder.batches(events, self._clock()):
            number, self._next = self._next, self._next + 1
            self._kept.append((number, payload))
            self._pub.send_multipart((self._topic, number.to_bytes(8, "big"), payload), copy=False)
        return events.num_blocks

    def close(self) -> None:
        """Publishes the last events and stops. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._publish()
            self._closed = True
            self._stopper.send(b"")
        self._thread.join()
        for socket in (self._pub, self._replies.socket, self._stop, self._stopper):
            socket.close(linger=200 if socket is self._pub else 0)
        self._context.term()

    def _serve(self) -> None:
        requests = self._replies.socket
        poller = zmq.Poller()
        poller.register(requests, zmq.POLLIN)
        poller.register(self._stop, zmq.POLLIN)
        while True:
            ready = dict(poller.poll(1 if self._replies.is_sending else self._flush_ms))
            if self._stop in ready:
                return
            with self._lock:
                if self._closed:
                    return
                self._publish()
            if requests in ready:
                self._replies.take()
            self._replies.send()

    def _answer(self, request: bytes) -> Iterator[Frames]:
        """The messages of one answer: all batches from a number on, or a snapshot.

        The engine may publish meanwhile.
        """
        if request == SNAPSHOT:
            with self._lock:
                number = self._next - 1
                events = self._manager.resident_events()
            for payload in self._encoder.snapshot(events, self._clock()):
                yield self._topic, number.to_bytes(8, "big", signed=True), payload
        elif len(request) == 8:
            start = int.from_bytes(request, "big")
            with self._lock:
                kept = [(number, payload) for number, payload in self._kept if number >= start]
            for number, payload in kept:
                yield self._topic, number.to_bytes(8, "big"), payload
        yield b"", END, b""
