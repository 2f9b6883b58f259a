"""What was promised of the comparison, and whether a result keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.peers.results import Result

__all__ = ["gaps", "promises"]

AHEAD = 2.0
"""How many times as fast as the fastest other system every row should be."""

TREE_MARK = "Rust tree"

BUDGETS = (
    ("warm match of 32k tokens, a block, at most 10 ns", "match/usual", 10),
    ("cold admit with commit, a block, at most 100 ns", "cold", 100),
    ("cold admit with commit, each block evicts, at most 100 ns", "evicting", 100),
    ("free, a block, at most 5 ns", "free/usual", 5),
    ("decode of 1,024, at most 40,000 ns", "decode/1024", 40_000),
    ("match in 1 M blocks, cache-missing, a block, at most 60 ns", "match/usual/scattered", 60),
)

GROWTH_FROM, GROWTH_TO, MOST_GROWTH = 10_000, 1_000_000, 2.0
IN_TURN = "match, prompts in turn"

ONE_NODE = (
    "a prompt that nobody parted from is one node there, compared as one piece of memory; "
    "blockmgr checks the identity of each block and gives its id"
)
FIXED = "the fixed cost of a call: an array of block ids and the record of a match are made"
UNHASHED = (
    "a new prompt becomes one node there, hashed nowhere, with its slots as one slice; blockmgr "
    "hashes each block, so that any prompt finds it, and can evict each by itself"
)
SCATTERED = (
    "two cache misses a block, its record and its tokens, against memory read in order: "
    "[what a scattered match costs](design/what-a-scattered-match-costs.md)"
)
REASONS = {
    "cold": UNHASHED,
    "evicting": UNHASHED,
    "replay/16": f"most of it are new prompts: {UNHASHED}",
    "match/short": f"{FIXED}; {ONE_NODE}",
    "match/usual": ONE_NODE,
    "match/long": ONE_NODE,
    "match/short/scattered": SCATTERED,
    "match/usual/scattered": SCATTERED,
    "match/long/scattered": SCATTERED,
    "admit/usual": "one lock holds a node; blockmgr counts a reference to each block",
    "admit/long": "one lock holds a node; blockmgr counts a reference to each block",
    "admit/usual/scattered": "one lock holds a node; blockmgr counts a reference to each block",
    "free/usual": "one lock is given back for a node, whatever its length",
    "free/long": "one lock is given back for a node, whatever its length",
    "free/usual/scattered": "one lock is given back for a node, whatever its length",
}
"""By key of a row, why another system comes near or is faster."""


def promises(result: Result) -> Iterator[tuple[str, str, str]]:
    """Each promise, what was measured, and a verdict."""
    yield _ahead(result, "the fastest other system", existing)
    yield _ahead(result, "the fastest, what we tuned or took apart included", anything)
    yield _against_the_tree(result, scattered=False)
    yield _against_the_tree(result, scattered=True)
    for promise, key, limit in BUDGETS:
        row = result.row(key)
        if row is None or "min_ns" not in row.ours:
            yield promise, "not measured", "\u2013"
            continue
        yield promise, f"{row.ours['min_ns']:,.1f} ns", _verdict(row.ours["min_ns"] <= limit)
    yield _growth(result)


def gaps(result: Result) -> Iterator[tuple[str, str, str, str]]:
    """The rows that are not far enough ahead: work, system, ratio, reason."""
    for row in result.compared:
        for cell in row.timed_peers:
            ratio = row.ratio(cell)
            if ratio is not None and ratio < AHEAD:
                reason = REASONS.get(row.document["key"], "not known")
                yield row.name, cell["peer"], f"{ratio:.2f}", reason


def existing(peer: str) -> bool:
    """Whether it is a system as people use it: not one that we tuned, nor a part of one."""
    return not peer.endswith(("tuned", "alone"))


def anything(peer: str) -> bool:
    """Whatever was timed."""
    del peer
    return True


def _ahead(result: Result, whom: str, counts: Callable[[str], bool]) -> tuple[str, str, str]:
    ratios = []
    for row in result.compared:
        cells = [cell for cell in row.timed_peers if counts(cell["peer"])]
        if cells and (ratio := row.ratio(cells[0])) is not None:
            ratios.append(ratio)
    ahead = sum(ratio >= AHEAD for ratio in ratios)
    return (
        f"every row at least {AHEAD:.0f} times as fast as {whom}",
        f"{ahead} of {len(ratios)} rows",
        "kept" if ahead == len(ratios) else "missed: see below",
    )


def _verdict(kept: bool) -> str:
    return "kept" if kept else "missed"


def _against_the_tree(result: Result, *, scattered: bool) -> tuple[str, str, str]:
    ratios = []
    for row in result.compared:
        key = row.document["key"]
        if row.document["operation"] == "match" and key.endswith("/scattered") == scattered:
            for name, cell in row.cells.items():
                ratio = row.ratio(cell)
                if TREE_MARK in name and ratio is not None:
                    ratios.append((ratio, row.name))
    where = "cache-missing" if scattered else "in cache"
    promise = f"warm match below SGLang's Rust tree, at every length, {where}"
    if not ratios:
        return promise, "not measured", "\u2013"
    least, where = min(ratios)
    return (
        promise,
        f"the tree takes {least:.2f} times as long, at least ({where})",
        _verdict(least > 1),
    )


def _growth(result: Result) -> tuple[str, str, str]:
    promise = (
        f"from {GROWTH_FROM:,} to {GROWTH_TO:,} blocks, at most {MOST_GROWTH:.0f} times, in order"
    )
    grown = []
    for operation, by_size in result.growth().items():
        few, many = by_size.get(GROWTH_FROM), by_size.get(GROWTH_TO)
        if operation != IN_TURN and few and many and "min_ns" in few.ours and "min_ns" in many.ours:
            grown.append((many.ours["min_ns"] / few.ours["min_ns"], operation))
    if not grown:
        return promise, "not measured", "\u2013"
    most, where = max(grown)
    return promise, f"at most {most:.2f} times ({where})", _verdict(most <= MOST_GROWTH)
