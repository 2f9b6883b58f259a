"""Does the adaptive policy keep its gains on workloads other than those it was tuned on?

Prints the tables of docs/design/adaptive-eviction.md: the workloads it was tuned on, those it is
judged by, and quarters of the conversation trace, as quotas of four tenants would see them; so
little data to learn from is hard for it. Every cell is a replay by ids: prompts in blocks, and
outputs that no later prompt finds. The optimum is that of one request at a time, which is an upper
bound for replays with service times too.

FOLDER must contain the three traces under the names in ``TRACES``.

Run: python -m benchmarks.generalises FOLDER
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blockmgr.lab.by_ids import IdReplays, id_replays
from blockmgr.lab.optimum import optima_of
from blockmgr.lab.replay import ReplayConfig
from blockmgr.lab.trace import read_trace
from blockmgr.lab.workloads import generate

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACES = ("conversation_trace.jsonl", "ragpulse_64.jsonl.gz", "agent_sessions_64.jsonl.gz")
SHARES = (1, 2, 5, 10, 20, 50)  # percent of the blocks of an unbounded pool
SMALL_SHARES = (0.05, 0.1, 0.2, 0.5, 1, 2)  # where a pool of 1 % finds everything
MOST_SHARE = 10  # above it, LRU finds nearly everything
SMALLEST_GAP = 0.05  # points
BLOCK_SIZE = 16  # of generated workloads

CHOSEN_ON: dict[str, tuple[str, dict[str, Any]]] = {
    "shared-prompt-4000": ("shared-prompt", {"requests": 4000}),
    "few-shot-4000": ("few-shot", {"requests": 4000}),
    "chat-1500": ("chat", {"conversations": 1500}),
    "chat-slow": ("chat", {"conversations": 1000, "conversations_per_s": 2.0, "think_s": 120.0}),
    "agent-300": ("agent", {"agents": 300}),
}
JUDGED_BY: dict[str, tuple[str, dict[str, Any]]] = {
    "shared prompts, 200 short ones": (
        "shared-prompt",
        {"requests": 3000, "system_prompts": 200, "system_tokens": 768, "question_tokens": 300},
    ),
    "few shots, 40 tasks": ("few-shot", {"requests": 3000, "tasks": 40, "shots": 3}),
    "chats, 3 turns, 60 s apart": (
        "chat",
        {"conversations": 1200, "turns": 3, "think_s": 60.0, "question_tokens": 400},
    ),
    "agents, 8 steps, 6 s apart": ("agent", {"agents": 250, "steps": 8, "tool_s": 6.0}),
    "tree-of-thought": ("tree-of-thought", {}),
}
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Workload:
    """Requests whose prompts are known by ids, each for one block."""

    name: str
    block_size: int
    rows: Rows
    shares: tuple[float, ...] = SHARES


def recorded(path: Path) -> Rows:
    content = path.read_bytes()
    lines = (gzip.decompress(content) if path.suffix == ".gz" else content).splitlines()
    return [json.loads(line) for line in lines]


def generated(name: str, seed: int, **parameters: Any) -> Rows:
    """A generated workload with an id for each block of its prompts."""
    ids: dict[tuple[int, bytes], int] = {}
    rows = []
    for request in generate(name, seed, **parameters).requests:
        tokens = np.asarray(request.prompt)
        prompt = [0]
        for start in range(0, len(tokens), BLOCK_SIZE):
            key = prompt[-1], tokens[start : start + BLOCK_SIZE].tobytes()
            prompt.append(ids.setdefault(key, len(ids) + 1))
        rows.append(
            {
                "timestamp": request.arrival_ms,
                "input_length": len(tokens),
                "output_length": request.num_output_tokens,
                "hash_ids": prompt[1:],
            }
        )
    return rows


def workloads(folder: Path) -> tuple[list[Workload], ...]:
    """The workloads the policy was tuned on, those it is judged by, and short ones."""
    conversation, retrieval, agents = (recorded(folder / name) for name in TRACES)
    sessions = sorted({row["hash_ids"][0] for row in agents})
    halves = [[r for r in agents if r["hash_ids"][0] in sessions[k::2]] for k in (0, 1)]
    chosen = [
        Workload("conversation trace", 512, conversation),
        Workload("coding agents, one half", 64, halves[0]),
    ]
    judged = [
        Workload("coding agents, other half", 64, halves[1]),
        Workload("retrieval trace", 64, retrieval, SMALL_SHARES),
    ]
    for table, of, seed in ((chosen, CHOSEN_ON, 1), (judged, JUDGED_BY, 7)):
        for name, (generator, parameters) in of.items():
            table.append(Workload(name, BLOCK_SIZE, generated(generator, seed, **parameters)))
    # All prompts have the same first block; the second identifies the conversation.
    quarters = [
        Workload(
            f"quarter {k + 1} of the conversation trace",
            512,
            [row for row in conversation if row["hash_ids"][:2][-1] % 4 == k],
        )
        for k in range(4)
    ]
    return chosen, judged, quarters


def replays(workload: Workload, config: ReplayConfig) -> tuple[IdReplays, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        rows = sorted(workload.rows, key=lambda row: float(row["timestamp"]))
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        found = id_replays(read_trace(path, tokens_per_id=workload.block_size), config)
    if found is None:
        raise SystemExit(f"{workload.name} cannot be replayed by ids")
    return found, found.columns()


def cells(workload: Workload, *, service: bool) -> Iterator[tuple[float, float | None, float]]:
    """For each pool: its share, percent of the gap closed (None: no gap), and points gained."""
    config = ReplayConfig(block_size=workload.block_size)
    if not service:
        config = replace(config, min_service_ms=0, service_ms_per_token=0, outputs="none")
    by_ids, columns = replays(workload, config)
    _, full, _ = by_ids.unbounded()
    for share in workload.shares:
        blocks = int(full * share / 100)
        lru, adaptive = (
            by_ids.replay(blocks, replace(config, eviction=policy))
            for policy in ("lru", "adaptive")
        )
        if lru.rejected:
            continue
        gap = 100 * (optima_of(columns, [blocks], config)[0].hit_rate - lru.hit_rate)
        gain = 100 * (adaptive.hit_rate - lru.hit_rate)
        yield share, 100 * gain / gap if gap >= SMALLEST_GAP else None, gain


def table(of: list[Workload]) -> None:
    """Prints a table as Markdown, and the median percentage closed up to ``MOST_SHARE``."""
    print("| workload | mode | closed, % | lowest, points |\n|---|---|---|---:|")
    every: list[float] = []
    for workload in of:
        for service in (False, True):
            found = list(cells(workload, service=service))
            small = [(share, closed) for share, closed, _ in found if share <= MOST_SHARE]
            every += [closed for _, closed in small if closed is not None]
            shown = ", ".join("no gap" if c is None else f"{c:.0f} ({s:g})" for s, c in small)
            lowest = min((gain, share) for share, _, gain in found)
            print(
                f"| {workload.name} | {'service times' if service else 'one at a time'} "
                f"| {shown or 'no such pool'} | {lowest[0]:+.2f} ({lowest[1]:g}) |",
                flush=True,
            )
    print(f"\nmedian of {len(every)}: {statistics.median(every):.0f} %\n", flush=True)


def main() -> None:
    """Replays all workloads and prints the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    for of in workloads(parser.parse_args().folder):
        table(of)


if __name__ == "__main__":
    main()
