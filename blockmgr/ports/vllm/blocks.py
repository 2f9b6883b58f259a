"""Views of blocks for vLLM's scheduler and connectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy as np
    import numpy.typing as npt

    from blockmgr import BlockManager
    from blockmgr.ports.vllm.events import KVEvents
    from blockmgr.ports.vllm.layers import Layers

__all__ = ["Block", "BlockPool", "Blocks", "FoundBlocks", "GroupedBlocks", "SomeBlocks"]

CACHED = b"cached by blockmgr"


class Block:
    """The attributes of a ``KVCacheBlock`` that vLLM reads, looked up on access."""

    __slots__ = ("_manager", "block_id")

    def __init__(self, manager: BlockManager, block_id: int) -> None:
        self._manager = manager
        self.block_id = block_id

    def __repr__(self) -> str:
        return f"<Block {self.block_id}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Block):
            return NotImplemented
        return other._manager is self._manager and other.block_id == self.block_id

    def __hash__(self) -> int:
        return hash(self.block_id)

    @property
    def is_null(self) -> bool:
        """Whether it is block 0, which stores nothing."""
        return self.block_id == 0

    @property
    def block_hash(self) -> bytes | None:
        """A value if the block can be found, else None. It is not a hash: no look-up uses it."""
        return None if self.is_null or not self._manager.is_cached(self.block_id) else CACHED

    @property
    def block_hash_num_tokens(self) -> int | None:
        """Number of tokens, if the block can be found."""
        return None if self.block_hash is None else self._manager.config.block_size

    @property
    def ref_cnt(self) -> int:
        """The number of tables that name it, plus its holds."""
        return 1 if self.is_null else self._manager.ref_count(self.block_id)


class Blocks:
    """A ``KVCacheBlocks`` of one group."""

    __slots__ = ("_manager", "ids")

    ids: list[int]

    def __init__(self, manager: BlockManager, ids: list[int]) -> None:
        self._manager = manager
        self.ids = ids

    @property
    def by_group(self) -> tuple[list[int], ...]:
        """The same, in a tuple."""
        return (self.ids,)

    @property
    def blocks(self) -> tuple[list[Block], ...]:
        """The blocks of the group."""
        return ([Block(self._manager, block) for block in self.ids],)

    def get_block_ids(
        self, allow_none: bool = False, *, group_ids: Sequence[int] | None = None
    ) -> tuple[list[int], ...] | None:
        """The ids of the group's blocks, as a list; None if there are none and that is allowed."""
        ids = self.ids
        if allow_none and not ids:
            return None
        return (ids,) if group_ids is None else tuple(ids for _ in group_ids)

    def get_unhashed_block_ids(self) -> list[int]:
        """The ids of blocks that cannot be found."""
        return [block for block in self.ids if not self._manager.is_cached(block)]

    def get_unhashed_block_ids_all_groups(self) -> list[list[int]]:
        """Likewise, by group."""
        return [self.get_unhashed_block_ids()]

    def new_empty(self) -> Blocks:
        """The same number of groups, without blocks."""
        return Blocks(self._manager, [])

    def __add__(self, other: Blocks) -> Blocks:
        return Blocks(self._manager, self.ids + other.ids)


class FoundBlocks(Blocks):
    """The blocks of a look-up: an array, converted to a list on access."""

    __slots__ = ("_count", "_found", "_listed")

    def __init__(self, manager: BlockManager, found: npt.NDArray[np.int32], count: int) -> None:
        self._manager = manager
        self._found = found
        self._count = count
        self._listed: list[int] | None = None

    @property
    def ids(self) -> list[int]:  # type: ignore[override]  # never set
        """The ids of the group's blocks."""
        if self._listed is None:
            self._listed = self._found[: self._count].tolist()
        return self._listed


class GroupedBlocks:
    """A ``KVCacheBlocks`` of several groups, with block 0 where a group holds nothing."""

    __slots__ = ("_layers", "_manager", "by_group")

    def __init__(
        self, manager: BlockManager, ids: tuple[list[int], ...], layers: tuple[Layers, ...]
    ) -> None:
        self._manager = manager
        self._layers = layers
        self.by_group = ids

    @property
    def blocks(self) -> tuple[list[Block], ...]:
        """The blocks, by group."""
        return tuple([Block(self._manager, block) for block in group] for group in self.by_group)

    def get_block_ids(
        self, allow_none: bool = False, *, group_ids: Sequence[int] | None = None
    ) -> tuple[list[int], ...] | None:
        """The ids of the blocks, by group; None if there are none, and that is allowed."""
        ids = (
            self.by_group
            if group_ids is None
            else tuple(self.by_group[group] for group in group_ids)
        )
        return None if allow_none and not any(ids) else ids

    def get_unhashed_block_ids(self) -> list[int]:
        """As in vLLM, for one group only.

        Raises:
            ValueError: There are several.
        """
        raise ValueError("get_unhashed_block_ids_all_groups is for several groups")

    def get_unhashed_block_ids_all_groups(self) -> list[list[int]]:
        """The ids of blocks that cannot be found, by group."""
        cached = self._manager.is_cached
        return [
            [block for block in group if block and not cached(block)] for group in self.by_group
        ]

    def first(self, num_tokens: int) -> GroupedBlocks:
        """The leading blocks of each group, for this many tokens."""
        groups = zip(self.by_group, self._layers, strict=True)
        return self._of(tuple(ids[: layers.num_entries(num_tokens)] for ids, layers in groups))

    def new_empty(self) -> GroupedBlocks:
        """The same number of groups, without blocks."""
        return self.first(0)

    def __add__(self, other: GroupedBlocks) -> GroupedBlocks:
        pairs = zip(self.by_group, other.by_group, strict=True)
        return self._of(tuple(a + b for a, b in pairs))

    def _of(self, ids: tuple[list[int], ...]) -> GroupedBlocks:
        return GroupedBlocks(self._manager, ids, self._layers)


SomeBlocks = Blocks | GroupedBlocks


class AllBlocks:
    """``block_pool.blocks``: a block by its id."""

    __slots__ = ("_manager",)

    def __init__(self, manager: BlockManager) -> None:
        self._manager = manager

    def __getitem__(self, block_id: int) -> Block:
        if not 0 <= block_id < len(self):
            raise IndexError(block_id)
        return Block(self._manager, block_id)

    def __len__(self) -> int:
        return self._manager.config.num_blocks

    def __iter__(self) -> Iterator[Block]:
        return (Block(self._manager, block) for block in range(len(self)))


class BlockPool:
    """The part of vLLM's ``BlockPool`` that its scheduler and connectors use.

    Other code cannot find blocks by vLLM's hashes, nor take blocks: features that need this are
    refused at start-up.
    """

    def __init__(
        self, manager: BlockManager, enable_caching: bool, events: KVEvents | None = None
    ) -> None:
        self._manager = manager
        self.blocks = AllBlocks(manager)
        self.null_block = Block(manager, 0)
        self.num_gpu_blocks = manager.config.num_blocks
        self.hash_block_size = manager.config.block_size
        self.enable_caching = enable_caching
        self.kv_event_queue: list[Any] = []
        self.enable_kv_cache_events = events is not None
        self._events = events

    def get_num_free_blocks(self) -> int:
        """Blocks that can be handed out."""
        return self._manager.num_available

    def get_usage(self) -> float:
        """Fraction of the blocks that are in use, 0.0 to 1.0."""
        return 1.0 - self._manager.num_available / self._manager.config.capacity

    def touch(self, blocks: Sequence[Block]) -> None:
        """Holds blocks, under vLLM's name."""
        self._manager.acquire([block.block_id for block in blocks if not block.is_null])

    def free_blocks(self, ordered_blocks: Iterable[Block]) -> None:
        """Releases holds, the first to be evicted first."""
        self._manager.release([block.block_id for block in ordered_blocks if not block.is_null])

    def evict_blocks(self, block_ids: set[int]) -> None:
        """Removes these blocks from the cache."""
        self._manager.forget(sorted(block for block in block_ids if block))

    def take_events(self) -> list[Any]:
        """The events since the last call, if events are on."""
        return [] if self._events is None else self._events.take()
