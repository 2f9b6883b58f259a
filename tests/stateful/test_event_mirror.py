"""A mirror behind a bad connection: lost, repeated and reordered batches, and crashes.

No sockets: the publisher's bytes go to the subscriber's own logic through a simulated line that a
seed controls, so a run can be repeated. ``python -m tests.stateful.test_event_mirror 1000000``
makes that many operations.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import pytest

from blockmgr import BlockManager
from blockmgr.errors import OutOfBlocksError, OutOfSequencesError

pytest.importorskip("msgspec", reason="the extra 'events'")
pytest.importorskip("zmq", reason="the extra 'events'")

from blockmgr.events import Encoder
from blockmgr.events.codec import decode_hashes
from blockmgr.events.publisher import SNAPSHOT
from blockmgr.events.subscriber import Reader
from blockmgr.index import WorkerIndex

KEPT = 12


class Worker:
    """A manager, the state of its publisher, and a random engine."""

    def __init__(self, rng: random.Random, epoch: int) -> None:
        self.rng = rng
        self.epoch = epoch
        self.manager = BlockManager(
            rng.randint(4, 24), 2, max_seqs=6, events=True,
            event_blocks=rng.choice([None, 3]), dedup=rng.choice(["remap", "append_only"]),
            min_partial_tokens=rng.choice([0, 1]),
        )  # fmt: skip
        self.encoder = Encoder(2, epoch=epoch)
        self.kept: list[tuple[int, bytes]] = []
        self.next = 0
        self.handles: list[int] = []

    def act(self) -> None:
        """Makes one operation of an engine."""
        manager, rng = self.manager, self.rng
        what = rng.random()
        if what < 0.45:
            prompt = [rng.randint(0, 1) for _ in range(rng.randint(1, 9))]
            try:
                self.handles.append(manager.admit(prompt, namespace=rng.choice([b"", b"t"])))
            except (OutOfBlocksError, OutOfSequencesError, ValueError):
                return
            manager.commit(self.handles[-1], len(prompt))
        elif self.handles and what < 0.8:
            manager.free(self.handles.pop(rng.randrange(len(self.handles))))
        elif self.handles and what < 0.97:
            manager.forget(manager.sequence(self.handles[-1]).block_ids[:1])
        elif what > 0.99:
            manager.reset_prefix_cache()

    def publish(self) -> list[tuple[int, bytes]]:
        """The messages of a publisher after a step."""
        events = self.manager.take_events()
        payloads = list(self.encoder.batches(events, 0.0))
        if events.num_lost:
            payloads += self.encoder.batches(self.manager.take_snapshot(), 0.0)
        sent = []
        for payload in payloads:
            sent.append((self.next, payload))
            self.next += 1
        self.kept = [*self.kept, *sent][-KEPT:]
        return sent

    def answer(self, request: bytes) -> list[tuple[int, bytes]]:
        """The answer of a publisher."""
        if request == SNAPSHOT:
            number, resident = self.next - 1, self.manager.resident_events()
            return [(number, payload) for payload in self.encoder.snapshot(resident, 0.0)]
        return [each for each in self.kept if each[0] >= int.from_bytes(request, "big")]

    def truth(self) -> set[int]:
        digests = [d for event in self.manager.resident_events() for d in event.digests]
        return {int.from_bytes(digest[-8:], "big") for digest in digests}


class Line:
    """The line between a worker and an index, with all possible faults."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.epoch = 1
        self.worker = Worker(self.rng, self.epoch)
        self.on_the_way: list[tuple[int, bytes]] = []
        self.dead = False  # no answer
        self.start_index()

    def start_index(self) -> None:
        self.index = WorkerIndex(max_workers=1)
        self.index.announce("w")
        self.reader = Reader(
            "w", self.index, self.ask, retry_s=1.0, decode=decode_hashes, clock=lambda: self.now
        )

    def ask(self, request: bytes) -> list[tuple[int, bytes]] | None:
        return None if self.dead else self.worker.answer(request)

    def go_on(self) -> None:
        """Makes one operation, and a random fault of the line."""
        rng = self.rng
        self.now += rng.choice([0, 0, 0.4, 1.5])
        self.worker.act()
        for sent in self.worker.publish():
            fate = rng.random()
            if fate < 0.85:
                self.on_the_way.append(sent)
            if fate < 0.05:
                self.on_the_way.append(sent)  # delivered twice
        if rng.random() < 0.05:
            rng.shuffle(self.on_the_way)
        if rng.random() < 0.7:  # otherwise the reader is slow
            self.deliver()
        misfortune = rng.random()
        if misfortune < 0.002:  # the worker is killed and restarts empty
            self.epoch += 1
            self.worker = Worker(rng, self.epoch)
            self.reader.lose()
            self.reader.heed_connection()  # its messages in transit still arrive
        elif misfortune < 0.004:  # the index is killed
            self.start_index()
        elif misfortune < 0.02:
            self.dead = not self.dead

    def deliver(self) -> None:
        for number, payload in self.on_the_way:
            self.reader.receive([b"", number.to_bytes(8, "big"), payload])
        self.on_the_way.clear()
        self.reader.catch_up()

    def settle(self) -> None:
        """Repairs the line and lets the reader catch up."""
        self.dead = False
        self.on_the_way += self.worker.publish()
        self.deliver()
        self.now += 10
        self.reader.heed_connection()
        self.deliver()

    def check(self) -> None:
        """Checks after recovery that the index has exactly what the worker has."""
        truth = self.worker.truth()
        assert self.reader.is_current
        assert self.index.num_entries == len(truth)
        assert all(self.index.found([key])[0, 0] == 1 for key in truth)


def run(operations: int, seed: int, tell: Callable[[str], Any] = lambda text: None) -> None:
    line = Line(seed)
    for number in range(1, operations + 1):
        line.go_on()
        if number % 40 == 0:
            line.settle()
            line.check()
        if number % 50_000 == 0:
            tell(f"{number:,} operations, {dict(line.reader.counts)}")


@pytest.mark.parametrize("seed", range(6))
def test_nothing_that_is_gone_is_believed_to_be_there_after_recovery(seed: int) -> None:
    run(600, seed)


if __name__ == "__main__":
    run(int(sys.argv[1]), seed=int(sys.argv[2]) if len(sys.argv) > 2 else 1, tell=print)
