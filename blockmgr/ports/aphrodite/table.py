"""The block table of one sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockmgr.arguments import whole
from blockmgr.changes import at_once
from blockmgr.errors import SequenceStateError
from blockmgr.ports.aphrodite.blocks import BlockView, Run
from blockmgr.ports.aphrodite.device import CpuGpuBlockAllocator
from blockmgr.ports.aphrodite.growth import Growth, blocks_needed
from blockmgr.ports.aphrodite.interfaces import Block, Device, NoFreeBlocksError
from blockmgr.ports.aphrodite.run_plans import carry_out
from blockmgr.ports.aphrodite.tokens import checked_extra, whole_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from blockmgr.changes import Change

__all__ = ["BlockTable"]


class BlockTable:
    """The blocks of a sequence, which grow with its tokens; for one thread at a time.

    Args:
        block_size: Tokens per block.
        block_allocator: Allocator of the blocks.
        max_block_sliding_window: Blocks that attention reads, including the one being written;
            older blocks are released and replaced by the null block. Only without prefix caching,
            because a cached block keeps the blocks that it continues.

    Raises:
        NoFreeBlocksError: No block is left for the null block of a window.
        ValueError: ``block_size`` is not the allocator's, the window is below 1, or there is a
            window with prefix caching.
        TypeError: A value is of the wrong type.
    """

    __slots__ = ("_allocator", "_dropped", "_run", "_window", "block_size", "num_computed_slots")

    block_size: int
    """Tokens per block."""

    num_computed_slots: int
    """Leading slots whose K/V is known to be written; ``BlockSpaceManager`` keeps count."""

    def __init__(
        self,
        block_size: int,
        block_allocator: CpuGpuBlockAllocator,
        *,
        max_block_sliding_window: int | None = None,
    ) -> None:
        if not isinstance(block_allocator, CpuGpuBlockAllocator):
            kind = type(block_allocator).__name__
            raise TypeError(f"block_allocator must be a CpuGpuBlockAllocator, got {kind}")
        if block_size != block_allocator.block_size:
            raise ValueError(
                f"block_size must be the allocator's, {block_allocator.block_size}, got "
                f"{block_size}"
            )
        if max_block_sliding_window is not None:
            max_block_sliding_window = whole(
                "max_block_sliding_window", max_block_sliding_window, 1
            )
            if block_allocator.caches:
                raise ValueError(
                    "max_block_sliding_window needs the naive allocator: a cached block keeps "
                    "what it continues"
                )
            block_allocator.allocate_or_get_null_block()
        self.block_size = block_size
        self._allocator = block_allocator
        self._window = max_block_sliding_window
        self._run: Run | None = None
        self._dropped = 0  # leading blocks released for the window
        self.num_computed_slots = 0

    def __repr__(self) -> str:
        return f"<BlockTable: {self.physical_block_ids if self._run else 'not allocated'}>"

    @staticmethod
    def get_num_required_blocks(
        token_ids: Sequence[int], block_size: int, num_lookahead_slots: int = 0
    ) -> int:
        """Blocks for this many tokens and look-ahead slots, without sharing.

        Raises:
            ValueError: A negative number of slots, or ``block_size`` below 1.
            TypeError: A number that is not an int.
        """
        slots = whole("num_lookahead_slots", num_lookahead_slots, 0)
        return -(-(len(token_ids) + slots) // whole("block_size", block_size, 1))

    def allocate(
        self,
        token_ids: Sequence[int],
        device: Device = Device.GPU,
        extra_hash: int | None = None,
    ) -> None:
        """Allocates the first blocks of the sequence; full blocks that are cached are shared.

        Raises:
            NoFreeBlocksError: Too few are available; nothing is allocated.
            SequenceStateError: The table has blocks already.
            ValueError: No tokens, or one out of ``[0, 2**32)``.
            TypeError: A token that is not an int.
        """
        self.allocate_and(token_ids, device, extra_hash, lambda _: [])

    def allocate_and(
        self,
        token_ids: Sequence[int],
        device: Device,
        extra_hash: int | None,
        then: Callable[[Run], list[Change]],
    ) -> None:
        """``allocate``, together with further changes that ``then`` plans for the blocks."""
        if self._run is not None:
            raise SequenceStateError("the block table is allocated already")
        if not len(token_ids):
            raise ValueError("token_ids must not be empty")

        self._dropped = self.num_computed_slots = 0  # not used while there are no blocks

        def publish(view: BlockView) -> tuple[list[Change], None]:
            return [(setattr, self, "_run", view.run), *then(view.run)], None

        allocator = self._allocator.pool_of(device)
        allocator.plans.extend(Run(allocator), tuple(token_ids), extra_hash, publish)

    def append_token_ids(
        self,
        token_ids: Sequence[int],
        num_lookahead_slots: int = 0,
        num_computed_slots: int | None = None,
        extra_hash: int | None = None,
    ) -> None:
        """Appends tokens, and makes sure of empty slots after them.

        Args:
            token_ids: At least one.
            num_lookahead_slots: Empty slots after the tokens.
            num_computed_slots: Leading slots whose K/V is written; required with a sliding window,
                to release blocks.
            extra_hash: Extra key of added blocks.

        Raises:
            NoFreeBlocksError: Too few are available; nothing is appended or released.
            SequenceStateError: The table has no blocks.
            ValueError: No tokens, a token out of ``[0, 2**32)``, a negative number of slots, more
                computed ones than there are tokens, or no ``num_computed_slots`` for a sliding
                window.
            TypeError: A token that is not an int.

        Leaves:
            Copies, for ``clear_copy_on_writes``, if blocks to be written are shared.
        """
        self._append(token_ids, num_lookahead_slots, num_computed_slots, extra_hash, [])

    def append_sampled(
        self, token_ids: Sequence[int], num_lookahead_slots: int, extra_hash: int | None
    ) -> None:
        """``append_token_ids`` for sampled tokens: all tokens before them are computed."""
        before = self.num_full_slots
        known = self.plan_progress(max(before - self.num_computed_slots, 0))
        self._append(token_ids, num_lookahead_slots, before, extra_hash, known)

    def _append(
        self,
        token_ids: Sequence[int],
        num_lookahead_slots: int,
        num_computed_slots: int | None,
        extra_hash: int | None,
        then: list[Change],
    ) -> None:
        if not (tokens := whole_tokens(token_ids)):
            raise ValueError("token_ids must not be empty")
        if self._window is not None and num_computed_slots is None:
            raise ValueError("num_computed_slots must be given for a sliding window")
        start = self.num_full_slots
        num_computed = 0
        if num_computed_slots is not None:
            num_computed = whole("num_computed_slots", num_computed_slots, 0)
        if num_computed > start:
            raise ValueError(
                f"num_computed_slots must be at most the {start} slots with tokens, "
                f"got {num_computed_slots}"
            )
        changes = self._grow(
            len(tokens) + whole("num_lookahead_slots", num_lookahead_slots, 0),
            len(tokens),
            num_computed,
            extra_hash,
        )
        run, size = self._allocated(), self.block_size
        at, taken = start // size, 0
        allocator = run.allocator
        is_next = allocator.prefix_cache.node(run.place_before(at)) is not None
        while taken < len(tokens):
            present = run.tokens[at] if at < len(run.tokens) else ()
            chunk = tokens[taken : taken + size - len(present)]
            more, is_next = allocator.plans.fill(run, at, present + chunk, is_next, extra_hash)
            changes += more
            at, taken = at + 1, taken + len(chunk)
        carry_out([*changes, *then], None)

    def ensure_num_empty_slots(self, num_empty_slots: int, extra_hash: int | None = None) -> None:
        """Makes sure that there are this many empty slots after the tokens.

        Raises:
            NoFreeBlocksError: Too few are available; nothing is allocated.
            SequenceStateError: The table has no blocks.
            ValueError: A negative number.
        """
        num_slots = whole("num_empty_slots", num_empty_slots, 0)
        carry_out(self._grow(num_slots, 0, 0, extra_hash), None)

    def _grow(
        self, num_slots: int, num_written: int, num_computed: int, extra_hash: int | None
    ) -> list[Change]:
        run = self._allocated()
        checked_extra(extra_hash)
        growth = self.growth(num_slots, num_written, num_computed)
        pool = run.allocator.pool
        # All counting before any change: blocks to add, and shared ones that must be moved.
        needed = blocks_needed(pool, [growth])
        if needed > pool.num_available:
            raise NoFreeBlocksError(needed, pool.num_available)
        changes: list[Change] = []
        if stale := growth.stale:
            changes += run.allocator.plans.free_slice(run, stale.start, stale.stop)
            changes.append((setattr, self, "_dropped", stale.stop))
        if growth.num_new:
            run.view(len(run.blocks) - 1).held()  # nothing can follow a freed block
            changes += run.allocator.plans.add_empty(run, growth.num_new, extra_hash)
        return changes

    def growth(self, num_slots: int, num_written: int, num_computed: int) -> Growth:
        """The growth that the table needs for its next slots.

        Args:
            num_slots: Slots after the current tokens.
            num_written: Of those, the ones that get tokens.
            num_computed: Tokens whose K/V is written; blocks before their window are freed.
        """
        run, size = self._allocated(), self.block_size
        start = self.num_full_slots
        end = -(-(start + num_written) // size) if num_written else 0
        return Growth(
            run,
            max(-(-(start + num_slots) // size) - len(run.blocks), 0),
            run.blocks[start // size : end],
            self._out_of_window(run, num_computed),
        )

    def next_growth(self, num_unseen: int, num_lookahead_slots: int) -> Growth:
        """The growth for ``append_sampled``, or for ``ensure_num_empty_slots`` without tokens."""
        num_computed = self.num_full_slots if num_unseen else 0
        return self.growth(num_unseen + num_lookahead_slots, num_unseen, num_computed)

    def plan_progress(self, num_slots: int | None) -> list[Change]:
        """Records that the next forward computes this many more slots; None: all with tokens."""
        run, size, full = self._allocated(), self.block_size, self.num_full_slots
        before = self.num_computed_slots if num_slots is not None else 0
        computed = full if num_slots is None else min(before + num_slots, full)
        first, last = before // size, computed // size
        cache = run.allocator.prefix_cache
        return [
            *cache.progress(run.blocks[first:last], run.blocks[last : full // size]),
            (setattr, self, "num_computed_slots", computed),
        ]

    def _out_of_window(self, run: Run, num_computed: int) -> range:
        if self._window is None:
            return range(0)
        end = min(num_computed // self.block_size - self._window, len(run.blocks))
        return range(self._dropped, max(end, self._dropped))

    def get_num_blocks_touched_by_append_slots(
        self, token_ids: Sequence[int], num_lookahead_slots: int = 0
    ) -> int:
        """An upper bound of the blocks that an append touches: those written and those added.

        Raises:
            ValueError: A negative number of slots.
            TypeError: A number that is not an int.
        """
        slots = whole("num_lookahead_slots", num_lookahead_slots, 0)
        start = self.num_full_slots
        last = -(-(start + len(token_ids) + slots) // self.block_size)
        return max(last - start // self.block_size, 0)

    def fork(self) -> BlockTable:
        """A table for another sequence that shares every block of this one.

        Raises:
            SequenceStateError: The table has no blocks.

        Cost: O(blocks), without recursion and without an object per block.
        """
        child, changes = self.plan_fork(self._allocated())
        return at_once(changes, child)

    def plan_fork(self, run: Run) -> tuple[BlockTable, list[Change]]:
        """A fork, and the changes that give it this table's blocks."""
        child = BlockTable(self.block_size, self._allocator, max_block_sliding_window=self._window)
        child._run, changes = run.allocator.plans.fork([(run, len(run.blocks))])
        child._dropped = self._dropped
        child.num_computed_slots = self.num_computed_slots
        return child, changes

    def free(self) -> None:
        """Frees all blocks, the last first. Cached ones stay findable.

        Raises:
            SequenceStateError: The table has no blocks (freeing twice ends here).
        """
        at_once(self.plan_free(), None)

    def plan_free(self) -> list[Change]:
        """The changes of ``free``."""
        run = self._allocated()
        return [*run.allocator.plans.free_run(run), (setattr, self, "_run", None)]

    def get_unseen_token_ids(self, sequence_token_ids: Sequence[int]) -> list[int]:
        """The tokens of the sequence that the table does not have yet.

        Args:
            sequence_token_ids: All tokens of the sequence, those in the table first.

        Raises:
            SequenceStateError: They are fewer than the table has, which cannot drop tokens.
        """
        start = self.num_full_slots
        if len(sequence_token_ids) < start:
            raise SequenceStateError(
                f"the sequence has {len(sequence_token_ids)} tokens, its block table {start}; "
                "free it and allocate it again"
            )
        return list(sequence_token_ids[start:])

    @property
    def run(self) -> Run:
        """The blocks as columns.

        Raises:
            SequenceStateError: The table has no blocks.
        """
        return self._allocated()

    @property
    def blocks(self) -> Sequence[Block]:
        """The blocks in order, created when they are read; released ones have no ``block_id``."""
        run = self._run
        return BlockView(run, 0, len(run.blocks)) if run is not None else ()

    @property
    def physical_block_ids(self) -> list[int]:
        """The physical block of each block; the null block outside the window.

        Raises:
            SequenceStateError: The table has no blocks.
        """
        run = self._allocated()
        ids = run.allocator.physical_ids(run.blocks[self._dropped :])
        if not self._dropped:
            return ids
        return [self._allocator.null_block_id] * self._dropped + ids

    @property
    def num_full_slots(self) -> int:
        """Slots with a token; 0 without blocks."""
        run = self._run
        if run is None:
            return 0
        full = len(run.blocks)
        while full and len(run.tokens[full - 1]) < self.block_size:
            full -= 1  # only over look-ahead blocks, which are few
        tail = len(run.tokens[full]) if full < len(run.blocks) else 0
        return full * self.block_size + tail

    @property
    def device(self) -> Device:
        """The device of the blocks.

        Raises:
            SequenceStateError: The table has no blocks.
        """
        return self._allocator.device_of(self._allocated().allocator)

    def _allocated(self) -> Run:
        if self._run is None:
            raise SequenceStateError("the block table has no blocks; allocate them first")
        return self._run
