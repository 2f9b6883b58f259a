"""The chapter of a report about the blocks of each group of layers."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from blockmgr.lab.page.bands import Band
from blockmgr.lab.page.chapter import Chapter, Table
from blockmgr.lab.page.charts import draw_bands
from blockmgr.lab.page.words import duration

if TYPE_CHECKING:
    from blockmgr.lab.page.facts import Report
    from blockmgr.lab.page.paint import Colours
    from blockmgr.lab.page.parts import Placed

__all__ = ["draw_groups", "group_bands", "group_chapters", "groups_data"]

FRAMES_IN_TABLE: Final = 24
COLOURED: Final = 4
"""Number of groups with a separate colour."""
MIB: Final = 1 << 20


def group_chapters(report: Report) -> list[Chapter]:
    """The chapters for reports with groups of layers."""
    bands = group_bands(report)
    total = report.result.num_blocks
    counted = report.result.by_group
    assert counted is not None
    layers = ", ".join(f"{group.num_groups} x {group.group}" for group in counted.groups)
    means = ", ".join(f"{band.name} {band.blocks.mean() / total:.0%}" for band in bands)
    return [
        Chapter(
            name="groups",
            heading="What each group of layers holds",
            text=(
                f"The groups are {layers}; all take blocks of the same size from one pool. Strong "
                "colours are blocks in use. Pale ones are cached: in no use, and a prompt finds "
                "them."
            ),
            description=f"Shares of {total:,} blocks, as means over time: {means}.",
            height=360,
            tall=460,
            draw=draw_groups,
            tables=(_by_size(report), _over_time(report, bands)),
        )
    ]


def group_bands(report: Report) -> list[Band]:
    """The pool over time in bands: for each group used, then cached, with free blocks on top."""
    frames = report.group_frames
    names = list(dict.fromkeys(repr(group) for group in report.config.groups))
    bands = []
    for place, name in enumerate(names):
        role = f"group-{place % COLOURED}"
        used = np.array([frame.used[place] for frame in frames], dtype=np.int64)
        cached = np.array([frame.cached[place] for frame in frames], dtype=np.int64)
        bands += [
            Band(f"{name}, in use", role, used),
            Band(f"{name}, cached", f"{role}-soft", cached),
        ]
    free = np.array([frame.free for frame in frames], dtype=np.int64)
    return [*bands, Band("free", "free", free)]


def draw_groups(report: Report, canvas: Any, colour: Colours, *, narrow: bool) -> Placed:
    """The pool over time, divided by group of layers."""
    frames = report.group_frames
    times = [frame.time_ms for frame in frames]
    used = np.array([sum(frame.used) for frame in frames], dtype=np.int64)
    bands = group_bands(report)
    return draw_bands(canvas, colour, bands, (times, used), report.result.num_blocks, narrow=narrow)


def _by_size(report: Report) -> Table:
    """Means over the moments of each replay, and tokens refused by the group."""
    size = report.config.block_size
    sized = None if report.model is None else report.model.bytes_per_block(size)
    headings = ["capacity", "group", "in use", "cached", "unfilled"]
    headings += ["MiB"] if sized is not None else []
    headings += ["refused tokens", "of prompts"]
    rows = []
    for capacity in report.capacities:
        result = report.row("lru", capacity).result
        assert result.by_group is not None
        for group in result.by_group.groups:
            unfilled = group.unfilled_used_blocks + group.unfilled_cached_blocks
            held = (group.used_blocks, group.cached_blocks, unfilled)
            cells = [capacity.text, f"{group.num_groups} x {group.group}"]
            cells += [f"{blocks / result.num_blocks:.2%}" for blocks in held]
            if sized is not None:
                cells.append(f"{(held[0] + held[1]) * sized / MIB:,.0f}")
            cells += [
                f"{group.refused_tokens:,}",
                f"{group.refused_tokens / result.query_tokens:.2%}",
            ]
            rows.append(tuple(cells))
    return Table("Groups by pool size, shares of the pool", tuple(headings), tuple(rows))


def _over_time(report: Report, bands: list[Band]) -> Table:
    frames = report.group_frames
    chosen = np.unique(
        np.linspace(0, len(frames) - 1, min(FRAMES_IN_TABLE, len(frames))).astype(int)
    )
    rows = tuple(
        (
            duration(frames[number].time_ms - frames[0].time_ms),
            *(f"{int(band.blocks[number]):,}" for band in bands),
        )
        for number in chosen
    )
    return Table("Blocks over time", ("time", *(band.name for band in bands)), rows)


def groups_data(report: Report) -> dict[str, Any]:
    """The same as JSON."""
    model, size = report.model, report.config.block_size
    rows = []
    for capacity in report.capacities:
        counted = report.row("lru", capacity).result.by_group
        assert counted is not None
        groups = (
            [asdict(group) for group in counted.groups]
            if model is None
            else counted.sized(model.bytes_per_block(size))
        )
        rows.append({"capacity": capacity.text, "groups": groups})
    alone = report.full_attention
    return {
        "by_capacity": rows,
        "full_attention_hit_rate": None if alone is None else alone.hit_rate,
        "model": None if model is None else model.as_plain(size),
    }
