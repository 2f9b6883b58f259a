"""Prints the radix tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from blockmgr.arguments import whole
from blockmgr.ports.radix.manager import PageKeeper
from blockmgr.ports.radix.tree import RadixTree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from blockmgr.pool import BlockPool

__all__ = ["format_tree", "print_tree"]

MOST_SHOWN = 8


def format_tree(
    cache: RadixTree | PageKeeper, *, max_depth: int = 10, namespace: bytes = b""
) -> str:
    """The tree as text, one line per node: its tokens, its slots, the locks at or below it.

    A node is a run of pages without a branch, whichever calls inserted them. Children are sorted by
    their first tokens.

    Args:
        cache: The cache to print.
        max_depth: Most levels of nodes to show; deeper nodes are only counted.
        namespace: Namespace whose nodes are shown; the sizes in the first line cover all
            namespaces.

    Raises:
        ValueError: ``max_depth`` below 0.
        TypeError: ``max_depth`` is not an int, or ``cache`` no radix cache.

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
    whole("max_depth", max_depth, 0)
    tree = cache._tree if isinstance(cache, PageKeeper) else cache
    if not isinstance(tree, RadixTree):
        raise TypeError(f"cache must be a radix cache, got {cache!r}")
    with tree._mutex:
        size = tree.size_info
        lines = [f"root: {size.evictable_size} evictable, {size.protected_size} protected"]
        lines += _lines(_Runs(tree.pool, namespace), tree.page_size, max_depth)
    return "\n".join(lines)


def print_tree(
    cache: RadixTree | PageKeeper,
    *,
    max_depth: int = 10,
    namespace: bytes = b"",
    file: TextIO | None = None,
) -> None:
    """Prints ``format_tree`` to a file, by default to standard output."""
    print(format_tree(cache, max_depth=max_depth, namespace=namespace), file=file)


class _Runs:
    """The nodes of the tree, runs of pages without a branch, by first page; -1 is the root."""

    def __init__(self, pool: BlockPool, namespace: bytes) -> None:
        self.pool = pool
        self.pages: dict[int, list[int]] = {}
        self.children: dict[int, list[int]] = {}
        self.locks: dict[int, int] = {}
        order = [-1]
        for head in order:  # grows during the loop, so that long chains need no recursion
            self._follow(head, namespace if head < 0 else b"")
            order += self.children[head]
        for head in reversed(order):
            own = pool.ref_count(self.pages[head][-1]) if self.pages[head] else 0
            self.locks[head] = own + sum(self.locks[child] for child in self.children[head])

    def _follow(self, head: int, namespace: bytes) -> None:
        """Follows a run to where it branches, ends or is locked."""
        pool, pages = self.pool, [head] if head >= 0 else []
        below = pool.children(head, namespace=namespace).tolist()
        while pages and len(below) == 1 and not pool.ref_count(pages[-1]):
            pages += below
            below = pool.children(pages[-1]).tolist()
        self.pages[head] = pages
        self.children[head] = sorted(below, key=lambda child: pool.tokens(child).tolist())

    def num_below(self, head: int) -> int:
        below = list(self.children[head])
        for child in below:
            below += self.children[child]
        return len(below)


def _lines(runs: _Runs, page_size: int, max_depth: int) -> Iterator[str]:
    stack = [(-1, "", "", 0)]  # a node, its connector, what its children's lines begin with, depth
    while stack:
        head, connector, indent, depth = stack.pop()
        if head >= 0:
            yield connector + _describe(runs, head, page_size)
        below = runs.children[head]
        if below and depth == max_depth:
            yield f"{indent}└── {runs.num_below(head)} more below"
            continue
        for child in reversed(below):
            branch, space = ("└── ", "    ") if child == below[-1] else ("├── ", "│   ")
            stack.append((child, indent + branch, indent + space, depth + 1))


def _describe(runs: _Runs, head: int, page_size: int) -> str:
    pages, locks = runs.pages[head], runs.locks[head]
    shown = pages[: -(-MOST_SHOWN // page_size) + 1]
    tokens = [token for page in shown for token in runs.pool.tokens(page).tolist()]
    slots = [page * page_size + offset for page in shown for offset in range(page_size)]
    total = len(pages) * page_size
    return (
        f"tokens {_some(tokens, total)}, slots {_some(slots, total)}, "
        f"{locks or 'no'} lock{'s' * (locks != 1)}{'' if runs.children[head] else ', leaf'}"
    )


def _some(numbers: list[int], total: int) -> str:
    text = " ".join(map(str, numbers[:MOST_SHOWN]))
    return text if total <= MOST_SHOWN else f"{text} … ({total})"
