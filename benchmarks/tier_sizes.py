"""How much do a device and a host find together, by what is stored in the host, and when?

Replays traces one request at a time, without outputs, under LRU, with a device and a host of
several sizes in percent of the working set. Prints the token hit rate of both together for each
``store``, and in brackets the blocks that were written to the host over those of the working set;
then what one LRU pool of both finds, and the rate of an unbounded pool. A device smaller than the
largest request is left out: it rejects what a pool of both holds.

Run: python -m benchmarks.tier_sizes TRACE ... [--jobs 2]
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from blockmgr.lab.replay import ReplayConfig
from blockmgr.lab.replays import Replays
from blockmgr.lab.study import working_set_blocks
from blockmgr.lab.sweep import largest_request_blocks
from blockmgr.lab.tiered import ReplayTier
from blockmgr.lab.trace import Trace, read_trace
from blockmgr.lab.workers import workers_on
from blockmgr.tiers.store_names import STORES

if TYPE_CHECKING:
    from blockmgr.lab.replay_result import ReplayResult

SIZES = ((2, 2), (2, 8), (2, 20), (5, 5), (10, 40))
"""Device and host, in percent of the working set."""


def print_table(trace: Trace, jobs: int) -> None:
    """Replay a trace, and print its table."""
    config = ReplayConfig(
        block_size=trace.tokens_per_id, min_service_ms=0, service_ms_per_token=0, outputs="none"
    )
    full = working_set_blocks(trace, config)
    least = largest_request_blocks(trace, config)
    sizes = [pair for pair in SIZES if full * pair[0] // 100 >= least]
    tasks = {}
    for device, host in sizes:
        tier = ReplayTier(name="host", num_blocks=full * host // 100)
        for store in STORES:
            tiered = replace(config, tiers=(tier,), store=store)
            tasks[(device, host), store] = (Replays.replay, full * device // 100, tiered)
    with workers_on(trace, jobs) as workers:
        found = workers.run(list(tasks.values()), lambda: None)
        [best] = workers.run([(Replays.attainable, config)], lambda: None)
    print(f"{trace.name}: {full:,} blocks of {config.block_size}, unbounded {best.hit_rate:.1%}")
    print(
        f"| device, host | {' | '.join(STORES)} | one LRU pool |\n|---|{'---|' * len(STORES)}---|"
    )
    replays = dict(zip(tasks, found, strict=True))
    for pair in sizes:
        cells = [cell(replays[pair, store], full) for store in STORES]
        counted = replays[pair, STORES[0]].by_tier
        assert counted is not None
        pool = f"{100 * counted.share(counted.one_pool_hit_tokens):.1f}"
        print(f"| {pair[0]} %, {pair[1]} % | {' | '.join(cells)} | {pool} |")


def cell(result: ReplayResult, full: int) -> str:
    """The hit rate in percent, and the blocks written over those of the working set."""
    assert result.by_tier is not None
    stored = sum(counts.moved.stored for counts in result.by_tier.tiers)
    return f"{100 * result.hit_rate:.1f} ({stored / full:.2f})"


def main() -> None:
    """Replays everything and prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tier_sizes", description=__doc__)
    parser.add_argument("traces", type=Path, nargs="+")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    for path in arguments.traces:
        print_table(read_trace(path), arguments.jobs)


if __name__ == "__main__":
    main()
