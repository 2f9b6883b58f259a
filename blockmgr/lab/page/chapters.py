"""The chapters of a report: charts with text and tables."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from blockmgr.explain import MissReason
from blockmgr.lab.plot import draw_bars, draw_curve, draw_fleets, draw_lines, draw_stacks, drawn
from blockmgr.lab.plot import legend_below as legend
from blockmgr.lab.replay_config import HINT_MODELS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from blockmgr.lab.page.facts import Report
    from blockmgr.lab.study import Capacity
    from blockmgr.lab.sweep import SweepRow

__all__ = ["Part", "Table", "chapters"]

CURVE_POINTS: Final = 240
# The smallest share of tokens that counts as a possible gain.
LEAST_GAP: Final = 0.0001
# The table shows how many more blocks would keep these shares of the evicted tokens.
SAVED_SHARES: Final = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
NOTHING: Final = "\N{EN DASH}"
MIB: Final = 1 << 20
WIDE: Final = (9.0, 4.4)  # inches

FLEET_HEADINGS: Final = (
    *("replicas", "router", "blocks each", "GiB each", "hit rate", "no more than", "imbalance"),
    *("prefill load", "first token, mean ms", "first token, p99 ms", "waited"),
)


@dataclass(frozen=True, slots=True)
class Table:
    """The numbers of a chart.

    Attributes:
        caption: Caption of the table.
        headings: One per column.
        rows: Rows as text; the first cell of each is its heading.
    """

    caption: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Part:
    """A chart with its text and its tables.

    Attributes:
        name: Its id on the page.
        heading: Title.
        text: Explanation.
        description: Description for those who do not see the chart.
        picture: The chart as an SVG document.
        tables: The numbers of the chart.
    """

    name: str
    heading: str
    text: str
    description: str
    picture: str
    tables: tuple[Table, ...]

    @property
    def image(self) -> str:
        """The picture as base64."""
        return b64encode(self.picture.encode()).decode()


def chapters(report: Report) -> Iterator[Part]:
    """All chapters, in order; policies only if there are several and a possible gain."""
    yield _curve(report)
    if len(report.policies) > 1 and _sizes_to_gain(report):
        yield _policies(report)
    if report.hinted:
        yield _sessions(report)
    if report.tiered:
        yield _tiers(report)
    yield _outcomes(report)
    if report.config.groups:
        yield _groups(report)
    if report.fleet:
        yield _fleet(report)


def _drawn(draw: Callable[[Any], None], size: tuple[float, float] = WIDE) -> str:
    return drawn(size, draw).decode()


def _curve(report: Report) -> Part:
    curve, found = report.curve, [report.row("lru", size) for size in report.capacities]
    blocks = [row.result.num_blocks for row in found]
    columns = [
        ("capacity", [size.text for size in report.capacities]),
        ("blocks", [f"{number:,}" for number in blocks]),
        ("LRU", [_percent(row.result.hit_rate) for row in found]),
    ]
    line: tuple[Any, Any] | None = None
    optimum = [row.optimum.hit_rate for row in found if row.optimum is not None]
    if curve is not None:
        columns.append(("LRU, from the curve", [_percent(curve.hit_rate_at(n)) for n in blocks]))
        columns.append(("optimum", [_percent(report.bound(size)) for size in report.capacities]))
        most = max(blocks[-1], report.attainable.working_set_blocks)
        along = np.geomspace(curve.longest_request_blocks, most, CURVE_POINTS).astype(int)
        every = np.unique(along)
        line = every, np.array([curve.hit_rate_at(n) for n in every.tolist()])
    columns.append(("unbounded", [_percent(report.attainable.hit_rate)] * len(blocks)))
    if report.full_attention is not None:
        alone = [_percent(report.full_attention.hit_rate)] * len(blocks)
        columns.append(("full attention", alone))
    pool = "unbounded pool" if report.full_attention is None else "full attention, unbounded"

    def draw(canvas: Any) -> None:
        axes = canvas.add_subplot()
        draw_curve(
            axes,
            blocks,
            [row.result.hit_rate for row in found],
            ticks=[f"{number:,}" for number in blocks],
            ceiling=(pool, report.bound_of_all),
            optimum=optimum,
            line=line,
        )
        axes.set_xlabel(f"blocks of {report.config.block_size} tokens in the pool")

    headings = tuple(heading for heading, _ in columns)
    rows = tuple(zip(*(cells for _, cells in columns), strict=True))
    return Part(
        name="curve",
        heading="Hit rate over pool size",
        text=_curve_text(report),
        description=f"LRU rises from {rows[0][2]} at {rows[0][1]} blocks to {rows[-1][2]} at "
        f"{rows[-1][1]}.",
        picture=_drawn(draw),
        tables=(Table("Hit rate by pool size", headings, rows),),
    )


def _curve_text(report: Report) -> str:
    curve = report.curve
    if curve is None:
        text = (
            "Dots are replays under LRU. With groups of layers a hit ends where any group lacks a "
            "block, so no curve and no optimum follow from one order of blocks. "
        )
        if report.full_attention is None:
            return text + "The dashed line is what a pool without bounds would find."
        return text + (
            "The dashed line is what a pool without bounds would find for full attention alone: no "
            "choice of states to keep finds more."
        )
    text = (
        "The line is LRU at every pool size, from one pass over the trace; dots are replays. "
        "Diamonds are the best that any order of eviction could do at that size, the dashed line "
        "what a pool without bounds would find."
    )
    if curve.exact_from > curve.longest_request_blocks:
        text += (
            f" Below {curve.exact_from:,} blocks requests wait for each other, and the line "
            "is an estimate."
        )
    return text


def _policies(report: Report) -> Part:
    rates = {
        policy: [report.row(policy, size).result.hit_rate for size in report.capacities]
        for policy in report.policies
    }
    sizes = _sizes_to_gain(report)

    def draw(canvas: Any) -> None:
        axes = canvas.add_subplot()
        gains = {
            name: [
                100 * (report.row(name, size).result.hit_rate - _lru(report, size))
                for size in sizes
            ]
            for name in report.policies
            if name != "lru"
        }
        room = [100 * (report.bound(size) - _lru(report, size)) for size in sizes]
        draw_bars(axes, [size.text for size in sizes], gains, ("at most", room))
        axes.set_ylabel("points of hit rate beside LRU")
        legend(canvas, axes)

    rows = [(name, *map(_percent, found)) for name, found in rates.items()]
    bound = "no more than" if report.config.groups else "optimum"
    rows.append((bound, *(_percent(report.bound(size)) for size in report.capacities)))
    headings = ("policy", *(size.text for size in report.capacities))
    return Part(
        name="policies",
        heading="Policies side by side",
        text="Points of hit rate that each order of eviction gains or loses beside LRU, at each "
        "pool size, and the most that any order could gain; a pool size at which LRU has nothing "
        "left to gain is left out.",
        description="Below zero a policy does worse than LRU.",
        picture=_drawn(draw),
        tables=(Table("Hit rate by policy and pool size", headings, rows),),
    )


def _lru(report: Report, capacity: Capacity) -> float:
    """The baseline hit rate: that of LRU without hints."""
    return _baseline(report.row("lru", capacity))


def _baseline(row: SweepRow) -> float:
    return (row.baseline or row.result).hit_rate


def _sizes_to_gain(report: Report) -> list[Capacity]:
    """The pool sizes at which another order could find more than LRU without hints."""
    sizes = report.capacities
    return [size for size in sizes if report.bound(size) - _lru(report, size) >= LEAST_GAP]


def _outcomes(report: Report) -> Part:
    total = sum(outcome.tokens for outcome in report.outcomes)
    rows = [
        (outcome.name, outcome.meaning, f"{outcome.tokens:,}", _percent(outcome.tokens / total))
        for outcome in report.outcomes
    ]
    text = (
        f"Found and missed, by reason, in a pool of {report.result.num_blocks:,} "
        "blocks under LRU. Only what was evicted can be won back by more blocks or a better "
        "order of eviction."
    )
    if MissReason.GROUP in report.misses.missed_tokens:
        text += (
            " What a group of layers refused is cached in full attention, and that group lacks the "
            "window or the state there."
        )
    headings = ("outcome", "meaning", "tokens", "share")
    tables = [Table("Prompt tokens by outcome", headings, rows)]
    if len(report.misses.more_blocks):
        text += f" {_saved(report)}."
        tables.append(_more_blocks(report))

    def draw(canvas: Any) -> None:
        axes = canvas.add_subplot()
        shares = [100 * outcome.tokens / total for outcome in report.outcomes]
        bars = axes.barh([outcome.name for outcome in report.outcomes], shares, color="#0072B2")
        axes.bar_label(bars, [row[3] for row in rows], padding=4)
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_xlabel("per cent of all prompt tokens")
        axes.spines[["top", "right"]].set_visible(False)

    return Part(
        name="misses",
        heading="What became of the prompt tokens",
        text=text,
        description="; ".join(f"{row[0]} {row[3]}" for row in rows) + ".",
        picture=_drawn(draw, (WIDE[0], 0.8 + 0.35 * len(rows))),
        tables=tuple(tables),
    )


def _saved(report: Report) -> str:
    """Text on the additional blocks that would save half or all of the evicted tokens."""
    found = report.misses
    half, every = (found.more_blocks_for(share) for share in (0.5, 1.0))
    tokens = f"{found.saved(every):,}"
    if half == every:
        return f"{every:,} more blocks would have saved all of it ({tokens} tokens)"
    return (
        f"{half:,} more blocks would have saved half of it ({found.saved(half):,} "
        f"tokens), {every:,} all of it ({tokens})"
    )


def _more_blocks(report: Report) -> Table:
    found = report.misses
    sizes = [found.more_blocks_for(share) for share in SAVED_SHARES]
    rows = [
        (
            f"{more:,}",
            f"{found.num_blocks + more:,}",
            f"{found.saved(more):,}",
            _percent((found.hit_tokens + found.saved(more)) / found.query_tokens),
        )
        for more in dict.fromkeys(sizes)
    ]
    headings = ("more blocks", "blocks then", "tokens saved", "hit rate then")
    return Table("Tokens that more blocks would have saved", headings, rows)


def _sessions(report: Report) -> Part:
    said = "; ".join(f"{name}: {HINT_MODELS[name].text}" for name in report.hinted)
    text = f"What LRU gains, in points, if clients say more than their prompts ({said})."
    if not report.config.groups:
        text += " The table has the share of the gap to the optimum that this closes, in brackets."
    [at_first, *_] = report.hinted.values()
    blocks = [row.result.num_blocks for row in at_first]
    lines = {
        name: [row.result.hit_rate - _baseline(row) for row in found]
        for name, found in report.hinted.items()
    }
    bests = [row.optimum.hit_rate - _baseline(row) for row in at_first if row.optimum is not None]
    best = max(lines, key=lambda name: max(lines[name]))

    def draw(canvas: Any) -> None:
        axes = canvas.add_subplot()
        every = lines | ({"optimum": bests} if bests else {})
        points = {name: (blocks, [100 * gain for gain in gains]) for name, gains in every.items()}
        draw_lines(axes, points, blocks)
        axes.axhline(0, color="#333333", linewidth=1)
        axes.set_xlabel(f"blocks of {report.config.block_size} tokens in the pool")
        axes.set_ylabel("points above LRU")
        legend(canvas, axes)

    headings = ("capacity", "blocks", "LRU", *report.hinted, "optimum")
    rows = []
    for at_size in zip(*report.hinted.values(), strict=True):
        [first, *_] = at_size
        bound = NOTHING if first.optimum is None else f"{first.optimum.hit_rate:.2%}"
        cells = [first.capacity.text, f"{first.result.num_blocks:,}", f"{_baseline(first):.2%}"]
        rows.append((*cells, *map(_hinted_cell, at_size), bound))
    return Part(
        name="sessions",
        heading="What the ends of sessions are worth",
        text=text,
        description=f"The largest gain is {100 * max(lines[best]):.2f} points, with {best}.",
        picture=_drawn(draw),
        tables=(Table("Hit rate by what clients say", headings, rows),),
    )


def _hinted_cell(row: SweepRow) -> str:
    gap = row.gap_closed
    return f"{row.result.hit_rate:.2%}" + ("" if gap is None else f" ({gap:.0%})")


def _tiers(report: Report) -> Part:
    sizes = ", ".join(f"{tier.name} {tier.num_blocks:,} blocks" for tier in report.tiers)
    names = ["device", *(tier.name for tier in report.tiers)]
    shares, rows = [], []
    for row in report.tiered:
        found = row.result.by_tier
        assert found is not None
        tokens = (found.device_tokens, *(counts.hit_tokens for counts in found.tiers))
        shares.append([found.share(number) for number in tokens])
        cells = [*shares[-1], row.result.hit_rate, found.share(found.one_pool_hit_tokens)]
        cells.append(report.row("lru", row.capacity).result.hit_rate)
        rows.append((row.capacity.text, f"{row.result.num_blocks:,}", *map(_percent, cells)))

    def draw(canvas: Any) -> None:
        axes = canvas.add_subplot()
        parts = dict(zip(names, zip(*shares, strict=True), strict=True))
        draw_stacks(axes, [row[0] for row in rows], parts)
        axes.set_xlabel("blocks on the device")
        legend(canvas, axes)

    headings = ("capacity", "blocks", *names, "found", "one LRU pool", "without tiers")
    first, last = report.tiered[0], report.tiered[-1]
    return Part(
        name="tiers",
        heading="What slower memory adds",
        text=f"The same pools with tiers ({sizes}; LRU). Each token counts once, in the memory "
        "that it came from. One LRU pool of all blocks is what tiers would find that hold "
        "nothing twice.",
        description=f"With tiers the hit rate is {first.result.hit_rate:.1%} at "
        f"{first.capacity.text} and {last.result.hit_rate:.1%} at {last.capacity.text}.",
        picture=_drawn(draw),
        tables=(Table("Hit rate by memory", headings, rows),),
    )


def _groups(report: Report) -> Part:
    size = report.config.block_size
    sized = None if report.extent.model is None else report.extent.model.bytes_per_block(size)
    headings = ["capacity", "group", "in use", "cached", "unfilled"]
    headings += ["MiB"] if sized is not None else []
    headings += ["refused tokens", "of prompts"]
    rows: list[tuple[str, ...]] = []
    shares: list[list[float]] = []
    counts = report.result.by_group
    assert counts is not None
    for capacity in report.capacities:
        result = report.row("lru", capacity).result
        counted = result.by_group
        assert counted is not None
        shares.append([])
        lines = counted.cells(result.num_blocks, result.query_tokens)
        for group, cells in zip(counted.groups, lines, strict=True):
            shares[-1] += [group.used_blocks, group.cached_blocks]
            if sized is not None:
                held = group.used_blocks + group.cached_blocks
                cells.insert(4, f"{held * sized / MIB:,.0f}")
            rows.append((capacity.text, *cells))
        shares[-1] = [blocks / result.num_blocks for blocks in shares[-1]]
    kinds = [f"{group.num_groups} x {group.group}" for group in counts.groups]
    names = [f"{kind}, {state}" for kind in kinds for state in ("in use", "cached")]

    def draw(canvas: Any) -> None:
        axes = canvas.add_subplot()
        parts = dict(zip(names, zip(*shares, strict=True), strict=True))
        draw_stacks(axes, [capacity.text for capacity in report.capacities], parts)
        axes.set_ylabel("share of the pool")
        legend(canvas, axes)

    return Part(
        name="groups",
        heading="What each group of layers holds",
        text=f"The groups are {', '.join(kinds)}; all take blocks of the same size from one pool. "
        "Cached blocks are in no use, and a prompt finds them.",
        description="Shares of the pool, as means over moments of each replay.",
        picture=_drawn(draw),
        tables=(Table("Groups by pool size, shares of the pool", tuple(headings), rows),),
    )


def _fleet(report: Report) -> Part:
    counted = [(row, row.result) for row in report.fleet if row.result is not None]
    text = (
        f"The same {report.result.num_blocks:,} blocks, split evenly over replicas; a router sends "
        "each request to one of them."
    )
    if any(row.best_hit_rate is not None for row, _ in counted):
        text += (
            " The dashed line is what one pool of all these blocks could find with knowledge of "
            "the future: no routing finds more."
        )
    if report.extent.warmup:
        text += " All requests are counted here."
    if len(counted) < len(report.fleet):
        text += " Where a replica does not hold the largest request, there is no point."
    text += (
        " Imbalance is what the busiest replica computes over the mean of all; 1 is even. "
        "Time to first token is a model: the wait for blocks and for earlier prefills, a fixed "
        "part, and a part for each prompt token that is computed. Prefill load is what is asked of "
        "the busiest replica over the time in which the trace arrives: above 1, its queue grows to "
        "the end of the trace."
    )
    best, found = max(counted, key=lambda pair: pair[1].hit_rate)
    return Part(
        name="fleet",
        heading="A fleet: hit rate and balance by router",
        text=text,
        description=f"The highest hit rate is {found.hit_rate:.1%}, with {best.router} and "
        f"{best.replicas} replicas.",
        picture=_drawn(lambda canvas: draw_fleets(canvas, report.fleet)),
        tables=(Table("Fleets by router", FLEET_HEADINGS, _fleet_rows(report)),),
    )


def _fleet_rows(report: Report) -> list[tuple[str, ...]]:
    rows = []
    model, size = report.extent.model, report.config.block_size
    for row in report.fleet:
        gib = 0 if model is None else row.num_blocks * model.bytes_per_block(size) / 2**30
        cells = [str(row.replicas), row.router, f"{row.num_blocks:,}"]
        cells += [NOTHING if model is None else f"{gib:,.2f}", *row.cells]
        rows.append((*cells, *[NOTHING] * (len(FLEET_HEADINGS) - len(cells))))
    return rows


def _percent(share: float) -> str:
    return f"{share:.2%}"
