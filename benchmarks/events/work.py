"""The blocks that both sides store, evict and publish; a client that asks for a replay."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence

import zmq

BLOCK_SIZE = 16
BLOCKS = 2048
POOL = BLOCKS + 256


def prompts(rounds: int) -> Iterator[list[int]]:
    """Prompts of whole blocks and a token, no two with a block in common."""
    rng = random.Random(7)
    for _ in range(rounds):
        yield [rng.randrange(150_000) for _ in range(BLOCKS * BLOCK_SIZE + 1)]


def sizes(payloads: Sequence[bytes]) -> int:
    return sum(map(len, payloads))


def first_frame(endpoint: str) -> float:
    """Milliseconds from a request to an idle publisher to its first answer; median of eleven."""
    times = []
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.linger = 0
        client.connect(endpoint)
        for _ in range(12):
            time.sleep(0.25)  # the publisher is idle
            start = time.perf_counter()
            client.send_multipart((b"", bytes(8)))
            client.recv_multipart()
            times.append((time.perf_counter() - start) * 1e3)
            while client.poll(300):
                client.recv_multipart()
    return sorted(times[1:])[5]
