"""The chapter of a report about the blocks of each group of layers."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from blockmgr.lab.page.bands import pool_bands, pool_table
from blockmgr.lab.page.chapter import Chapter, Table
from blockmgr.lab.page.charts import draw_pool

if TYPE_CHECKING:
    from blockmgr.lab.page.facts import Report

__all__ = ["group_chapters", "groups_data"]

MIB: Final = 1 << 20


def group_chapters(report: Report) -> list[Chapter]:
    """The chapters for reports with groups of layers."""
    bands = pool_bands(report)
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
            draw=draw_pool,
            tables=(_by_size(report), pool_table(report)),
        )
    ]


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
        lines = result.by_group.cells(result.num_blocks, result.query_tokens)
        for group, cells in zip(result.by_group.groups, lines, strict=True):
            if sized is not None:
                held = group.used_blocks + group.cached_blocks
                cells.insert(4, f"{held * sized / MIB:,.0f}")
            rows.append((capacity.text, *cells))
    return Table("Groups by pool size, shares of the pool", tuple(headings), tuple(rows))


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
