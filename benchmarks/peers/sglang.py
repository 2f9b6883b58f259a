"""SGLang's path of a request through its paged slot allocator and a radix tree.

The timed part is what its scheduler calls, without the layers between: match, lock,
``alloc_extend``, the request's row of slots, and the insertion of new pages. A decode step is one
``alloc_decode`` for the batch, which caches nothing before the request ends. Blocks that are
already cached are not inserted again, although its engine would do that. Tensors are on the CPU,
where an engine on a GPU would launch kernels.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.peers.adapter import BLOCK_SIZE, Operation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

__all__ = ["FULL", "PagedCache", "Sglang"]

_NO_FORK = "has no fork: parallel samples are requests of their own, which share by way of the tree"
FULL = 0  # the component of its tree that full attention uses


@dataclass(eq=False)
class Request:
    prompt: array[int]
    row: int
    num_tokens: int
    num_inserted: int
    node: Any
    lock: Any
    outputs: list[int] = field(default_factory=list)


@dataclass
class Batch:
    requests: Sequence[Request]
    rows: Any
    seq_lens: Any


class Sglang:
    """The common part of both trees: prompts, and how a cache is opened."""

    _kind: type[PagedCache]

    def __init__(self, tree: str) -> None:
        self._allocator = import_module("sglang.srt.mem_cache.allocator.paged")
        self.name = f"SGLang {version('sglang')}, {tree} tree"
        self.cannot: Mapping[str, str] = {
            Operation.FORK: _NO_FORK,
            Operation.COPY_ON_WRITE: _NO_FORK,
        }

    def prompt(self, tokens: npt.NDArray[np.uint32]) -> array[int]:
        """Its trees take nothing else."""
        return array("q", tokens.astype(np.int64).tobytes())

    def open(
        self,
        num_blocks: int,
        block_size: int = BLOCK_SIZE,
        *,
        max_requests: int = 64,
        max_tokens: int = 1 << 18,
    ) -> PagedCache:
        import torch

        allocator = self._allocator.PagedTokenToKVPoolAllocator(
            num_blocks * block_size, block_size, torch.float16, "cpu", None, False
        )
        rows = torch.empty((max_requests, max_tokens + block_size), dtype=torch.int32)
        return self._kind(allocator, rows, block_size)


class PagedCache:
    """The path of a request through allocator and tree; subclasses supply the tree."""

    def __init__(self, allocator: Any, rows: Any, page_size: int) -> None:
        import torch

        self._torch = torch
        self._allocator = allocator
        self._rows = rows
        self._free_rows = list(range(len(rows)))
        self._page_size = page_size
        self._open_tree()

    def _open_tree(self) -> None: ...

    def _find(self, prompt: array[int]) -> tuple[int, Any]:
        """The number of leading tokens in the tree, at most all but one, and their last node."""
        raise NotImplementedError

    def _slots_of(self, node: Any) -> Any:
        raise NotImplementedError

    def _lock(self, node: Any) -> Any:
        raise NotImplementedError

    def _unlock(self, node: Any, lock: Any) -> None:
        raise NotImplementedError

    def _insert(self, tokens: array[int], slots: Any, num_known: int) -> tuple[int, Any]:
        """Inserts pages, frees duplicate slots; returns the tokens present before and the node."""
        raise NotImplementedError

    def _evict(self, num_tokens: int) -> None:
        raise NotImplementedError

    def _evictable(self) -> int:
        raise NotImplementedError

    def match(self, prompt: array[int]) -> int:
        return self._find(prompt)[0]

    def admit(self, prompt: array[int]) -> Request:
        torch = self._torch
        num_found, node = self._find(prompt)
        lock = self._lock(node)
        found = self._slots_of(node)
        num_tokens = len(prompt)
        num_new = num_tokens - num_found
        self._make_room(num_new + self._page_size)
        seq_lens = torch.tensor([num_tokens])
        prefix_lens = torch.tensor([num_found])
        last = found[-1:] if num_found else torch.tensor([-1])
        new = self._allocator.alloc_extend(
            prefix_lens, prefix_lens, seq_lens, seq_lens, last, num_new
        )
        if new is None:
            raise MemoryError("SGLang has too few pages")
        number = self._free_rows.pop()
        row = self._rows[number]
        row[:num_found] = found
        row[num_found:num_tokens] = new
        request = Request(prompt, number, num_tokens, num_found, node, lock)
        self._publish(request, prompt)
        return request

    def _publish(self, request: Request, tokens: array[int]) -> None:
        num_full = len(tokens) // self._page_size * self._page_size
        known = request.num_inserted
        if num_full == known:
            return
        key = tokens if num_full == len(tokens) else tokens[:num_full]
        row = self._rows[request.row]
        slots = row[:num_full].to(self._torch.int64)
        num_there, node = self._insert(key, slots, known)
        lock = self._lock(node)
        self._unlock(request.node, request.lock)
        request.node, request.lock, request.num_inserted = node, lock, num_full
        if num_there > known:  # another request's pages take the place of these
            row[:num_full] = self._slots_of(node)

    def free(self, request: Request) -> None:
        if request.num_tokens // self._page_size * self._page_size > request.num_inserted:
            self._publish(request, request.prompt + array("q", request.outputs))
        if request.num_tokens > request.num_inserted:
            tail = self._rows[request.row, request.num_inserted : request.num_tokens]
            self._allocator.free_segment(tail.to(self._torch.int64), start_pos=request.num_inserted)
        self._unlock(request.node, request.lock)
        self._free_rows.append(request.row)

    def batch(self, requests: Sequence[Request]) -> Batch:
        tensor = self._torch.tensor
        rows = tensor([request.row for request in requests])
        return Batch(requests, rows, tensor([request.num_tokens for request in requests]))

    def step(self, batch: Batch, tokens: array[int]) -> None:
        self._make_room(len(batch.requests) * self._page_size)
        last = self._rows[batch.rows, batch.seq_lens - 1].to(self._torch.int64)
        seq_lens = batch.seq_lens + 1
        slots = self._allocator.alloc_decode(seq_lens, seq_lens, last)
        if slots is None:
            raise MemoryError("SGLang has too few pages")
        self._rows[batch.rows, batch.seq_lens] = slots.to(self._torch.int32)
        batch.seq_lens = seq_lens
        for request, token in zip(batch.requests, tokens, strict=True):
            request.outputs.append(token)
            request.num_tokens += 1

    def _make_room(self, num_tokens: int) -> None:
        # Its engine reserves a page more for each request than the request may need.
        available = self._allocator.available_size()
        if available < num_tokens:
            self._evict(num_tokens - available)

    def fork(self, request: Request, count: int) -> Sequence[Request]:
        raise NotImplementedError(_NO_FORK)

    def copies(self) -> int:
        return 0

    def num_free(self) -> int:
        return (self._allocator.available_size() + self._evictable()) // self._page_size

    def scatter(self, order: npt.NDArray[np.int64]) -> None:
        allocator = self._allocator
        slots = allocator.alloc(len(order) * self._page_size)
        allocator.free_page_ids(slots[:: self._page_size][order] // self._page_size)
