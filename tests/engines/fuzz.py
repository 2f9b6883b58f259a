"""``python -m tests.engines.fuzz MODEL``: vLLM's scheduler on blockmgr, K/V contents modelled.

Exit code 1 if a request has read what is not its own, or decided otherwise than with vLLM's own
manager where nothing of ours is on.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tests.engines.world import Tally, World, draw

ARMS: dict[str, Any] = {
    "plain": {"debug": 1},
    "partial": {"min_partial_tokens": 1, "debug": 1},
    "options": {"eviction": "s3fifo", "retention": True, "ghost_blocks": 8},
    "quotas": {"quotas": {"tenant": 6}},
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engines.fuzz", description=__doc__)
    parser.add_argument("model", help="folder of a tiny model, of which the config is read")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--arms", nargs="*", default=list(ARMS))
    args = parser.parse_args()
    bad = 0
    for arm in args.arms:
        for policy in ("fcfs", "priority"):
            for asynchronous in (False, True):
                bad += campaign(args, arm, policy, asynchronous)
    return int(bad > 0)


def campaign(args: argparse.Namespace, arm: str, policy: str, asynchronous: bool) -> int:
    """One arm over all seeds; the number of runs that went wrong."""
    total, wrong, differ = Tally(), [], []
    for seed in range(args.first, args.first + args.seeds):
        tally = World(draw(seed, args.model, policy, asynchronous, ARMS[arm])).run()
        for name in ("steps", "preempted", "cached", "copies", "aborted", "resets", "evicted"):
            setattr(total, name, getattr(total, name) + getattr(tally, name))
        if tally.wrong:
            wrong.append((seed, tally.wrong[0]))
        if arm == "plain":
            ours, stock = (
                World(draw(seed, args.model, policy, asynchronous, options, calm=True)).run()
                for options in (ARMS[arm], None)
            )
            if stock.schedule != ours.schedule or stock.cached != ours.cached:
                differ.append((seed, stock.cached, ours.cached, stock.steps, ours.steps))
    print(
        f"{arm}, {policy}, {'async' if asynchronous else 'sync'}: {args.seeds} seeds, "
        f"{total.steps} steps, {total.preempted} preempted, {total.cached} tokens cached, "
        f"{total.copies} copies, {total.aborted} aborted, {total.resets} resets, "
        f"{total.evicted} loads failed; {len(wrong)} with wrong reads {wrong[:3]}, "
        f"{len(differ)} scheduled otherwise {differ[:3]}",
        flush=True,
    )
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main())
