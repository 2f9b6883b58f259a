"""The timed operations, each on the state that its name describes.

A case is prepared before every run, so that the timed part is one call on a known state, and
checked at the end, so that a case that stopped doing its work cannot look fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from blockmgr import BlockManager, Prompt

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "Admit",
    "Case",
    "ColdAdmit",
    "DecodeStep",
    "DigestsDue",
    "Fork",
    "Free",
    "Match",
    "Prompts",
    "cache",
    "touch",
]

VOCABULARY = 128_000
PROMPT_TOKENS = 32_768
POOL_BLOCKS = 65_536


class Case(Protocol):
    """One operation that can be timed any number of times."""

    count: int
    """Blocks, steps or calls in one run: what its time is divided by."""

    def prepare(self) -> None:
        """Restores the state on which ``run`` is timed."""

    def run(self) -> None:
        """The timed part: one or two calls."""

    def check(self) -> None:
        """Fails if the runs did not do their work."""


class Prompts:
    """Random token ids that depend only on the seed."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)

    def draw(self, num_tokens: int) -> npt.NDArray[np.uint32]:
        """``uint32[num_tokens]``, each below the size of a common vocabulary."""
        return self._random.integers(0, VOCABULARY, num_tokens, dtype=np.uint32)

    def shuffled(self, numbers: npt.ArrayLike) -> list[int]:
        """The numbers in random order."""
        in_order: list[int] = self._random.permutation(np.asarray(numbers)).tolist()
        return in_order


def touch(manager: BlockManager) -> None:
    """Uses every block once, so that no timed run is the first to touch a page of the pool."""
    size = manager.config.block_size
    most = manager.config.row_width
    handles = []
    while manager.num_available:
        num_tokens = min(most, manager.num_available) * size
        handles.append(manager.admit(np.zeros(num_tokens, dtype=np.uint32)))
    for handle in reversed(handles):  # leaves the free queue in ascending order
        manager.free(handle)


def cache(manager: BlockManager, prompt: npt.NDArray[np.uint32]) -> None:
    """Leaves every full block of a prompt cached and idle."""
    handle = manager.admit(prompt)
    manager.commit(handle, len(prompt))
    manager.free(handle)


class _Warm:
    """A pool in which one prompt is cached and idle; the next one repeats it and adds a token."""

    def __init__(
        self,
        num_tokens: int = PROMPT_TOKENS,
        block_size: int = 16,
        *,
        num_blocks: int = POOL_BLOCKS,
        as_list: bool = False,
        eviction: str = "lru",
    ) -> None:
        self.count = num_tokens // block_size
        self.manager = BlockManager(
            num_blocks,
            block_size,
            max_seqs=16,
            max_blocks_per_seq=self.count + 1,
            eviction=eviction,
        )
        prompt = Prompts().draw(num_tokens + 1)
        cache(self.manager, prompt[:-1])
        self._idle = self.manager.stats().idle_blocks
        # A tokenizer returns a list; an engine that optimises for speed keeps an array.
        self.prompt: Any = prompt.tolist() if as_list else prompt
        self.handle: int | None = None

    def _free(self) -> None:
        if self.handle is not None:
            self.manager.free(self.handle)
            self.handle = None

    def _admit(self) -> None:
        self.handle = self.manager.admit(self.prompt)


class Match(_Warm):
    """``match`` of a cached prompt: finds every block and references none."""

    def prepare(self) -> None:
        """Does nothing, because a match changes no state."""

    def run(self) -> None:
        self.match = self.manager.match(self.prompt)

    def check(self) -> None:
        assert len(self.match.block_ids) == self.count


class MatchOfTurn(_Warm):
    """``match`` of the next turn of a session whose tokens are in a list that grows.

    All turns are cached, and after the last one another session begins. ``count`` is that of a turn
    in the middle.
    """

    TURNS = 50
    NEW_TOKENS = 500

    def __init__(self, num_tokens: int = PROMPT_TOKENS) -> None:
        super().__init__(num_tokens, as_list=True)
        self._ids: list[int] = []
        self.count -= self.TURNS * self.NEW_TOKENS // 2 // self.manager.config.block_size

    def prepare(self) -> None:
        size = len(self._ids) + self.NEW_TOKENS
        if not self._ids or size > len(self.prompt):
            size = len(self.prompt) - (self.TURNS - 1) * self.NEW_TOKENS
            self._session = Prompt(self.prompt[: size - self.NEW_TOKENS])
        self._ids = self.prompt[:size]

    def run(self) -> None:
        self._session.extend(self._ids[len(self._session) :])
        self.match = self.manager.match(self._session)

    def check(self) -> None:
        assert len(self.match.block_ids) == (len(self._ids) - 1) // self.manager.config.block_size


class Admit(_Warm):
    """``admit`` of a cached prompt: references every block, allocates one for the rest."""

    def prepare(self) -> None:
        self._free()

    def run(self) -> None:
        self._admit()

    def check(self) -> None:
        assert self.handle is not None
        assert self.manager.sequence(self.handle).num_cached_tokens == len(self.prompt) - 1
        self._free()


class DigestsDue:
    """The commit of the third prompt that parts at the end of a long one.

    None of the long prompt's blocks has a digest before, and all have one afterwards: no call
    computes more of them for a prompt.
    """

    def __init__(self, num_tokens: int, block_size: int = 16) -> None:
        self.count = num_tokens // block_size
        blocks = self.count + 8
        self.manager = BlockManager(blocks, block_size, max_seqs=2, max_blocks_per_seq=blocks)
        self._prompts = [Prompts().draw(self.count * block_size) for _ in range(3)]
        for number, prompt in enumerate(self._prompts):
            prompt[-1] = number
        self._handle = 0

    def prepare(self) -> None:
        self.manager.reset_prefix_cache()
        for prompt in self._prompts[:2]:
            cache(self.manager, prompt)
        self._handle = self.manager.admit(self._prompts[2])

    def run(self) -> None:
        self.manager.commit(self._handle, len(self._prompts[2]))
        self.manager.free(self._handle)

    def check(self) -> None:
        for prompt in self._prompts:
            found = self.manager.match(np.append(prompt, np.uint32(0))).num_cached_tokens
            assert found == len(prompt)


class Free(_Warm):
    """``free`` of a sequence that shares no blocks: all but one stay cached."""

    def prepare(self) -> None:
        self._admit()

    def run(self) -> None:
        self._free()

    def check(self) -> None:
        stats = self.manager.stats()
        assert stats.used_blocks == 0
        assert stats.idle_blocks == self._idle >= self.count


class ColdAdmit:
    """``admit`` and ``commit`` of an uncached prompt: allocates and promotes each block.

    If ``evicting``, every block it allocates is the cached block of an earlier prompt. Otherwise
    the pool is rebuilt, and its pages touched, before its free blocks run out.
    """

    def __init__(
        self,
        num_tokens: int = PROMPT_TOKENS,
        block_size: int = 16,
        *,
        num_blocks: int = POOL_BLOCKS,
        evicting: bool = False,
        eviction: str = "lru",
    ) -> None:
        self.count = num_tokens // block_size
        self.evicting = evicting
        self._eviction = eviction
        self._num_tokens = num_tokens
        self._shape = (num_blocks, block_size)
        self._prompts = Prompts()
        self._runs = 0
        self._handle: int | None = None
        self._build()
        while evicting and self.manager.stats().free_blocks >= self.count:
            cache(self.manager, self._prompts.draw(num_tokens))
        self._evicted = self.manager.stats().evicted_blocks

    def _build(self) -> None:
        num_blocks, block_size = self._shape
        self.manager = BlockManager(
            num_blocks,
            block_size,
            max_seqs=num_blocks // self.count + 1,
            max_blocks_per_seq=self.count,
            eviction=self._eviction,
        )
        touch(self.manager)

    def prepare(self) -> None:
        if self._handle is not None:
            self.manager.free(self._handle)
            self._handle = None
        if not self.evicting and self.manager.stats().free_blocks <= self.count:
            self._build()
        self._prompt = self._prompts.draw(self._num_tokens)

    def run(self) -> None:
        self._handle = self.manager.admit(self._prompt)
        self.manager.commit(self._handle, self._num_tokens)
        self._runs += 1

    def check(self) -> None:
        assert self._handle is not None
        stats = self.manager.stats()
        assert stats.hit_tokens == stats.deduplicated_blocks == 0
        evicted = stats.evicted_blocks - self._evicted
        assert evicted == (self._runs * self.count if self.evicting else 0)


class DecodeStep:
    """``decode`` of a whole batch, staggered: one in ``block_size`` sequences fills a block.

    So with 1,024 sequences and blocks of 16, each step takes 64 blocks and promotes 64. If
    ``evicting``, each of the 64 is the cached block of an earlier prompt.
    """

    count = 1

    def __init__(
        self,
        num_seqs: int = 1024,
        block_size: int = 16,
        *,
        num_blocks: int = POOL_BLOCKS,
        evicting: bool = False,
        eviction: str = "lru",
    ) -> None:
        self.evicting = evicting
        self._eviction = eviction
        self._num_seqs = num_seqs
        self._shape = (num_blocks, block_size)
        self._prompts = Prompts()
        # Half of the pool is allocated before the batch restarts with new prompts.
        self._steps_of_a_batch = num_blocks // num_seqs * block_size // 2
        self._build()
        while evicting and self.manager.stats().free_blocks >= block_size:
            cache(self.manager, self._prompts.draw(block_size * block_size))
        self._start()

    def _build(self) -> None:
        num_blocks, block_size = self._shape
        self.manager = BlockManager(
            num_blocks,
            block_size,
            max_seqs=self._num_seqs,
            max_blocks_per_seq=num_blocks // self._num_seqs + 8,
            eviction=self._eviction,
        )
        touch(self.manager)

    def _start(self) -> None:
        block_size = self._shape[1]
        lengths = 4 * block_size + np.arange(self._num_seqs) % block_size
        admitted = [self.manager.admit(self._prompts.draw(n)) for n in lengths.tolist()]
        self._handles = np.array(admitted, dtype=np.int64)
        # The first step commits the prompts, which must not be timed.
        self.manager.decode(self._handles, self._prompts.draw(self._num_seqs))
        self._steps = 0
        self._before = self.manager.stats()

    def prepare(self) -> None:
        if self._steps == self._steps_of_a_batch:
            self.check()
            for handle in self._handles.tolist():
                self.manager.free(handle)
            if not self.evicting:
                self._build()
            self._start()
        self._tokens = self._prompts.draw(self._num_seqs)

    def run(self) -> None:
        self.slots = self.manager.decode(self._handles, self._tokens)
        self._steps += 1

    def check(self) -> None:
        filled = self._num_seqs // self._shape[1] * self._steps
        stats, before = self.manager.stats(), self._before
        assert stats.promoted_blocks - before.promoted_blocks == filled
        assert stats.evicted_blocks - before.evicted_blocks == (filled if self.evicting else 0)
        assert len(np.unique(self.slots)) == self._num_seqs


class Fork:
    """``fork`` of one long sequence into several; they are freed outside the timed part."""

    count = 1

    def __init__(self, num_blocks: int = 2048, num_children: int = 8, block_size: int = 16) -> None:
        self._num_children = num_children
        self.manager = BlockManager(
            2 * (num_blocks + 1),
            block_size,
            max_seqs=num_children + 1,
            max_blocks_per_seq=num_blocks,
        )
        prompt = Prompts().draw(num_blocks * block_size)
        self.parent = self.manager.admit(prompt)
        self.manager.commit(self.parent, len(prompt))
        self._used = self.manager.stats().used_blocks
        self.children: list[int] = []

    def prepare(self) -> None:
        while self.children:
            self.manager.free(self.children.pop())

    def run(self) -> None:
        self.children = self.manager.fork(self.parent, self._num_children)

    def check(self) -> None:
        assert len(self.children) == self._num_children
        assert self.manager.stats().used_blocks == self._used
        self.prepare()
