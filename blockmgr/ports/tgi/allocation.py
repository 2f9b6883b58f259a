"""The blocks of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Self
from weakref import ref

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from blockmgr.manager import Sequence
    from blockmgr.ports.tgi.allocator import BlockAllocator

__all__ = ["BlockAllocation", "Link"]


class BlockAllocation:
    """The blocks of one request, from ``allocate``. Frees itself when it is dropped.

    ``async with`` closes it at the end, or discards it after an exception, including a
    cancellation. It cannot be copied, because two owners would free it twice.
    """

    __slots__ = (
        "__weakref__",
        "_allocator",
        "_num_prompt_tokens",
        "allocation_id",
        "blocks",
        "prefix_len",
        "slots",
    )

    allocation_id: int
    """Id of the allocation, which its allocator never reuses."""

    blocks: npt.NDArray[np.int32]
    """``int32[num_blocks]`` on the host: block ids in logical order. They never change."""

    slots: npt.NDArray[np.int64]
    """``int64[tokens]`` on the host: the slot of each token; cyclic with a window."""

    prefix_len: int
    """Leading tokens of the prompt whose K/V need not be computed: at most all but one."""

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
        return self.allocation_id not in self._allocator._links

    @property
    def is_ready(self) -> bool:
        """Whether the K/V of the prefix is in place; no forward may read it before.

        False at first if part of a block was found, until the next plan of copies is applied.
        """
        return self._allocator._is_ready(self.allocation_id)

    def commit(self, num_computed_tokens: int | None = None) -> None:
        """Declares the K/V of leading prompt tokens written, so that other requests find them.

        Args:
            num_computed_tokens: From the current value, initially ``prefix_len``, up to
                ``len(prefill_tokens)``; ``None`` for all of them.

        Raises:
            StepError: The prefix waits for a copy, so the forward cannot have run.
            UnknownSequenceError: The allocation is closed.
            ValueError: ``num_computed_tokens`` out of that range.
            TypeError: ``num_computed_tokens`` is not an int.
        """
        self._allocator._commit(self, num_computed_tokens)

    def close(self) -> None:
        """Ends the request regularly: its prompt is computed and stays findable.

        If the prefix still waits for a copy, no forward can have run, and this acts like
        ``discard``.

        Raises:
            UnknownSequenceError: The allocation is closed.
        """
        self._allocator._end(self.allocation_id, self)

    def discard(self) -> None:
        """Ends the request otherwise, as dropping it does: only committed tokens stay findable.

        Raises:
            UnknownSequenceError: The allocation is closed.
        """
        self._allocator._end(self.allocation_id)


class Link(ref[BlockAllocation]):
    """Outlives a dropped allocation, to identify it."""

    __slots__ = ("allocation_id",)

    allocation_id: int
