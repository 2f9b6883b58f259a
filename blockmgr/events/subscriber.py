"""Reads one publisher over ZMQ, and asks again for missing batches."""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Final, Self

import zmq
from zmq.utils.monitor import recv_monitor_message

from blockmgr.arguments import milliseconds, text
from blockmgr.events.endpoints import bounded, connect
from blockmgr.events.publisher import END
from blockmgr.events.reader import IncompleteAnswerError, Reader, Sink
from blockmgr.events.wire import MOST_BYTES

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from blockmgr.events.codec import AnyBatch

__all__ = ["Sink", "Subscriber"]

# A full queue holds messages back on the way. A publisher that then drops some is asked for them.
_MOST_QUEUED: Final = 64
_MOST_AT_ONCE: Final = 1000
_MOST_BYTES_AT_ONCE: Final = 2**23
_MOST_ANSWERED: Final = 2**30
"""Most bytes of an answer, which limits the memory and time for a foreign one."""

_MOST_PARTS: Final = 2**15
"""Most messages of an answer that wait to be read."""

_FRAMES_BYTES: Final = 256
"""Memory of a message besides its bytes."""

_LOOK_MS: Final = 50
"""Longest time for which a wait does not heed ``stop``."""


class Subscriber:
    """Follows the events of one worker and hands them to a sink, in order and each once.

    The subscriber fills a gap with a replay from the next number; if the publisher no longer has
    that batch, with a snapshot; if it has no snapshots (vLLM's), with everything it can replay.
    If the answer does not come in time, or not whole, the sink forgets the worker, so it has no
    block that may be gone. The same holds after a restart of the publisher, and from the moment the
    connection is lost.

    If a publisher is silent for ``check_s``, the subscriber asks it for lost batches. A busy engine
    answers late, so the sink keeps the worker's blocks while nothing shows that a batch is missing,
    until a second request is not answered either, ``check_s + 2 * timeout_s`` after the last
    message.

    It counts messages that are not batches of events, logs the first one, and ignores them. A frame
    has at most 4 MiB; a connection that sends more is cut. If several data-parallel ranks publish
    over the connection, gaps are found and filled for each rank.

    Args:
        worker: Name of the worker, for the sink.
        endpoint: Address at which the worker publishes.
        replay_endpoint: Address at which it answers requests; None if it does not.
        sink: Receiver of the events, called only inside ``poll``.
        topic: Topic to subscribe to.
        timeout_s: Longest wait for an answer, up to its last byte.
        retry_s: Least time between two attempts to fill a gap.
        check_s: Longest silence before the subscriber asks the publisher.
        decode: Decodes a payload; None for the sink's ``decode_batch``, or else
            ``blockmgr.events.decode``. For ``WorkerIndex`` that is ``decode_hashes``, which skips
            the tokens.
        clock: Monotonic time in seconds.

    Raises:
        ValueError: An address is not valid, or a time is not above 0.
        TypeError: A value is of the wrong type.
    """

    def __init__(
        self,
        worker: str,
        endpoint: str,
        replay_endpoint: str | None,
        sink: Sink,
        *,
        topic: str = "",
        timeout_s: float = 5.0,
        retry_s: float = 1.0,
        check_s: float = 5.0,
        decode: Callable[[bytes], AnyBatch] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.worker = worker
        self._timeout_s = milliseconds("timeout_s", timeout_s) / 1000
        text("endpoint", endpoint)
        if replay_endpoint is not None:
            text("replay_endpoint", replay_endpoint)
        self._reader = Reader(
            worker,
            sink,
            None if replay_endpoint is None else self._ask,
            topic=text("topic", topic).encode(),
            retry_s=retry_s,
            check_s=check_s,
            decode=decode,
            clock=clock,
        )
        self._replay_endpoint = replay_endpoint
        self._context = zmq.Context()
        self._stopped = threading.Event()
        self._sub = bounded(self._context, zmq.SUB, most_bytes=MOST_BYTES, most_queued=_MOST_QUEUED)
        self._monitor = self._sub.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        )
        self._sub.subscribe(topic.encode())
        self._dealer: zmq.Socket[bytes] | None = None
        try:
            connect(self._sub, "endpoint", endpoint)
            self._connect_dealer()
        except BaseException:
            self._context.destroy(linger=0)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops. A second call does nothing."""
        self._context.destroy(linger=0)

    def stop(self) -> None:
        """Ends a wait for an answer, and makes ``poll`` return at once from now on.

        Any thread may call it. The thread that calls ``poll`` closes the subscriber afterwards.
        """
        self._stopped.set()

    def pause(self, seconds: float) -> None:
        """Waits so long, or until ``stop`` is called."""
        self._stopped.wait(seconds)

    @property
    def is_stopped(self) -> bool:
        """Whether ``stop`` was called."""
        return self._stopped.is_set()

    @property
    def ranks(self) -> list[int]:
        """The data-parallel ranks that batches have named since the connection was made."""
        return sorted(rank for rank in self._reader.ranks if rank is not None)

    @property
    def is_current(self) -> bool:
        """Whether the sink has applied all known batches."""
        return self._reader.is_current

    @property
    def counts(self) -> Counter[str]:
        """Counts of batches by verdict, and of other events.

        Verdicts are ``apply``, ``duplicate``, ``gap``, ``restarted`` and ``outdated``. The other
        keys count ``foreign`` and ``late`` messages, batches of ``other_rank`` that could not be
        kept apart, requested ``replays`` and ``snapshots``, ``unanswered`` requests, and how often
        the connection was ``lost``.
        """
        return self._reader.counts

    def poll(self, timeout_s: float = 0.0) -> int:
        """Waits for messages, and passes their batches to the sink.

        Args:
            timeout_s: Longest wait for the first message; 0 for none.

        Returns:
            The number of batches applied.

        Raises:
            ValueError: The wait is negative or not finite, or the subscriber is closed.
            TypeError: It is not a number.
        """
        if timeout_s:
            milliseconds("timeout_s", timeout_s)
        if self._context.closed:
            raise ValueError("the subscriber is closed")
        if self.is_stopped:
            return 0
        reader = self._reader
        poller = zmq.Poller()
        poller.register(self._sub, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        wait_s = min(timeout_s, reader.retry_s) if reader.wants_answers else timeout_s
        ready = dict(poller.poll(milliseconds("timeout_s", wait_s) if wait_s else 0))
        applied = reader.counts["apply"]
        if self._monitor in ready:
            self._heed_connection()
        left = _MOST_BYTES_AT_ONCE
        for _ in range(_MOST_AT_ONCE):
            try:
                frames = self._sub.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            reader.receive(frames)
            left -= sum(map(len, frames))
            if left < 0 or self.is_stopped:
                break
        reader.catch_up()
        return reader.counts["apply"] - applied

    def start_again(self) -> None:
        """Forgets the worker's state and asks again: after an error of the sink."""
        self._reader.start_again()

    def _heed_connection(self) -> None:
        while self._monitor.poll(0):
            if recv_monitor_message(self._monitor)["event"] == zmq.EVENT_DISCONNECTED:
                self._drop_unread()
                self._reader.lose()
            else:
                self._reader.heed_connection()

    def _drop_unread(self) -> None:
        """Drops the last messages of the lost connection.

        If the next connection exists already, they would count as messages of that one.
        """
        for _ in range(2 * _MOST_QUEUED):  # more cannot be waiting
            try:
                self._sub.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return

    def _connect_dealer(self) -> None:
        if self._replay_endpoint is None:
            return
        if self._dealer is not None:
            self._dealer.close(linger=0)  # discards late answers
        # A publisher that does not wait drops what does not fit, so a whole answer must fit.
        self._dealer = bounded(
            self._context, zmq.DEALER, most_bytes=MOST_BYTES, most_queued=_MOST_PARTS
        )
        connect(self._dealer, "replay_endpoint", self._replay_endpoint)

    def _ask(self, request: bytes) -> list[tuple[int, bytes]] | None:
        """The whole answer; None if nothing of it came in time."""
        assert self._dealer is not None
        self._dealer.send_multipart((b"", request))
        answers: list[tuple[int, bytes]] = []
        left = _MOST_ANSWERED
        has_begun = False
        end = time.monotonic() + self._timeout_s
        while not self.is_stopped and (wait := end - time.monotonic()) > 0:
            if not self._dealer.poll(min(math.ceil(wait * 1000), _LOOK_MS)):
                continue
            frames = self._dealer.recv_multipart()
            has_begun = True
            if frames[-2:] == [END, b""]:
                return answers
            left -= _FRAMES_BYTES + sum(map(len, frames))
            # Older publishers leave out the topic.
            if len(frames) not in (3, 4) or len(frames[-2]) != 8 or left < 0:
                break
            answers.append((int.from_bytes(frames[-2], "big", signed=True), frames[-1]))
        self._connect_dealer()
        if has_begun:
            raise IncompleteAnswerError
        return None
