"""``Sequence``, a readable view of one sequence of a ``BlockManager``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Self

from blockmgr.errors import UnknownSequenceError
from blockmgr.uncopied import NotCopied

if TYPE_CHECKING:
    from types import TracebackType

    import numpy as np
    import numpy.typing as npt

    from blockmgr.blocks import Priority
    from blockmgr.manager import BlockManager
    from blockmgr.tokens import Tokens

__all__ = ["Sequence"]


class Sequence(NotCopied):
    """A readable view of one sequence. It stores only the handle.

    As a context manager it frees the sequence at the end, unless it is freed already. Two views are
    equal if they name the same sequence of the same manager.
    """

    __slots__ = ("_manager", "handle")

    handle: int
    """The sequence's handle."""

    _instead = "it is a view, so use it again, or fork the sequence it shows"

    def __init__(self, manager: BlockManager, handle: int) -> None:
        self._manager = manager
        self.handle = handle

    def __repr__(self) -> str:
        try:
            state = "preempted" if self.is_preempted else "running"
            tokens = f"{self.num_tokens} tokens, {self.num_computed_tokens} computed"
        except UnknownSequenceError:
            return f"<Sequence {self.handle}: freed>"
        return f"<Sequence {self.handle}: {state}, {tokens}, {self.num_blocks} blocks>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return self._manager is other._manager and self.handle == other.handle

    def __hash__(self) -> int:
        return hash((id(self._manager), self.handle))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._manager._core.view(self.handle)
        except UnknownSequenceError:
            return
        self.free()

    @property
    def row(self) -> int:
        """Row in ``block_tables`` and ``seq_lens``."""
        return self._manager.row(self.handle)

    @property
    def num_tokens(self) -> int:
        """Tokens in the sequence."""
        return self._manager._core.view(self.handle)[0]

    @property
    def num_computed_tokens(self) -> int:
        """Leading tokens whose K/V is in the cache."""
        return self._manager._core.view(self.handle)[1]

    @property
    def num_cached_tokens(self) -> int:
        """Leading tokens that came from the cache when the sequence was admitted."""
        return self._manager._core.view(self.handle)[2]

    @property
    def num_blocks(self) -> int:
        """Number of blocks held."""
        return self._manager._core.view(self.handle)[3]

    @property
    def num_slots(self) -> int:
        """Tokens with slots: blocks held times ``block_size``."""
        return self.num_blocks * self._manager.config.block_size

    @property
    def is_preempted(self) -> bool:
        """Whether the sequence waits for ``resume``."""
        return self._manager._core.view(self.handle)[4]

    @property
    def block_ids(self) -> npt.NDArray[np.int32]:
        """``int32[num_blocks]`` on the host, a copy of the block table."""
        return self._manager._core.block_ids(self.handle)

    @property
    def tokens(self) -> npt.NDArray[np.uint32]:
        """``uint32[num_tokens]`` on the host, a copy."""
        return self._manager._core.tokens(self.handle)

    def append(self, tokens: Tokens) -> None:
        """``BlockManager.append`` of this sequence."""
        self._manager.append(self.handle, tokens)

    def commit(self, num_computed_tokens: int) -> None:
        """``BlockManager.commit`` of this sequence."""
        self._manager.commit(self.handle, num_computed_tokens)

    def reserve(self, num_slots: int) -> None:
        """``BlockManager.reserve`` of this sequence."""
        self._manager.reserve(self.handle, num_slots)

    def truncate(self, num_tokens: int) -> int:
        """``BlockManager.truncate`` of this sequence."""
        return self._manager.truncate(self.handle, num_tokens)

    def fork(self, n: int = 1) -> list[Sequence]:
        """Views of ``n`` forks of this sequence, as ``BlockManager.fork`` makes them."""
        manager = self._manager
        return manager._core.fork(self.handle, n, partial(Sequence, manager))

    def slot_mapping(
        self, start: int, stop: int, *, group: int | None = None
    ) -> npt.NDArray[np.int64]:
        """``BlockManager.slot_mapping`` of this sequence."""
        return self._manager.slot_mapping(self.handle, start, stop, group=group)

    @property
    def stops(self) -> tuple[int, ...]:
        """``BlockManager.stops`` of this sequence."""
        return self._manager.stops(self.handle)

    def preempt(self) -> None:
        """``BlockManager.preempt`` of this sequence."""
        self._manager.preempt(self.handle)

    def resume(self, *, num_slots: int | None = None, read_cache: bool = True) -> None:
        """``BlockManager.resume`` of this sequence."""
        self._manager.resume(self.handle, num_slots=num_slots, read_cache=read_cache)

    def retain(
        self, start: int, stop: int, *, priority: Priority | None, ttl: float | None = None
    ) -> int:
        """``BlockManager.retain`` of this sequence."""
        return self._manager.retain(self.handle, start, stop, priority=priority, ttl=ttl)

    def free(self, *, expect_reuse: bool | None = None) -> None:
        """``BlockManager.free`` of this sequence."""
        self._manager.free(self.handle, expect_reuse=expect_reuse)
