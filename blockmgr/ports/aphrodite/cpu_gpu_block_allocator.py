"""Pools on the device and on the host, and swaps of sequences between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Self

from blockmgr.arguments import whole
from blockmgr.ports.aphrodite.block import Block, BlockList, NullBlock
from blockmgr.ports.aphrodite.block_allocator import BlockAllocator
from blockmgr.ports.aphrodite.interfaces import Device, the_same
from blockmgr.ports.aphrodite.naive_block import NaiveBlock, NaiveBlockAllocator
from blockmgr.ports.aphrodite.prefix_caching_block import PrefixCachingBlockAllocator
from blockmgr.ports.aphrodite.swaps import Swap

if TYPE_CHECKING:
    from collections.abc import Iterable

    from blockmgr.policy import PolicyFactory
    from blockmgr.ports.aphrodite.block import Allocator, BlockView

__all__ = ["CpuGpuBlockAllocator"]


class CpuGpuBlockAllocator:
    """A pool on the device, a pool on the host, and swaps between them.

    For one thread at a time; the calls of a ``BlockSpaceManager`` wait for one another.

    Device blocks have the ids ``0 … num_gpu_blocks - 1``, host blocks the ids after those.

    A device that is not a ``Device``, or a block that is not of an allocator, raises ``TypeError``;
    a device without blocks, or a block of another allocator, ``ValueError``.

    Args:
        gpu: The allocator of the device.
        cpu: The allocator of the host, with different ids; None without host blocks.

    Raises:
        ValueError: Different block sizes, or ids in common.
        TypeError: Not an allocator.
    """

    __slots__ = ("_allocators", "_null", "block_size", "caches")

    def __init__(self, gpu: BlockAllocator, cpu: BlockAllocator | None = None) -> None:
        for name, allocator in (("gpu", gpu), ("cpu", cpu)):
            is_missing = allocator is None and name == "cpu"
            if not is_missing and not isinstance(allocator, BlockAllocator):
                raise TypeError(f"{name} must be an allocator, got {type(allocator).__name__}")
        if cpu is not None:
            if cpu.block_size != gpu.block_size:
                raise ValueError(
                    f"cpu must have blocks of {gpu.block_size} tokens, got {cpu.block_size}"
                )
            if common := cpu.all_block_ids & gpu.all_block_ids:
                raise ValueError(f"cpu must have ids of its own, got {min(common)} in both")
        self._allocators = {Device.GPU: gpu} | ({} if cpu is None else {Device.CPU: cpu})
        self._null: NullBlock | None = None
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

        Raises:
            ValueError: A value is out of its bounds.
            TypeError: A value is of the wrong type.
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
        """The allocator of a device.

        Raises:
            ValueError: The device has no blocks.
        """
        allocator = self._known(device)
        if allocator is None:
            raise ValueError(f"device must have blocks, got {device}")
        return allocator

    def device_of(self, allocator: Allocator) -> Device:
        """The device of an allocator.

        Raises:
            ValueError: It is neither of the two allocators.
        """
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
    ) -> BlockView:
        """``BlockAllocator.allocate_immutable_blocks`` of that device."""
        allocator = self.pool_of(device)
        return allocator.allocate_immutable_blocks(prev_block, block_token_ids, extra_hash)

    def find_cached_blocks_prefix(
        self, block_hashes: Sequence[int], device: Device = Device.GPU
    ) -> list[int]:
        """``PrefixCachingBlockAllocator.find_cached_blocks_prefix`` of that device."""
        return self.pool_of(device).find_cached_blocks_prefix(block_hashes)

    def get_num_free_blocks(self, device: Device) -> int:
        """Blocks that can be handed out; 0 on a device without blocks."""
        known = self._known(device)
        return 0 if known is None else known.get_num_free_blocks()

    def get_num_total_blocks(self, device: Device) -> int:
        """All blocks of a device; 0 on a device without blocks."""
        known = self._known(device)
        return 0 if known is None else known.get_num_total_blocks()

    def get_num_usable_blocks(self, device: Device) -> int:
        """All blocks of a device except the null block."""
        kept_back = device is Device.GPU and self._null is not None
        return self.get_num_total_blocks(device) - kept_back

    def _known(self, device: Device) -> BlockAllocator | None:
        return self._allocators.get(the_same(Device, "device", device))

    def get_prefix_cache_hit_rate(self, device: Device) -> float:
        """Full blocks found over full blocks looked up, in ``0 … 1``."""
        return self.pool_of(device).get_prefix_cache_hit_rate()

    def get_physical_block_id(self, device: Device, absolute_id: int) -> int:
        """The index of a block within the pool of its device.

        Raises:
            ValueError: Not a block of that device.
        """
        return self.pool_of(device).pool_block(absolute_id)

    # Calls for blocks of either pool.

    @property
    def all_block_ids(self) -> frozenset[int]:
        """The ids of the blocks of both pools."""
        return frozenset().union(*(a.all_block_ids for a in self._allocators.values()))

    def free(self, block: Block) -> None:
        """Releases a block; the null block stays.

        Raises:
            BlockStateError: The block was freed before.
        """
        if self._null is None or block is not self._null:
            self._allocator_of(block).free(block)

    def fork(self, last_block: Block) -> BlockView:
        """``BlockAllocator.fork`` of the block's device.

        Raises:
            BlockStateError: A block of the sequence was freed.
        """
        return self._allocator_of(last_block).fork(last_block)

    def _allocator_of(self, block: Block) -> BlockAllocator:
        if not isinstance(block, Block) or isinstance(block, NullBlock):
            raise TypeError(f"block must be one of an allocator, got {type(block).__name__}")
        for known in self._allocators.values():
            if block.place[0].allocator is known:
                return known
        raise ValueError("block belongs to another allocator")

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

    def allocate_or_get_null_block(self) -> NullBlock:
        """The block that stands for blocks outside a sliding window.

        Raises:
            NoFreeBlocksError: There is no null block yet, and no block is free for it.
        """
        if self._null is None:
            blocks = BlockList(self.pool_of(Device.GPU))
            blocks.add_empty(1, None)
            self._null = NullBlock(blocks, 0)
        return self._null

    @property
    def null_block_id(self) -> int:
        """The physical block of the null block."""
        block_id = self.allocate_or_get_null_block().block_id
        assert block_id is not None
        return block_id

    # Swaps.

    def swap(
        self, blocks: Sequence[Block], src_device: Device, dst_device: Device
    ) -> dict[int, int]:
        """Moves a whole sequence from one pool to the other, or raises and moves nothing.

        Its full blocks stay cached in the source pool, and are shared in the destination if they
        are cached there.

        Args:
            blocks: Every block of one sequence, in order.
            src_device: Their current device.
            dst_device: Device to move them to.

        Returns:
            Destination by source: the copies to run before the next forward, and before those of
                ``clear_copy_on_writes``. Blocks that are computed at the destination already need
                no copy.

        Raises:
            NoFreeBlocksError: The destination has too few blocks available.
            BlockStateError: A block was freed, or waits for a copy.
            ValueError: The blocks are not a whole sequence or not of ``src_device``, or the two
                devices are the same.
        """
        source, destination = self.pool_of(src_device), self.pool_of(dst_device)
        copies = self.plan_swap([blocks], src_device, dst_device).carry_out()
        return {source.physical_id(a): destination.physical_id(b) for a, b in copies}

    def plan_swap(
        self, sequences: Iterable[Sequence[Block]], src_device: Device, dst_device: Device
    ) -> Swap:
        """A ``swap`` of several sequences, all or none, that is only counted yet."""
        source, destination = self.pool_of(src_device), self.pool_of(dst_device)
        if source is destination:
            raise ValueError(f"dst_device must be another device than {src_device}")
        lists = [self._whole_sequence(blocks, source) for blocks in sequences]
        return Swap(source, destination, lists)

    def get_num_full_blocks_touched(self, blocks: Sequence[Block], device: Device) -> int:
        """The number of blocks that moving a sequence to a device would take from its pool.

        Raises:
            BlockStateError: A block waits for a copy.
            ValueError: Not a whole sequence of the other device.
        """
        destination = self.pool_of(device)
        source = next((a for a in self._allocators.values() if a is not destination), destination)
        return Swap(source, destination, [self._whole_sequence(blocks, source)]).num_taken

    def _whole_sequence(self, blocks: Sequence[Block], source: BlockAllocator) -> list[BlockList]:
        if not isinstance(blocks, Sequence):
            raise TypeError(f"blocks must be a sequence, got {type(blocks).__name__}")
        if not blocks:
            raise ValueError("blocks must not be empty")
        last = blocks[-1]
        if self._allocator_of(last) is not source:
            raise ValueError("blocks must be of the device they are moved from")
        assert isinstance(last, Block)
        parts = last.parts()
        places = [(part, i) for part, count in parts for i in range(count)]
        if any(count < len(part.blocks) for part, count in parts) or places != [
            block.place if isinstance(block, Block) else None for block in blocks
        ]:
            raise ValueError("blocks must be every block of one sequence, in order")
        return [part for part, _ in parts]
