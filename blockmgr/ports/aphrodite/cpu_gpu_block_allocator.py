"""Pools on the device and on the host, and swaps of sequences between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from blockmgr.arguments import whole
from blockmgr.errors import BlockStateError
from blockmgr.ports.aphrodite.block_allocator import (
    FREED,
    Block,
    BlockAllocator,
    NaiveBlock,
    NaiveBlockAllocator,
    PrefixCachingBlockAllocator,
)
from blockmgr.ports.aphrodite.interfaces import Device, NoFreeBlocksError, extra_bytes, the_same

if TYPE_CHECKING:
    from blockmgr.policy import PolicyFactory

__all__ = ["CpuGpuBlockAllocator", "Swap"]


class CpuGpuBlockAllocator:
    """A pool on the device, a pool on the host, and swaps between them.

    For one thread at a time; the calls of a ``BlockSpaceManager`` wait for one another.

    Device blocks have the ids ``0 … num_gpu_blocks - 1``, host blocks the ids after those.

    Calls that need more blocks than are available raise ``NoFreeBlocksError``. A device that is not
    a ``Device``, or a block that is not of an allocator, raises ``TypeError``; a device without
    blocks, or a block of another allocator, ``ValueError``; a freed block ``BlockStateError``.

    Args:
        gpu: The allocator of the device.
        cpu: The allocator of the host, with different ids; None without host blocks.

    Raises:
        ValueError: Different block sizes, or ids in common.
        TypeError: Not an allocator.
    """

    def __init__(self, gpu: BlockAllocator, cpu: BlockAllocator | None = None) -> None:
        self._allocators = {Device.GPU: gpu} | ({} if cpu is None else {Device.CPU: cpu})
        for device, allocator in self._allocators.items():
            if not isinstance(allocator, BlockAllocator):
                kind = type(allocator).__name__
                raise TypeError(f"{device.value} must be an allocator, got {kind}")
        if cpu is not None:
            if cpu.block_size != gpu.block_size:
                raise ValueError(
                    f"cpu must have blocks of {gpu.block_size} tokens, got {cpu.block_size}"
                )
            if common := cpu.all_block_ids & gpu.all_block_ids:
                raise ValueError(f"cpu must have ids of its own, got {min(common)} in both")
        self.block_size = gpu.block_size
        self.caches = gpu.caches

    @classmethod
    def create(
        cls,
        allocator_type: Literal["naive", "prefix_caching"],
        num_gpu_blocks: int,
        num_cpu_blocks: int,
        block_size: int,
        *,
        eviction: str | PolicyFactory = "lru",
    ) -> Self:
        """An allocator with two pools of one kind.

        Args:
            allocator_type: ``"naive"`` or ``"prefix_caching"``.
            num_gpu_blocks: Blocks of the device.
            num_cpu_blocks: Blocks of the host; 0 for none.
            block_size: Tokens per block.
            eviction: As in ``ManagerConfig``, for pools that cache prefixes.
        """
        num_cpu_blocks = whole("num_cpu_blocks", num_cpu_blocks, 0)
        if allocator_type not in {"naive", "prefix_caching"}:
            raise ValueError(
                f"allocator_type must be 'naive' or 'prefix_caching', got {allocator_type!r}"
            )

        def build(num_blocks: int, first: int) -> BlockAllocator:
            ids = range(first, first + num_blocks)
            if allocator_type == "naive":
                return NaiveBlockAllocator(NaiveBlock, num_blocks, block_size, ids)
            return PrefixCachingBlockAllocator(num_blocks, block_size, ids, eviction=eviction)

        gpu = build(num_gpu_blocks, 0)
        return cls(gpu, build(num_cpu_blocks, num_gpu_blocks) if num_cpu_blocks else None)

    # One pool.

    def pool_of(self, device: Device) -> BlockAllocator:
        """The allocator of a device, which has blocks."""
        if (allocator := self._known(device)) is None:
            raise ValueError(f"device must have blocks, got {device}")
        return allocator

    def _known(self, device: Device) -> BlockAllocator | None:
        return self._allocators.get(the_same(Device, "device", device))

    def device_of(self, allocator: BlockAllocator) -> Device:
        """The device of one of the two allocators."""
        for device, known in self._allocators.items():
            if known is allocator:
                return device
        raise ValueError("allocator must be that of the device or that of the host")

    def allocate_mutable_block(
        self, prev_block: Block | None, device: Device, extra_hash: int | None = None
    ) -> Block:
        """``BlockAllocator.allocate_mutable_block`` of that device."""
        return self.pool_of(device).allocate_mutable_block(prev_block, extra_hash)

    def allocate_immutable_block(
        self,
        prev_block: Block | None,
        token_ids: Sequence[int],
        device: Device,
        extra_hash: int | None = None,
    ) -> Block:
        """``BlockAllocator.allocate_immutable_block`` of that device."""
        return self.pool_of(device).allocate_immutable_block(prev_block, token_ids, extra_hash)

    def allocate_immutable_blocks(
        self,
        prev_block: Block | None,
        block_token_ids: Sequence[Sequence[int]],
        device: Device,
        extra_hash: int | None = None,
    ) -> list[Block]:
        """``BlockAllocator.allocate_immutable_blocks`` of that device."""
        allocator = self.pool_of(device)
        return allocator.allocate_immutable_blocks(prev_block, block_token_ids, extra_hash)

    def get_num_free_blocks(self, device: Device) -> int:
        """Blocks that can be handed out; 0 on a device without blocks."""
        known = self._known(device)
        return 0 if known is None else known.get_num_free_blocks()

    def get_num_total_blocks(self, device: Device) -> int:
        """All blocks of a device; 0 on a device without blocks."""
        known = self._known(device)
        return 0 if known is None else known.get_num_total_blocks()

    def get_prefix_cache_hit_rate(self, device: Device) -> float:
        """Full blocks found over full blocks looked up, in ``0 … 1``."""
        return self.pool_of(device).get_prefix_cache_hit_rate()

    def get_physical_block_id(self, device: Device, absolute_id: int) -> int:
        """The index of a block within the pool of its device."""
        return self.pool_of(device).get_physical_block_id(absolute_id)

    # Blocks of either pool.

    @property
    def all_block_ids(self) -> frozenset[int]:
        """The ids of the blocks of both pools."""
        return frozenset().union(*(a.all_block_ids for a in self._allocators.values()))

    def free(self, block: Block) -> None:
        """Releases a block."""
        self._allocator_of(block).free(block)

    def fork(self, last_block: Block) -> list[Block]:
        """``BlockAllocator.fork`` of the block's device."""
        return self._allocator_of(last_block).fork(last_block)

    def _allocator_of(self, block: Block) -> BlockAllocator:
        if not isinstance(block, Block):
            raise TypeError(f"block must be one of an allocator, got {type(block).__name__}")
        for known in self._allocators.values():
            if block.allocator is known:
                return known
        raise ValueError("block belongs to another allocator")

    # Blocks of the device.

    def clear_copy_on_writes(self) -> list[tuple[int, int]]:
        """(source, destination) of the copies to run on the device before the next forward."""
        copies = self.pool_of(Device.GPU).clear_copy_on_writes()
        return [(source, to) for source, many in copies.items() for to in many]

    def mark_blocks_as_computed(self, block_ids: Iterable[int] | None = None) -> None:
        """Marks the K/V of cached device blocks as written."""
        self.pool_of(Device.GPU).mark_blocks_as_computed(block_ids)

    def mark_blocks_as_accessed(self, block_ids: Iterable[int], now: float = 0.0) -> None:
        """Moves idle device blocks to the end of the eviction order."""
        self.pool_of(Device.GPU).mark_blocks_as_accessed(block_ids, now)

    def get_common_computed_block_ids(self, seq_block_ids: Sequence[Sequence[int]]) -> list[int]:
        """The leading device blocks that none of these sequences needs to compute."""
        return self.pool_of(Device.GPU).get_common_computed_block_ids(seq_block_ids)

    def reset_prefix_cache(self, device: Device | None = None) -> bool:
        """Forgets the cached blocks of one device or of all, if no block is in use there."""
        chosen = list(self._allocators) if device is None else [device]
        done = [self.pool_of(each).reset_prefix_cache() for each in chosen]
        return all(done)

    # Swaps.

    def swap(
        self, blocks: Sequence[Block], src_device: Device, dst_device: Device
    ) -> dict[int, int]:
        """Moves a whole sequence from one pool to the other, or raises and moves nothing.

        Its full blocks stay cached in the source pool, and are shared in the destination if they
        are cached there. A block that waits for a copy raises ``BlockStateError``.

        Args:
            blocks: Every block of one sequence, in order.
            src_device: Their current device.
            dst_device: Device to move them to.

        Returns:
            Destination by source: the copies to run before the next forward, and before those of
                ``clear_copy_on_writes``. Blocks that are computed at the destination already need
                no copy.
        """
        source, destination = self.pool_of(src_device), self.pool_of(dst_device)
        copies = self.plan_swap([blocks], src_device, dst_device).carry_out()
        olds, news = [old for old, _ in copies], [new for _, new in copies]
        return dict(zip(source.physical_ids(olds), destination.physical_ids(news), strict=True))

    def plan_swap(
        self, sequences: Iterable[Sequence[Block]], src_device: Device, dst_device: Device
    ) -> Swap:
        """A ``swap`` of several sequences, all or none, that is only counted yet."""
        source, destination = self.pool_of(src_device), self.pool_of(dst_device)
        if source is destination:
            raise ValueError(f"dst_device must be another device than {src_device}")
        return Swap(source, destination, [self._whole(blocks, source) for blocks in sequences])

    def _whole(self, blocks: Sequence[Block], source: BlockAllocator) -> list[Block]:
        if not isinstance(blocks, Sequence):
            raise TypeError(f"blocks must be a sequence, got {type(blocks).__name__}")
        if not blocks:
            raise ValueError("blocks must not be empty")
        if self._allocator_of(blocks[-1]) is not source:
            raise ValueError("blocks must be of the device they are moved from")
        sequence = blocks[-1].sequence()
        if sequence != list(blocks):
            raise ValueError("blocks must be the blocks of one sequence from its first, in order")
        return sequence


class _Sequence(NamedTuple):
    """A sequence to move."""

    blocks: list[Block]
    num_cached: int
    """Number of leading blocks that are cached at the source."""
    found: list[int]
    """The blocks of its cached prefix that are cached at the destination already."""
    shared: list[int]
    """The blocks after these that an earlier sequence brings there."""

    @property
    def num_fresh(self) -> int:
        """Blocks taken for the other tokens."""
        num_held = sum(block.in_pool != FREED for block in self.blocks)
        return num_held - len(self.found) - len(self.shared)


class Swap:
    """Counts what sequences need in the other pool; then moves them all, or none.

    Attributes:
        num_taken: Available blocks that it takes at the destination.
        num_used: Different blocks that the sequences use there afterwards.
    """

    def __init__(
        self, source: BlockAllocator, destination: BlockAllocator, sequences: list[list[Block]]
    ) -> None:
        self._source, self._destination = source, destination
        brought: set[int] = set()
        self._sequences = [self._counted(blocks, brought) for blocks in sequences]
        found = sorted({block for each in self._sequences for block in each.found})
        num_fresh = sum(each.num_fresh for each in self._sequences)
        self.num_taken = num_fresh + int(destination.pool.is_idle(found).sum())
        self.num_used = num_fresh + len(found)

    def _counted(self, blocks: list[Block], brought: set[int]) -> _Sequence:
        for block in blocks:
            if block.in_pool != FREED and self._source.pool.waits_for_copy(block.in_pool):
                raise BlockStateError(
                    block.in_pool, "it waits for a copy; clear_copy_on_writes first"
                )
        cached = list(takewhile(lambda block: block.is_cached, blocks))
        tokens, keys = _contents(cached)
        found = self._destination.pool.find(tokens, extras=keys).tolist()
        olds = [block.in_pool for block in cached]
        # Blocks shared with an earlier sequence are cached and copied there by then.
        shared = list(takewhile(brought.__contains__, olds[len(found) :]))
        brought.update(olds)
        return _Sequence(blocks, len(cached), found, shared)

    def carry_out(self) -> list[tuple[int, int]]:
        """Moves the sequences; returns the copies to run, pairs of blocks of the two pools."""
        pool = self._destination.pool
        if self.num_taken > pool.num_available:
            raise NoFreeBlocksError(self.num_taken, pool.num_available)
        for each in self._sequences:  # first, so that no found block is evicted to make room
            pool.acquire(each.found)
        moved: dict[int, int] = {}
        return [pair for each in self._sequences for pair in self._move(each, moved)]

    def _move(self, seq: _Sequence, moved: dict[int, int]) -> list[tuple[int, int]]:
        source, destination = self._source, self._destination
        held = [block for block in seq.blocks if block.in_pool != FREED]
        olds = [block.in_pool for block in held]
        shared = [moved[old] for old in seq.shared]
        destination.pool.acquire(shared, found=False)
        ready = {*filter(destination.is_computed, seq.found), *shared}
        present = seq.found + shared
        news = present + destination.pool.take(seq.num_fresh).tolist()
        # The cached blocks come first, and none of them is freed.
        if late := news[len(present) : seq.num_cached]:
            tokens, keys = _contents(held[len(present) : seq.num_cached])
            parent = present[-1] if present else -1
            destination.pool.promote(late, tokens, parent=parent, extras=keys)
        pairs = list(zip(olds, news, strict=True))
        moved.update(pairs[: seq.num_cached])
        cached = [pair for pair in pairs[: seq.num_cached] if pair[1] not in ready]
        computed = [new for old, new in cached if source.is_computed(old)]
        destination.arrive(computed, [new for old, new in cached if not source.is_computed(old)])
        for block in seq.blocks:
            block.allocator = destination
            source.waiting.pop(block, None)
        for i, (block, new) in enumerate(zip(held, news, strict=True)):
            block.in_pool, block.is_cached = new, i < seq.num_cached
        source.pool.release(olds[::-1])
        return [pair for pair in pairs if pair[1] not in ready]


def _contents(blocks: list[Block]) -> tuple[list[int], dict[int, bytes] | None]:
    """The tokens of some blocks of a sequence, and their extra keys by index."""
    keys = {i: extra_bytes(b.extra_hash) for i, b in enumerate(blocks) if b.extra_hash is not None}
    return [token for block in blocks for token in block.tokens], keys or None
