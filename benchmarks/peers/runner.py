"""Runs the rows on every system and collects the times."""

from __future__ import annotations

import gc
import math
from typing import TYPE_CHECKING, Any

from benchmarks.measure import Timing
from benchmarks.peers import growth
from benchmarks.peers.adapter import Operation, TooSlowError
from benchmarks.peers.replay import pool_for, replay
from benchmarks.peers.rows import Scattered, rows, scattered_rows
from benchmarks.peers.turns import time_in_turns
from blockmgr.lab.trace import read_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from benchmarks.peers.adapter import Peer
    from benchmarks.peers.rows import Row, Sizes
    from benchmarks.peers.turns import Case, Effort

__all__ = ["PARTS", "Run"]

PARTS = ("rows", "scattered", "growth", "replay")


class Run:
    """One comparison of these systems."""

    def __init__(
        self, peers: Sequence[Peer], sizes: Sizes, effort: Effort, say: Callable[[str], None]
    ) -> None:
        self._peers, self._sizes, self._effort, self._say = list(peers), sizes, effort, say

    def rows(self) -> list[dict[str, Any]]:
        """The rows with separate caches."""
        return [self._time(row, {}) for row in rows(self._sizes)]

    def scattered(self) -> list[dict[str, Any]]:
        """The rows in a large pool in random order."""
        reasons: dict[str, str] = {}
        pools = {}
        for peer in self._peers:
            if Operation.SCATTERED not in peer.cannot:
                try:
                    pools[peer] = Scattered(peer, self._sizes)
                except Exception as error:
                    reasons[peer.name] = worded(error)
        return [self._time(row, reasons) for row in scattered_rows(self._sizes, pools)]

    def growth(self, limit: float) -> list[dict[str, Any]]:
        """The rows that grow with the pool; building another system's pool may take ``limit`` s."""
        results = []
        built: dict[str, tuple[int, float]] = {}
        for num_blocks in self._sizes.growth_blocks:
            pools, reasons = {}, {}
            for peer in self._peers:
                if cannot(peer, growth.NEEDS):
                    continue
                try:
                    seconds = math.inf if peer is self._peers[0] else limit
                    pools[peer] = growth.build(
                        peer, num_blocks, self._sizes, seconds, built.get(peer.name)
                    )
                    built[peer.name] = (num_blocks, pools[peer].seconds)
                except Exception as error:
                    reasons[peer.name] = worded(error)
            results += [
                self._time(row, reasons, num_blocks) | {"blocks": num_blocks}
                for row in growth.growth_rows(self._sizes, pools)
            ]
            pools.clear()
            gc.collect()
        return results

    def replay(self, path: Path, num_requests: int) -> list[dict[str, Any]]:
        """A trace, whole with blocks as large as its own, and its first requests with 16."""
        requests = read_trace(path).requests
        own = requests[0].prompt.tokens_per_id
        name = path.name.partition(".")[0]
        return [
            self._replay(name, requests, own),
            self._replay(name, requests[:num_requests], 16),
        ]

    def _replay(self, name: str, requests: Sequence[Any], block_size: int) -> dict[str, Any]:
        num_blocks = pool_for(requests, block_size)
        able = [peer for peer in self._peers if Operation.REPLAY not in peer.cannot]
        outcomes = replay(able, requests, num_blocks, block_size)
        cells = []
        for peer in self._peers:
            outcome = outcomes.get(peer.name)
            if outcome is None:
                cells.append({"peer": peer.name, "reason": peer.cannot[Operation.REPLAY]})
            elif outcome.error is not None:
                cells.append({"peer": peer.name, "reason": worded(outcome.error)})
            else:
                nanoseconds = outcome.seconds * 1e9 / len(requests)
                timed = {"min_ns": nanoseconds, "median_ns": nanoseconds, "repetitions": 1}
                cells.append({"peer": peer.name, **timed, "hit_rate": outcome.hit_rate})
        row = {
            "key": f"replay/{name}/{block_size}",
            "row": f"{name}, {len(requests):,} requests, blocks of {block_size}",
            "operation": Operation.REPLAY,
            "unit": "request",
            "blocks": num_blocks,
            "cells": cells,
        }
        self._tell(row)
        return row

    def _time(
        self, row: Row, reasons: dict[str, str], num_blocks: int | None = None
    ) -> dict[str, Any]:
        reasons = reasons.copy()
        cases: dict[str, Case] = {}
        for peer in self._peers:
            reason = cannot(peer, row.needs)
            if reason is not None:
                reasons[peer.name] = reason
            elif peer.name not in reasons:
                try:
                    cases[peer.name] = row.case(peer)
                except Exception as error:
                    reasons[peer.name] = worded(error)
        timings = time_in_turns(cases, self._effort)
        result = {
            "key": row.key,
            "row": row.name,
            "operation": row.needs[0],
            "unit": row.unit,
            "count": row.count,
            "cells": [_cell(peer.name, row, timings, reasons) for peer in self._peers],
        }
        self._tell(result, num_blocks)
        return result

    def _tell(self, row: dict[str, Any], num_blocks: int | None = None) -> None:
        place = "" if num_blocks is None else f", {num_blocks:,} blocks"
        self._say(f"\n{row['row']}{place}, ns for a {row['unit']}")
        ours = next((cell["min_ns"] for cell in row["cells"] if "min_ns" in cell), None)
        for cell in row["cells"]:
            if "reason" in cell:
                self._say(f"  {cell['peer']:<32} {cell['reason']}")
            else:
                ratio = cell["min_ns"] / ours if ours else 0
                self._say(
                    f"  {cell['peer']:<32} {cell['min_ns']:>14,.1f} min "
                    f"{cell['median_ns']:>14,.1f} median {ratio:>9,.2f} x"
                    + (f"  hit rate {cell['hit_rate']:.1%}" if "hit_rate" in cell else "")
                )


def cannot(peer: Peer, needs: Iterable[Operation]) -> str | None:
    """The reason why a system is not timed at a row, if there is one."""
    return next((peer.cannot[need] for need in needs if need in peer.cannot), None)


def worded(error: Exception) -> str:
    """An error, formatted for a cell of a table."""
    if isinstance(error, TooSlowError):
        return f"left out: {error}"
    return f"failed: {type(error).__name__}: {error}"


def _cell(
    name: str, row: Row, timings: dict[str, Timing | Exception], reasons: dict[str, str]
) -> dict[str, Any]:
    if name in reasons:
        return {"peer": name, "reason": reasons[name]}
    timing = timings[name]
    if isinstance(timing, Exception):
        return {"peer": name, "reason": worded(timing)}
    return {
        "peer": name,
        "min_ns": timing.minimum * 1e9 / row.count,
        "median_ns": timing.median * 1e9 / row.count,
        "repetitions": timing.repetitions,
    }
