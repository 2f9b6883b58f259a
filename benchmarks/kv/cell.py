"""One cell of the table: one model, one number of pairs; every way is timed and checked."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks.kv.clocks import MICROSECOND, DeviceClock, summary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.kv.clocks import Clock
    from benchmarks.kv.pools import Pool
    from benchmarks.kv.ways import Way

__all__ = ["Cell", "Limits", "check", "measure"]

WARMUP = 3
HOT_BYTES = 16 << 20
"""Bytes that stay in a second-level cache with their copies, from H100 on."""


@dataclass(frozen=True)
class Limits:
    """How long a cell may take.

    Attributes:
        rounds: Timed calls of every way.
        fewest: Timed calls of a way before its time limit may stop it.
        seconds: Limit for the whole cell, without the checks.
        calls: Most launches or entries for a list; a way that needs more is left out.
    """

    rounds: int
    fewest: int
    seconds: float
    calls: int


@dataclass
class Cell:
    """The measurements; times are in microseconds."""

    model: str
    pairs: int
    blocks: str
    num_bytes: int
    ways: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def median(self, way: str, quantity: str) -> float | None:
        """The median of one quantity, or None where it was not measured."""
        return self.ways.get(way, {}).get(quantity, {}).get("median")


def measure(
    pool: Pool, ways: Sequence[Way], clock: Clock, limits: Limits, *, pairs: int, whole: bool
) -> Cell:
    """Times every way that is fast enough, in turns, and checks the pool that each leaves.

    Raises:
        AssertionError: A way left another pool than the oracle, so its times are worthless.
    """
    typical = pool.draw(pairs, whole=whole)
    cell = Cell(
        pool.model.name, pairs, "whole" if whole else "partial", typical.num_bytes(pool.model)
    )
    chosen: list[Way] = []
    for way in ways:
        if way.calls(typical) > limits.calls:
            cell.left_out[way.name] = f"{way.calls(typical)} calls"
        elif pairs <= way.most_pairs:
            chosen.append(way)
    seconds = _time_in_turns(pool, chosen, clock, limits, pairs=pairs, whole=whole)
    for way in chosen:
        runs = seconds[way.name]
        cell.ways[way.name] = {
            "calls": way.calls(typical),
            "repetitions": len(runs),
            **{quantity: summary([run[quantity] for run in runs]) for quantity in runs[0]},
            "verified": check(pool, way, pairs=pairs, whole=whole),
        }
    if isinstance(clock, DeviceClock) and cell.num_bytes <= HOT_BYTES:
        ours = cell.ways[ways[0].name]
        hot = partial(ways[0].load, typical)
        enqueue = ours["enqueue"]["median"] / MICROSECOND
        runs = [clock.device_time(hot, enqueue) for _ in range(WARMUP + 20)]
        ours["gpu_hot"] = summary(runs[WARMUP:])
    return cell


def _time_in_turns(
    pool: Pool, ways: Sequence[Way], clock: Clock, limits: Limits, *, pairs: int, whole: bool
) -> dict[str, list[dict[str, float]]]:
    """Seconds of each timed call. Every call copies its own random blocks."""
    seconds: dict[str, list[dict[str, float]]] = {way.name: [] for way in ways}
    loads = {way.name: partial(_load_fresh, pool, way, pairs=pairs, whole=whole) for way in ways}
    for load in loads.values():
        for _ in range(WARMUP):
            load()()
    spent = dict.fromkeys(seconds, 0.0)
    share = limits.seconds / len(ways)
    gc.collect()
    gc.disable()
    try:
        for turn in range(limits.rounds):
            order = [ways[(turn + i) % len(ways)].name for i in range(len(ways))]
            for name in order:
                if spent[name] > share and len(seconds[name]) >= limits.fewest:
                    continue
                start = perf_counter()
                seconds[name].append(clock.time(loads[name]))
                spent[name] += perf_counter() - start
    finally:
        gc.enable()
    return seconds


def _load_fresh(pool: Pool, way: Way, *, pairs: int, whole: bool) -> Any:
    return way.load(pool.draw(pairs, whole=whole))


def check(pool: Pool, way: Way, *, pairs: int, whole: bool) -> bool | None:
    """Runs one more list and compares the whole pool, guards included, with the oracle's.

    Returns:
        True, or None for a way that copies something else.

    Raises:
        AssertionError: They differ.
    """
    if not way.checked:
        return None
    pool.refresh_mirror()
    copies = pool.draw(pairs, whole=whole)
    way.load(copies)()
    pool.copy_in_mirror(copies, whole=way.whole_blocks)
    if not pool.equals_mirror():
        raise AssertionError(
            f"{way.name} left other bytes than the oracle: {pool.model.name}, {pairs} pairs,"
            f" {'whole' if whole else 'partial'} blocks"
        )
    return True
