"""Does the adaptive policy lose to LRU where data is scarce: quotas, groups, short traces?

Prints the tables of docs/design/adaptive-eviction.md on small traces. Each replay goes through the
real ``BlockManager``, with one block for each id:

* *quotas*: four namespaces share the conversations, each with a quarter of the blocks;
* *windows*, *states*: groups of layers beside full attention, where a boundary is found only if
  each group still has the blocks it reads;
* *short*: generated workloads with few requests, and parts of recorded traces.

FOLDER must contain the traces under the names in ``benchmarks.generalises``.

Run: python -m benchmarks.generalises_apart FOLDER
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.generalises import (
    BLOCK_SIZE,
    SHARES,
    SMALL_SHARES,
    TRACES,
    Workload,
    cells,
    generated,
    recorded,
)
from blockmgr import BlockManager, FullAttention, RecurrentState, SlidingWindow
from blockmgr.lab.replay import ReplayConfig, replay
from blockmgr.lab.request import Request
from blockmgr.lab.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

TENANTS = 4
GROUPS: dict[str, tuple[Any, ...]] = {
    "windows": (FullAttention(), SlidingWindow(4)),
    "states": (FullAttention(), RecurrentState()),
}
SHORT: dict[str, tuple[str, dict[str, Any]]] = {
    "shared prompts, 500 requests": (
        "shared-prompt",
        {"requests": 500, "system_prompts": 100, "system_tokens": 768, "question_tokens": 300},
    ),
    "few shots, 500 requests": ("few-shot", {"requests": 500, "tasks": 40, "shots": 3}),
    "chats, 200 conversations": ("chat", {"conversations": 200, "turns": 3, "think_s": 60.0}),
    "chats, 40 conversations": ("chat", {"conversations": 40}),
    "chats, 80 conversations": ("chat", {"conversations": 80}),
    "agents, 40": ("agent", {"agents": 40, "steps": 8, "tool_s": 6.0}),
}


def prompts(workload: Workload) -> list[list[int]]:
    """A token for each id, and one at the end that is never found."""
    numbers: dict[int, int] = {}
    rows = sorted(workload.rows, key=lambda row: float(row["timestamp"]))
    return [[*(numbers.setdefault(i, len(numbers) + 1) for i in r["hash_ids"]), 0] for r in rows]


def with_quotas(asked: list[list[int]], eviction: str, blocks: int) -> float | None:
    """Hit rate in percent, one request at a time; None if a request exceeds its quota."""
    spaces = [b"%d" % k for k in range(TENANTS)]
    share = blocks // TENANTS
    if max(map(len, asked)) > share:
        return None
    manager = BlockManager(
        share * TENANTS, 1, max_seqs=1, eviction=eviction, quotas=dict.fromkeys(spaces[1:], share)
    )
    for prompt in asked:
        space = spaces[prompt[:2][-1] % TENANTS]
        handle = manager.admit(prompt, namespace=space)
        manager.commit(handle, len(prompt) - 1)
        manager.free(handle)
    stats = manager.stats()
    return 100 * stats.hit_tokens / stats.query_tokens


def with_groups(trace: Trace, eviction: str, blocks: int, groups: tuple[Any, ...]) -> float | None:
    """Hit rate in percent, one request at a time; None if a request does not fit."""
    config = ReplayConfig(
        block_size=1,
        max_seqs=1,
        min_service_ms=0,
        service_ms_per_token=0,
        outputs="none",
        eviction=eviction,
        groups=groups,
    )
    result = replay(trace, blocks, config)
    return None if result.rejected else 100 * result.hit_rate


def gains(
    workload: Workload, groups: tuple[Any, ...] | None
) -> Iterator[tuple[float, float, float]]:
    """For each pool: its share in percent, LRU's hit rate, and how much more adaptive finds."""
    asked = prompts(workload)
    blocks = len({token for prompt in asked for token in prompt})
    requests = [
        Request(arrival_ms=at, prompt=np.array(prompt, dtype=np.uint32), num_output_tokens=1)
        for at, prompt in enumerate(asked)
    ]
    for share in workload.shares:
        pool = int(blocks * share / 100) * (len(groups) if groups else 1)
        rates = [
            with_quotas(asked, policy, pool)
            if groups is None
            else with_groups(Trace(workload.name, requests), policy, pool, groups)
            for policy in ("lru", "adaptive")
        ]
        if rates[0] is not None and rates[1] is not None:
            yield share, rates[0], rates[1] - rates[0]


def table_of_gains(kind: str, workload: Workload, groups: tuple[Any, ...] | None) -> None:
    found = list(gains(workload, groups))
    shown = ", ".join(f"{gain:+.2f} ({share:g})" for share, _, gain in found)
    lowest = min((gain for _, _, gain in found), default=0.0)
    print(f"| {workload.name} | {kind} | {shown or 'no such pool'} | {lowest:+.2f} |", flush=True)


def short_ones(folder: Path) -> list[Workload]:
    """The workloads that were replayed once, after the policy was tuned."""
    _, retrieval, agents = (recorded(folder / name) for name in TRACES)
    sessions = sorted({row["hash_ids"][0] for row in agents})[1::2]
    found = [
        Workload(name, BLOCK_SIZE, generated(generator, 11, **parameters))
        for name, (generator, parameters) in SHORT.items()
    ]
    for k in range(4):
        rows = retrieval[k * len(retrieval) // 4 : (k + 1) * len(retrieval) // 4]
        found.append(Workload(f"retrieval trace, part {k + 1} of 4", 64, rows, SMALL_SHARES))
    for k in range(3):
        rows = [row for row in agents if row["hash_ids"][0] in sessions[k::3]]
        found.append(Workload(f"coding agents, other half, third {k + 1}", 64, rows))
    return found


def main() -> None:
    """Replays everything and prints the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    print("| workload | mode | gain, points (pool, %) | lowest |\n|---|---|---|---:|")
    for workload in short_ones(folder):
        for service in (False, True):
            found = list(cells(workload, service=service))
            shown = ", ".join(f"{gain:+.2f} ({share:g})" for share, _, gain in found)
            lowest = min((gain for *_, gain in found), default=0.0)
            mode = "service times" if service else "one at a time"
            print(f"| {workload.name} | {mode} | {shown} | {lowest:+.2f} |", flush=True)
    conversation = Workload("conversation trace", 512, recorded(folder / TRACES[0]), SHARES)
    table_of_gains("quotas", conversation, None)
    for kind, groups in GROUPS.items():
        table_of_gains(kind, conversation, groups)


if __name__ == "__main__":
    main()
