"""A result in a few lines: rows ahead and behind, times and budgets, growth."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.peers.results import Result

__all__ = ["budgets", "comparisons", "gaps"]

AHEAD = 2.0
"""Rows with a smaller ratio to the fastest other system are listed with a reason."""

TREE_MARK = "Rust tree"

BUDGETS = (
    ("warm match of 32k tokens, a block", "match/usual", 2.5),
    ("cold admit with commit, a block", "cold", 35),
    ("cold admit with commit, each block evicts", "evicting", 40),
    ("free, a block", "free/usual", 1),
    ("decode of 1,024", "decode/1024", 20_000),
    ("match in 1 M blocks, cache-missing, a block", "match/usual/scattered", 8),
)

GROWTH_FROM, GROWTH_TO = 10_000, 1_000_000
IN_TURN = "match, prompts in turn"

ONE_NODE = (
    "a prompt from which no other prompt diverges is one node there, compared as one piece of "
    "memory; blockmgr checks the identity of each block and returns its id"
)
FIXED = "the fixed cost of a call, which makes an array of block ids and the record of a match"
ONE_SLICE = (
    "a new prompt becomes one node there, with its slots as one slice; blockmgr makes a node of "
    "each block, and can evict single blocks"
)
SCATTERED = (
    "a whole prompt is one piece of memory there; blockmgr reads tokens in order, and looks up "
    "which block each node has: [identity apart from place](design/nodes-and-blocks.md)"
)
REASONS = {
    "cold": ONE_SLICE,
    "evicting": ONE_SLICE,
    "replay/conversation_trace/16": f"most of these are new prompts: {ONE_SLICE}",
    "match/short": f"{FIXED}; {ONE_NODE}",
    "match/usual": ONE_NODE,
    "match/long": ONE_NODE,
    "match/short/scattered": SCATTERED,
    "match/usual/scattered": SCATTERED,
    "match/long/scattered": SCATTERED,
    "admit/usual": "one lock holds a node; blockmgr counts a reference to each block",
    "admit/long": "one lock holds a node; blockmgr counts a reference to each block",
    "admit/usual/scattered": "one lock holds a node; blockmgr counts a reference to each block",
    "free/usual": "the tree releases one lock for a node of any length",
    "free/long": "the tree releases one lock for a node of any length",
    "free/usual/scattered": "the tree releases one lock for a node of any length",
}
"""By key of a row, why another system comes near or is faster."""


def comparisons(result: Result) -> Iterator[tuple[str, str]]:
    """Each comparison with the other systems, and its measurements."""
    yield _ahead(result, "the fastest other system", existing)
    yield _ahead(result, "the fastest, including tuned ports and parts of systems", anything)
    yield _against_the_tree(result, scattered=False)
    yield _against_the_tree(result, scattered=True)
    yield _growth(result)


def budgets(result: Result) -> Iterator[tuple[str, str, str]]:
    """Each operation that has a budget: its time and the budget."""
    for work, key, limit in BUDGETS:
        row = result.row(key)
        timed = row is not None and "min_ns" in row.ours
        measured = f"{row.ours['min_ns']:,.1f} ns" if row and timed else "not measured"
        yield work, measured, f"{limit:,} ns"


def gaps(result: Result) -> Iterator[tuple[str, str, str, str]]:
    """The rows with a ratio below ``AHEAD``: work, system, ratio, reason."""
    for row in result.compared:
        for cell in row.timed_peers:
            ratio = row.ratio(cell)
            if ratio is not None and ratio < AHEAD:
                reason = REASONS.get(row.document["key"], "not known")
                yield row.name, cell["peer"], f"{ratio:.2f}", reason


def existing(peer: str) -> bool:
    """Whether it is a system as people use it: neither one that we tuned nor part of one."""
    return not peer.endswith(("tuned", "alone"))


def anything(peer: str) -> bool:
    """Every system that was timed."""
    del peer
    return True


def _ahead(result: Result, whom: str, counts: Callable[[str], bool]) -> tuple[str, str]:
    ratios = []
    for row in result.compared:
        cells = [cell for cell in row.timed_peers if counts(cell["peer"])]
        if cells and (ratio := row.ratio(cells[0])) is not None:
            ratios.append(ratio)
    ahead = sum(ratio >= AHEAD for ratio in ratios)
    behind = sum(ratio < 1 for ratio in ratios)
    return (
        f"against {whom}",
        f"blockmgr is at least {AHEAD:.0f} times as fast in {ahead} of {len(ratios)} rows, "
        f"and slower in {behind}",
    )


def _against_the_tree(result: Result, *, scattered: bool) -> tuple[str, str]:
    ratios = []
    for row in result.compared:
        key = row.document["key"]
        if row.document["operation"] == "match" and key.endswith("/scattered") == scattered:
            for name, cell in row.cells.items():
                ratio = row.ratio(cell)
                if TREE_MARK in name and ratio is not None:
                    ratios.append((ratio, row.name))
    where = "cache-missing" if scattered else "in cache"
    name = f"match against SGLang's Rust tree, {where}"
    if not ratios:
        return name, "not measured"
    (least, at_least), (most, at_most) = min(ratios), max(ratios)
    return (
        name,
        f"the tree takes {least:.2f} ({at_least}) to {most:.2f} ({at_most}) times as long",
    )


def _growth(result: Result) -> tuple[str, str]:
    name = f"time in a pool of {GROWTH_TO:,} blocks against {GROWTH_FROM:,}"
    grown = []
    for operation, by_size in result.growth().items():
        few, many = by_size.get(GROWTH_FROM), by_size.get(GROWTH_TO)
        if operation != IN_TURN and few and many and "min_ns" in few.ours and "min_ns" in many.ours:
            grown.append((many.ours["min_ns"] / few.ours["min_ns"], operation))
    if not grown:
        return name, "not measured"
    most, where = max(grown)
    return name, f"at most {most:.2f} times ({where})"
