"""Many workloads: ``python -m tests.schedulers PACKAGE FOLDER --workloads 1000``.

The engine's scheduler serves each workload twice, on its own block manager and on ours. Exit code 1
if ours causes a wrong read, fails, makes no progress, drops a request that the engine's own serves,
or gives other tokens where the engine's own is right.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from blockmgr.ports.aphrodite import BlockSpaceManager
from tests.schedulers.engine import Engine, Served, Workload
from tests.schedulers.peer import Peer


def faults(ours: Served, own: Served, aborted: set[int]) -> list[str]:
    """The faults of ours, compared with the result of the engine's own manager."""
    found = []
    if ours.wrong_reads:
        found.append(f"{ours.wrong_reads} slots read with wrong K/V")
    if ours.error and not own.error:
        found.append(ours.error)
    if lost := ours.dropped - own.dropped:
        found.append(f"requests {sorted(lost)} dropped")
    if not (own.wrong_reads or own.error or ours.error):
        outputs = [
            {name: sorted(said) for name, said in side.outputs.items() if name not in aborted}
            for side in (own, ours)
        ]
        if outputs[0] != outputs[1]:
            found.append("other outputs")
    return found


def main() -> int:
    """Serves the workloads and compares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", choices=["vllm", "aphrodite"])
    parser.add_argument("folder", type=Path, help="folder of the unpacked package")
    parser.add_argument("--workloads", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first workload")
    options = parser.parse_args()
    peer = Peer(options.package, options.folder)
    own_manager = peer.own_manager()
    ours_total: Counter[str] = Counter()
    own_total: Counter[str] = Counter()
    status = 0
    for seed in range(options.seed, options.seed + options.workloads):
        own = Engine(peer, own_manager, Workload(seed)).run()
        ours = Engine(peer, BlockSpaceManager, Workload(seed)).run()
        for total, served in ((ours_total, ours), (own_total, own)):
            total.update(served.counts)
            total["sequences served"] += sum(map(len, served.outputs.values()))
            total["requests dropped"] += len(served.dropped)
            total["workloads with wrong K/V"] += bool(served.wrong_reads)
            total["workloads with wrong tokens"] += bool(served.wrong_tokens)
            total["workloads that failed"] += bool(served.error)
            if served.error:
                total[f"  {served.error.split(':')[0]}"] += 1
        aborted = {r.name for r in Workload(seed).requests if r.aborted_at is not None}
        if found := faults(ours, own, aborted):
            status = 1
            print(f"workload {seed}: {'; '.join(found)}")
    print(f"{options.workloads} workloads of {options.package} from seed {options.seed}")
    print(f"{'':40} {'its own':>10} {'ours':>10}")
    for name in sorted({*ours_total, *own_total}):
        print(f"{name:40} {own_total[name]:>10} {ours_total[name]:>10}")
    return status


if __name__ == "__main__":
    sys.exit(main())
