"""How much does it help to know whether a conversation continues?

Replays a trace one request at a time, twice at each capacity: without hints, and with the true hint
in every call of ``free`` (``blockmgr.lab.hints``). Prints both token hit rates, the offline optimum
at the same capacity, the share of the gap between them that the hints close, and the manager's own
time for each request. Hints tell whether a block is used again, not when; the optimum knows both.

Not measured: the effect of wrong hints, and concurrent requests (``blockmgr replay --hints truth``
does that).

Run: python -m benchmarks.hints TRACE [--block-size 512] [--capacities 1,2,5,10,20]
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from blockmgr.lab.attainable import unbounded
from blockmgr.lab.optimum import optimum_of
from blockmgr.lab.references import references
from blockmgr.lab.replay import ReplayConfig, ReplayResult, replay
from blockmgr.lab.trace import HashedPrompt, Trace, read_trace

ROW = "{:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>10} {:>10}"
MICROSECONDS = 1e6


def unique_blocks(trace: Trace, config: ReplayConfig) -> int:
    """Distinct blocks of a trace: its ids, including a partial last one, or its full blocks."""
    if trace.is_hashed and config.block_size == 512:
        prompts = [r.prompt for r in trace.requests if isinstance(r.prompt, HashedPrompt)]
        return len({block for prompt in prompts for block in prompt.ids.tolist()})
    return unbounded(trace, config).full_blocks


def microseconds(result: ReplayResult) -> str:
    return f"{result.host_s / result.requests * MICROSECONDS:.1f} us"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace")
    parser.add_argument("--block-size", type=int, default=512)
    parser.add_argument("--capacities", default="1,2,5,10,20", help="percent of unique blocks")
    parser.add_argument("--eviction", default="lru")
    args = parser.parse_args()
    trace = read_trace(args.trace)
    plain = ReplayConfig(
        block_size=args.block_size,
        min_service_ms=0,
        service_ms_per_token=0,
        eviction=args.eviction,
        outputs="none",  # only prompts, as in simulators that work on ids
    )
    stream = references(trace, plain)
    unique = unique_blocks(trace, plain)
    print(
        f"{trace.name}: {len(trace.requests)} requests, {unique} unique blocks of {args.block_size}"
    )
    print(
        ROW.format("capacity", "blocks", args.eviction, "hints", "optimum", "closed", "us", "with")
    )
    for percent in map(float, args.capacities.split(",")):
        blocks = int(unique * percent / 100)
        without = replay(trace, blocks, plain)
        hinted = replay(trace, blocks, replace(plain, hints="truth"))
        best = optimum_of(stream, blocks, plain)
        gap = best.hit_tokens - without.hit_tokens
        closed = f"{(hinted.hit_tokens - without.hit_tokens) / gap:.0%}" if gap else "-"
        rates = [f"{100 * r.hit_rate:.2f}" for r in (without, hinted, best)]
        times = [microseconds(without), microseconds(hinted)]
        print(ROW.format(f"{percent:g}%", blocks, *rates, closed, *times), flush=True)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
