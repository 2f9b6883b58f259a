"""The books of one tier: which block of it holds which prefix.

Its ends are what a prompt finds behind the whole blocks that it finds.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from blockmgr.arguments import positive, whole
from blockmgr.blocks import Priority
from blockmgr.errors import BlockStateError
from blockmgr.event_columns import Tier
from blockmgr.options import check_options, rule
from blockmgr.pool import BlockPool
from blockmgr.tiers.group_events import GroupEvents
from blockmgr.tiers.kinds import STORES, StoreName
from blockmgr.tiers.layout import Pieces
from blockmgr.tiers.paths import (
    Path,
    key_bytes,
    key_of,
    part_name,
    part_of,
    parts_of_key,
    secret,
    shared_key_bytes,
)
from blockmgr.tiers.plans import Proofs, TierStats
from blockmgr.tiers.shared import SharedStorage
from blockmgr.tiers.slab import Slab

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from blockmgr.config import ManagerConfig
    from blockmgr.event_columns import Events
    from blockmgr.policy import PolicyFactory
    from blockmgr.tiers.layout import Layout
    from blockmgr.tiers.plans import Ticket

__all__ = ["Ends", "Parent", "Reach", "TierBooks", "TierConfig"]

TOKEN_BYTES = 4

Parent: TypeAlias = int | bytes
"""The serial of the block that an end continues; a namespace, if it begins a prompt."""


class Ends:
    """Finds ends by what they continue, their extra key and their tokens: all of these, exactly.

    The pool has an end as a block that no look-up of whole blocks finds, and evicts it without a
    word. So what is found here is there if the pool says so.
    """

    def __init__(self) -> None:
        self._blocks: dict[tuple[Parent, bytes, bytes], int] = {}
        self._names: dict[int, tuple[Parent, bytes, bytes]] = {}
        self._lengths: dict[Parent, Counter[int]] = {}

    def add(self, block: int, parent: Parent, extras: bytes, tokens: bytes) -> None:
        """Notes that a block has an end."""
        name = parent, extras, tokens
        self.drop(self._blocks.get(name, block))
        self._blocks[name], self._names[block] = block, name
        self._lengths.setdefault(parent, Counter())[len(tokens)] += 1

    def drop(self, block: int) -> None:
        """Notes that a block gets other content."""
        name = self._names.pop(block, None)
        if name is None:
            return
        parent, _, tokens = name
        del self._blocks[name]
        lengths = self._lengths[parent]
        lengths[len(tokens)] -= 1
        if not lengths[len(tokens)]:
            del lengths[len(tokens)]
        if not lengths:
            del self._lengths[parent]

    def __contains__(self, parent: Parent) -> bool:
        """Whether anything may be found behind this."""
        return parent in self._lengths

    def find(self, parent: Parent, extras: bytes, tokens: bytes) -> Iterator[tuple[int, int]]:
        """The ends with which these tokens begin, the longest first: number of tokens, block."""
        for length in sorted(self._lengths.get(parent, ()), reverse=True):
            if length <= len(tokens):
                block = self._blocks.get((parent, extras, tokens[:length]))
                if block is not None:
                    yield length // TOKEN_BYTES, block


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TierConfig:
    """One tier of a manager: how many blocks it has, and in what.

    Attributes:
        num_blocks: Blocks that it holds; None for those of the slab. Of a shared store, blocks that
            this process remembers.
        slab: The file that holds them; None for memory.
        shared: The store, which others share, that holds them; None for memory.
        known_seconds: Of a shared store, how long to remember what was stored or seen there.
        eviction: Eviction order, as in ``ManagerConfig``.
        ahead: Idle blocks of the tier above, or of the device, that are stored here ahead of their
            eviction; None for a sixteenth of them. As many as it has stores all that is idle.
            Without effect if ``store`` is ``"release"`` or ``"commit"``.
        store: What is stored, and when. ``"idle"``: idle blocks, ahead of their eviction.
            ``"second_touch"``: of these, the beginnings of prompts that a request has found, or
            that were computed twice; fewer writes, for a disk that wears or a tier no larger than
            the device. ``"release"``: blocks as soon as their last user goes. ``"commit"``: blocks
            as soon as they are computed.
    """

    num_blocks: int | None = None
    slab: Slab | None = None
    eviction: str | PolicyFactory = "lru"
    ahead: int | None = None
    store: StoreName = field(default="idle", metadata=rule(choices=STORES))
    shared: SharedStorage | None = None
    known_seconds: float = 60.0

    def __post_init__(self) -> None:
        if self.slab is not None and not isinstance(self.slab, Slab):
            raise TypeError(f"slab must be a Slab or None, got {type(self.slab).__name__}")
        if self.shared is not None and not isinstance(self.shared, SharedStorage):
            raise TypeError(
                f"shared must be a SharedStorage or None, got {type(self.shared).__name__}"
            )
        if self.shared is not None and self.slab is not None:
            raise ValueError("shared must be None with a slab")
        positive("known_seconds", self.known_seconds)
        if self.slab is None and self.num_blocks is None:
            raise ValueError("num_blocks must be given for a tier without a slab, got None")
        if self.slab is not None and self.num_blocks not in (None, self.slab.num_blocks):
            raise ValueError(
                f"num_blocks must be those of the slab, {self.slab.num_blocks}, got "
                f"{self.num_blocks}"
            )
        whole("num_blocks", self.size, 1, 2**31 - 1)
        if self.ahead is not None:
            whole("ahead", self.ahead, 1)
        check_options(self)

    @property
    def kind(self) -> Tier:
        """What events say of where its blocks are."""
        if self.shared is not None:
            return Tier.REMOTE
        return Tier.HOST if self.slab is None else Tier.DISK

    @property
    def size(self) -> int:
        """Blocks that it holds."""
        return self.slab.num_blocks if self.slab is not None else self.num_blocks or 0


class Reach(NamedTuple):
    """What a tier has of a prompt, up to where the prompt can continue."""

    num_tokens: int
    """Tokens; no multiple of the block size if it ends with an end."""
    blocks: npt.NDArray[np.int32]
    """``int32[n, num_parts]``: the blocks of their nodes; -1 for none."""


class PathState(NamedTuple):
    """A path in a tier."""

    have: list[int]
    """The blocks that hold its beginning."""
    kept: npt.NDArray[np.int32]
    """Those blocks of it that are there and needed."""
    units: npt.NDArray[np.int64]
    """The node of each of these."""
    missing: Pieces
    """What is needed and not there."""


class TierBooks:
    """A pool whose blocks are those of the tier, with the serial of the write of each.

    It is closed under parent by itself: a block is findable here only if the block that it
    continues is. The blocks of other groups of layers continue the block of full attention that has
    their tokens, beside the next one, and are evicted by themselves. An end continues the last
    whole block, as one more child.
    """

    keeps_ends = True
    """Whether it stores ends; otherwise whole blocks only."""

    def __init__(self, config: TierConfig, manager: ManagerConfig, layout: Layout) -> None:
        if config.slab is not None:
            config.slab._check_open()
        size = manager.block_size
        for name, storage, wanted in (
            ("slab", config.slab, key_bytes(size)),
            ("shared", config.shared, shared_key_bytes(size)),
        ):
            if storage is not None and storage.key_bytes != wanted:
                raise ValueError(
                    f"{name} must have keys of {wanted} bytes for blocks of {size} tokens, got "
                    f"{storage.key_bytes}"
                )
        self.slab = config.slab
        self.kind = config.kind
        self.config = config
        self.layout = layout
        self.pool = BlockPool(
            config.size,
            size,
            digest=manager.digest,
            eviction=config.eviction,
            quotas=_scaled(manager, config.size),
            retention=manager.retention,
            events=manager.events,
        )
        self.serials = np.zeros(config.size, np.uint64)
        # By node, its parts, which are there if the serials still are those of their blocks.
        self._parts = np.full((config.size, layout.num_parts), -1, np.int32)
        self._parts[:, 0] = np.arange(config.size)
        self._part_serials = np.zeros(self._parts.shape, np.uint64)
        self._ends = Ends()
        self.stats = TierStats()
        self.storing: set[tuple[object, ...]] = set()
        """What is being written, by parent, extra key and tokens."""
        self.writing: dict[int, int] = {}
        """Serial of each block that is being written."""
        self._next = 1
        self._told = GroupEvents(layout)
        if config.slab is not None:
            self._restore(config.slab)

    def find(self, path: Path) -> npt.NDArray[np.int32]:
        """The blocks that hold the beginning of a path: ``int32[n, num_parts]``; -1 for none."""
        nodes = path.find_in(self.pool)
        if path.has_end and len(nodes) == path.num_whole:
            own = len(path.tokens) % path.block_size
            nodes = np.array([*nodes, *(b for n, b in self._ends_of(path, nodes) if n == own)])
        return self.with_parts(nodes.astype(np.int32))

    def reach(self, path: Path, most: int | None = None) -> Reach:
        """What it has of a prompt, ``most`` tokens at most, up to where the prompt can continue."""
        if not self.pool.num_cached:  # ends are cached, too
            return Reach(0, self._parts[:0])
        known = path if most is None else path.first(most)
        found = self.find(known.whole())
        count = self.layout.deepest(found)
        for n in range(len(found), count - 1, -1):
            for num_tokens, end in self._ends_of(known, found[:n, 0]):
                blocks = np.concatenate([found[:n], self.with_parts(np.array([end]))])
                total = n * known.block_size + num_tokens
                if self.layout.serves(blocks, total):
                    return Reach(total, blocks)
        return Reach(count * known.block_size, found[:count])

    def _ends_of(self, path: Path, nodes: npt.NDArray[np.int32]) -> Iterator[tuple[int, int]]:
        """Tokens and block of the ends of a path behind its first nodes, the longest first."""
        n, parent = len(nodes), self._name_of(path, nodes)
        if parent not in self._ends:
            return
        tokens, extras = path.block(n, path.block_size - 1), path.extras.get(n, b"")
        for num_tokens, block in self._ends.find(parent, extras, tokens):
            if self.pool.is_cached(block):
                yield num_tokens, block

    def _name_of(self, path: Path, nodes: Sequence[int] | npt.NDArray[np.int32]) -> Parent:
        """What names the first nodes of a path among those that ends continue."""
        return int(self.serials[nodes[-1]]) if len(nodes) else path.namespace

    def with_parts(self, nodes: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """All parts of some nodes, as in ``find``."""
        blocks: npt.NDArray[np.int32] = self._parts[nodes]
        if self.layout.is_grouped:
            at = np.nonzero(blocks >= 0)
            parts = blocks[at]
            is_same = self.serials[parts] == self._part_serials[nodes][at]
            is_there = self.pool.is_cached(parts) & (is_same | (at[1] == 0))
            blocks[at] = np.where(is_there, parts, -1)
        return blocks

    def state_of(self, path: Path) -> PathState:
        """What there is, and what lacks, of that which prompts read that continue behind a path."""
        found, needed = self.find(path), self.layout.needed(len(path.tokens))
        there = Pieces((found >= 0) & needed[: len(found)])
        needed[: len(found)] &= found < 0
        kept = found[there.units, there.parts]
        return PathState(found[:, 0].tolist(), kept, there.units, Pieces(needed))

    def room(self, namespace: bytes) -> int:
        """Blocks that a store in this namespace can take."""
        usage = self.pool.quota_usage(namespace)
        return usage.free_blocks + usage.idle_blocks

    def take_serials(self, n: int) -> int:
        """The first of ``n`` serials in a row."""
        if self.slab is not None:
            return self.slab.take_serials(n)
        first, self._next = self._next, self._next + n
        return first

    def names_of(self, path: Path, have: Sequence[int], pieces: Pieces) -> set[tuple[object, ...]]:
        """What names blocks that continue ``have`` among all that is being stored.

        The first node names those that continue it, too.
        """
        first = len(have)
        beside = pieces.chosen((pieces.parts > 0) & (pieces.units < first))
        names: set[tuple[object, ...]] = {(have[unit], part) for unit, part in beside}
        if pieces.num_nodes:
            parent = have[-1] if have else path.namespace
            names.add((parent, path.extras.get(first, b""), path.block(first)))
        return names

    def proofs(
        self,
        path: Path,
        pieces: Pieces,
        have: Sequence[int],
        serials: npt.NDArray[np.uint64],
    ) -> Proofs:
        """How blocks of a path are proved.

        Args:
            path: The path.
            pieces: The blocks.
            have: The blocks of this tier for the nodes before theirs.
            serials: Those of the blocks.
        """
        start = np.zeros(1, np.uint64)
        before = np.concatenate([start, self.serials[list(have)], serials[: pieces.num_nodes]])
        parents = before[pieces.units + (pieces.parts > 0)].tolist()
        keys = map(partial(key_of, path), pieces.units.tolist(), parents, pieces.parts.tolist())
        return Proofs(serials, tuple(keys))

    def promote(
        self,
        path: Path,
        have: Sequence[int],
        pieces: Pieces,
        blocks: Sequence[int],
        first_serial: int,
    ) -> int:
        """Makes blocks findable that continue ``have``, if that is still findable; how many.

        Args:
            path: Their path.
            have: Its first nodes.
            pieces: What the blocks are; there may be more.
            blocks: The blocks.
            first_serial: The serial of the first of them; those of the others follow.
        """
        if not blocks or (have and not self.pool.is_cached(have[-1])):
            return 0
        self.serials[list(blocks)] = first_serial + np.arange(len(blocks), dtype=np.uint64)
        for block in blocks:
            self._ends.drop(block)
        fresh = blocks[: pieces.num_nodes]
        path.promote_in(self.pool, have, fresh)
        nodes = [*have, *fresh]
        if fresh and path.has_end and len(nodes) == len(path):
            self._add_end(path, nodes)
        for i in range(len(fresh), len(blocks)):
            self._promote_part(nodes[pieces.units[i]], int(pieces.parts[i]), blocks[i])
        return len(blocks)

    def _add_end(self, path: Path, nodes: Sequence[int]) -> None:
        """Notes that the last of the nodes is the end of a path."""
        last, parent = len(nodes) - 1, self._name_of(path, nodes[:-1])
        self._ends.add(nodes[-1], parent, path.extras.get(last, b""), path.block(last))

    def _promote_part(self, node: int, part: int, block: int) -> None:
        tokens = self.pool.tokens(node)
        is_whole = len(tokens) == self.pool.block_size
        promote = self.pool.promote if is_whole else self.pool.promote_end
        promote(block, tokens, parent=node, extras=part_name(part))
        self._set_part(node, part, block)

    def retain(self, blocks: Sequence[int], levels: Sequence[int], until: Sequence[float]) -> None:
        """Gives blocks the retention of their source; nothing, if the manager has none.

        Args:
            blocks: Cached blocks.
            levels: For each, its ``Priority``; -1 for none.
            until: For each, the time of its end.
        """
        each = zip(blocks, levels, until, strict=False)  # without retention there are no levels
        for (level, end), run in groupby(each, key=itemgetter(1, 2)):
            ttl = end - self.pool.time
            is_kept = level >= 0 and ttl > 0
            self.pool.retain(
                [block for block, _, _ in run],
                priority=Priority(level) if is_kept else None,
                ttl=ttl if is_kept and ttl < math.inf else None,
            )

    def _set_part(self, node: int, part: int, block: int) -> None:
        self._parts[node, part] = block
        self._part_serials[node, part] = self.serials[block]

    def forget(self, block: int) -> None:
        """Forgets a block, with all that continues it, so that it can be stored again."""
        if self.pool.is_cached(block):
            self.pool.forget_blocks([block])

    def erase(self, paths: Sequence[Path], void: Sequence[Ticket]) -> None:
        """Erases the last block of each path on disk, so that no restart finds it.

        Args:
            paths: The paths.
            void: The stores to this tier of what continues them.
        """
        if self.slab is not None:
            found = [(path, self.find(path)) for path in paths]
            self._erase([int(own[-1, 0]) for path, own in found if len(own) == len(path)], void)

    def _erase(self, blocks: list[int], void: Sequence[Ticket]) -> None:
        """Erases blocks of the slab, and what it has left of those that are found no more.

        A block that was evicted has its header until a store has written over it, and a restart
        would find what it had. So would it find an older copy of a block.
        """
        slab = self.slab
        if slab is None:
            return
        revoked = {serial for store in void for serial in store.serials}
        slab._revoke(revoked)
        try:
            left = np.flatnonzero(slab._serials)
            is_found = self.pool.is_cached(left) & (slab._serials[left] == self.serials[left])
            kept = {block: n for block, n in self.writing.items() if n not in revoked}
            gone = left[~is_found].tolist()
            slab.erase(blocks + [b for b in gone if kept.get(b) != slab._serials[b]])
        except BaseException:
            slab._restore(revoked)
            raise

    def condemn(self, path: Path) -> None:
        """Forgets the last block of a path, whose bytes turned out to be wrong."""
        found = self.find(path)
        if len(found) == len(path):
            self.forget(int(found[-1, 0]))

    def take_back(self, store: Ticket) -> bool:
        """Makes what a store wrote count no longer; False: it counts for this process only."""
        if self.slab is not None:
            self.slab.erase(store.targets)
            self.slab._restore(store.serials)
        return self.slab is not None

    def reset(self) -> None:
        """Makes no restart find what was written, as for new weights. It can fail."""
        if self.slab is not None:
            self.slab.reset(volatile=True)

    def forget_all(self) -> None:
        """Forgets every block. Blocks that a transfer uses are free when it ends."""
        every = np.arange(self.pool.num_blocks)
        self.pool.forget_blocks(every[self.pool.is_cached(every)])

    def erase_namespace(self, namespace: bytes, void: Sequence[Ticket]) -> None:
        """Erases every block of a namespace on disk, so that no restart finds it.

        Args:
            namespace: The namespace.
            void: The stores to this tier in it.
        """
        found = self.pool.children(-1, namespace=namespace).tolist()
        for block in found:  # which grows meanwhile
            found += self.pool.children(block).tolist()
        self._erase(found, void)

    def forget_namespace(self, namespace: bytes) -> None:
        """Forgets every block of a namespace."""
        self.pool.forget_blocks(self.pool.children(-1, namespace=namespace))

    def take_events(self) -> Events:
        """As ``BlockPool.take_events``, by group."""
        return self._translated(self._told, self.pool.take_events())

    def take_snapshot(self) -> Events:
        """As ``BlockPool.take_snapshot``, by group."""
        return self._translated(self._told, self.pool.take_snapshot())

    def resident_events(self) -> Events:
        """As ``BlockPool.resident_events``, by group."""
        return self._translated(GroupEvents(self.layout), self.pool.resident_events())

    def _translated(self, told: GroupEvents, events: Events) -> Events:
        return told.translated(events) if self.layout.is_grouped else events

    def close(self) -> None:
        """Closes the slab, which keeps the order of uses."""
        if self.slab is not None:
            self.slab.close(order=self.pool.idle_blocks())

    def _restore(self, slab: Slab) -> None:
        """Makes what the slab had findable, to be evicted in the order of the slab.

        A block whose parent is gone, or that is of another share than its namespace has now, is
        left out.
        """
        if not slab.found.size:
            return
        blocks = slab.found["block"].tolist()
        self.pool.take_blocks(blocks)
        at = {0: -1}  # block by serial
        ends: set[int] = set()
        for block, serial, key in slab.found.tolist():
            said = parts_of_key(bytes(key))
            # A slab has each key once, so no two of its blocks are equal.
            part = part_of(said.extras)
            if said.parent not in at or part >= self.layout.num_parts:
                continue
            parent = at[said.parent]
            is_whole = len(said.tokens) == self.pool.block_size
            promote = self.pool.promote if is_whole else self.pool.promote_end
            if parent in ends and not part:
                continue  # nothing continues an end
            try:
                promote(
                    block,
                    said.tokens,
                    parent=parent,
                    namespace=said.namespace if parent < 0 else b"",
                    extras=said.extras,
                )
            except (ValueError, BlockStateError):
                continue
            at[serial] = block
            self.serials[block] = serial
            if part:
                self._set_part(parent, part, block)
            elif not is_whole:
                ends.add(block)
                tokens = np.ascontiguousarray(said.tokens, "<u4").tobytes()
                self._ends.add(block, said.parent or said.namespace, said.extras, tokens)
        self.stats.restored = len(at) - 1
        self.pool.release(slab.order)


def _scaled(manager: ManagerConfig, size: int) -> Mapping[bytes, int]:
    """The quotas of the device, in proportion, by the names that tiers know."""
    capacity = manager.capacity
    return {
        secret(name): max(1, blocks * size // capacity) for name, blocks in manager.quotas.items()
    }
