"""Prints the radix tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blockmgr.ports.radix.manager import PageKeeper
from blockmgr.ports.radix.pages import slots_of
from blockmgr.ports.radix.tree import RadixTree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from blockmgr.pool import BlockPool

__all__ = ["format_tree", "print_tree"]

MOST_SHOWN = 8


def format_tree(cache: RadixTree | PageKeeper, *, namespace: bytes = b"") -> str:
    """The tree as text, one line per node: its tokens, its slots, the locks at or below it.

    A node is a run of pages without a branch, whichever calls inserted them. Children are sorted by
    their first tokens.

    Args:
        cache: The cache to print.
        namespace: Namespace whose nodes are shown; the sizes in the first line cover all
            namespaces.

    Raises:
        TypeError: ``cache`` is no radix cache.

    Cost: O(pages in the tree). For debugging and tests.

    >>> from blockmgr.ports.radix import RadixCacheManager
    >>> cache = RadixCacheManager(None, num_pages=16)
    >>> for slot, last in enumerate((9, 87)):
    ...     _ = cache.insert_prefix([1, 3, 6, last], [0, 1, 2, 3 + slot])
    >>> print(format_tree(cache))
    root: 5 evictable, 0 protected
    └── tokens 1 3 6, slots 0 1 2, no locks
        ├── tokens 9, slots 3, no locks, leaf
        └── tokens 87, slots 4, no locks, leaf
    """
    tree = cache._tree if isinstance(cache, PageKeeper) else cache
    if not isinstance(tree, RadixTree):
        raise TypeError(f"cache must be a radix cache, got {cache!r}")
    with tree._mutex:
        size = tree.size_info
        lines = [f"root: {size.evictable_size} evictable, {size.protected_size} protected"]
        lines += _lines(tree.pool, namespace)
    return "\n".join(lines)


def print_tree(cache: RadixTree | PageKeeper) -> None:
    """Prints ``format_tree`` to standard output."""
    print(format_tree(cache))


def _lines(pool: BlockPool, namespace: bytes) -> Iterator[str]:
    runs = _runs(pool, namespace)
    # A run by its first page, and what its line and its children's lines begin with.
    stack = [(-1, "", "")]
    while stack:
        head, connector, indent = stack.pop()
        below = runs[head].children
        if head >= 0:
            yield connector + _describe(pool, runs[head])
        for child in reversed(below):
            branch, space = ("└── ", "    ") if child == below[-1] else ("├── ", "│   ")
            stack.append((child, indent + branch, indent + space))


@dataclass
class _Run:
    """A node of the tree: pages without a branch."""

    pages: list[int]
    children: list[int]
    """The first pages of the runs that continue it."""
    locks: int = 0


def _runs(pool: BlockPool, namespace: bytes) -> dict[int, _Run]:
    """The runs of a tree by first page; -1 is the root."""
    runs: dict[int, _Run] = {}
    order = [-1]
    for head in order:  # grows during the loop, so that long chains need no recursion
        pages = [head] if head >= 0 else []
        below = pool.children(head, namespace=b"" if pages else namespace).tolist()
        while pages and len(below) == 1 and not pool.ref_count(pages[-1]):
            pages += below
            below = pool.children(pages[-1]).tolist()
        order += below
        runs[head] = _Run(pages, sorted(below, key=lambda child: pool.tokens(child).tolist()))
    for run in reversed(runs.values()):
        below = [runs[child] for child in run.children]
        own = pool.ref_count(run.pages[-1]) if run.pages else 0
        run.locks = own + sum(child.locks for child in below)
    return runs


def _describe(pool: BlockPool, run: _Run) -> str:
    total = len(run.pages) * pool.block_size
    shown = run.pages[:MOST_SHOWN]
    tokens = [token for page in shown for token in pool.tokens(page).tolist()]
    slots = slots_of(np.array(shown), pool.block_size).tolist()
    return (
        f"tokens {_some(tokens, total)}, slots {_some(slots, total)}, "
        f"{run.locks or 'no'} lock{'s' * (run.locks != 1)}{'' if run.children else ', leaf'}"
    )


def _some(numbers: list[int], total: int) -> str:
    text = " ".join(map(str, numbers[:MOST_SHOWN]))
    return text if total <= MOST_SHOWN else f"{text} … ({total})"
