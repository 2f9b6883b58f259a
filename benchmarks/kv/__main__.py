"""How fast are planned copies applied to K/V tensors, and how fast could they be?

    python -m benchmarks.kv                  # on the GPU if there is one, in under ten minutes
    python -m benchmarks.kv --device cpu     # the torch backend against plain indexing

All ways to copy run in this one process, in turns. Each call copies other random blocks of a pool
that is larger than any cache. Each cell is compared with the oracle afterwards, byte by byte.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console

from benchmarks.kv import tables
from benchmarks.kv.batch_memcpy import Unavailable
from benchmarks.kv.cell import Cell, Limits, check, measure
from benchmarks.kv.clocks import Clock, DeviceClock, HostClock
from benchmarks.kv.pools import MODELS, Model, Pool
from benchmarks.kv.proofs import prove
from benchmarks.kv.targets import judge
from benchmarks.kv.ways import (
    BatchCopy,
    Blockmgr,
    Contiguous,
    EmptyLaunch,
    PerLayer,
    PerPair,
    Plain,
    Uploaded,
    Way,
    WidePlain,
)
from benchmarks.measure import RESULTS, machine, write_result

if TYPE_CHECKING:
    from collections.abc import Iterator

GIB = 1 << 30
SEED = 20
DEVICE_PAIRS = (1, 2, 4, 8, 32, 128, 512, 2048)
HOST_PAIRS = (1, 8, 32)
MEMORY_SHARE = 0.8
"""The share of a device's free memory that a pool and its mirror may take."""

COMPARED = {
    "cuda": (Contiguous, EmptyLaunch, Uploaded, PerLayer, PerPair, BatchCopy),
    "cpu": (Plain, WidePlain, PerLayer),
}
MOST_CALLS = {"cuda": 20_480, "cpu": 1 << 30}
"""With more, one call of a way that copies pair by pair takes a tenth of a second."""


def run(arguments: argparse.Namespace, device: torch.device) -> tuple[list[Cell], dict[str, Any]]:
    """Measures every cell of the plan; returns the cells and the findings beside them."""
    clock: Clock = DeviceClock() if device.type == "cuda" else HostClock()
    models = [m for m in MODELS if not arguments.models or arguments.models in m.name]
    plan = [(m, p, whole) for m in models for p in arguments.pairs for whole in (True, False)]
    notes: dict[str, Any] = {"left_out": {}, "proof": None}
    cells: list[Cell] = []
    deadline = monotonic() + 60 * arguments.minutes
    for model in models:
        pool = Pool(model, _num_blocks(model, arguments, device), device, SEED)
        ways = _ways(pool, notes["left_out"])
        for way in ways:  # on fresh memory: no earlier call has left the right bytes
            check(pool, way, pairs=1, whole=False)
        for pairs, whole in _cells(model, pool, arguments.pairs, notes["left_out"]):
            if monotonic() > deadline:
                notes["left_out"][f"{model.name}, {pairs} pairs"] = "no time left; see --minutes"
                continue
            # Checks and random choices take about as long as the timed part.
            seconds = (deadline - monotonic()) / (len(plan) - len(cells)) / 2
            limits = Limits(arguments.rounds, 5, max(seconds, 0.05), MOST_CALLS[device.type])
            cells.append(measure(pool, ways, clock, limits, pairs=pairs, whole=whole))
        if device.type == "cuda" and notes["proof"] is None:
            notes["proof"] = prove(pool, ways[0])
        del pool, ways  # before the next one is made: two pools need not fit
    return cells, notes


def _num_blocks(model: Model, arguments: argparse.Namespace, device: torch.device) -> int:
    """The requested number of blocks, at least enough for the longest list, at most what fits."""
    wanted = int(arguments.pool_gib * GIB) // model.bytes_per_block
    wanted = max(wanted, 2 * max(arguments.pairs))
    if device.type == "cuda":
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
        wanted = min(wanted, int(MEMORY_SHARE * free) // (2 * model.bytes_per_block))
    return wanted


def _cells(
    model: Model, pool: Pool, all_pairs: list[int], left_out: dict[str, str]
) -> Iterator[tuple[int, bool]]:
    for pairs in all_pairs:
        if 2 * pairs > pool.num_blocks:
            left_out[f"{model.name}, {pairs} pairs"] = f"{pool.num_blocks} blocks fit the memory"
        else:
            yield from ((pairs, whole) for whole in (True, False))


def _ways(pool: Pool, left_out: dict[str, str]) -> list[Way]:
    """Our ways first, then every other way that can run here."""
    ways: list[Way] = [Blockmgr(pool)]
    for build in COMPARED[pool.device.type]:
        try:
            ways.append(build(pool))
        except (ImportError, Unavailable) as error:
            left_out[build.name] = str(error)
    return ways


def _about(device: torch.device) -> dict[str, Any]:
    about = machine()
    about["versions"]["torch"] = torch.__version__
    about["threads"] = torch.get_num_threads()
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        about["processor_of_host"] = about["processor"]
        about["processor"] = properties.name
        about["processors"] = 1
        about["device"] = {
            "memory_gib": round(properties.total_memory / GIB, 1),
            "multiprocessors": properties.multi_processor_count,
            "cuda": torch.version.cuda,
            "hip": torch.version.hip,
        }
    return about


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kv",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if there is one")
    parser.add_argument("--minutes", type=float, default=8, help="time for all cells")
    parser.add_argument("--rounds", type=int, default=50, help="timed calls of a way in a cell")
    parser.add_argument("--models", default="", help="only models with this in their name")
    parser.add_argument("--pairs", type=int, action="append", help="length of a list; repeatable")
    parser.add_argument(
        "--threads", type=int, help="torch threads on a processor [torch's default]"
    )
    parser.add_argument("--pool-gib", type=float, help="size of a pool (8; on a processor 0.5)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON result")
    arguments = parser.parse_args()
    arguments.device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no CUDA or ROCm device")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    on_device = arguments.device == "cuda"
    arguments.pairs = sorted(set(arguments.pairs or (DEVICE_PAIRS if on_device else HOST_PAIRS)))
    arguments.pool_gib = arguments.pool_gib or (8 if on_device else 0.5)
    return arguments


def main() -> None:
    """Measures, prints the tables and the verdicts, and writes the result."""
    arguments = _parse()
    device = torch.device(arguments.device)
    about = _about(device)
    start = monotonic()
    # The driver refuses batched copies on the default stream, so everything runs on another one.
    stream = torch.cuda.stream(torch.cuda.Stream()) if device.type == "cuda" else nullcontext()
    with torch.inference_mode(), stream:
        cells, notes = run(arguments, device)
    verdicts = list(judge(cells, notes["proof"], device.type))

    console = Console()
    if not console.is_terminal:
        console.width = 165
    console.print(tables.on_device(cells) if device.type == "cuda" else tables.on_host(cells))
    for name, reason in notes["left_out"].items():
        console.print(f"left out: {name}: {reason}", markup=False, highlight=False)
    console.print(tables.of_verdicts(verdicts))
    console.print(
        f"{about['processor']}, {about['threads']} threads, torch {torch.__version__},"
        f" {monotonic() - start:.0f} s",
        highlight=False,
    )
    rest = {
        "device": device.type,
        "seed": SEED,
        "unit": "us",
        "targets": [asdict(verdict) for verdict in verdicts],
        **notes,
        "cells": [asdict(cell) for cell in cells],
    }
    path = write_result(arguments.results, "kv", "benchmarks.kv", about, rest)
    console.print(f"written to {path}")


if __name__ == "__main__":
    main()
