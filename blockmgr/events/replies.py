"""Answers of a publisher to the requests of its readers, in bounded memory.

A reader may ask and never read. So answers are made message by message while they are sent, few at
a time, and a reader that takes nothing for a while gets no more.
"""

from __future__ import annotations

import errno
import time
from typing import TYPE_CHECKING, Final

import zmq

from blockmgr.events.endpoints import bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Frames", "Replies"]

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
