"""What hit rate does each eviction policy reach? Prints a table of policies by capacity.

Every cell is one replay through the real manager. Requests run one at a time (service time 0), so
that only a policy's choices differ. Capacities are shares of the working set (the blocks with which
nothing is evicted) or numbers of blocks. The last column is the hit rate of an unbounded pool.

Run: python -m benchmarks.policy_rates [--workload chat | --trace FILE] [--block-size 16]
         [--capacities 1%,2%,5%,10%,20%,50%]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from blockmgr.config import EVICTION_POLICIES
from blockmgr.lab.attainable import unbounded
from blockmgr.lab.replay import ReplayConfig, replay
from blockmgr.lab.study import parse_capacities
from blockmgr.lab.trace import Trace, read_trace
from blockmgr.lab.workloads import NAMES, generate


def main() -> None:
    """Replays every cell and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.policy_rates", description=__doc__)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--workload", choices=NAMES, default="chat")
    source.add_argument("--trace", type=Path)
    parser.add_argument("--seed", type=int, default=0, help="seed of the generated workload")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--capacities", default="1%,2%,5%,10%,20%,50%")
    arguments = parser.parse_args()

    trace: Trace = (
        read_trace(arguments.trace)
        if arguments.trace
        else generate(arguments.workload, arguments.seed)
    )
    config = {
        "block_size": arguments.block_size,
        "min_service_ms": 0,
        "service_ms_per_token": 0,
        "outputs": "none",  # only prompts, as in simulators that work on ids
    }
    attainable = unbounded(trace, ReplayConfig(**config))
    working_set = attainable.working_set_blocks
    capacities = {
        size.text: size.blocks(working_set) for size in parse_capacities(arguments.capacities)
    }
    headings = [
        f"{text} ({blocks:,})" if "%" in text else f"{blocks:,}"
        for text, blocks in capacities.items()
    ]
    seed = "" if arguments.trace else f", seed {arguments.seed}"
    print(
        f"{trace.name}{seed}, block size {arguments.block_size}, {len(trace.requests):,} requests,"
    )
    print("one request at a time, outputs of which the length alone is known left out,")
    print(f"working set {working_set:,} blocks; unbounded {100 * attainable.hit_rate:.2f} %\n")
    print(f"| token hit rate, % | {' | '.join(headings)} |")
    print(f"|---|{'---:|' * len(capacities)}", flush=True)
    for name in EVICTION_POLICIES:
        rates = [
            replay(trace, blocks, ReplayConfig(**config, eviction=name)).hit_rate
            for blocks in capacities.values()
        ]
        cells = " | ".join(f"{100 * rate:.2f}" for rate in rates)
        print(f"| `{name}` | {cells} |", flush=True)


if __name__ == "__main__":
    main()
