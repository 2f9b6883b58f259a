"""The ways to copy that are compared. Each loads a list of copies; then one call is timed.

A way prepares what it needs from the list (index tensors on the device, views, addresses) outside
the timed part. This favours the others: ours checks, converts and uploads its list inside.
"""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from benchmarks.kv.batch_memcpy import BatchMemcpy
from blockmgr import CopyPlan
from blockmgr.kv import KVBlocks, segments_from

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.kv.pools import Copies, Pool

__all__ = [
    "UNLIMITED",
    "BatchCopy",
    "Blockmgr",
    "Contiguous",
    "EmptyLaunch",
    "PerLayer",
    "PerPair",
    "Plain",
    "Uploaded",
    "Way",
    "WidePlain",
]


UNLIMITED = 1 << 31

SHORT_LISTS = "BY_VALUE"
"""Constant of ``copy_triton``: pairs up to which a list is not transferred to the device."""


class Way(Protocol):
    """One way to apply a list of copies."""

    name: str

    checked: bool
    """Whether it leaves the pool as the oracle does."""

    whole_blocks: bool
    """Whether it always copies whole blocks, however many tokens are asked for."""

    most_pairs: int
    """The longest list for which it is timed."""

    def calls(self, copies: Copies) -> int:
        """Launches, or copies passed to the driver, that the list takes."""

    def load(self, copies: Copies) -> Callable[[], None]:
        """Makes the timed call; may run once."""


class Blockmgr:
    """``KVBlocks.copy`` of a plan, as ``take_copies`` returns it."""

    name = "blockmgr"
    checked = True
    whole_blocks = False
    most_pairs = UNLIMITED

    def __init__(self, pool: Pool, backend: str | None = None) -> None:
        segments = segments_from(pool.layers(), layout=pool.model.layout)
        self.blocks = KVBlocks(segments, block_size=pool.model.block_size, backend=backend)
        self._tickets = count()

    def calls(self, copies: Copies) -> int:
        return 1

    def load(self, copies: Copies) -> Callable[[], None]:
        plan = CopyPlan(next(self._tickets), copies.sources, copies.destinations, copies.num_tokens)
        return partial(self.blocks.copy, plan)


class Contiguous:
    """One contiguous copy of as many bytes within the device: the limit of its memory."""

    name = "contiguous"
    checked = False
    whole_blocks = False
    most_pairs = UNLIMITED

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def calls(self, copies: Copies) -> int:
        return 1

    def load(self, copies: Copies) -> Callable[[], None]:
        source, destination = self._pool.draw_span(copies.num_bytes(self._pool.model))
        return partial(destination.copy_, source)


class _Indexed:
    """A way that takes its block ids as index tensors."""

    checked = True
    whole_blocks = True
    most_pairs = UNLIMITED

    def __init__(self, pool: Pool) -> None:
        self._device = pool.device
        self._tensors = pool.tensors

    def calls(self, copies: Copies) -> int:
        return 2 * len(self._tensors)

    def load(self, copies: Copies) -> Callable[[], None]:
        ids = (copies.sources, copies.destinations)
        sources, destinations = (torch.from_numpy(i.astype(np.int64)).to(self._device) for i in ids)
        return partial(self._copy, sources, destinations)

    def _copy(self, sources: torch.Tensor, destinations: torch.Tensor) -> None:
        raise NotImplementedError


class PerLayer(_Indexed):
    """``x[destinations] = x[sources]`` for every tensor: vLLM 0.33's copy-on-write path."""

    name = "per layer"

    def _copy(self, sources: torch.Tensor, destinations: torch.Tensor) -> None:
        for tensor in self._tensors:
            tensor[destinations] = tensor[sources]


class Plain(_Indexed):
    """``index_select`` and ``index_copy_`` of every tensor in its own type."""

    name = "plain"

    def _copy(self, sources: torch.Tensor, destinations: torch.Tensor) -> None:
        for tensor in self._tensors:
            tensor.index_copy_(0, destinations, tensor.index_select(0, sources))


class WidePlain(Plain):
    """The same on the bytes viewed as 8-byte integers, which is faster for narrow types."""

    name = "plain int64"

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self._tensors = [t.view(pool.num_blocks, -1).view(torch.int64) for t in pool.tensors]


class PerPair:
    """``copy_`` of the filled tokens, for every pair and tensor."""

    name = "per pair"
    checked = True
    whole_blocks = False
    most_pairs = UNLIMITED

    def __init__(self, pool: Pool) -> None:
        self._model = pool.model
        self._tensors = pool.tensors

    def calls(self, copies: Copies) -> int:
        return len(copies) * len(self._tensors)

    def load(self, copies: Copies) -> Callable[[], None]:
        axis = self._model.token_axis
        views = [
            (tensor[destination].narrow(axis, 0, n), tensor[source].narrow(axis, 0, n))
            for source, destination, n in copies
            for tensor in self._tensors
        ]
        return partial(self._copy, views)

    @staticmethod
    def _copy(views: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        for destination, source in views:
            destination.copy_(source)


class BatchCopy:
    """``cuMemcpyBatchAsync``: whole blocks, one entry for every pair and tensor."""

    name = "batch memcpy"
    checked = True
    whole_blocks = True
    most_pairs = UNLIMITED

    def __init__(self, pool: Pool) -> None:
        self._call = BatchMemcpy()
        self._bases = np.array([t.data_ptr() for t in pool.tensors], np.uint64)
        self._size = pool.tensors[0][0].nbytes

    def calls(self, copies: Copies) -> int:
        return len(copies) * len(self._bases)

    def load(self, copies: Copies) -> Callable[[], None]:
        destinations, sources = (
            (self._bases + ids.astype(np.uint64)[:, None] * np.uint64(self._size)).ravel()
            for ids in (copies.destinations, copies.sources)
        )
        sizes = np.full(len(sources), self._size, np.uint64)
        return partial(self._call, destinations, sources, sizes)


class Uploaded:
    """Ours with every list transferred to the device; usually short ones are passed inline."""

    name = "uploaded"
    checked = True
    whole_blocks = False

    def __init__(self, pool: Pool) -> None:
        from blockmgr.kv import copy_triton

        self._module = copy_triton
        self._ours = Blockmgr(pool)
        self.most_pairs = getattr(copy_triton, SHORT_LISTS)

    def calls(self, copies: Copies) -> int:
        return 1

    def load(self, copies: Copies) -> Callable[[], None]:
        return partial(self._copy, self._ours.load(copies))

    def _copy(self, call: Callable[[], None]) -> None:
        setattr(self._module, SHORT_LISTS, 0)
        try:
            call()
        finally:
            setattr(self._module, SHORT_LISTS, self.most_pairs)


class EmptyLaunch:
    """A kernel that does nothing, launched like ours: the cost of a launch by itself."""

    name = "empty launch"
    checked = False
    whole_blocks = False
    most_pairs = UNLIMITED

    def __init__(self, pool: Pool) -> None:
        from benchmarks.kv.empty_kernel import empty_kernel
        from blockmgr.kv import copy_triton

        device = pool.device
        self._bytes_per_block = pool.model.bytes_per_block
        self._most_programs = copy_triton._most_programs(device)
        table = torch.zeros(1, 8, dtype=torch.int64, device=device)
        numbers = torch.zeros(8, dtype=torch.int32, device=device)
        self._tensors = (table, table, numbers, numbers, numbers)
        self._sizes = (2, 2, 2, 2)
        self._launch = copy_triton._Launcher(empty_kernel, 16, *self._tensors, *self._sizes)
        self._tile_bytes = 16 * copy_triton.TILE_UNITS

    def calls(self, copies: Copies) -> int:
        return 1

    def load(self, copies: Copies) -> Callable[[], None]:
        items = len(copies) * self._bytes_per_block // self._tile_bytes
        num_programs = min(items, self._most_programs)
        return partial(self._launch, num_programs, *self._tensors, *self._sizes)
