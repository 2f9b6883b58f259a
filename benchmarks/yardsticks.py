"""What do the hit-rate curve and the optimum cost on a whole trace?

Prints processor seconds, and nanoseconds for each block looked up, of one run each on a trace in
Mooncake's or blockmgr's format: the list of references from which both start, the curve (every
capacity at once), and the optimum at several capacities. With ``--check``, the naive simulations of
the tests also run at those capacities, and must find exactly the same hits; with 16 tokens per
block that takes minutes, and the trace must have hash ids.

Not measured: reading the file.

Run: python -m benchmarks.yardsticks TRACE [--block-size 16] [--check]
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from blockmgr import __version__
from blockmgr.lab.curve import Curve, hit_rate_curve
from blockmgr.lab.optimum import optima_of
from blockmgr.lab.references import References, references
from blockmgr.lab.replay import ReplayConfig
from blockmgr.lab.trace import Trace, read_trace
from tests.lab.brute_force import farthest_first_hits, lru_hits, uses

SHARES = (1, 2, 5, 10, 20, 50)  # per cent of the distinct blocks
T = TypeVar("T")


def timed(what: str, blocks: int, work: Callable[[], T]) -> T:
    start = time.process_time()
    result = work()
    seconds = time.process_time() - start
    print(f"{what:<32}{seconds:>9.2f} s{1e9 * seconds / blocks:>9.1f} ns/block", flush=True)
    return result


def check(trace: Trace, config: ReplayConfig, stream: References, curve: Curve) -> None:
    known = list(uses(trace, config.block_size, "manager"))
    for share in SHARES:
        blocks = max(curve.longest_request_blocks, stream.num_nodes * share // 100)
        pairs = (
            (curve.hit_blocks_at(blocks), lru_hits(known, blocks)),
            (optima_of(stream, [blocks], config)[0].hit_blocks, farthest_first_hits(known, blocks)),
        )
        print(f"{share:>3} % {blocks:>9} blocks: LRU {pairs[0][0]}, optimum {pairs[1][0]}", end="")
        if any(one != other for one, other in pairs):
            raise SystemExit(f"; the naive simulations find {pairs[0][1]} and {pairs[1][1]}")
        print(": equal", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trace")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    trace = read_trace(args.trace)
    config = ReplayConfig(
        block_size=args.block_size, min_service_ms=0, service_ms_per_token=0, outputs="none"
    )
    print(f"blockmgr {__version__}, Python {platform.python_version()}, NumPy {np.__version__}")
    blocks = sum((request.num_prompt_tokens - 1) // args.block_size for request in trace.requests)
    print(f"{trace.name}: {len(trace.requests)} requests, {blocks} blocks looked up")
    stream = timed("references", blocks, lambda: references(trace, config))
    curve = timed("references and curve", blocks, lambda: hit_rate_curve(trace, config))
    for share in SHARES:
        size = max(curve.longest_request_blocks, stream.num_nodes * share // 100)
        found = timed(
            f"optimum at {share} %",
            blocks,
            lambda: optima_of(stream, [size], config)[0],  # noqa: B023
        )
        print(
            f"    {100 * curve.hit_rate_at(size):.2f} % LRU, {100 * found.hit_rate:.2f} % optimum"
        )
    if args.check:
        check(trace, config, stream, curve)


if __name__ == "__main__":
    main()
