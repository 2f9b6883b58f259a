"""The measurements as tables for a terminal. Times are medians in microseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.kv.cell import Cell
    from benchmarks.kv.targets import Verdict

__all__ = ["of_verdicts", "on_device", "on_host"]

MIB = 1 << 20


def on_host(cells: Sequence[Cell]) -> Table:
    """Our copies against plain ones; a ratio above 1 means that the plain copy takes longer."""
    table = _table(
        "model blocks",
        "pairs MiB blockmgr p99 plain int64 per-layer /plain /int64 calls",
    )
    for cell in cells:
        ours = cell.ways["blockmgr"]
        times = [cell.median(way, "wall") for way in ("plain", "plain int64", "per layer")]
        median = ours["wall"]["median"]
        ratios = [median / time if time else None for time in times[:2]]
        table.add_row(
            *_head(cell),
            _number(median),
            _number(ours["wall"]["p99"]),
            *map(_number, times),
            *(_number(ratio, 2) for ratio in ratios),
            str(ours["repetitions"]),
        )
    return table


def on_device(cells: Sequence[Cell]) -> Table:
    """All times of our ways, the wall time of the others, a contiguous copy's device time."""
    table = _table(
        "model blocks",
        "pairs MiB gpu hot uploaded GB/s share empty enqueue p99 wall layers pairwise batch calls",
    )
    for cell in cells:
        ours = cell.ways["blockmgr"]
        gpu, contiguous = cell.median("blockmgr", "gpu"), cell.median("contiguous", "gpu")
        share = f"{contiguous / gpu:.0%}" if gpu and contiguous else ""
        table.add_row(
            *_head(cell),
            _number(gpu),
            _number(cell.median("blockmgr", "gpu_hot")),
            _number(cell.median("uploaded", "gpu")),
            # Bytes read and written per nanosecond.
            _number(2 * cell.num_bytes / gpu / 1e3 if gpu else None, 0),
            share,
            _number(cell.median("empty launch", "gpu")),
            _number(cell.median("blockmgr", "enqueue")),
            _number(ours["enqueue"]["p99"]),
            _number(cell.median("blockmgr", "wall")),
            *(_number(cell.median(w, "wall")) for w in ("per layer", "per pair", "batch memcpy")),
            str(ours["repetitions"]),
        )
    return table


def of_verdicts(verdicts: Iterable[Verdict]) -> Table:
    """One line per target, including those that were not measured."""
    table = _table("target verdict figure", "")
    for verdict in verdicts:
        table.add_row(verdict.target, verdict.verdict, verdict.detail)
    return table


def _table(words: str, numbers: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in words.split():
        table.add_column(heading, no_wrap=heading != "figure")
    for heading in numbers.split():
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _head(cell: Cell) -> tuple[str, str, str, str]:
    return cell.model, cell.blocks, str(cell.pairs), f"{cell.num_bytes / MIB:,.1f}"


def _number(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:,.{digits}f}"
