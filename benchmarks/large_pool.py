"""Cases on a pool far larger than the processor's caches."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.cases import PROMPT_TOKENS, Prompts, cache
from blockmgr import BlockManager

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["LargePoolAdmit", "LargePoolMatch"]

LARGE_POOL_BLOCKS = 1_048_576
MAX_SEQS = 4096


class _LargePool:
    """A pool far larger than any processor cache, its block ids in random order.

    Prompts are taken in turn. Between two turns of one prompt the records, tokens and prompts of
    all others pass through the cache (50 MB at the defaults), so every block is a miss.
    """

    def __init__(self, num_blocks: int, num_prompts: int, num_tokens: int) -> None:
        self.manager = BlockManager(
            num_blocks,
            16,
            max_seqs=MAX_SEQS,
            # Also the sequences that shuffle the pool have it to themselves.
            max_blocks_per_seq=max(num_tokens // 16 + 1, num_blocks // MAX_SEQS),
        )
        prompts = Prompts()
        self._shuffle_free_blocks(prompts)
        self.prompts = [prompts.draw(num_tokens + 1) for _ in range(num_prompts)]
        for prompt in self.prompts:
            cache(self.manager, prompt[:-1])
        self._turn = 0

    def _shuffle_free_blocks(self, prompts: Prompts) -> None:
        # Sequences grow block by block in random order and are freed in random order. The first
        # pass leaves ascending runs in each row; the second breaks them up.
        manager = self.manager
        num_seqs = manager.config.max_seqs
        num_blocks = manager.num_available // num_seqs
        for _ in range(2):
            slots = {manager.admit([0]): 16 for _ in range(num_seqs)}
            for handle in prompts.shuffled(np.repeat(list(slots), num_blocks - 1)):
                slots[handle] += 16
                manager.reserve(handle, slots[handle])
            for handle in prompts.shuffled(list(slots)):
                manager.free(handle)

    def next_prompt(self) -> npt.NDArray[np.uint32]:
        self._turn = (self._turn + 1) % len(self.prompts)
        return self.prompts[self._turn]


# The cases on a large pool share one: it takes seconds to build and leaves no state behind.
_large_pool = functools.cache(_LargePool)


class LargePoolMatch:
    """``match`` of a cached prompt whose every block misses the processor's caches."""

    def __init__(
        self,
        num_blocks: int = LARGE_POOL_BLOCKS,
        num_prompts: int = 128,
        num_tokens: int = PROMPT_TOKENS,
    ) -> None:
        self.count = num_tokens // 16
        self._pool = _large_pool(num_blocks, num_prompts, num_tokens)
        self._manager = self._pool.manager

    def prepare(self) -> None:
        self._prompt = self._pool.next_prompt()

    def run(self) -> None:
        self._match = self._manager.match(self._prompt)

    def check(self) -> None:
        assert len(self._match.block_ids) == self.count


class LargePoolAdmit(LargePoolMatch):
    """``admit`` of the same prompts."""

    _handle: int | None = None

    def prepare(self) -> None:
        if self._handle is not None:
            self._manager.free(self._handle)
            self._handle = None
        super().prepare()

    def run(self) -> None:
        self._handle = self._manager.admit(self._prompt)

    def check(self) -> None:
        assert self._handle is not None
        sequence = self._manager.sequence(self._handle)
        assert sequence.num_cached_tokens == self.count * 16
        self.prepare()
