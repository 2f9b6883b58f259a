"""How long does an index take to score a prompt, and to take in a batch?

64 workers, each with 100,000 blocks that a quarter of them share and a prompt of 1,024 blocks that
all have; on the device alone, and half of it in host memory. Batches are of 64 blocks of 16 tokens.
Best of the repetitions; with the decoding of a batch and without. Not measured: the network.

Run: python -m benchmarks.index
"""

from __future__ import annotations

import random
import timeit
from collections.abc import Callable

import msgspec

from blockmgr import Tier
from blockmgr.events.codec import decode_hashes
from blockmgr.index import WorkerIndex

WORKERS, BLOCKS, PROMPT = 64, 100_000, 1024
BATCHES, BATCH, BLOCK_SIZE = 1000, 64, 16
RNG = random.Random(5)


def keys(count: int) -> list[int]:
    return [RNG.getrandbits(63) for _ in range(count)]


def best(call: Callable[[], object], repeat: int = 200) -> float:
    """Seconds."""
    return min(timeit.repeat(call, number=1, repeat=repeat))


def batch() -> bytes:
    """As a publisher of blockmgr encodes it."""
    event = {
        "type": "BlockStored",
        "block_hashes": keys(BATCH),
        "parent_block_hash": None,
        "token_ids": [RNG.randrange(150_000) for _ in range(BATCH * BLOCK_SIZE)],
        "block_size": BLOCK_SIZE,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    return msgspec.msgpack.encode([0.0, [event], None, {"epoch": 1}])


def main() -> None:
    index = WorkerIndex(max_workers=WORKERS)
    names = [f"worker-{number}" for number in range(WORKERS)]
    shared, prompt = [keys(BLOCKS) for _ in range(4)], keys(PROMPT)
    for number, name in enumerate(names):
        index.announce(name)
        index.store(name, shared[number % 4])
        index.store(name, prompt)
    seconds = best(lambda: index.scores(prompt))
    print(f"scores, {PROMPT} digests, {WORKERS} workers: {seconds * 1e6:.1f} us")
    for name in names:
        moved = RNG.sample(prompt, PROMPT // 2)
        index.remove(name, moved)
        index.store(name, moved, Tier.HOST)
    seconds = best(lambda: index.scores(prompt))
    print(f"scores, half of it in host memory: {seconds * 1e6:.1f} us")

    payloads = [batch() for _ in range(BATCHES)]
    decoded = [decode_hashes(payload) for payload in payloads]
    for what in decoded:
        index.apply("worker-0", what)  # the table has grown
    for what, call in (
        ("applied", lambda: [index.apply("worker-0", each) for each in decoded]),
        ("decoded", lambda: [decode_hashes(payload) for payload in payloads]),
    ):
        seconds = best(call, 5) / BATCHES / BATCH
        print(f"{what}: {seconds * 1e9:.0f} ns a block, {1 / seconds / 1e6:.2f} million a second")
    print(f"memory: {index.memory_usage() / index.num_entries:.0f} bytes an entry")


if __name__ == "__main__":
    main()
