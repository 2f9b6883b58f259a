"""Text Generation Inference's ``BlockAllocator``, for many asyncio tasks.

``allocate`` reserves all slots of a request at once and returns a ``BlockAllocation``, which
releases its blocks when it is closed, when its ``async with`` ends, or when it is no longer
referenced.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NoReturn, Self, cast
from weakref import ref

import numpy as np

from blockmgr.arguments import integer, whole
from blockmgr.config import MAX_BLOCKS
from blockmgr.errors import (
    NeverFitsError,
    OutOfBlocksError,
    OutOfSequencesError,
    StepError,
    UnknownSequenceError,
)
from blockmgr.groups import MAX_BLOCK_SIZE
from blockmgr.manager import BlockManager

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import numpy.typing as npt

    from blockmgr.blocks import CopyPlan
    from blockmgr.manager import Sequence, Tokens
    from blockmgr.policy import PolicyFactory

__all__ = ["BlockAllocation", "BlockAllocator"]

MAX_TOKENS = 2**31 - 1  # token positions are int32
# The block table array has a row for each allocation, and uses memory only for used rows. Some
# systems limit overcommitted memory, so the array has at most a gibibyte, or at least this many
# rows.
MAX_TABLE_ENTRIES = 2**28
MIN_ALLOCATIONS = 256
# A prompt of one token finds nothing, and is not found without a commit.
_NO_PROMPT: Tokens = [0]


class BlockAllocation:
    """The blocks of one request, from ``allocate``. Frees itself when it is dropped.

    ``async with`` closes it at the end, or discards it after an exception, including a
    cancellation. It cannot be copied, because two owners would free it twice. Values of the wrong
    type raise ``TypeError``, and values out of their bounds ``ValueError``.

    Attributes:
        allocation_id: Id of the allocation, which its allocator never reuses.
        blocks: ``int32[num_blocks]`` on the host: block ids in logical order. They never change.
        slots: ``int64[tokens]`` on the host: the slot of each token; cyclic with a window.
        prefix_len: Leading tokens of the prompt whose K/V need not be computed: at most all but
            one.
    """

    def __init__(
        self, allocator: BlockAllocator, view: Sequence, num_tokens: int, num_prompt_tokens: int
    ) -> None:
        self._allocator = allocator
        self._num_prompt_tokens = num_prompt_tokens
        self.allocation_id = view.handle
        self.prefix_len = view.num_cached_tokens
        self.blocks = view.block_ids
        num_slots = len(self.blocks) * allocator.block_size
        self.slots = view.slot_mapping(0, min(num_tokens, num_slots))
        if num_slots < num_tokens:
            self.slots = np.resize(self.slots, num_tokens)  # over and over

    def __repr__(self) -> str:
        closed = ", closed" if self.is_closed else ""
        return (
            f"<BlockAllocation {self.allocation_id}: {len(self.blocks)} blocks for "
            f"{len(self.slots)} tokens, {self.prefix_len} cached{closed}>"
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError("a BlockAllocation owns its blocks and cannot be copied or pickled")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self.is_closed:
            end = self.discard if kind else self.close
            end()

    @property
    def is_closed(self) -> bool:
        """Whether its blocks have been released."""
        return self.allocation_id not in self._allocator._open

    @property
    def is_ready(self) -> bool:
        """Whether the K/V of the prefix is in place; no forward may read it before.

        False at first if part of a block was found, until the next plan of copies is applied.
        """
        waiting, in_flight = self._allocator._waiting, self._allocator._in_flight
        return self.allocation_id not in waiting and self.allocation_id not in in_flight

    def commit(self, num_computed_tokens: int | None = None) -> None:
        """Declares the K/V of leading prompt tokens written, so that other requests find them.

        Args:
            num_computed_tokens: From the current value, initially ``prefix_len``, up to
                ``len(prefill_tokens)``; ``None`` for all of them.

        Raises:
            StepError: The prefix waits for a copy, so the forward cannot have run.
            UnknownSequenceError: The allocation is closed.
        """
        manager, most = self._manager(), self._num_prompt_tokens
        wanted = most if num_computed_tokens is None else num_computed_tokens
        wanted = whole("num_computed_tokens", wanted, 0, most)
        if not self.is_ready:
            raise StepError(
                f"allocation {self.allocation_id} waits for a copy of its prefix; run the copies "
                "before the forward, and commit after it"
            )
        if most and manager.config.prefix_caching:
            manager.commit(self.allocation_id, wanted)

    def close(self) -> None:
        """Ends the request regularly: its prompt is computed and stays findable.

        If the prefix still waits for a copy, no forward can have run, and this acts like
        ``discard``.

        Raises:
            UnknownSequenceError: The allocation is closed.
        """
        if self.is_ready:
            self.commit()
        self.discard()

    def discard(self) -> None:
        """Ends the request otherwise, as dropping it does: only committed tokens stay findable.

        Raises:
            UnknownSequenceError: The allocation is closed.
        """
        self._manager()
        self._allocator._release(self.allocation_id)

    def _manager(self) -> BlockManager:
        """The manager that has its blocks."""
        if self.is_closed:
            raise UnknownSequenceError(self.allocation_id)
        return self._allocator.manager


class BlockAllocator:
    """Allocates blocks for many asyncio tasks of one event loop.

    No call waits for another one, so each is atomic among tasks, and a cancellation loses none. An
    allocation may be dropped in any thread: its blocks are released by the next call. All other
    calls belong to the loop's thread. Values of the wrong type raise ``TypeError``, and values out
    of their bounds ``ValueError``.

    Args:
        max_batch_total_tokens: Tokens in the KV cache, including those of the reserved block 0; at
            least two blocks.
        block_size: Tokens per block, ``1 … 65535``.
        prefix_caching: Whether prompts share prefixes.
        window_size: Tokens of a sliding window. A request holds at most the blocks of a window, and
            reuses its slots cyclically. Ignored with ``prefix_caching``, because others cannot use
            an overwritten prefix.
        eviction: As in ``ManagerConfig``.

    Raises:
        ValueError: A value out of its bounds.
        TypeError: A value of the wrong type.

    >>> async def serve(allocator, prompt):
    ...     async with await allocator.allocate(len(prompt) + 8, prompt) as allocation:
    ...         async with allocator.copies() as plan:
    ...             pass  # run the copies of the plan, then compute what is not cached
    ...         return allocation.prefix_len
    >>> async def main():
    ...     allocator = BlockAllocator(max_batch_total_tokens=1024, block_size=16)
    ...     return [await serve(allocator, [*range(40), last]) for last in (1, 2)]
    >>> asyncio.run(main())
    [0, 40]

    Source: Text Generation Inference, ``backends/v3/src/block_allocator.rs`` and ``radix.rs``.
    """

    def __init__(
        self,
        max_batch_total_tokens: int,
        block_size: int,
        prefix_caching: bool = True,
        window_size: int | None = None,
        *,
        eviction: str | PolicyFactory = "lru",
    ) -> None:
        size = whole("block_size", block_size, 1, MAX_BLOCK_SIZE)
        most = MAX_BLOCKS * size
        total = whole("max_batch_total_tokens", max_batch_total_tokens, 2 * size, most)
        window = MAX_TOKENS
        if window_size is not None:
            window = whole("window_size", window_size, 1, MAX_TOKENS)
        capacity = total // size - 1
        self._manager = BlockManager(
            total // size,
            size,
            # Each allocation has a private block, so more rows are never needed.
            max_seqs=min(capacity, max(MIN_ALLOCATIONS, MAX_TABLE_ENTRIES // capacity)),
            prefix_caching=prefix_caching,
            dedup="append_only",  # the blocks of an allocation never change
            min_partial_tokens=1,
            null_block=True,
            eviction=eviction,
        )
        self.block_size = size
        self._window_size = MAX_TOKENS if prefix_caching else window
        self._open: dict[int, ref[BlockAllocation]] = {}
        # Allocations may be dropped in other threads, and by the garbage collector inside a call of
        # the manager. A drop only appends its id to this list.
        self._dropped: deque[int] = deque()
        # Allocations whose prefix may wait for a copy: of the next plan, and of the open plan.
        self._waiting: set[int] = set()
        self._in_flight: set[int] = set()
        self._plan = asyncio.Lock()

    def __repr__(self) -> str:
        available = self.num_available
        return (
            f"<BlockAllocator: {len(self._open)} allocations, {available} blocks of "
            f"{self.block_size} tokens available>"
        )

    @property
    def manager(self) -> BlockManager:
        """The underlying manager, for its statistics. Its sequences belong to the port."""
        while self._dropped:
            allocation_id = self._dropped.popleft()
            if allocation_id in self._open:
                self._release(allocation_id)
        return self._manager

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out: free and idle."""
        return self.manager.num_available

    async def allocate(
        self, tokens: int, prefill_tokens: Tokens | None = None
    ) -> BlockAllocation | None:
        """Reserves slots for all tokens of a request: its prompt and its output.

        Args:
            tokens: Prompt and generated tokens together, ``1 … 2**31 - 1``.
            prefill_tokens: The prompt, whose longest cached prefix is reused; 1 to ``tokens``
                tokens. ``None`` for no sharing.

        Returns:
            The allocation; ``None`` if there is no room for it at the moment. If part of a block is
            found, a copy waits for the next plan (``is_ready``).

        Raises:
            NeverFitsError: It does not fit even if it is alone.
        """
        num_tokens = whole("tokens", tokens, 1, MAX_TOKENS)
        prompt, num_prompt_tokens = _NO_PROMPT, 0
        if prefill_tokens is not None:
            num_prompt_tokens = _prompt_length(prefill_tokens, num_tokens)
            if self._manager.config.prefix_caching:
                prompt = prefill_tokens
        try:
            handle = self.manager.admit(prompt, num_slots=min(num_tokens, self._window_size))
        except (OutOfBlocksError, OutOfSequencesError):
            return None
        except NeverFitsError:
            raise
        except (TypeError, ValueError) as error:
            raise type(error)(f"prefill_tokens: {error}") from None
        view = self._manager.sequence(handle)
        allocation = BlockAllocation(self, view, num_tokens, num_prompt_tokens)
        drop = self._dropped.append
        self._open[handle] = ref(allocation, lambda _: drop(handle))
        if allocation.prefix_len % self.block_size:
            self._waiting.add(handle)
        return allocation

    def free(self, blocks: npt.ArrayLike, allocation_id: int) -> None:
        """Closes the allocation with this id, like its ``close``.

        Raises:
            UnknownSequenceError: No such allocation is open.
            ValueError: ``blocks`` are not its blocks.
        """
        allocation_id = integer("allocation_id", allocation_id)
        link = self._open.get(allocation_id)
        allocation = link() if link else None
        if allocation is None:
            raise UnknownSequenceError(allocation_id)
        if not np.array_equal(blocks, allocation.blocks):
            raise ValueError(
                f"blocks must be {allocation.blocks.tolist()}, those of allocation "
                f"{allocation_id}, got {blocks!r}"
            )
        allocation.close()

    @asynccontextmanager
    async def copies(self) -> AsyncIterator[CopyPlan]:
        """The block copies to run before the next forward, for ``async with``.

        Run them inside the context, all at once or in any order. After an exception they are
        pending again. If another task has an open plan, this waits for it; ``allocate`` does not.
        """
        async with self._plan:
            plan = self.manager.take_copies()
            self._in_flight, self._waiting = self._waiting, set()
            try:
                yield plan
            except BaseException:
                self._manager.copies_aborted(plan.ticket)
                self._waiting |= self._in_flight
                raise
            else:
                self._manager.copies_applied(plan.ticket)
            finally:
                self._in_flight = set()

    def _release(self, allocation_id: int) -> None:
        self._manager.free(allocation_id)
        del self._open[allocation_id]
        self._waiting.discard(allocation_id)
        self._in_flight.discard(allocation_id)


def _prompt_length(prefill_tokens: Tokens, tokens: int) -> int:
    try:
        count = len(cast("list[int]", prefill_tokens))
    except TypeError:
        kind = type(prefill_tokens).__name__
        raise TypeError(f"prefill_tokens must be a list or array of ints, got {kind}") from None
    if not 1 <= count <= tokens:
        raise ValueError(f"prefill_tokens must hold 1 to {tokens} (tokens) tokens, got {count}")
    return count
