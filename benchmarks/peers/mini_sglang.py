"""mini-sglang's radix cache and page manager, reimplemented from their behaviour.

The algorithm: a tree whose edges are runs of whole pages, each with its tokens and, for each token,
the slot of its K/V; a node indexes its children by their first page. An admission walks the tree,
splits the node in which its prompt diverges, locks the path, copies the path's slots into its row
of the page table, which has an entry for each token, and allocates pages for the rest from the
front of an array of free pages. After the forward it inserts its pages, and again at the end of the
request; only then can other requests find the decoded tokens. When pages are short, it collects the
leaves that no request holds from the whole tree, puts them on a heap by time of use, and evicts
them until there are enough pages.

This version is tuned, so that it does not lose because of its types; ``mini_sglang_tensors`` keeps
the original types. Slots are NumPy arrays, which are faster to slice and join than small tensors.
Keys are bytes, so ``memcmp`` compares a run in place, where the original compares token by token in
C++. Rows of tokens grow in place, and freed pages join the free ones only when those run out.

It lacks: forks and copy-on-write, prefixes shorter than a page, namespaces, extra keys, eviction
orders other than least recently used, promotion of decoded tokens before the end of a request, and
checks of its arguments.
"""

from __future__ import annotations

import heapq
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.peers.adapter import BLOCK_SIZE, Operation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    Slots = npt.NDArray[np.int32]

__all__ = ["MiniSglang"]

_NO_FORK = "has no fork: a request is one sample, and pages are shared through the tree alone"
_TOKEN_BYTES = 4


class MiniSglang:
    """The algorithm, with pages of one block."""

    def __init__(self, cannot: Mapping[str, str] | None = None) -> None:
        self.name = "mini-sglang's algorithm, tuned"
        self.cannot: Mapping[str, str] = {
            Operation.FORK: _NO_FORK,
            Operation.COPY_ON_WRITE: _NO_FORK,
            **(cannot or {}),
        }

    def prompt(self, tokens: npt.NDArray[np.uint32]) -> bytes:
        """Tokens as bytes, 4 for each."""
        return tokens.tobytes()

    def open(
        self,
        num_blocks: int,
        block_size: int = BLOCK_SIZE,
        *,
        max_requests: int = 64,
        max_tokens: int = 1 << 18,
    ) -> _Cache:
        return _Cache(num_blocks, block_size, max_requests, max_tokens)


class Node:
    """A run of whole pages below another."""

    __slots__ = ("children", "holders", "key", "parent", "slots", "used_at")

    def __init__(self, key: bytes, slots: Slots, parent: Node | None, used_at: int) -> None:
        self.key = key
        self.slots = slots
        self.parent = parent
        self.children: dict[bytes, Node] = {}
        self.holders = 0
        self.used_at = used_at

    def __lt__(self, other: Node) -> bool:
        return self.used_at < other.used_at


class Tree:
    """Cached runs; sizes are in slots."""

    def __init__(self, page_size: int) -> None:
        self._page = page_size * _TOKEN_BYTES
        self._root = Node(b"", np.empty(0, np.int32), None, 0)
        self._root.holders = 1
        self.num_evictable = 0

    def walk(self, tokens: bytes) -> tuple[Node, int]:
        """The node of the longest cached prefix of these whole pages, and the prefix's length.

        Splits the node if the prefix ends inside it.
        """
        node, position, page = self._root, 0, self._page
        end = len(tokens)
        now = time.monotonic_ns()
        while position < end:
            child = node.children.get(tokens[position : position + page])
            if child is None:
                break
            key = child.key
            if not tokens.startswith(key, position):
                common = _common(key, tokens, position) // page * page
                return self._split(child, common), (position + common) // _TOKEN_BYTES
            node = child
            position += len(key)
            node.used_at = now
        return node, position // _TOKEN_BYTES

    def _split(self, node: Node, common: int) -> Node:
        parent, num_slots = node.parent, common // _TOKEN_BYTES
        assert parent is not None
        upper = Node(node.key[:common], node.slots[:num_slots], parent, node.used_at)
        upper.holders = node.holders
        parent.children[upper.key[: self._page]] = upper
        node.key, node.slots, node.parent = node.key[common:], node.slots[num_slots:], upper
        upper.children[node.key[: self._page]] = node
        return upper

    def insert(self, tokens: bytes, slots: Slots) -> tuple[Node, int]:
        """Adds these whole pages if missing; returns the node, and the tokens present before."""
        node, num_found = self.walk(tokens)
        key = tokens[num_found * _TOKEN_BYTES :]
        if key:
            child = Node(key, slots[num_found:].copy(), node, time.monotonic_ns())
            node.children[key[: self._page]] = child
            self.num_evictable += len(child.slots)
            node = child
        return node, num_found

    def lock(self, node: Node) -> None:
        while node.parent is not None:
            if not node.holders:
                self.num_evictable -= len(node.slots)
            node.holders += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        while node.parent is not None:
            node.holders -= 1
            if not node.holders:
                self.num_evictable += len(node.slots)
            node = node.parent

    def slots(self, node: Node) -> list[Slots]:
        """The slots on the way to a node, in order."""
        parts = []
        while node.parent is not None:
            parts.append(node.slots)
            node = node.parent
        parts.reverse()
        return parts

    def _first_page(self, key: Any) -> Any:
        return key[: self._page]

    def evict(self, num_slots: int) -> list[Slots]:
        """Evicts whole leaves for at least this many slots, the least recently used first."""
        leaves = self._idle_leaves()
        heapq.heapify(leaves)
        parts: list[Slots] = []
        missing = num_slots
        while missing > 0:
            leaf = heapq.heappop(leaves)
            parent = leaf.parent
            assert parent is not None
            parts.append(leaf.slots)
            missing -= len(leaf.slots)
            self.num_evictable -= len(leaf.slots)
            del parent.children[self._first_page(leaf.key)]
            if not parent.children and not parent.holders:
                heapq.heappush(leaves, parent)
        return parts

    def _idle_leaves(self) -> list[Node]:
        leaves, nodes = [], [self._root]
        while nodes:
            node = nodes.pop()
            if node.children:
                nodes.extend(node.children.values())
            elif not node.holders:
                leaves.append(node)
        return leaves


def _common(key: bytes, tokens: bytes, position: int) -> int:
    """Number of equal leading bytes of a key and of the text at a position, in whole tokens."""
    num_tokens = min(len(key), len(tokens) - position) // _TOKEN_BYTES
    ours = np.frombuffer(key, np.int32, num_tokens)
    theirs = np.frombuffer(tokens, np.int32, num_tokens, position)
    different = ours != theirs
    first = int(different.argmax())
    return _TOKEN_BYTES * (first if different[first] else num_tokens)


class Request:
    """A running request; sizes are in tokens."""

    __slots__ = ("node", "num_computed", "num_slots_in_tree", "row", "tokens")

    def __init__(self, node: Node, row: int, num_found: int) -> None:
        self.node = node
        self.row = row
        self.num_computed = num_found
        self.num_slots_in_tree = num_found


class _Cache:
    def __init__(self, num_blocks: int, page_size: int, max_requests: int, max_tokens: int) -> None:
        self._page = page_size
        self._tree = Tree(page_size)
        self._free = np.arange(num_blocks, dtype=np.int32) * page_size
        self._offsets = np.arange(page_size, dtype=np.int32)
        width = min(num_blocks, -(-max_tokens // page_size)) * page_size
        self._table = np.zeros((max_requests, width), dtype=np.int32)
        self._tokens = np.zeros((max_requests, width), dtype=np.uint32)
        self._rows = list(range(max_requests))
        self._returned: list[Slots] = []

    def _whole_pages(self, num_tokens: int) -> int:
        return num_tokens // self._page * self._page

    def match(self, prompt: bytes) -> int:
        # All but the last token, so that one is left to compute.
        num_tokens = self._whole_pages(len(prompt) // _TOKEN_BYTES - 1)
        return self._tree.walk(prompt[: num_tokens * _TOKEN_BYTES])[1]

    def admit(self, prompt: bytes) -> Request:
        tree = self._tree
        num_tokens = len(prompt) // _TOKEN_BYTES
        searched = self._whole_pages(num_tokens - 1)
        node, num_found = tree.walk(prompt[: searched * _TOKEN_BYTES])
        tree.lock(node)
        num_new = -(-(num_tokens - num_found) // self._page)
        try:
            pages = self._take(num_new)
        except MemoryError:
            tree.unlock(node)
            raise
        row = self._rows.pop()
        if num_found:
            np.concatenate(tree.slots(node), out=self._table[row, :num_found])
        new = self._table[row, num_found : num_found + num_new * self._page]
        np.add(pages[:, None], self._offsets, out=new.reshape(num_new, self._page))
        self._tokens[row, :num_tokens] = np.frombuffer(prompt, np.uint32)
        request = Request(node, row, num_found)
        request.num_computed = num_tokens  # the forward would run here
        self._insert(request, prompt)
        return request

    def _insert(self, request: Request, tokens: bytes) -> None:
        """Puts the whole pages of these tokens into the tree and holds them there."""
        tree = self._tree
        num_tokens = self._whole_pages(len(tokens) // _TOKEN_BYTES)
        slots = self._table[request.row, :num_tokens]
        node, num_found = tree.insert(tokens[: num_tokens * _TOKEN_BYTES], slots)
        tree.lock(node)
        tree.unlock(request.node)
        # Another request has inserted the same pages, so the own copies are not needed.
        twins = slots[request.num_slots_in_tree : num_found : self._page]
        if len(twins):
            self._returned.append(twins.copy())
        request.node, request.num_slots_in_tree = node, num_tokens

    def free(self, request: Request) -> None:
        row, num_tokens = request.row, request.num_computed
        self._insert(request, self._tokens[row, :num_tokens].tobytes())
        self._tree.unlock(request.node)
        start, stop = request.num_slots_in_tree, self._whole_pages(num_tokens + self._page - 1)
        if start < stop:
            self._returned.append(self._table[row, start : stop : self._page].copy())
        self._rows.append(row)

    def _take(self, num_pages: int) -> Slots:
        if num_pages > len(self._free):
            self._free = np.concatenate([self._free, *self._returned])
            self._returned.clear()
        missing = (num_pages - len(self._free)) * self._page
        if missing > 0:
            if missing > self._tree.num_evictable:
                raise MemoryError("mini-sglang has too few pages")
            evicted = [slots[:: self._page] for slots in self._tree.evict(missing)]
            self._free = np.concatenate([self._free, *evicted])
        pages = self._free[:num_pages]
        self._free = self._free[num_pages:]
        return pages

    def batch(self, requests: Sequence[Request]) -> Sequence[Request]:
        return requests

    def step(self, batch: Sequence[Request], tokens: bytes) -> None:
        page = self._page
        rows, positions, at_start = [], [], []
        for request in batch:
            position = request.num_computed
            rows.append(request.row)
            positions.append(position)
            if not position % page:
                at_start.append(request)
        if at_start:
            pages = self._take(len(at_start))
            slots = pages[:, None] + self._offsets
            starts = np.array([r.num_computed for r in at_start])[:, None] + self._offsets
            self._table[np.array([r.row for r in at_start])[:, None], starts] = slots
        self._tokens[rows, positions] = np.frombuffer(tokens, np.uint32)
        for request in batch:
            request.num_computed += 1

    def fork(self, request: Request, count: int) -> Sequence[Request]:
        raise NotImplementedError(_NO_FORK)

    def copies(self) -> int:
        return 0

    def num_free(self) -> int:
        num_free = len(self._free) + sum(map(len, self._returned))
        return num_free + self._tree.num_evictable // self._page

    def scatter(self, order: npt.NDArray[np.int64]) -> None:
        self._free = order.astype(np.int32) * self._page
