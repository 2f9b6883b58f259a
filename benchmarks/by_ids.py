"""What does a replay by ids cost per cell, compared with the manager's and with a peer's?

Prints processor seconds on a trace known by ids, without the time to read it: for a replay through
the manager and for the same replay by ids, which must count the same hits; for the optimum; for the
curve of LRU at every capacity; and for whole sweeps, where all cells share the preparation of the
trace. A cell is one policy, or the optimum, at one capacity. Requests run one at a time.

``--peer`` names a Python interpreter that has kvcache-simulator. It simulates the same trace at the
same capacities in the same run: FIFO, LRU and its optimal order, in C++ that is compiled
beforehand. Its times cover all its processes. It counts hits only in the second half of the trace,
and counts the last id of a prompt as a whole block, so hit rates are not compared.

Run: python -m benchmarks.by_ids TRACE [--block-size 512] [--peer PYTHON]
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from blockmgr import __version__
from blockmgr.config import EVICTION_POLICIES
from blockmgr.lab.by_ids import id_replays
from blockmgr.lab.curve import hit_rate_curve
from blockmgr.lab.optimum import optima_of
from blockmgr.lab.replay import ReplayConfig, replay
from blockmgr.lab.study import parse_capacities
from blockmgr.lab.sweep import largest_request_blocks, sweep
from blockmgr.lab.trace import Trace, read_trace

CAPACITIES = "1%,2%,5%,10%,20%,50%"
T = TypeVar("T")

PEER = """
import json, resource, sys
from kvcache_sim import cpp_backend, trace
path, size, capacities = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
cpp_backend.ensure_cpp_simulator()
read = trace.parse_trace_file(path, block_size=size)
half = read.request_count // 2
def seconds():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
found = {}
for policies in (["lru"], ["lru", "optimal"], ["fifo", "lru", "optimal"]):
    times = []
    for _ in range(5):
        start = seconds()
        done = cpp_backend.run_cpp_sweep(
            read, capacities=capacities, policies=policies, warmup_requests=half
        )
        times.append(seconds() - start)
    cells = sum(each.measurementMode == "fixed_window" for each in done.results.values())
    found[" + ".join(policies)] = (min(times), cells)
print(json.dumps(found))
"""


def timed(work: Callable[[], T], runs: int = 5) -> tuple[float, T]:
    """The least processor time of several runs, and the result of the last one."""
    times = []
    for _ in range(runs):
        start = time.process_time()
        result = work()
        times.append(time.process_time() - start)
    return min(times), result


def show(what: str, seconds: float, cells: int = 1) -> None:
    print(f"{what:<44}{seconds:>9.3f} s{1000 * seconds / cells:>10.1f} ms a cell", flush=True)


def cells_of(trace: Trace, config: ReplayConfig, sizes: list[int]) -> None:
    """Replays each policy in both ways."""
    seconds, replays = timed(lambda: id_replays(trace, config))
    assert replays is not None
    show("blocks named, once a trace", seconds)
    for policy in EVICTION_POLICIES:
        own = replace(config, eviction=policy)
        slow, expected = timed(lambda: [replay(trace, size, own) for size in sizes], 1)  # noqa: B023
        fast, found = timed(lambda: [replays.replay(size, own) for size in sizes])  # noqa: B023
        if found != expected:
            raise SystemExit(f"{policy} by ids has other counts than the manager")
        show(f"{policy}, through the manager", slow, len(sizes))
        show(f"{policy}, by ids", fast, len(sizes))
    show("optimum", timed(lambda: optima_of(replays.columns(), sizes, config))[0], len(sizes))
    seconds, _ = timed(lambda: hit_rate_curve(trace, config))
    show("curve of LRU, every capacity", seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trace")
    parser.add_argument("--block-size", type=int, default=512)
    parser.add_argument("--capacities", default=CAPACITIES)
    parser.add_argument("--peer", help="a Python interpreter with kvcache-simulator")
    args = parser.parse_args()
    trace = read_trace(args.trace)
    config = ReplayConfig(
        block_size=args.block_size, min_service_ms=0, service_ms_per_token=0, outputs="none"
    )
    print(f"blockmgr {__version__}, Python {platform.python_version()}")
    capacities = parse_capacities(args.capacities)
    working_set = sweep(trace, capacities[-1:], config).rows[0].attainable.working_set_blocks
    sizes = [capacity.blocks(working_set) for capacity in capacities]
    sizes = [size for size in sizes if size >= largest_request_blocks(trace, config)]
    print(f"{trace.name}: {len(trace.requests)} requests, pools of {sizes} blocks")
    cells_of(trace, config, sizes)

    def whole(policies: tuple[str, ...]) -> None:
        asked = parse_capacities(",".join(map(str, sizes)))
        seconds, _ = timed(lambda: sweep(trace, asked, config, policies=policies))
        names = "all policies" if len(policies) > 1 else policies[0]
        show(f"sweep: {names} + optimum", seconds, len(sizes) * (len(policies) + 1))

    whole(("lru",))
    whole(EVICTION_POLICIES)
    if args.peer:
        command = [args.peer, "-c", PEER, args.trace, str(args.block_size), json.dumps(sizes)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found: dict[str, Any] = json.loads(done.stdout)
        for name, (seconds, cells) in found.items():
            show(f"kvcache-simulator: {name}", seconds, cells)


if __name__ == "__main__":
    main()
