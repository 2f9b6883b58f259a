"""Compares requests through SGLang's scheduler on its own tree and on ours.

    python -m tests.engines.sglang --seeds 5

Each setting runs in its own process, because SGLang keeps its configuration in globals. Exit code 1
if a request on ours reads wrong K/V or generates other tokens, if a check of SGLang fails, or if
ours finds less than 99 % of what SGLang's own tree finds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

OURS, OWN = "blockmgr", ""
LEAST = 0.99
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"page_size": 16},
    {"num_slots": 2048},
    {"page_size": 16, "num_slots": 2048, "policy": "fcfs"},
    {"page_size": 64, "num_slots": 4096, "policy": "dfs-weight"},
    {"num_slots": 900},
    {"page_size": 4, "num_slots": 1200, "policy": "dfs-weight"},
)


def child(text: str) -> int:
    """Serves all workloads of one setting; prints a line of JSON for each."""
    from tests.engines.sglang.engine import Engine, Setting

    wanted = json.loads(text)
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(Setting(**wanted["setting"]), Path(folder))
        for seed in wanted["seeds"]:
            served = engine.serve(seed, wanted["requests"])
            print("SERVED", json.dumps(asdict(served)), flush=True)
    return 0


def served(cache: str, setting: dict[str, Any], options: argparse.Namespace) -> list[Any]:
    """The results of each workload on one cache."""
    wanted = {
        "setting": {"cache": cache, **setting},
        "seeds": list(range(options.seed, options.seed + options.seeds)),
        "requests": options.requests,
    }
    command = [sys.executable, "-W", "ignore", "-m", "tests.engines.sglang", "--child"]
    done = subprocess.run(
        [*command, json.dumps(wanted)], check=False, capture_output=True, text=True
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("SERVED ")]
    if done.returncode or len(lines) != options.seeds:
        raise SystemExit(f"{wanted['setting']} ended early\n{done.stdout}\n{done.stderr[-4000:]}")
    return [json.loads(line.removeprefix("SERVED ")) for line in lines]


def faults(ours: Any, own: Any) -> list[str]:
    """The faults of ours, compared with the result of SGLang's own tree."""
    found = [*ours["faults"]]
    if wrong := ours["counts"]["slots read with wrong K/V"]:
        found.append(f"{wrong} slots read with wrong K/V")
    both = ours["said"].keys() & own["said"].keys()
    if different := sum(ours["said"][name] != own["said"][name] for name in both):
        found.append(f"{different} of {len(both)} requests say something else")
    return found


def main() -> int:
    """Serve and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="workloads of each setting")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first workload")
    parser.add_argument("--requests", type=int, default=120, help="requests of a workload")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options.child)
    status = 0
    for setting in SETTINGS:
        ours, own = (served(cache, setting, options) for cache in (OURS, OWN))
        totals: list[Counter[str]] = [Counter(), Counter()]
        for total, side in zip(totals, (ours, own), strict=True):
            for one in side:
                total.update(one["counts"])
        found = [fault for pair in zip(ours, own, strict=True) for fault in faults(*pair)]
        hits, stock = (total["tokens found in the cache"] for total in totals)
        if hits < LEAST * stock:
            found.append("fewer tokens found than by SGLang's own tree")
        status |= bool(found)
        print(
            f"{setting}: {totals[0]['requests served']} requests, {hits:,} tokens found "
            f"({stock:,} by SGLang's own), {totals[0]['slots read']:,} slots read; "
            f"{'; '.join(found) or 'nothing wrong'}",
            flush=True,
        )
    return status


if __name__ == "__main__":
    sys.exit(main())
