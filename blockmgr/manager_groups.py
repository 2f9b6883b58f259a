"""``GroupCalls``: the calls of ``BlockManager`` by group of layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockmgr.arguments import integer, whole
from blockmgr.groups import FullAttention, RecurrentState, first_full

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from blockmgr import _core
    from blockmgr.config import ManagerConfig
    from blockmgr.groups import Group

__all__ = ["GroupCalls"]


class GroupCalls:
    """Block tables, slots and stops of each group of layers: a part of ``BlockManager``."""

    _core: _core.Core
    _config: ManagerConfig
    block_tables: npt.NDArray[np.int32]
    _group_tables: npt.NDArray[np.int32]

    def group_table(self, group: int) -> npt.NDArray[np.int32]:
        """The block table of a group of layers.

        Args:
            group: Its position in ``ManagerConfig.groups``; 0 without groups.

        Returns:
            ``int32[max_seqs, max_blocks_per_seq]`` on the host, read-only and never reallocated:
            entry ``i`` of a row is the block with tokens
            ``[i * block_size, (i + 1) * block_size)``, or 0, the null block, where the group holds
            nothing. For a group of states, ``int32[max_seqs, 1]``: the block that holds the
            sequence's state.

        Raises:
            ValueError: There is no such group.
            TypeError: ``group`` is not an int.
        """
        kind, position = self._group(group)
        if position < 0:
            return self.block_tables
        table: npt.NDArray[np.int32] = self._group_tables[position]
        return table[:, :1] if isinstance(kind, RecurrentState) else table

    def slot_mapping(
        self, handle: int, start: int, stop: int, *, group: int | None = None
    ) -> npt.NDArray[np.int64]:
        """The slot of each token position in ``[start, stop)``, in token order.

        A slot is ``block_id * block_size + offset``. Look-ahead positions have slots too.

        Args:
            handle: The sequence.
            start: First position.
            stop: Position after the last one.
            group: Position of an attention group in ``ManagerConfig.groups``; ``None`` for the
                group of ``block_tables``.

        Returns:
            ``int64[stop - start]`` on the host, owned by the caller. Never ``PAD_SLOT``.

        Raises:
            UnknownSequenceError: The handle is not live.
            ValueError: The range is not inside ``[0, num_slots]`` or begins before the group's
                window, there is no such group, or it is a group of states.
            TypeError: An argument is not an int.
        """
        if group is None:
            return self._core.slot_mapping(handle, start, stop)
        kind, position = self._group(group)
        if isinstance(kind, RecurrentState):
            raise ValueError(f"group must be one of attention, got {group}, which has states")
        if position < 0:
            return self._core.slot_mapping(handle, start, stop)
        return self._core.group_slots(handle, start, stop, position)

    def stops(self, handle: int) -> tuple[int, ...]:
        """Token counts at which forwards should end, so that the states can be found later.

        A state is findable only at a position where a forward ended and ``commit`` was called. So
        end a chunk at each of these positions, and commit it before launching the next one.

        Returns:
            Numbers of tokens, ascending and above ``num_computed_tokens``: the last block boundary
            that another prompt can use; the end of the prefix shared with cached blocks, which may
            be inside a block with ``min_partial_tokens``; half of what a long prompt computes, see
            ``halfway_stop_tokens``; and the end of a range that ``retain`` keeps longer. Empty
            without groups of states.

        Raises:
            UnknownSequenceError: The handle is not live.
        """
        number = integer("handle", handle)
        computed = self._core.view(number)[1]
        return tuple(sorted({s for s in self._core.view_groups(number)[1] if s > computed}))

    def cache_state(self, handle: int) -> bool:
        """Caches a sequence's state at the end of a block that is none of its ``stops``.

        ``commit`` caches states at ``stops`` only. An engine whose forwards also end elsewhere, at
        the ends of chunks or while it decodes, can have these states cached in blocks that nothing
        else uses: the call evicts nothing, and what it caches is evicted first. Like a state at a
        stop, it is found after ``copies_applied``, and the sequence continues in a copy.

        Args:
            handle: A running sequence, after the ``commit`` that said where its forward stopped.

        Returns:
            Whether prompts can continue from there. False if the sequence is inside a block, too
            few blocks are free, the state is cached already, or there are no groups of states.

        Raises:
            UnknownSequenceError: The handle is not live.
            SequenceStateError: The sequence is preempted.
            StepError: A forward may have moved the state since the last commit.

        Leaves:
            A planned copy for each group of states.
        """
        return self._core.cache_state(handle)

    def _group(self, group: int) -> tuple[Group, int]:
        """A group, and its number in the core; -1 for the group of ``block_tables``."""
        groups = self._config.groups or (FullAttention(),)
        index = whole("group", group, 0, len(groups) - 1)
        full = first_full(groups)
        return groups[index], -1 if index == full else index - (index > full)
