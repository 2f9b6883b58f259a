"""Two engines publish what they cache, and an index says where a prompt should go.

Each engine is a manager that "computes" a sequence immediately; in a real engine a forward runs
between admission and commit. Run: python examples/two_engines_and_an_index.py
"""

from __future__ import annotations

import time

from blockmgr import BlockManager
from blockmgr.events import Publisher
from blockmgr.index import WorkerIndex
from blockmgr.index.service import Feeds

BLOCK_SIZE = 16
ANY_PORT = "tcp://127.0.0.1:0"
SYSTEM_PROMPT = list(range(64))
FEW_SHOTS = list(range(1000, 1048))


class Engine:
    """A manager and the publisher of its events."""

    def __init__(self, rank: int) -> None:
        self.manager = BlockManager(1024, BLOCK_SIZE, events=True, digest="sha256_cbor")
        self.publisher = Publisher(self.manager, BLOCK_SIZE, ANY_PORT, ANY_PORT, rank=rank)

    def serve(self, prompt: list[int]) -> int:
        """Computes a prompt; returns how many of its tokens came from the cache."""
        with self.manager.sequence(self.manager.admit(prompt)) as sequence:
            cached = sequence.num_cached_tokens
            sequence.commit(len(prompt))
        self.publisher.publish()  # after each step
        return cached


def wait_for(index: WorkerIndex, worker: str, blocks: int) -> None:
    """Waits until the index knows this many blocks: events arrive over the network."""
    deadline = time.monotonic() + 30
    while index.num_blocks(worker) < blocks:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{worker} told of {index.num_blocks(worker)} blocks only")
        time.sleep(0.005)


def main() -> None:
    """Warms two engines differently, then routes three prompts."""
    engines = {f"engine-{rank}": Engine(rank) for rank in range(2)}
    index = WorkerIndex(max_workers=2, load_weight=0.5)
    feeds = Feeds(index)
    for name, engine in engines.items():
        feeds.add(name, engine.publisher.endpoint, engine.publisher.replay_endpoint)

    engines["engine-0"].serve([*SYSTEM_PROMPT, 1])
    engines["engine-1"].serve([*FEW_SHOTS, 1])
    wait_for(index, "engine-0", len(SYSTEM_PROMPT) // BLOCK_SIZE)
    wait_for(index, "engine-1", len(FEW_SHOTS) // BLOCK_SIZE)

    # Any process can compute the digests of a prompt: a manager of one block is enough.
    router = BlockManager(1, BLOCK_SIZE, digest="sha256_cbor")
    for what, prompt, load in (
        ("a question after the system prompt", [*SYSTEM_PROMPT, *range(500, 520)], 0.0),
        ("another few-shot question", [*FEW_SHOTS, *range(600, 620)], 0.0),
        ("the first again, with its engine overloaded", [*SYSTEM_PROMPT, *range(520, 540)], 2.0),
    ):
        index.set_load("engine-0", load)
        best, *_ = index.place(router.block_digests(prompt))
        cached = engines[best.worker].serve(prompt)
        print(f"{what}: {best.worker}, {best.num_blocks} blocks found, {cached} tokens cached")

    feeds.close()
    for engine in engines.values():
        engine.publisher.close()


if __name__ == "__main__":
    main()
