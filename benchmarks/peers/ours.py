"""blockmgr through the interface of its peers."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.cases import touch
from benchmarks.peers.adapter import BLOCK_SIZE, Operation
from blockmgr import BlockManager

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

__all__ = ["FromArrays", "FromLists"]


class FromArrays:
    """blockmgr with tokens in arrays, as an engine that optimises for speed keeps them."""

    cannot: Mapping[str, str] = {}

    def __init__(self) -> None:
        self.name = f"blockmgr {version('blockmgr')}"

    def prompt(self, tokens: npt.NDArray[np.uint32]) -> Any:
        return tokens

    def open(
        self,
        num_blocks: int,
        block_size: int = BLOCK_SIZE,
        *,
        max_requests: int = 64,
        max_tokens: int = 1 << 18,
    ) -> _Cache:
        # Rows and columns for all of the pool, so that every page of it can be touched at once.
        columns = min(num_blocks, max(-(-max_tokens // block_size), -(-num_blocks // max_requests)))
        manager = BlockManager(
            num_blocks, block_size, max_seqs=max_requests, max_blocks_per_seq=columns
        )
        touch(manager)
        return _Cache(manager)


class FromLists(FromArrays):
    """blockmgr with tokens in lists, as a tokenizer returns them."""

    cannot: Mapping[str, str] = {Operation.GROWTH: "grows as from arrays"}

    def __init__(self) -> None:
        super().__init__()
        self.name += ", from lists"

    def prompt(self, tokens: npt.NDArray[np.uint32]) -> Any:
        return tokens.tolist()


class _Cache:
    def __init__(self, manager: BlockManager) -> None:
        self._manager = manager

    def match(self, prompt: Any) -> int:
        return self._manager.match(prompt).num_cached_tokens

    def admit(self, prompt: Any) -> int:
        handle = self._manager.admit(prompt)
        self._manager.commit(handle, len(prompt))
        return handle

    def free(self, request: int) -> None:
        self._manager.free(request)

    def batch(self, requests: Sequence[int]) -> Any:
        return np.array(requests, dtype=np.int64)

    def step(self, batch: Any, tokens: Any) -> None:
        self._manager.decode(batch, tokens)

    def fork(self, request: int, count: int) -> list[int]:
        return self._manager.fork(request, count)

    def copies(self) -> int:
        plan = self._manager.take_copies()
        self._manager.copies_applied(plan.ticket)
        return len(plan)

    def num_free(self) -> int:
        return self._manager.num_available

    def scatter(self, order: npt.NDArray[np.int64]) -> None:
        # Blocks return to the free list as their sequences end. A row for each block would need a
        # manager of another shape, so the sequences of this one grow and end in random order. The
        # first pass leaves ascending runs; the second breaks them up.
        manager = self._manager
        num_seqs = min(manager.config.max_seqs, len(order))
        num_blocks = min(len(order) // num_seqs, manager.config.row_width)
        size = manager.config.block_size
        turns = order[: num_seqs * num_blocks] % num_seqs
        for _ in range(2):
            handles = [manager.admit([0]) for _ in range(num_seqs)]
            slots = [size] * num_seqs
            for turn in turns.tolist():
                if slots[turn] < num_blocks * size:
                    slots[turn] += size
                    manager.reserve(handles[turn], slots[turn])
            for turn in dict.fromkeys(turns.tolist()):
                manager.free(handles[turn])
