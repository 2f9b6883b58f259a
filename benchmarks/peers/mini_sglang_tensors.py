"""mini-sglang's radix cache with its types: tensors, and a compare in C++.

``mini_sglang`` describes the algorithm. Keys, slots, free pages and the page table are torch
tensors as in the original, but all in host memory, so that nothing waits for a device. Torch uses
one thread, which is a hundred times faster for tensors of this size on a busy machine.
``std::mismatch``, compiled here on first use, compares a run. A decoded token is appended to its
request's tensor and freed pages to the tensor of free pages; a page's key is a tuple.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peers.adapter import BLOCK_SIZE
from benchmarks.peers.mini_sglang import MiniSglang, Node, Request, Tree

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

__all__ = ["MiniSglangTensors"]

_COMPARE = r"""
#include <algorithm>
#include <cstdint>
extern "C" std::int64_t common(const std::int32_t* a, const std::int32_t* b, std::int64_t n) {
  return std::mismatch(a, a + n, b).first - a;
}
"""


def _compiled() -> Callable[[int, int, int], int]:
    """The compiled comparison; raises ``ImportError`` if there is no compiler."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise ImportError("mini-sglang's comparison of keys needs a C++ compiler")
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "common.cc"), Path(folder, "common.so")
        source.write_text(_COMPARE, encoding="utf-8")
        command = [compiler, "-std=c++20", "-O3", "-shared", "-fPIC", str(source)]
        subprocess.run([*command, "-o", str(library)], check=True)
        common: Any = ctypes.CDLL(str(library)).common
    common.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    common.restype = ctypes.c_int64
    return common


class MiniSglangTensors(MiniSglang):
    """The algorithm with its own types."""

    def __init__(self, cannot: Mapping[str, str] | None = None) -> None:
        super().__init__(cannot)
        import torch

        self.name = "mini-sglang's algorithm, as it is"
        torch.set_num_threads(1)
        self._torch = torch
        self._common = _compiled()

    def prompt(self, tokens: npt.NDArray[np.uint32]) -> Any:
        """Tokens as ``int32`` tensors."""
        return self._torch.from_numpy(tokens.astype("int32"))

    def open(
        self,
        num_blocks: int,
        block_size: int = BLOCK_SIZE,
        *,
        max_requests: int = 64,
        max_tokens: int = 1 << 18,
    ) -> Any:
        tree = _Tree(self._torch, self._common, block_size)
        return _Cache(self._torch, tree, num_blocks, (max_requests, max_tokens))


class _Tree(Tree):
    def __init__(self, torch: Any, common: Callable[[int, int, int], int], page_size: int) -> None:
        super().__init__(page_size)
        self._page = page_size  # in tokens, as the keys are
        self._common = common
        self._root.key = self._root.slots = torch.empty(0, dtype=torch.int32)

    def _first_page(self, key: Any) -> tuple[int, ...]:
        return tuple(key[: self._page].tolist())

    def walk(self, tokens: Any) -> tuple[Node, int]:
        node, position, end = self._root, 0, len(tokens)
        now = time.monotonic_ns()
        while position < end:
            rest = tokens[position:]
            child = node.children.get(self._first_page(rest))
            if child is None:
                break
            key = child.key
            num_tokens = min(len(key), len(rest))
            common = self._common(key.data_ptr(), rest.data_ptr(), num_tokens)
            common = common // self._page * self._page
            position += common
            if common != len(key):
                return self._split(child, common), position
            node = child
            node.used_at = now
        return node, position

    def _split(self, node: Node, common: int) -> Node:
        parent = node.parent
        assert parent is not None
        upper = Node(node.key[:common], node.slots[:common], parent, node.used_at)
        upper.holders = node.holders
        parent.children[self._first_page(upper.key)] = upper
        node.key, node.slots, node.parent = node.key[common:], node.slots[common:], upper
        upper.children[self._first_page(node.key)] = node
        return upper

    def insert(self, tokens: Any, slots: Any) -> tuple[Node, int]:
        node, num_found = self.walk(tokens)
        if num_found < len(tokens):
            slots = slots[num_found:].clone()
            child = Node(tokens[num_found:], slots, node, time.monotonic_ns())
            node.children[self._first_page(child.key)] = child
            self.num_evictable += len(slots)
            node = child
        return node, num_found


class _Cache:
    def __init__(self, torch: Any, tree: _Tree, num_blocks: int, most: tuple[int, int]) -> None:
        self._torch = torch
        self._tree = tree
        page = self._page = tree._page
        self._free = torch.arange(num_blocks, dtype=torch.int32) * page
        self._offsets = torch.arange(page, dtype=torch.int32)
        max_requests, max_tokens = most
        width = min(num_blocks, -(-max_tokens // page)) * page
        self._table = torch.empty((max_requests, width), dtype=torch.int32)
        self._rows = list(range(max_requests))

    def _whole_pages(self, num_tokens: int) -> int:
        return num_tokens // self._page * self._page

    def match(self, prompt: Any) -> int:
        return self._tree.walk(prompt[: self._whole_pages(len(prompt) - 1)])[1]

    def _give_back(self, slots: Any) -> None:
        if len(slots):
            self._free = self._torch.cat([self._free, slots[:: self._page]])

    def _take(self, num_pages: int) -> Any:
        """Allocates pages; returns their slots, page by page."""
        missing = (num_pages - len(self._free)) * self._page
        if missing > 0:
            if missing > self._tree.num_evictable:
                raise MemoryError("mini-sglang has too few pages")
            self._give_back(self._torch.cat(self._tree.evict(missing)))
        pages = self._free[:num_pages]
        self._free = self._free[num_pages:]
        return (pages.unsqueeze(1) + self._offsets).flatten()

    def _allocate(self, needs: list[tuple[int, int, int]]) -> None:
        """Writes new slots to the table; ``needs`` holds rows with a start and an end position."""
        torch = self._torch
        num_tokens = sum(stop - start for _, start, stop in needs)
        slots = self._take(num_tokens // self._page)
        rows = torch.empty(num_tokens, dtype=torch.int64)
        positions = torch.empty(num_tokens, dtype=torch.int64)
        offset = 0
        for row, start, stop in needs:
            end = offset + stop - start
            rows[offset:end].fill_(row)
            torch.arange(start, stop, out=positions[offset:end])
            offset = end
        self._table[rows, positions] = slots

    def admit(self, prompt: Any) -> Request:
        tree, num_tokens = self._tree, len(prompt)
        node, num_found = tree.walk(prompt[: self._whole_pages(num_tokens - 1)])
        tree.lock(node)
        row = self._rows.pop()
        if num_found:
            self._table[row, :num_found].copy_(self._torch.cat(tree.slots(node)))
        try:
            self._allocate([(row, num_found, self._whole_pages(num_tokens + self._page - 1))])
        except MemoryError:
            tree.unlock(node)
            self._rows.append(row)
            raise
        request = Request(node, row, num_found)
        request.tokens = prompt
        request.num_computed = num_tokens  # the forward would run here
        self._insert(request)
        return request

    def _insert(self, request: Request) -> None:
        tree = self._tree
        num_tokens = self._whole_pages(request.num_computed)
        slots = self._table[request.row, :num_tokens]
        node, num_found = tree.insert(request.tokens[:num_tokens], slots)
        tree.unlock(request.node)
        self._give_back(slots[request.num_slots_in_tree : num_found])
        tree.lock(node)
        request.node, request.num_slots_in_tree = node, num_tokens

    def free(self, request: Request) -> None:
        self._insert(request)
        self._tree.unlock(request.node)
        stop = self._whole_pages(request.num_computed + self._page - 1)
        self._give_back(self._table[request.row, request.num_slots_in_tree : stop])
        self._rows.append(request.row)

    def batch(self, requests: Sequence[Request]) -> Sequence[Request]:
        return requests

    def step(self, batch: Sequence[Request], tokens: Any) -> None:
        page = self._page
        needs = [
            (request.row, request.num_computed, request.num_computed + page)
            for request in batch
            if not request.num_computed % page
        ]
        if needs:
            self._allocate(needs)
        cat = self._torch.cat
        for i, request in enumerate(batch):
            request.num_computed += 1
            request.tokens = cat([request.tokens, tokens[i : i + 1]])

    def fork(self, request: Request, count: int) -> Sequence[Request]:
        raise NotImplementedError("mini-sglang has no fork")

    def copies(self) -> int:
        return 0

    def num_free(self) -> int:
        return len(self._free) + self._tree.num_evictable // self._page

    def scatter(self, order: npt.NDArray[np.int64]) -> None:
        self._free = self._torch.from_numpy(order.astype("int32")) * self._page
