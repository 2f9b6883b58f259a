"""Reads one publisher: in order, each batch once, with what is missing asked for again."""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol, Self

import zmq
from zmq.utils.monitor import recv_monitor_message

from blockmgr.arguments import positive
from blockmgr.events.codec import AnyBatch, decode
from blockmgr.events.publisher import END, SNAPSHOT
from blockmgr.events.stream import Stream, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = ["Sink", "Subscriber"]

_LOG = logging.getLogger(__name__)
_MOST_QUEUED: Final = 100_000
_MOST_AT_ONCE: Final = 1000


class Sink(Protocol):
    """What learns of the events."""

    def reset(self, worker: str) -> None:
        """All that is known of this worker may be wrong, and is to be forgotten."""

    def apply(self, worker: str, batch: AnyBatch) -> None:
        """What has happened since the batch before."""


class Subscriber:
    """Follows the events of one worker and hands them to a sink, in order and each once.

    A gap is filled by replay, beginning with the next number; if the publisher has forgotten that,
    by a snapshot; if it has none (vLLM's), by all it can replay. As long as neither comes, the sink
    knows nothing of the worker: it never has a block that may be gone. The same after a restart of
    the publisher, and from the moment the connection is lost.

    What is no batch of events is counted, logged once, and believed in no part.

    Args:
        worker: Name of the worker, for the sink.
        endpoint: Where it publishes.
        replay_endpoint: Where it answers requests; None if nowhere.
        sink: What learns of the events. It is called from within ``poll`` only.
        topic: Topic to subscribe to.
        timeout_s: Longest wait for an answer.
        retry_s: Least time between two attempts to fill a gap.
        clock: Monotonic time in seconds.

    Attributes:
        counts: What came: batches by verdict, ``foreign`` messages, ``replays``, ``snapshots``,
            requests ``unanswered``, and times the connection was ``lost``.
    """

    def __init__(
        self,
        worker: str,
        endpoint: str,
        replay_endpoint: str | None,
        sink: Sink,
        *,
        topic: str = "",
        timeout_s: float = 1.0,
        retry_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.worker = worker
        self.counts: Counter[str] = Counter()
        self._sink = sink
        self._topic = topic.encode()
        self._timeout_ms = max(1, round(positive("timeout_s", timeout_s) * 1000))
        self._retry_s = positive("retry_s", retry_s)
        self._clock = clock
        self._stream = Stream()
        self._asked_at = float("-inf")
        self._logged: set[str] = set()
        self._stale = True  # nothing is applied until the sink has been brought up to date
        self._replay_endpoint = replay_endpoint
        self._context = zmq.Context()
        self._sub = self._context.socket(zmq.SUB)
        self._sub.set_hwm(_MOST_QUEUED)
        self._monitor = self._sub.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        )
        self._sub.subscribe(self._topic)
        self._dealer: zmq.Socket[bytes] | None = None
        try:
            self._sub.connect(endpoint)
            self._connect_dealer()
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ValueError(
                f"endpoint must be an address to connect to, got {endpoint!r}: {error}"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stops. Closing twice is closing once."""
        self._context.destroy(linger=0)

    @property
    def is_current(self) -> bool:
        """Whether the sink knows all that was heard of."""
        return not self._stale

    def poll(self, timeout_s: float = 0.0) -> int:
        """Waits for what comes, and hands it on.

        Args:
            timeout_s: Longest wait for the first message.

        Returns:
            The number of batches that were applied.
        """
        poller = zmq.Poller()
        poller.register(self._sub, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        wait_s = min(timeout_s, self._retry_s) if self._wants_more() else timeout_s
        ready = dict(poller.poll(round(wait_s * 1000)))
        applied = self.counts["apply"]
        if self._monitor in ready:
            self._heed_connection()
        for _ in range(_MOST_AT_ONCE):
            try:
                frames = self._sub.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._receive(frames)
        if self._wants_more() and self._clock() - self._asked_at >= self._retry_s:
            self._recover()
        return self.counts["apply"] - applied

    def _wants_more(self) -> bool:
        return self._stale and self._replay_endpoint is not None

    def _heed_connection(self) -> None:
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)["event"]
            if event == zmq.EVENT_DISCONNECTED:
                self.counts["lost"] += 1
                self._drop_unread()
                self._forget()
            else:  # whatever was published before it cannot be heard any more
                self._stale = True
                self._asked_at = float("-inf")

    def _drop_unread(self) -> None:
        """What the lost connection brought last would be believed of a publisher that is gone."""
        while True:
            try:
                self._sub.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return

    def _forget(self) -> None:
        self._sink.reset(self.worker)
        self._stream.restart()
        self._stale = True

    def _receive(self, frames: list[bytes]) -> None:
        read = self._read(frames)
        if read is None:
            return
        number, batch = read
        epoch = batch.about.epoch if batch.about else None
        verdict = self._stream.judge(epoch, number)
        if verdict is Verdict.RESTARTED:
            self.counts[verdict.value] += 1
            self._forget()
            verdict = self._stream.judge(epoch, number)
        if verdict is Verdict.APPLY and (not self._stale or number == 0):
            self._take(epoch, number, batch)
            self._stale = False
            return
        if verdict is Verdict.APPLY:
            verdict = Verdict.GAP
        self.counts[verdict.value] += 1
        if verdict is not Verdict.GAP:
            return
        self._stale = True
        if self._replay_endpoint is None:
            # Nobody can be asked: what is known may be wrong, what comes from here on is not.
            self._forget()
            self._take(epoch, number, batch)
            self._stale = False
        elif self._clock() - self._asked_at >= self._retry_s:
            self._recover()

    def _take(self, epoch: int | None, number: int, batch: AnyBatch) -> None:
        self._sink.apply(self.worker, batch)
        self._stream.advance(epoch, number)
        self.counts["apply"] += 1

    def _read(self, frames: list[bytes]) -> tuple[int, AnyBatch] | None:
        if len(frames) != 3 or len(frames[1]) != 8 or frames[0] != self._topic:
            self._refuse("foreign", f"a message of {len(frames)} frames")
            return None
        try:
            return int.from_bytes(frames[1], "big", signed=True), decode(frames[2])
        except ValueError as error:
            self._refuse("foreign", f"a message, {error}")
            return None

    def _refuse(self, what: str, why: str) -> None:
        self.counts[what] += 1
        if what not in self._logged:
            self._logged.add(what)
            _LOG.warning("%s: ignored %s; others like it are only counted", self.worker, why)

    # What is missing.

    def _connect_dealer(self) -> None:
        if self._replay_endpoint is None:
            return
        if self._dealer is not None:
            self._dealer.close(linger=0)  # with whatever late answers it may still bring
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.linger = 0
        self._dealer.set_hwm(0)
        self._dealer.connect(self._replay_endpoint)

    def _recover(self) -> None:
        """Replay from the next number on if that goes on where we are, else a snapshot."""
        self._asked_at = self._clock()
        wanted = self._stream.next
        if wanted is not None:
            answers = self._ask(wanted.to_bytes(8, "big"), "replays")
            if answers is None:
                self._forget()
                return
            if self._take_all(answers):
                self._stale = False
                return
        self._recover_from_nothing()

    def _recover_from_nothing(self) -> None:
        parts = self._ask(SNAPSHOT, "snapshots")
        self._forget()
        if parts is None:
            return
        about = [batch.about for _, batch in parts if batch.about and batch.about.snapshot]
        if about and len(about) == len(parts) and about[-1].last:
            for _, batch in parts:
                self._sink.apply(self.worker, batch)
            self._stream.advance(about[-1].epoch, parts[-1][0])
            self._stale = False
            return
        # It knows no snapshots. All it can replay is the most that can be known.
        answers = self._ask(bytes(8), "replays")
        if answers:
            self._stream.next = answers[0][0]
        self._stale = answers is None or not self._take_all(answers)

    def _take_all(self, answers: list[tuple[int, AnyBatch]]) -> bool:
        """Applies batches that go on where we are, up to one that does not; whether all did."""
        for number, batch in answers:
            epoch = batch.about.epoch if batch.about else None
            if self._stream.judge(epoch, number) is not Verdict.APPLY:
                return False
            self._take(epoch, number, batch)
        return True

    def _ask(self, request: bytes, what: str) -> list[tuple[int, AnyBatch]] | None:
        """All that is answered; None if no answer comes, or not all of it."""
        assert self._dealer is not None
        self.counts[what] += 1
        self._dealer.send_multipart((b"", request))
        answers: list[tuple[int, AnyBatch]] = []
        while self._dealer.poll(self._timeout_ms):
            frames = self._dealer.recv_multipart()
            if frames[-2:] == [END, b""]:
                return answers
            # Older ones leave out the topic.
            read = self._read([self._topic, *frames[-2:]] if len(frames) in (3, 4) else frames)
            if read is None:
                break
            answers.append(read)
        else:
            self.counts["unanswered"] += 1
        self._connect_dealer()
        return None
