"""The chapter of a report about tiers: where the tokens of prompts come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from blockmgr.lab.page.chapter import Chapter, Table
from blockmgr.lab.page.parts import dress, legend, percent_axis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes

    from blockmgr.lab.page.facts import Report
    from blockmgr.lab.page.paint import Colours
    from blockmgr.lab.page.parts import Placed
    from blockmgr.lab.sweep import SweepRow

__all__ = ["draw_tiers", "tier_chapters", "tiers_data"]

ROLES: Final = ("lru", "router-1", "router-2", "router-3", "router-6")
"""Colours of the device and of tiers, in order; more tiers than these begin again."""


def tier_chapters(report: Report) -> list[Chapter]:
    """The chapter for reports with tiers."""
    if not report.tiered:
        return []
    sizes = ", ".join(f"{tier.name} {tier.num_blocks:,} blocks" for tier in report.tiers)
    first, last = report.tiered[0], report.tiered[-1]
    return [
        Chapter(
            name="tiers",
            heading="What slower memory adds",
            text=(
                f"The same pools with tiers ({sizes}; LRU). Each token counts once, in the memory "
                "that it came from. One LRU pool of all blocks is what tiers would find that hold "
                "nothing twice."
            ),
            description=(
                "Token hit rate by pool size, stacked by memory. With tiers it is "
                f"{first.result.hit_rate:.1%} at {first.capacity.text} and "
                f"{last.result.hit_rate:.1%} at {last.capacity.text}."
            ),
            height=380,
            tall=400,
            draw=draw_tiers,
            tables=(_table(report),),
        )
    ]


def _parts(row: SweepRow) -> Iterator[tuple[str, float]]:
    """The device and each tier, with its share of all prompt tokens."""
    found = row.result.by_tier
    assert found is not None
    yield "device", found.share(found.device_tokens)
    for counts in found.tiers:
        yield counts.tier.name, found.share(counts.hit_tokens)


def draw_tiers(report: Report, canvas: Any, colour: Colours, *, narrow: bool) -> Placed:
    """Stacked bars of the hit rate at each pool size, by memory."""
    axes: Axes = canvas.add_subplot()
    placed: Placed = []
    for place, row in enumerate(report.tiered):
        bottom = 0.0
        for i, (name, share) in enumerate(_parts(row)):
            bar = axes.bar(place, 100 * share, 0.6, 100 * bottom)
            for patch in bar:
                patch.set_color(colour(ROLES[i % len(ROLES)]))
            if not place:
                bar.set_label(name)
            bottom += share
            placed.append((axes, place, 100 * bottom, f"{row.capacity.text}, {name}: {share:.2%}"))
    axes.set_xticks(range(len(report.tiered)), [row.capacity.text for row in report.tiered])
    axes.set_xlabel("blocks on the device")
    percent_axis(axes, colour)
    dress(axes, colour, grid="y")
    legend(axes, canvas, colour, narrow=narrow)
    return placed


def _table(report: Report) -> Table:
    names = [name for name, _ in _parts(report.tiered[0])]
    headings = ("capacity", "blocks", *names, "found", "one LRU pool", "without tiers")
    rows = []
    for row in report.tiered:
        found = row.result.by_tier
        assert found is not None
        shares = [share for _, share in _parts(row)]
        shares += [row.result.hit_rate, found.share(found.one_pool_hit_tokens)]
        shares.append(report.row("lru", row.capacity).result.hit_rate)
        cells = (f"{share:.2%}" for share in shares)
        rows.append((row.capacity.text, f"{row.result.num_blocks:,}", *cells))
    return Table("Hit rate by memory", headings, tuple(rows))


def tiers_data(report: Report) -> list[dict[str, Any]]:
    """The same as JSON."""
    return [{"capacity": row.capacity.text, **row.result.as_plain} for row in report.tiered]
