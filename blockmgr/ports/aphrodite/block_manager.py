"""The block space manager that schedulers of this lineage call."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from blockmgr.arguments import real, whole
from blockmgr.errors import SequenceStateError, UnknownSequenceError
from blockmgr.ports.aphrodite.block_table import BlockTable, blocks_needed
from blockmgr.ports.aphrodite.cpu_gpu_block_allocator import CpuGpuBlockAllocator
from blockmgr.ports.aphrodite.interfaces import (
    AllocStatus,
    Device,
    distinct_sequences,
    extra_hash_of,
    id_of,
    refuse_encoder,
    tokens_of,
)
from blockmgr.ports.locking import exclusive, new_mutex

if TYPE_CHECKING:
    from collections.abc import Iterable

    from blockmgr.ports.aphrodite.block_table import Growth
    from blockmgr.ports.aphrodite.cpu_gpu_block_allocator import Swap
    from blockmgr.ports.aphrodite.interfaces import GroupLike, SequenceLike

    _Running = tuple[SequenceLike, BlockTable]

__all__ = ["BlockSpaceManager"]


class BlockSpaceManager:
    """Keeps a block table for every sequence, on the device or swapped to the host.

    A ``can_`` call uses the same plan as the call itself. Calls of several threads wait for one
    another; between a ``can_`` call and the call itself, another thread may change the answer.

    A call that is refused changes nothing. It raises ``UnknownSequenceError`` if the sequence, or
    all of the group, have no blocks; ``NoFreeBlocksError`` if too few are available;
    ``SequenceStateError`` if a sequence to allocate has blocks already, or one to grow has lost
    tokens; ``EncoderDecoderError`` for a group with an encoder; ``ValueError`` for a sequence on
    the wrong device, an empty prompt, or a number or token out of its bounds; and ``TypeError`` for
    an argument of the wrong type.

    Args:
        block_size: Tokens per block.
        num_gpu_blocks: Blocks of the device.
        num_cpu_blocks: Blocks of the host; 0 without swapping.
        watermark: Fraction of the device's blocks held back from new work, in ``[0, 1)``.
        sliding_window: None. Engines pass it; windows are not supported.
        enable_caching: Whether full blocks can be found by their prefix.

    Raises:
        ValueError: A value is out of its bounds, or there is a window.
        TypeError: A value is of the wrong type.

    Attributes:
        block_tables: The table of each sequence that has blocks, by sequence id.
    """

    def __init__(
        self,
        block_size: int,
        num_gpu_blocks: int,
        num_cpu_blocks: int,
        *,
        watermark: float = 0.01,
        sliding_window: None = None,
        enable_caching: bool = False,
    ) -> None:
        if not 0 <= real("watermark", watermark) < 1:
            raise ValueError(f"watermark must be in [0, 1), got {watermark}")
        if not isinstance(enable_caching, bool):
            raise TypeError(f"enable_caching must be a bool, got {enable_caching!r}")
        if sliding_window is not None:
            raise ValueError(f"sliding_window must be None, got {sliding_window!r}")
        self.block_allocator = CpuGpuBlockAllocator.create(
            "prefix_caching" if enable_caching else "naive",
            num_gpu_blocks,
            num_cpu_blocks,
            block_size,
        )
        self.block_size = block_size
        self.watermark_blocks = int(watermark * num_gpu_blocks)
        self.block_tables: dict[int, BlockTable] = {}
        # While its ``is_prefill()`` is true, a sequence gets the same answer, because the scheduler
        # plans the rest of a prompt by the first answer.
        self._cached_tokens: dict[int, int] = {}
        self._mutex = new_mutex()

    # Allocation.

    @exclusive
    def can_allocate(self, seq_group: GroupLike, num_lookahead_slots: int = 0) -> AllocStatus:
        """Whether the prompt of a group can get its blocks.

        ``OK``: ``allocate`` will succeed, then ``append_slots`` of each sequence with this many
        look-ahead slots, without going below the watermark. Cached blocks in use cost nothing.
        """
        refuse_encoder(seq_group)
        waiting = self._waiting(seq_group)
        tokens = tuple(tokens_of(waiting[0]))
        if not tokens:
            raise ValueError("seq_group must have a prompt of at least one token")
        required = BlockTable.get_num_required_blocks
        num_used = required(tokens, self.block_size)
        beyond = required(tokens, self.block_size, num_lookahead_slots) - num_used
        beyond *= len(waiting)
        gpu = self.block_allocator.pool_of(Device.GPU)
        taken = gpu.num_taken_by(tokens, extra_hash_of(waiting[0]))
        return self._status(num_used + beyond, taken + beyond)

    @exclusive
    def allocate(self, seq_group: GroupLike) -> None:
        """Allocates the blocks of a group: for the first sequence; the others fork it."""
        refuse_encoder(seq_group)
        first, *others = self._waiting(seq_group)
        table = BlockTable(self.block_size, self.block_allocator)
        table.allocate(tokens_of(first), Device.GPU, extra_hash_of(first))
        self.block_tables[first.seq_id] = table
        for seq in others:
            self.block_tables[seq.seq_id] = table.fork()

    @exclusive
    def can_append_slots(self, seq_group: GroupLike, num_lookahead_slots: int = 0) -> bool:
        """Whether ``append_slots`` will succeed for every sequence of a group in turn.

        Blocks that become free meanwhile, because a full block is cached already, do not count.
        """
        running = self._running(seq_group)
        growths = _next_growths(running, num_lookahead_slots)
        gpu = self.block_allocator.pool_of(Device.GPU)
        for _, table in running:
            _check_on_device(table)
        return blocks_needed(gpu.pool, growths) <= gpu.get_num_free_blocks()

    @exclusive
    def append_slots(
        self, seq: SequenceLike, num_lookahead_slots: int = 0
    ) -> list[tuple[int, int]]:
        """Takes slots for a sequence's tokens since the last call, and look-ahead slots.

        New tokens mean that all earlier tokens are computed.

        Returns:
            (source, destination) of the block copies to run before the next forward.
        """
        table, extra = self._table_of(seq), extra_hash_of(seq)
        _check_on_device(table)
        unseen, before = table.get_unseen_token_ids(tokens_of(seq)), table.num_full_slots
        if unseen:
            table.append_token_ids(unseen, num_lookahead_slots, extra)
            table.mark_computed(table.num_computed_slots, before, before)
        else:
            slots = whole("num_lookahead_slots", num_lookahead_slots, 0)
            table.ensure_num_empty_slots(slots, extra)
        return self.block_allocator.clear_copy_on_writes()

    @exclusive
    def fork(self, parent_seq: SequenceLike, child_seq: SequenceLike) -> None:
        """Makes a sequence share every block of another one."""
        table, child = self._table_of(parent_seq), id_of(child_seq)
        if child in self.block_tables:
            raise SequenceStateError(f"sequence {child} has blocks already")
        self.block_tables[child] = table.fork()

    @exclusive
    def free(self, seq: SequenceLike) -> None:
        """Frees the blocks of a sequence on either device; without blocks it does nothing.

        Schedulers also free sequences that they never scheduled or have freed already.
        """
        name = id_of(seq)
        self._cached_tokens.pop(name, None)
        if table := self.block_tables.pop(name, None):
            table.free()

    @exclusive
    def get_block_table(self, seq: SequenceLike) -> list[int]:
        """The physical blocks of a sequence."""
        return self._table_of(seq).physical_block_ids

    # What is computed.

    @exclusive
    def get_common_computed_block_ids(self, seqs: Iterable[SequenceLike]) -> list[int]:
        """The leading blocks that none of these sequences needs to compute."""
        ids = [self._table_of(seq).physical_block_ids for seq in seqs]
        return self.block_allocator.get_common_computed_block_ids(ids)

    @exclusive
    def get_num_cached_tokens(self, seq: SequenceLike) -> int:
        """Tokens in the leading cached, computed blocks of a sequence, scheduled or not.

        The block of the last token counts, too: the schedulers of this lineage leave one token to
        compute of a prompt that is cached whole. ``get_common_computed_block_ids`` leaves that
        block out, because a forward must not write to a block that others read. During a prefill
        the first answer stays until ``free`` or ``remove_seq_from_computed_blocks_tracker``.

        Raises:
            ValueError: A token out of ``[0, 2**32)``.
        """
        name, tokens, extra = id_of(seq), tokens_of(seq), extra_hash_of(seq)
        if not self.block_allocator.caches:
            return 0
        if getattr(seq, "is_prefill", bool)() and name in self._cached_tokens:
            return self._cached_tokens[name]
        if table := self.block_tables.get(name):
            allocator, blocks = table.allocator(), [block.in_pool for block in table.blocks]
        else:
            allocator = self.block_allocator.pool_of(Device.GPU)
            blocks = allocator.cached_prefix(tuple(tokens), -1, extra)
        blocks = blocks[: len(tokens) // self.block_size]
        computed = sum(1 for _ in takewhile(allocator.is_computed, blocks))
        self._cached_tokens[name] = computed * self.block_size
        return self._cached_tokens[name]

    @exclusive
    def remove_seq_from_computed_blocks_tracker(self, seq: SequenceLike) -> None:
        """Makes ``get_num_cached_tokens`` look again, if the sequence was not scheduled."""
        self._cached_tokens.pop(id_of(seq), None)

    @exclusive
    def mark_blocks_as_computed(
        self, seq_group: GroupLike, token_chunk_size: int | None = None
    ) -> None:
        """Declares which tokens the next forward writes.

        Args:
            seq_group: The scheduled group.
            token_chunk_size: Tokens of each of its sequences, after those of earlier calls, that
                the forward computes or finds computed; None for all tokens with slots. Later tokens
                are not shared as computed, and no other sequence drops its own K/V for them.
        """
        if token_chunk_size is not None:
            token_chunk_size = whole("token_chunk_size", token_chunk_size, 0)
        tables = [table for _, table in self._running(seq_group)]
        for table in tables:
            _check_on_device(table)
        for table in tables:
            start, full = table.num_computed_slots, table.num_full_slots
            if token_chunk_size is None:
                table.mark_computed(0, full, full)
            else:
                table.mark_computed(start, min(start + token_chunk_size, full), full)

    @exclusive
    def access_all_blocks_in_seq(self, seq: SequenceLike, now: float = 0.0) -> None:
        """Does nothing: blocks become the most recent ones when they are released."""
        self._table_of(seq)

    # Swaps. A block that waits for a copy raises ``BlockStateError``; ``append_slots`` returns it.

    @exclusive
    def can_swap_out(self, seq_group: GroupLike) -> bool:
        """Whether ``swap_out`` will succeed: the host has blocks for a group on the device."""
        running = self._running(seq_group)
        if not self.block_allocator.get_num_total_blocks(Device.CPU):
            return False
        swap = self._plan_swap(running, Device.GPU, Device.CPU)
        return swap.num_taken <= self.block_allocator.get_num_free_blocks(Device.CPU)

    @exclusive
    def can_swap_in(self, seq_group: GroupLike, num_lookahead_slots: int = 0) -> AllocStatus:
        """Whether the device has blocks for a group on the host and for its next step.

        ``OK``: ``swap_in`` will succeed, then ``append_slots`` of each sequence, without going
        below the watermark. The watermark protects running work: if no block is in use, it
        holds nothing back.
        """
        running = self._running(seq_group)
        growths = _next_growths(running, num_lookahead_slots)
        if not self.block_allocator.get_num_total_blocks(Device.CPU):
            raise ValueError("seq_group must be on the host, which has no blocks")
        swap = self._plan_swap(running, Device.CPU, Device.GPU)
        beyond = sum(growth.num_new for growth in growths)  # after a swap, no block is shared
        return self._status(swap.num_used + beyond, swap.num_taken + beyond, spares_idle=True)

    @exclusive
    def swap_out(self, seq_group: GroupLike) -> list[tuple[int, int]]:
        """Moves a group to the host.

        Returns:
            (device block, host block) of the copies to run, as indices within each pool.
        """
        return self._plan_swap(self._running(seq_group), Device.GPU, Device.CPU).carry_out()

    @exclusive
    def swap_in(self, seq_group: GroupLike) -> list[tuple[int, int]]:
        """Moves a group back to the device.

        Returns:
            (host block, device block) of the copies to run, as indices within each pool.
        """
        return self._plan_swap(self._running(seq_group), Device.CPU, Device.GPU).carry_out()

    # Counts.

    def get_num_free_gpu_blocks(self) -> int:
        """Blocks of the device that can be handed out."""
        return self.block_allocator.get_num_free_blocks(Device.GPU)

    def get_num_free_cpu_blocks(self) -> int:
        """Blocks of the host that can be handed out."""
        return self.block_allocator.get_num_free_blocks(Device.CPU)

    @exclusive
    def get_prefix_cache_hit_rate(self, device: Device = Device.GPU) -> float:
        """Full blocks found over full blocks looked up, in ``0 … 1``."""
        return self.block_allocator.get_prefix_cache_hit_rate(device)

    @exclusive
    def reset_prefix_cache(self, device: Device | None = None) -> bool:
        """Forgets cached blocks and the hit rate of one device or all, if no block is in use."""
        return self.block_allocator.reset_prefix_cache(device)

    def _status(self, num_used: int, num_taken: int, *, spares_idle: bool = False) -> AllocStatus:
        """The answer for work that takes this many of the free blocks, and uses this many then.

        For work that ``spares_idle``, the watermark holds nothing back if no block is in use.
        """
        usable = self.block_allocator.get_num_total_blocks(Device.GPU)
        free = self.block_allocator.get_num_free_blocks(Device.GPU)
        if num_used > usable - (0 if spares_idle else self.watermark_blocks):
            return AllocStatus.NEVER
        held_back = 0 if spares_idle and free == usable else self.watermark_blocks
        return AllocStatus.OK if num_taken <= free - held_back else AllocStatus.LATER

    # Sequences and their tables.

    def _table_of(self, seq: SequenceLike) -> BlockTable:
        name = id_of(seq)
        if (table := self.block_tables.get(name)) is None:
            raise UnknownSequenceError(name)
        return table

    def _running(self, seq_group: GroupLike) -> list[_Running]:
        """The sequences of a group that have a table, at least one, with their tables."""
        known, sequences = self.block_tables, distinct_sequences(seq_group)
        running = [(s, known[s.seq_id]) for s in sequences if s.seq_id in known]
        if not running:
            raise UnknownSequenceError(sequences[0].seq_id)
        return running

    def _waiting(self, seq_group: GroupLike) -> list[SequenceLike]:
        """The unfinished sequences of a group that have no table, at least one."""
        waiting = [
            seq
            for seq in distinct_sequences(seq_group)
            if seq.seq_id not in self.block_tables and not getattr(seq, "is_finished", bool)()
        ]
        if not waiting:
            raise SequenceStateError("every sequence of the group has blocks already, or has ended")
        return waiting

    def _plan_swap(self, running: list[_Running], source: Device, to: Device) -> Swap:
        return self.block_allocator.plan_swap([table.blocks for _, table in running], source, to)


def _check_on_device(table: BlockTable) -> None:
    if table.device is not Device.GPU:
        raise ValueError("seq must be on the device, it is on the host; swap it in")


def _next_growths(running: list[_Running], num_lookahead_slots: int) -> list[Growth]:
    """The growth for ``append_slots`` of each of these sequences."""
    lookahead, growths = whole("num_lookahead_slots", num_lookahead_slots, 0), []
    for seq, table in running:
        unseen = len(table.get_unseen_token_ids(tokens_of(seq)))
        growths.append(table.growth(unseen + lookahead, unseen))
    return growths
