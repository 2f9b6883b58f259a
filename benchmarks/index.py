"""How long does an index take to score a prompt, and to apply a batch of events?

There are 64 workers. Each has 100,000 blocks, which a quarter of the workers share, and a prompt of
1,024 blocks that all workers have; all on the device, or half of it in host memory. Batches have 64
blocks of 16 tokens. The time of a score is the best of the repetitions. The time of a batch is the
median of rounds in turn: from the frames of a message to the index, each of the two parts alone,
and, as a baseline, only the decoding of vLLM's full structures. Not measured: the network.

Run: python -m benchmarks.index
"""

from __future__ import annotations

import random
import statistics
import time
import timeit
from collections.abc import Callable, Mapping

import msgspec

from blockmgr import Tier
from blockmgr.events import Reader, decode
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


def medians(calls: Mapping[str, Callable[[], object]], rounds: int = 9) -> dict[str, float]:
    """Seconds of each call; the calls take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in times.items()}


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


def removals() -> bytes:
    """As vLLM encodes them: an event for each block."""
    events = [
        {"type": "BlockRemoved", "block_hashes": [key], "medium": "GPU", "group_idx": 0}
        for key in keys(BATCH)
    ]
    return msgspec.msgpack.encode([0.0, events, 0])


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

    numbers = iter(range(1 << 62))
    reader = Reader("worker-0", index, None)

    def received() -> None:
        for payload in payloads:
            reader.receive([b"", next(numbers).to_bytes(8, "big"), payload])

    payloads = [batch() for _ in range(BATCHES)]
    received()  # the table has grown
    decoded = [decode_hashes(payload) for payload in payloads]
    single = [removals() for _ in range(BATCHES)]
    seconds = medians(
        {
            "received: decoded and applied": received,
            "decoded": lambda: [decode_hashes(payload) for payload in payloads],
            "applied": lambda: [index.apply("worker-0", each) for each in decoded],
            "one block an event: decoded and applied": lambda: [
                index.apply("worker-0", decode_hashes(payload)) for payload in single
            ],
            "decoded with tokens, not applied": lambda: [decode(payload) for payload in payloads],
        }
    )
    baseline = seconds["decoded with tokens, not applied"]
    for what, median in seconds.items():
        block = median / BATCHES / BATCH
        print(
            f"{what}: {block * 1e9:.0f} ns a block, {1 / block / 1e6:.2f} million a second, "
            f"{median / baseline:.2f} of the time with tokens"
        )
    print(f"memory: {index.memory_usage() / index.num_entries:.0f} bytes an entry")


if __name__ == "__main__":
    main()
