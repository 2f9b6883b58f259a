"""A router that knows the caches of replicas only from events, like a real router.

Only the network is simulated: the events come from each replica's manager, and are encoded and
decoded as by a publisher and a subscriber; a ``Reader`` detects gaps, and a ``WorkerIndex``
computes scores. ::

    manager ──► take_events ──► Encoder ──► delay, loss ──► Reader ──► WorkerIndex ──► scores
                                   ▲                          │
                                   └────── asks for a gap ────┘  (repair "replay")

The load of a replica is not an event: a router knows where it sent requests, and is notified
immediately when they end.
"""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Final

import numpy as np

from blockmgr.events.codec import Encoder
from blockmgr.events.reader import Reader
from blockmgr.groups import FullAttention
from blockmgr.index.workers import WorkerIndex

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from blockmgr.event_columns import Event, Events
    from blockmgr.lab.routing import Arrival, Delivery, Setting, View

__all__ = ["EventRouter"]

SILENCE_MS: Final = 5_000
"""Time without a batch after which a reader asks whether one was lost."""


class EventRouter:
    """Sends a request to the replica with the best score, by cached blocks and load.

    Args:
        setting: Setting of the fleet.
    """

    def __init__(self, setting: Setting) -> None:
        self._index = WorkerIndex(
            max_workers=setting.num_replicas,
            load_weight=setting.load_weight,
            block_size=setting.block_size,
        )
        groups = setting.groups or (FullAttention(),)
        encoder = Encoder(setting.block_size, epoch=0, groups=groups)
        seeds = np.random.SeedSequence(setting.seed).spawn(setting.num_replicas)
        self._names = [str(replica) for replica in range(setting.num_replicas)]
        self._lines = [
            _Line(name, self._index, encoder, setting.delivery, seed)
            for name, seed in zip(self._names, seeds, strict=True)
        ]

    @property
    def index(self) -> WorkerIndex:
        """The index, in which replicas are named by their numbers."""
        return self._index

    def listen(self, replica: int, now_ms: int, events: Events) -> None:
        """Send the events of a replica.

        Args:
            replica: Index of the replica.
            now_ms: Time of the events.
            events: At least one.
        """
        self._lines[replica].publish(now_ms, events)

    def deliver(self, now_ms: int) -> None:
        """Apply all events that have arrived."""
        for line in self._lines:
            line.deliver(now_ms)

    def __call__(self, arrival: Arrival, replicas: Sequence[View]) -> int:
        """Choose a replica."""
        self.deliver(arrival.request.arrival_ms)
        mean = max(1.0, sum(replica.num_requests for replica in replicas) / len(replicas))
        for name, replica in zip(self._names, replicas, strict=True):
            self._index.set_load(name, replica.num_requests / mean)
        return int(self._index.scores(replicas[0].block_digests(arrival)).argmax())


class _Line:
    """The connection from one replica to the index."""

    def __init__(
        self,
        worker: str,
        index: WorkerIndex,
        encoder: Encoder,
        delivery: Delivery,
        seed: np.random.SeedSequence,
    ) -> None:
        self._worker = worker
        self._index = index
        self._encoder = encoder
        self._delivery = delivery
        self._draws = np.random.Generator(np.random.PCG64(seed))
        self._number = -1  # of the last batch
        self._coming: deque[tuple[int, int, bytes]] = deque()  # time of arrival, number, batch
        self._kept: deque[tuple[int, int, bytes]] = deque()  # time of sending; for a replay
        self._now_ms = 0
        self._last_news_ms = 0
        self._answer_ms: int | None = None  # time of the answer that the reader waits for
        index.announce(worker)
        self._reader: Reader | None = None
        if delivery.repair != "none":
            self._reader = Reader(
                worker,
                index,
                self._ask if delivery.repair == "replay" else None,
                # The router controls the retries: each reading of the clock is a second later.
                retry_s=1.0,
                check_s=1.0,
                clock=count().__next__,
            )
            self._reader.catch_up()  # like a reader that starts before its replica

    def publish(self, now_ms: int, events: Events) -> None:
        for batch in self._encoder.batches(map(_without_tokens, events), now_ms / 1000):
            self._number += 1
            if self._delivery.repair == "replay":
                self._kept.append((now_ms, self._number, batch))
            if self._draws.random() >= self._delivery.loss:
                self._coming.append((now_ms + self._delivery.delay_ms, self._number, batch))

    def deliver(self, until_ms: int) -> None:
        while (instant := self._next_ms()) is not None and instant <= until_ms:
            self._now_ms = self._last_news_ms = instant
            if self._answer_ms is not None:
                self._answer_ms = None
                self._take_answer()
            elif self._coming and self._coming[0][0] == instant:
                self._take(*self._coming.popleft()[1:])
            else:
                self._answer_ms = instant + 2 * self._delivery.delay_ms

    def _next_ms(self) -> int | None:
        """The time of the next event here; arrivals wait for a pending answer."""
        if self._answer_ms is not None:
            return self._answer_ms
        instants = [self._coming[0][0]] if self._coming else []
        if self._kept:
            # Batches that the reader lacks; if all of them are lost, the silence reveals it.
            instants.append(max(self._last_news_ms, self._kept[0][0]) + SILENCE_MS)
        return min(instants, default=None)

    def _take(self, number: int, batch: bytes) -> None:
        if self._reader is None:
            self._index.apply(self._worker, self._index.decode_batch(batch))
            return
        self._reader.receive([b"", number.to_bytes(8, "big"), batch])
        if self._reader.wants_answers:
            self._answer_ms = self._now_ms + 2 * self._delivery.delay_ms
        else:
            self._drop_kept(number)

    def _take_answer(self) -> None:
        assert self._reader is not None
        self._reader.catch_up()
        answered = [number for _, number, _ in self._answerable()]
        self._drop_kept(max(answered, default=-1))

    def _answerable(self) -> Iterator[tuple[int, int, bytes]]:
        """Batches that the replica had sent at the time of the answer."""
        answered_ms = self._now_ms - self._delivery.delay_ms
        return (kept for kept in self._kept if kept[0] <= answered_ms)

    def _ask(self, request: bytes) -> list[tuple[int, bytes]]:
        if len(request) != 8:  # no number: the snapshot of an empty replica
            return [(self._number, next(self._encoder.snapshot([], 0.0)))]
        first = int.from_bytes(request, "big")
        return [(number, batch) for _, number, batch in self._answerable() if number >= first]

    def _drop_kept(self, number: int) -> None:
        while self._kept and self._kept[0][1] <= number:
            self._kept.popleft()


def _without_tokens(event: Event) -> Event:
    """The index ignores tokens, and they are most of a batch."""
    return event._replace(tokens=event.tokens[:, :0])
