"""``python -m tests.groups``: engines on the manager and on a memory that notices a wrong read.

Each engine has a set of groups, an order of eviction and habits drawn from its seed, as in
``test_core``. The audit of the manager runs after each call. The first error ends the run.

With ``--lockstep``, the manager is compared with the specification after each call, until something
is evicted.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections import Counter

from blockmgr.config import EVICTION_POLICIES
from tests.groups import lockstep
from tests.groups.core import CoreManager
from tests.groups.engine import Engine
from tests.groups.test_core import WITH_FULL

STEPS = 40


def engine_of(seed: int) -> Engine:
    """The engine of a seed: a set of groups for each seed in turn, an order for each round."""
    eviction = EVICTION_POLICIES[seed // len(WITH_FULL) % len(EVICTION_POLICIES)]
    build = functools.partial(CoreManager, eviction=eviction)
    return Engine(seed, WITH_FULL[seed % len(WITH_FULL)], build)


def compare(calls: int, first: int) -> None:
    start, seed, made = time.thread_time(), first, 0
    while made < calls:
        kinds = lockstep.SETS[seed % len(lockstep.SETS)]
        try:
            made += lockstep.run(seed, kinds)
        except BaseException as error:
            error.add_note(
                f"repeat with: python -m tests.groups --lockstep --calls 1 --seed {seed}"
            )
            raise
        seed += 1
    print(
        f"{made:,} calls of {seed - first:,} engines, decided alike; "
        f"{time.thread_time() - start:.0f} s of processor time"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.groups", description=__doc__)
    parser.add_argument("--calls", type=int, default=100_000, help="calls to make, at least")
    parser.add_argument("--seed", type=int, default=0, help="of the first engine")
    parser.add_argument("--lockstep", action="store_true", help="compare with the specification")
    asked = parser.parse_args()
    if asked.lockstep:
        return compare(asked.calls, asked.seed)
    start, seed = time.thread_time(), asked.seed
    total: Counter[str] = Counter()
    while total["calls"] < asked.calls:
        engine = engine_of(seed)
        try:
            engine.run(STEPS)
        except BaseException as error:
            error.add_note(f"repeat with: python -m tests.groups --calls 1 --seed {seed}")
            raise
        total.update(
            engines=1,
            calls=engine.calls,
            refused=engine.refused,
            found=engine.found,
            reads=engine.memory.num_reads,
        )
        seed += 1
    print(
        f"{total['calls']:,} calls of {total['engines']:,} engines, {total['refused']:,} of them "
        f"refused; {total['found']:,} tokens found, {total['reads']:,} cells read, none wrong; "
        f"{time.thread_time() - start:.0f} s of processor time"
    )


if __name__ == "__main__":
    main()
