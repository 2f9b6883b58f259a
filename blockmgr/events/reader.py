"""How a subscriber handles messages and gaps. No sockets here."""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from blockmgr.arguments import positive, text
from blockmgr.events.codec import AnyBatch
from blockmgr.events.codec import decode as decode_all
from blockmgr.events.publisher import SNAPSHOT
from blockmgr.events.stream import Stream, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Reader", "Sink"]

_LOG = logging.getLogger(__name__)


class Sink(Protocol):
    """The receiver of the events."""

    def reset(self, worker: str) -> None:
        """Forgets everything about a worker, because it may be wrong."""

    def apply(self, worker: str, batch: AnyBatch) -> None:
        """Applies a batch: the events since the previous one."""


class Reader:
    """Hands the batches of one publisher to a sink, in order and each once.

    Args:
        worker: Name of the worker, for the sink.
        sink: Receiver of the events.
        ask: Sends a request, and returns numbers and payloads, or None if the answer is incomplete;
            None without a replay endpoint.
        topic: First frame of the messages.
        retry_s: Least time between two attempts to fill a gap.
        check_s: Longest silence before the reader asks the publisher whether something was lost.
        decode: Decodes a payload; None for the sink's ``decode_batch``, or else
            ``blockmgr.events.decode``.
        clock: Monotonic time in seconds.
    """

    def __init__(
        self,
        worker: str,
        sink: Sink,
        ask: Callable[[bytes], Iterable[tuple[int, bytes]] | None] | None,
        *,
        topic: bytes = b"",
        retry_s: float = 1.0,
        check_s: float = 5.0,
        decode: Callable[[bytes], AnyBatch] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.worker = text("worker", worker)
        for call in ("reset", "apply"):
            if not callable(getattr(sink, call, None)):
                raise TypeError(f"sink must have {call}, got {type(sink).__name__}")
        self.counts: Counter[str] = Counter()
        self.retry_s = positive("retry_s", retry_s)
        self._sink = sink
        self._ask = ask
        self._topic = topic
        self._check_s = positive("check_s", check_s)
        if decode is None:
            decode = getattr(sink, "decode_batch", decode_all)
        self._decode: Callable[[bytes], AnyBatch] = decode
        self._clock = clock
        self._stream = Stream()
        self._asked_at = float("-inf")
        self._heard_at = clock()
        self._logged = False
        self._connected = True  # unless told otherwise
        self._stale = True  # no batch is applied until the sink is up to date

    @property
    def is_current(self) -> bool:
        """Whether the sink has applied all known batches."""
        return not self._stale

    @property
    def wants_answers(self) -> bool:
        """Whether batches are missing and there is a replay endpoint."""
        return self._stale and self._ask is not None

    def lose(self) -> None:
        """Handles the loss of the connection: the state of the worker is unknown."""
        self.counts["lost"] += 1
        self._connected = False
        self._forget()

    def heed_connection(self) -> None:
        """Handles a new connection: earlier batches will not arrive."""
        self._connected = True
        self._stale = True
        self._asked_at = float("-inf")

    def start_again(self) -> None:
        """Forgets the worker's state and asks again: after an error of the sink."""
        self._forget()
        self._asked_at = float("-inf")

    def receive(self, frames: list[bytes]) -> None:
        """Handles one message: topic, number, payload."""
        if len(frames) != 3 or len(frames[1]) != 8 or frames[0] != self._topic:
            self._refuse(f"a message of {len(frames)} frames")
            return
        number = int.from_bytes(frames[1], "big", signed=True)
        if number < 0:
            self._refuse(f"a message with the number {number}")
            return
        batch = self._batch(frames[2])
        if batch is None:
            return
        if not self._connected:  # from a lost connection, and perhaps a dead worker
            self.counts["late"] += 1
            return
        self._heard_at = self._clock()
        epoch = batch.about.epoch if batch.about else None
        verdict = self._stream.judge(epoch, number)
        if verdict is Verdict.RESTARTED:
            self.counts[verdict.value] += 1
            self._forget()
            verdict = self._stream.judge(epoch, number)
        if verdict is Verdict.APPLY and (not self._stale or self._ask is None):
            self._take(epoch, number, batch)
            self._stale = False
            return
        if verdict is Verdict.APPLY:
            verdict = Verdict.GAP
        self.counts[verdict.value] += 1
        if verdict is not Verdict.GAP:
            return
        self._stale = True
        if self._ask is None:
            # There is no replay: later batches are right, but the known state may be wrong.
            self._forget()
            self._take(epoch, number, batch)
            self._stale = False

    def catch_up(self) -> None:
        """Asks for missing batches if it is time to. Call it after handling received messages."""
        if self._ask is None:
            return
        now = self._clock()
        silent = now - max(self._heard_at, self._asked_at) >= self._check_s
        if silent or (self._stale and now - self._asked_at >= self.retry_s):
            self._asked_at = now
            self._recover()

    def _batch(self, payload: bytes) -> AnyBatch | None:
        try:
            return self._decode(payload)
        except ValueError as error:
            self._refuse(f"a message, {error}")
            return None

    def _refuse(self, what: str) -> None:
        self.counts["foreign"] += 1
        if not self._logged:
            self._logged = True
            _LOG.warning("%s: ignored %s; others like it are only counted", self.worker, what)

    def _forget(self) -> None:
        self._sink.reset(self.worker)
        self._stream.restart()
        self._stale = True

    def _take(self, epoch: int | None, number: int, batch: AnyBatch) -> None:
        self._sink.apply(self.worker, batch)
        self._stream.advance(epoch, number)
        self.counts["apply"] += 1

    # What is missing.

    def _recover(self) -> None:
        """Asks for a replay from the next number, or else for a snapshot."""
        wanted = self._stream.next
        if wanted is not None:
            answers = self._answers(wanted.to_bytes(8, "big"), "replays")
            if answers is None:
                self._forget()
                return
            if self._take_all(answers):
                self._stale = False
                return
        self._recover_from_nothing()

    def _recover_from_nothing(self) -> None:
        parts = self._answers(SNAPSHOT, "snapshots")
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
        # The publisher has no snapshots. All batches it can replay are the best available.
        answers = self._answers(bytes(8), "replays")
        if answers:
            self._stream.next = answers[0][0]
        self._stale = answers is None or not self._take_all(answers)

    def _take_all(self, answers: list[tuple[int, AnyBatch]]) -> bool:
        """Applies consecutive batches up to a gap; returns whether all were applied."""
        for number, batch in answers:
            epoch = batch.about.epoch if batch.about else None
            if self._stream.judge(epoch, number) is not Verdict.APPLY:
                return False
            self._take(epoch, number, batch)
        return True

    def _answers(self, request: bytes, what: str) -> list[tuple[int, AnyBatch]] | None:
        assert self._ask is not None
        self.counts[what] += 1
        answered = self._ask(request)
        if answered is None:
            self.counts["unanswered"] += 1
            return None
        answers = []
        for number, payload in answered:
            batch = self._batch(payload)
            if batch is None:
                return None
            answers.append((number, batch))
        return answers
