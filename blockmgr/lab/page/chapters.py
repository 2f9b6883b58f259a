"""The chapters of a report: charts with text and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from blockmgr.explain import MissReason
from blockmgr.lab.page import charts
from blockmgr.lab.page.bands import pool_frames, pool_table
from blockmgr.lab.page.chapter import Chapter, Rows, Table
from blockmgr.lab.page.fleet_chapters import fleet_chapters
from blockmgr.lab.page.group_chapters import group_chapters
from blockmgr.lab.page.session_chapter import session_chapters
from blockmgr.lab.page.tier_chapter import tier_chapters
from blockmgr.lab.page.words import BINS_MS, binned, duration, short_count

if TYPE_CHECKING:
    from blockmgr.lab.page.facts import Report

__all__ = ["chapters"]

# The smallest share of tokens that counts as a possible gain.
LEAST_GAP: Final = 0.0001
# The table shows how many more blocks would keep these shares of the evicted tokens.
SAVED_SHARES: Final = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


def chapters(report: Report) -> tuple[Chapter, ...]:
    """All chapters, in order; policies only if there are several and a possible gain."""
    found = [_curve(report)]
    gains = [size for size in report.capacities if charts.gap(report, size) >= LEAST_GAP]
    if len(report.policies) > 1 and gains:
        found.append(_policies(report))
    found += session_chapters(report)
    found += tier_chapters(report)
    found.append(_outcomes(report))
    if report.config.groups:
        found += group_chapters(report)
    else:
        found += [_gaps(report), _lifetimes(report), _pool(report)]
    return (*found, *fleet_chapters(report))


def _curve(report: Report) -> Chapter:
    curve = report.curve
    columns = [
        ("capacity", [size.text for size in report.capacities]),
        ("blocks", [f"{report.row('lru', s).result.num_blocks:,}" for s in report.capacities]),
        ("LRU", [_percent(report.row("lru", s).result.hit_rate) for s in report.capacities]),
    ]
    blocks = [report.row("lru", size).result.num_blocks for size in report.capacities]
    if curve is not None:
        columns.append(("LRU, from the curve", [_percent(curve.hit_rate_at(n)) for n in blocks]))
        if curve.hit_rate_errors is not None:
            errors = [f"±{100 * curve.error_at(number):.2f} points" for number in blocks]
            columns.append(("error of the curve", errors))
        bests = [_percent(report.bound(size)) for size in report.capacities]
        columns.append(("optimum", bests))
    columns.append(("unbounded", [_percent(report.attainable.hit_rate)] * len(blocks)))
    if report.full_attention is not None:
        alone = [_percent(report.full_attention.hit_rate)] * len(blocks)
        columns.append(("full attention", alone))
    headings = tuple(heading for heading, _ in columns)
    rows = tuple(zip(*(cells for _, cells in columns), strict=True))
    first, last = rows[0], rows[-1]
    return Chapter(
        name="curve",
        heading="Hit rate over pool size",
        text=_curve_text(report),
        description=(
            "Token hit rate over blocks in the pool, on a logarithmic axis. "
            f"LRU rises from {first[2]} at {first[1]} blocks to {last[2]} at {last[1]}; "
            + "; ".join(
                f"{heading} from {first[place]} to {last[place]}"
                for place, heading in enumerate(headings)
                if heading in ("optimum", "unbounded", "full attention")
            )
            + "."
        ),
        height=430,
        tall=330,
        draw=charts.draw_curve,
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
    line = "from one pass over the trace"
    if curve.hit_rate_errors is not None:
        line = (
            f"estimated from {curve.sampling_rate:.2%} of the blocks; the band is its error, which "
            "some nine of ten estimates keep"
        )
    text = (
        f"The line is LRU at every pool size, {line}; dots are replays. "
        "Diamonds are the best that any order of eviction could do at that size, the dashed line "
        "what a pool without bounds would find."
    )
    if curve.exact_from > curve.longest_request_blocks:
        text += (
            f" Below {curve.exact_from:,} blocks requests wait for each other, and the line "
            "is an estimate."
        )
    return text


def _policies(report: Report) -> Chapter:
    rows = tuple(
        (
            policy,
            *(_percent(report.row(policy, size).result.hit_rate) for size in report.capacities),
        )
        for policy in report.policies
    )
    bound = "no more than" if report.config.groups else "optimum"
    best = (bound, *(_percent(report.bound(size)) for size in report.capacities))
    lines = sum(1 for name in report.policies if name != "lru")
    sizes = len(report.capacities)
    return Chapter(
        name="policies",
        heading="Policies side by side",
        text=(
            "Points of hit rate that each order of eviction gains or loses beside LRU, at each "
            "pool size. Above each stands the most that any order could gain; a pool size at "
            "which LRU has nothing left to gain is left out."
        ),
        description=(
            "For each pool size, the hit rate of each policy less that of LRU, in percentage "
            "points; below zero it does worse than LRU."
        ),
        height=20 + (60 + 27 * lines) * -(-sizes // charts.COLUMNS),
        tall=20 + (60 + 27 * lines) * -(-sizes // charts.COLUMNS_NARROW),
        draw=charts.draw_policies,
        tables=(
            Table(
                "Hit rate by policy and pool size",
                ("policy", *(size.text for size in report.capacities)),
                (*rows, best),
            ),
        ),
    )


def _outcomes(report: Report) -> Chapter:
    total = sum(outcome.tokens for outcome in report.outcomes)
    rows = tuple(
        (outcome.name, outcome.meaning, f"{outcome.tokens:,}", _percent(outcome.tokens / total))
        for outcome in report.outcomes
    )
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
    tables = [Table("Prompt tokens by outcome", ("outcome", "meaning", "tokens", "share"), rows)]
    if len(report.misses.more_blocks):
        text += f" {_saved(report)}."
        tables.append(_more_blocks(report))
    return Chapter(
        name="misses",
        heading="What became of the prompt tokens",
        text=text,
        description="; ".join(f"{row[0]} {row[3]}" for row in rows) + ".",
        height=70 + 58 * len(rows),
        tall=70 + 58 * len(rows),
        draw=charts.draw_outcomes,
        tables=tuple(tables),
    )


def _saved(report: Report) -> str:
    """Text on the additional blocks that would save half or all of the evicted tokens."""
    found = report.misses
    half, every = (found.more_blocks_for(share) for share in (0.5, 1.0))
    tokens = short_count(found.saved(every))
    if half == every:
        return f"{every:,} more blocks would have saved all of it ({tokens} tokens)"
    return (
        f"{half:,} more blocks would have saved half of it ({short_count(found.saved(half))} "
        f"tokens), {every:,} all of it ({tokens})"
    )


def _more_blocks(report: Report) -> Table:
    found = report.misses
    sizes = [found.more_blocks_for(share) for share in SAVED_SHARES]
    rows = tuple(
        (
            f"{more:,}",
            f"{found.num_blocks + more:,}",
            f"{found.saved(more):,}",
            _percent((found.hit_tokens + found.saved(more)) / found.query_tokens),
        )
        for more in dict.fromkeys(sizes)
    )
    headings = ("more blocks", "blocks then", "tokens saved", "hit rate then")
    return Table("Tokens that more blocks would have saved", headings, rows)


def _gaps(report: Report) -> Chapter:
    wanted, found = report.seen.asked_gaps_ms, report.seen.reuse_gaps_ms
    columns = (binned(wanted), binned(found))
    text = (
        "Every time a prompt asks for a block that was computed before, by how long ago it was "
        "last used. The grey is all of it, the blue what this pool finds: what is only grey came "
        "too late."
    )
    description = "No block was requested twice."
    if len(wanted):
        middle = duration(int(np.median(wanted)))
        description = f"Half of the reuse gaps are shorter than {middle}."
        text += f" Half of all gaps are shorter than {middle}."
    return Chapter(
        name="gaps",
        heading="Reuse gaps",
        text=text,
        description=description,
        height=310,
        tall=280,
        draw=charts.draw_gaps,
        tables=(
            Table("Reuse gaps", ("time since last use", "asked for", "found"), _by_bin(*columns)),
        ),
    )


def _lifetimes(report: Report) -> Chapter:
    watched = report.seen
    unused = watched.uses == 0
    columns = (binned(watched.lifetimes_ms), binned(watched.lifetimes_ms[unused]))
    text = (
        "How long evicted blocks had been in the pool. Orange ones were never found by any "
        "prompt: they took room for nothing."
    )
    description = "Nothing was evicted."
    if len(unused):
        middle = duration(int(np.median(watched.lifetimes_ms)))
        idle = duration(int(np.median(watched.idle_ms)))
        description = (
            f"Half of the evicted blocks lived less than {middle}; {unused.mean():.0%} of them "
            "were never found."
        )
        text += f" At their eviction, half of them had not been used for {idle}."
    return Chapter(
        name="lifetimes",
        heading="Block lifetimes",
        text=text,
        description=description,
        height=310,
        tall=280,
        draw=charts.draw_lifetimes,
        tables=(
            Table("Block lifetimes", ("lifetime", "evicted", "never found"), _by_bin(*columns)),
        ),
    )


def _pool(report: Report) -> Chapter:
    total = report.result.num_blocks
    busy = int(pool_frames(report)[1].max()) / total
    return Chapter(
        name="pool",
        heading="The pool over time",
        text=(
            "What the blocks of the pool were doing. Idle blocks are in no use and can still be "
            "found; the paler they are, the longer ago they were used, and the nearer they are to "
            "being evicted under LRU."
        ),
        description=(
            f"Shares of {total:,} blocks over simulated time; at most {busy:.0%} were in use at "
            "one time."
        ),
        height=360,
        tall=430,
        draw=charts.draw_pool,
        tables=(pool_table(report),),
    )


def _by_bin(*columns: Any) -> Rows:
    """One row for each bin that is not empty."""
    rows = []
    last = len(BINS_MS) - 2
    for number in range(len(BINS_MS) - 1):
        counts = [int(column[number]) for column in columns]
        if any(counts):
            low, high = duration(BINS_MS[number]), duration(BINS_MS[number + 1])
            span = f"{low} and more" if number == last else f"{low} to {high}"
            rows.append((span, *(f"{count:,}" for count in counts)))
    return tuple(rows)


def _percent(share: float) -> str:
    return f"{share:.2%}"
