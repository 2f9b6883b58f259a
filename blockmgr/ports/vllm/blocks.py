"""Views of blocks for vLLM's scheduler and connectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from blockmgr import BlockManager, Match
    from blockmgr.ports.vllm.events import KVEvents
    from blockmgr.ports.vllm.layers import Layers

__all__ = ["Block", "BlockPool", "Blocks", "FoundBlocks", "first_full"]

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
    def ref_cnt(self) -> int:
        """The number of tables that name it, plus its holds."""
        return 1 if self.is_null else self._manager.ref_count(self.block_id)


class Blocks:
    """A ``KVCacheBlocks``: the ids of blocks by group, with block 0 where a group holds nothing."""

    __slots__ = ("_layers", "_manager", "by_group")

    def __init__(
        self, manager: BlockManager, layers: tuple[Layers, ...], ids: tuple[list[int], ...]
    ) -> None:
        self._manager = manager
        self._layers = layers
        self.by_group = ids

    @property
    def blocks(self) -> tuple[list[Block], ...]:
        """The blocks, by group."""
        return tuple([Block(self._manager, block) for block in ids] for ids in self.by_group)

    def get_block_ids(
        self, allow_none: bool = False, *, group_ids: Sequence[int] | None = None
    ) -> tuple[list[int], ...] | None:
        """The ids of the blocks, by group; None if there are none, and that is allowed."""
        ids = self.by_group
        if group_ids is not None:
            ids = tuple(ids[group] for group in group_ids)
        return None if allow_none and not any(ids) else ids

    def get_unhashed_block_ids(self) -> list[int]:
        """The ids of blocks that cannot be found.

        Raises:
            ValueError: There are several groups, as in vLLM.
        """
        if len(self.by_group) > 1:
            raise ValueError("get_unhashed_block_ids_all_groups is for several groups")
        return self.get_unhashed_block_ids_all_groups()[0]

    def get_unhashed_block_ids_all_groups(self) -> list[list[int]]:
        """Likewise, by group."""
        cached = self._manager.is_cached
        return [[block for block in ids if block and not cached(block)] for ids in self.by_group]

    def first(self, num_tokens: int) -> Blocks:
        """The leading blocks of each group, for this many tokens."""
        groups = zip(self.by_group, self._layers, strict=True)
        return self._of(tuple(ids[: layers.num_entries(num_tokens)] for ids, layers in groups))

    def __add__(self, other: Blocks) -> Blocks:
        pairs = zip(self.by_group, other.by_group, strict=True)
        return self._of(tuple(a + b for a, b in pairs))

    def _of(self, ids: tuple[list[int], ...]) -> Blocks:
        return Blocks(self._manager, self._layers, ids)


class FoundBlocks(Blocks):
    """The blocks of a look-up, converted to lists on access.

    The ids are those of the first group with full attention, if its blocks have the manager's block
    size. The others are unknown until they are taken, and are 0.
    """

    __slots__ = ("_found", "_listed")

    def __init__(self, manager: BlockManager, layers: tuple[Layers, ...], found: Match) -> None:
        self._manager = manager
        self._layers = layers
        self._found = found
        self._listed: tuple[list[int], ...] | None = None

    @property
    def by_group(self) -> tuple[list[int], ...]:  # type: ignore[override]  # never set
        """The ids, by group."""
        if self._listed is None:
            full = first_full(self._layers)
            size = self._manager.config.block_size
            self._listed = tuple(
                self._found.block_ids.tolist()
                if group == full and each.block_size == size
                else [0] * each.num_found_entries(self._found.num_cached_tokens)
                for group, each in enumerate(self._layers)
            )
        return self._listed


def first_full(layers: Sequence[Layers]) -> int | None:
    """The position of the first group that has full attention; None if no group has."""
    return next((group for group, each in enumerate(layers) if each.most_blocks is None), None)


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

    def __init__(self, manager: BlockManager, events: KVEvents | None = None) -> None:
        self._manager = manager
        self.blocks = AllBlocks(manager)
        self.null_block = Block(manager, 0)
        self.num_gpu_blocks = manager.config.num_blocks
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
