"""Runs many streams: ``python -m tests.differential --steps 1000000``."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from tests.differential.stream import Ours, Stream
from tests.differential.vllm_side import Vllm

POOLS = (17, 40, 120)
STREAM_STEPS = 2000


def main() -> int:
    """Runs streams until that many steps are compared; 1 if there is a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--steps", type=int, default=100_000, help="total number of steps to compare"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the first stream")
    options = parser.parse_args()
    total: Counter[str] = Counter()
    seed = options.seed
    while total["steps"] < options.steps:
        pool = POOLS[seed % len(POOLS)]
        stream = Stream(seed, Ours(pool), Vllm(pool), twins=seed % 2 == 1)
        agreed = stream.run(STREAM_STEPS)
        total.update(stream.steps)
        if not agreed:
            print(f"seed {seed}, {pool} blocks: the sides differ after {dict(stream.steps)}")
            return 1
        seed += 1
    print(f"{seed - options.seed} streams, no difference: {dict(total)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
