"""Whole-sequence slots, and a cache of the prefixes that they hold.

For engines that keep each sequence's K/V in one run of memory, the *slot* of that sequence (in the
rest of the library a slot holds one token). ``SlotAllocator`` hands slots out; the version of a
slot counts how often, so that stale references can be detected. ``PrefixCacheManager`` knows which
slot begins with which tokens. It works without a ``SlotAllocator``; with one (``slots``), it
returns only current content, and pinned prefixes stay in their slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from blockmgr.arguments import whole
from blockmgr.blocks import CopyPlan
from blockmgr.config import MAX_BLOCKS
from blockmgr.errors import BlockStateError, NeverFitsError, OutOfBlocksError, SequenceStateError
from blockmgr.pool import BlockPool
from blockmgr.ports.locking import exclusive, new_mutex

if TYPE_CHECKING:
    from torch import Tensor

    from blockmgr.manager import Tokens

__all__ = ["Copies", "PrefixCacheManager", "SlotAllocator"]

MAX_VERSION = 2**63 - 1
_NO_TOKENS = np.empty(0, np.uint32)


class SlotAllocator:
    """Hands out slots, each for one whole sequence. Calls of several threads wait for one another.

    A slot that does not exist raises ``ValueError``, and one that is not an int ``TypeError``.

    Args:
        max_slots: Number of slots, at least 1.

    Raises:
        ValueError: ``max_slots`` out of its bounds.
        TypeError: ``max_slots`` is not an int.

    >>> slots = SlotAllocator(max_slots=2)
    >>> slots.alloc(), slots.alloc(), slots.alloc()
    (0, 1, -1)
    >>> slots.free(0)
    >>> slots.alloc(), slots.version(0)
    (0, 2)
    """

    def __init__(self, max_slots: int) -> None:
        count = whole("max_slots", max_slots, 1, MAX_BLOCKS)
        # A slot is a block, cached under its own number: so an unused slot keeps its content until
        # it is the next in the eviction order, and can be taken by its number.
        self._pool = BlockPool(count, 1)
        everything = self._pool.take(count)
        everything.sort()
        for slot in everything.tolist():
            self._pool.promote(slot, [slot])
        self._pool.release(everything)
        self._occupied: set[int] = set()
        self._versions = [0] * count
        self._caches: WeakSet[PrefixCacheManager] = WeakSet()
        self._mutex = new_mutex()

    @exclusive
    def alloc(self) -> int:
        """Takes the slot that was freed the longest ago; its version grows by one.

        Returns:
            The slot; -1 if all are occupied or pinned.
        """
        # Every available slot is idle, and keeps the number that it is cached under.
        first = self._pool.idle_blocks(1).tolist()
        if not first:
            return -1
        slot: int = first[0]
        self._occupy(slot, 0)
        self._versions[slot] += 1
        return slot

    @exclusive
    def free(self, idx: int) -> None:
        """Frees a slot. Its content can be found until the slot is handed out again.

        Raises:
            BlockStateError: The slot is not occupied.
        """
        slot = self._checked("idx", idx)
        if slot not in self._occupied:
            raise BlockStateError(slot, "is not occupied; it was freed, or never allocated")
        self._pool.release([slot])
        self._occupied.remove(slot)

    @exclusive
    def occupy(self, idx: int, prefix_len: int = 0) -> None:
        """Takes this free slot for a sequence with the same prefix; keeps its version.

        Args:
            idx: A free slot.
            prefix_len: Leading tokens that will not be overwritten; caches attached to these slots
                still find them, but nothing beyond.

        Raises:
            BlockStateError: The slot is occupied, or pinned.
        """
        slot = self._checked("idx", idx)
        keep = whole("prefix_len", prefix_len, 0, MAX_BLOCKS)
        if not self.is_free(slot):
            raise BlockStateError(slot, "is not free; it is occupied, or pinned by a cache")
        self._occupy(slot, keep)

    @exclusive
    def is_free(self, idx: int) -> bool:
        """Whether the slot is neither occupied nor pinned."""
        return self._pool.ref_count(self._checked("idx", idx)) == 0

    @exclusive
    def version(self, idx: int) -> int:
        """How often ``alloc`` has handed out the slot."""
        return self._versions[self._checked("idx", idx)]

    @property
    def free_count(self) -> int:
        """Number of slots that are neither occupied nor pinned."""
        return self._pool.num_available

    @exclusive
    def check_invariants(self) -> None:
        """Recomputes and checks the state of the core.

        Raises:
            InvariantError: An invariant is violated, which is a bug in blockmgr.
        """
        self._pool.check_invariants()

    def _occupy(self, slot: int, keep: int) -> None:
        """Takes an idle slot, and keeps this many leading tokens of its content."""
        for cache in self._caches:
            cache._shrink(slot, keep)
        self._pool.acquire([slot])
        self._occupied.add(slot)

    def _checked(self, name: str, slot: int) -> int:
        return whole(name, slot, 0, len(self._versions) - 1)


class Copies(Protocol):
    """The interface of a KV cache for ``copy_kv``, such as ``KVBlocks`` and ``PagedKVCache``."""

    def copy(self, plan: CopyPlan) -> None:
        """Runs the block copies of a plan."""


class PrefixCacheManager:
    """Finds the slot that shares the longest prefix with a prompt.

    A slot has one token sequence at a time: the longest one inserted for it, as long as each
    insertion continues the previous one. Calls of several threads wait for one another, and for
    calls of the slots' allocator. Values of the wrong type raise ``TypeError``, and values out of
    their bounds ``ValueError``.

    Args:
        max_capacity: Most tokens of all prefixes together, with shared prefixes counted once; above
            it, the ends of the least recently used prefixes are evicted.
        slots: The allocator of the slots. Without it, the cache trusts the caller about their
            content, and the caller compares versions.

    Raises:
        ValueError: ``max_capacity`` out of its bounds.
        TypeError: A value of the wrong type.

    >>> slots = SlotAllocator(max_slots=4)
    >>> cache = PrefixCacheManager(slots=slots)
    >>> slot = slots.alloc()
    >>> cache.insert((1, 2, 3), slot, slots.version(slot))
    >>> cache.find([1, 2, 9])
    (2, 0, 1)
    """

    def __init__(self, max_capacity: int = 1000, *, slots: SlotAllocator | None = None) -> None:
        capacity = whole("max_capacity", max_capacity, 1, MAX_BLOCKS)
        if slots is not None and not isinstance(slots, SlotAllocator):
            raise TypeError(f"slots must be a SlotAllocator, got {slots!r}")
        # A block holds one token, so a prefix is a chain of blocks.
        self._pool = BlockPool(capacity, 1)
        # For each findable block, a slot whose content has this prefix; -1 if there is none. Along
        # a chain, all blocks with a slot come first.
        self._slot_of = np.full(capacity, -1, np.int64)
        self._contents: dict[int, npt.NDArray[np.uint32]] = {}
        self._versions: dict[int, int] = {}
        self._slots = slots
        # Both change common state, so they share one mutex.
        self._mutex = new_mutex() if slots is None else slots._mutex
        if slots is not None:
            with self._mutex:
                slots._caches.add(self)

    @exclusive
    def insert(self, token_ids: Tokens, slot: int, slot_ver: int) -> None:
        """Records that the slot holds the K/V of these tokens, and pins them until ``release``.

        Args:
            token_ids: The computed tokens, at least one.
            slot: A slot.
            slot_ver: Its current version.

        Raises:
            OutOfBlocksError: Too many other tokens are pinned.
            NeverFitsError: More tokens than ``max_capacity``.
            SequenceStateError: The slot holds other tokens, which are pinned.
        """
        tokens, path = self._read(token_ids)
        if not len(tokens):
            raise ValueError("token_ids must not be empty")
        slot, version = self._checked(slot, slot_ver)
        same = self._versions.get(slot) == version
        keep = _common(self._contents[slot], tokens) if same else 0
        differs = same and keep < min(len(tokens), len(self._contents[slot]))
        if differs and self._pins(slot, keep):
            raise SequenceStateError(f"slot {slot} holds other tokens, which are pinned")
        if len(tokens) > self._pool.num_blocks:
            raise NeverFitsError(
                f"{len(tokens)} tokens do not fit a cache of {self._pool.num_blocks} tokens"
            )
        needed = len(tokens) - len(path)
        room = self._pool.num_available - int(np.count_nonzero(self._pool.is_idle(path)))
        if needed > room:
            raise OutOfBlocksError(needed, room)
        if differs or not same:
            self._shrink(slot, keep)
        self._pool.acquire(path[-1:])
        fresh = self._pool.take(needed)
        if len(fresh):  # the last block of the chain is held, and holds the others
            parent = int(path[-1]) if len(path) else -1
            self._pool.promote(fresh, tokens[len(path) :], parent=parent)
            self._pool.release(fresh[:-1])
            self._pool.release(path[-1:])
        # This slot becomes the owner of tokens without one and of the added ones.
        self._slot_of[path[self._slot_of[path] < 0]] = slot
        self._slot_of[fresh] = slot
        self._versions[slot] = version
        if len(tokens) > len(self._contents.get(slot, _NO_TOKENS)):
            self._contents[slot] = tokens
        self._hold_slot(slot if len(fresh) else int(self._slot_of[path[-1]]))

    @exclusive
    def find(self, token_ids: Tokens) -> tuple[int, int, int]:
        """The longest prefix of these tokens that a slot holds; counts as a use.

        Returns:
            The number of tokens, the slot, and its version at the insertion; ``(0, -1, 0)`` if
            there is none.

        Cost: O(tokens).
        """
        path = self._path(token_ids)
        slots = self._slot_of[path]
        length = int(np.count_nonzero(slots >= 0))
        if not length:
            return 0, -1, 0
        self._pool.touch(path[length - 1 : length])
        slot = int(slots[length - 1])
        return length, slot, self._versions[slot]

    @exclusive
    def pin(self, token_ids: Tokens) -> None:
        """Pins a prefix, and the slot that ``find`` returns for it, until ``release``.

        Raises:
            ValueError: No slot holds these tokens.
        """
        node, _ = self._held(token_ids)
        self._pool.acquire([node])
        self._hold_slot(int(self._slot_of[node]))

    @exclusive
    def release(self, token_ids: Tokens) -> None:
        """Removes one pin of ``insert`` or ``pin``. The prefix can still be found.

        Raises:
            ValueError: The tokens are not pinned.
        """
        tokens, path = self._read(token_ids)
        if not len(path) or len(path) < len(tokens) or not self._pool.ref_count(path[-1]):
            raise ValueError("token_ids must be pinned, they are not")
        self._pool.release(path[-1:])
        if self._slots is not None:
            self._slots._pool.release([int(self._slot_of[path[-1]])])

    @exclusive
    def copy_kv(
        self,
        token_ids: Tokens,
        target_slot: int,
        kv_cache: Copies | tuple[Tensor, Tensor],
        n_layers: int | None = None,
    ) -> None:
        """Copies the K/V of a cached prefix to the beginning of another slot.

        The earlier content of the target is forgotten, even if the copy is interrupted.

        Args:
            token_ids: Tokens that a slot begins with, as in ``find``.
            target_slot: An occupied slot to write to. If it holds the tokens already, nothing is
                copied.
            kv_cache: A ``KVBlocks`` or ``PagedKVCache`` with a block for each slot, or a tensor of
                keys and one of values, ``[max_slots, max_tokens, num_layers, ...]``.
            n_layers: Number of leading layers of the tensors to copy. With fewer than all layers,
                and in layouts that scatter tokens, the whole slot is copied.

        Raises:
            SequenceStateError: The target holds other tokens, which are pinned.
            BlockStateError: The target is not occupied.
            CopyError: The KV cache has no such slot, or its slots have fewer tokens.
            ValueError: No slot holds these tokens, or a value out of its bounds.
        """
        node, tokens = self._held(token_ids)
        source = int(self._slot_of[node])
        target = self._checked_slot("target_slot", target_slot)
        if self._slots is not None and target not in self._slots._occupied:
            raise BlockStateError(target, "is not occupied, so it must not be written to")
        if source == target:
            return
        content = self._contents.get(target, _NO_TOKENS)
        keep = _common(content, tokens)
        if keep < len(content) and self._pins(target, keep):
            raise SequenceStateError(f"slot {target} holds other tokens, which are pinned")
        kv = _registered(kv_cache, n_layers)
        columns = (np.array([number], np.int32) for number in (source, target, len(tokens)))
        is_refused = False
        try:
            kv.copy(CopyPlan(0, *columns))
        except Exception:  # nothing was written
            is_refused = True
            raise
        finally:
            if not is_refused:
                self._shrink(target, keep)

    @exclusive
    def check_invariants(self) -> None:
        """Recomputes and checks the state of the core.

        Raises:
            InvariantError: An invariant is violated, which is a bug in blockmgr.
        """
        self._pool.check_invariants()

    # Chains.

    def _path(self, token_ids: Tokens) -> npt.NDArray[np.int32]:
        """The blocks of the longest known prefix, whether or not a slot holds it."""
        try:
            return self._pool.find(token_ids)
        except (TypeError, ValueError) as error:
            raise type(error)(f"token_ids: {error}") from None

    def _read(self, token_ids: Tokens) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int32]]:
        """The tokens, and their blocks as far as they are known."""
        # A subclass of list or tuple may give other tokens at each look.
        if isinstance(token_ids, list):
            token_ids = list.copy(token_ids)
        elif isinstance(token_ids, tuple):
            token_ids = tuple.__getitem__(token_ids, slice(None))
        path = self._path(token_ids)
        return np.asarray(token_ids, np.uint32), path

    def _held(self, token_ids: Tokens) -> tuple[int, npt.NDArray[np.uint32]]:
        """The last block of a prefix that a slot holds, and its tokens."""
        tokens, path = self._read(token_ids)
        found = int(np.count_nonzero(self._slot_of[path] >= 0))
        if found < len(tokens) or not len(tokens):
            raise ValueError(
                f"token_ids must be tokens that a slot holds, it holds {found} of {len(tokens)}"
            )
        return int(path[-1]), tokens

    # Slots.

    def _checked_slot(self, name: str, slot: int) -> int:
        if self._slots is not None:
            return self._slots._checked(name, slot)
        return whole(name, slot, 0, MAX_BLOCKS)

    def _checked(self, slot: int, slot_ver: int) -> tuple[int, int]:
        slot = self._checked_slot("slot", slot)
        known = self._versions.get(slot, 0)
        if self._slots is None:
            return slot, whole("slot_ver", slot_ver, known, MAX_VERSION)
        version = self._slots.version(slot)
        return slot, whole("slot_ver", slot_ver, version, version)

    def _hold_slot(self, slot: int) -> None:
        """Keeps a slot from being handed out."""
        if self._slots is not None:
            self._slots._pool.acquire([slot])

    def _pins(self, slot: int, start: int) -> bool:
        """Whether a prefix that the slot serves, beyond this many tokens, is pinned."""
        path = self._path(self._contents[slot])[start:]
        return bool(self._pool.ref_count(path)[self._slot_of[path] == slot].any())

    def _shrink(self, slot: int, keep: int) -> None:
        """Cuts the slot's content down to this many tokens; other slots take over the rest."""
        content = self._contents.get(slot)
        if content is None or keep >= len(content):
            return
        path = self._path(content)
        shared = {o: _common(held, content) for o, held in self._contents.items() if o != slot}
        heir = max(shared, key=lambda other: shared[other], default=-1)
        until = shared.get(heir, 0)
        owners = self._slot_of[path]
        mine = owners == slot
        mine[:keep] = False
        owners[mine] = -1
        mine[until:] = False
        owners[mine] = heir
        self._slot_of[path] = owners
        if keep:
            self._contents[slot] = content[:keep]
        else:
            del self._contents[slot], self._versions[slot]


def _common(left: npt.NDArray[np.uint32], right: npt.NDArray[np.uint32]) -> int:
    """The length of the common prefix of two sequences."""
    length = min(len(left), len(right))
    differs = np.flatnonzero(left[:length] != right[:length])
    return int(differs[0]) if len(differs) else length


def _registered(kv_cache: Copies | tuple[Tensor, Tensor], n_layers: int | None) -> Copies:
    """The KV cache itself, or one of the leading layers of tensors."""
    if not isinstance(kv_cache, tuple):
        if n_layers is not None:
            raise ValueError(f"n_layers is for tensors, got {n_layers} and a KV cache")
        return kv_cache
    from blockmgr.kv import KVBlocks, segments_from  # noqa: PLC0415  # needs torch

    keys, values = kv_cache
    most = keys.shape[2]
    layers = most if n_layers is None else whole("n_layers", n_layers, 1, most)
    rest = " ".join(f"axis{axis}" for axis in range(3, keys.ndim))
    pair = [(keys[:, :, :layers], values[:, :, :layers])]
    segments = segments_from(pair, layout=f"block token layer {rest}")
    return KVBlocks(segments, block_size=keys.shape[1])
