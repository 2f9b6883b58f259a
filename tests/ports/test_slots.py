"""Slots and their prefix cache, call by call, with and without tensors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from blockmgr import (
    BlockStateError,
    CopyError,
    NeverFitsError,
    OutOfBlocksError,
    SequenceStateError,
)
from blockmgr.blocks import CopyPlan
from blockmgr.ports.slots import PrefixCacheManager, SlotAllocator
from tests.fingerprints import fingerprint, unchanged


class Memory:
    """A fake KV cache that runs the plans of ``copy_kv`` and stores the tokens of each slot."""

    def __init__(self, max_slots: int, max_tokens: int) -> None:
        self.cells = np.zeros((max_slots, max_tokens), np.int64)

    def write(self, slot: int, tokens: tuple[int, ...], start: int = 0) -> None:
        self.cells[slot, start : len(tokens)] = tokens[start:]

    def holds(self, slot: int, tokens: tuple[int, ...]) -> bool:
        return self.cells[slot, : len(tokens)].tolist() == list(tokens)

    def copy(self, plan: CopyPlan) -> None:
        for source, destination, num_tokens in plan:
            self.cells[destination, :num_tokens] = self.cells[source, :num_tokens]


def joined(max_slots: int = 4, max_capacity: int = 100) -> tuple[SlotAllocator, PrefixCacheManager]:
    slots = SlotAllocator(max_slots)
    return slots, PrefixCacheManager(max_capacity, slots=slots)


def serve(slots: SlotAllocator, cache: PrefixCacheManager, *tokens: int) -> int:
    """A running sequence in a separate slot, inserted into the cache."""
    slot = slots.alloc()
    assert slot >= 0
    cache.insert(tokens, slot, slots.version(slot))
    return slot


def finish(slots: SlotAllocator, cache: PrefixCacheManager, slot: int, *tokens: int) -> None:
    cache.release(tokens)
    slots.free(slot)


def state(slots: SlotAllocator | None, cache: PrefixCacheManager | None) -> tuple[Any, ...]:
    """Everything that a call can change."""
    books: list[Any] = []
    if slots is not None:
        slots.check_invariants()
        books += [fingerprint(slots._pool), set(slots._occupied), list(slots._versions)]
    if cache is not None:
        cache.check_invariants()
        contents = {slot: held.tolist() for slot, held in cache._contents.items()}
        books += [fingerprint(cache._pool), contents, dict(cache._versions)]
        books.append(cache._slot_of.tolist())
    return tuple(books)


@contextmanager
def refused(
    slots: SlotAllocator | None,
    cache: PrefixCacheManager | None,
    error: type[Exception],
    match: str,
) -> Iterator[None]:
    with unchanged(lambda: state(slots, cache), error, match):
        yield


# SlotAllocator


def test_a_slot_that_was_never_handed_out_can_be_occupied_too() -> None:
    slots = SlotAllocator(2)
    slots.occupy(1)
    assert (slots.version(1), slots.alloc(), slots.alloc()) == (0, 0, -1)


@pytest.mark.parametrize("call", ["free", "occupy", "is_free", "version"])
def test_a_slot_that_does_not_exist_is_refused(call: str) -> None:
    slots = SlotAllocator(3)
    for idx, error in ((3, ValueError), (-1, ValueError), (1.0, TypeError), (True, TypeError)):
        with refused(slots, None, error, f"idx must be .*got {idx}"):
            getattr(slots, call)(idx)
    with refused(slots, None, ValueError, "prefix_len must be .*got -1"):
        slots.occupy(0, -1)
    with pytest.raises(ValueError, match="max_slots must be in"):
        SlotAllocator(0)


# insert and find


def test_any_container_of_tokens_will_do() -> None:
    slots, cache = joined()
    slot = slots.alloc()
    cache.insert([1, 2, 3], slot, 1)
    for container in (tuple, list, np.array):
        assert cache.find(container([1, 2, 3, 4])) == (3, slot, 1)
    cache.pin(np.array([1, 2]))
    cache.release((1, 2))


def test_the_least_recently_used_ends_give_way() -> None:
    slots, cache = joined(max_capacity=7)
    first = serve(slots, cache, 1, 2, 3)
    second = serve(slots, cache, 4, 5, 6)
    cache.release((1, 2, 3))
    cache.release((4, 5, 6))
    cache.find([1, 2, 3])
    serve(slots, cache, 7, 8, 9)
    assert cache.find([1, 2, 3]) == (3, first, 1)
    assert cache.find([4, 5, 6]) == (1, second, 1)


def test_without_slots_the_caller_is_taken_at_their_word() -> None:
    cache = PrefixCacheManager(max_capacity=10)
    cache.insert((1, 2, 3), 7, 1)
    assert cache.find([1, 2, 3]) == (3, 7, 1)
    cache.insert((4, 5), 7, 2)  # the slot was allocated again
    assert cache.find([1, 2, 3]) == (0, -1, 0)
    assert cache.find([4, 5]) == (2, 7, 2)
    with refused(None, cache, ValueError, r"slot_ver must be in \[2, .*\], got 1"):
        cache.insert((1, 2, 3), 7, 1)


@pytest.mark.parametrize(
    ("tokens", "slot", "version", "error", "message"),
    [
        ((), 0, 1, ValueError, "token_ids must not be empty"),
        ((1, -2), 0, 1, ValueError, "token_ids: tokens must be .*got -2"),
        ((1, "2"), 0, 1, TypeError, "token_ids: tokens must be ints, got str"),
        (7, 0, 1, TypeError, "token_ids: tokens must be"),
        ((1,), 4, 1, ValueError, r"slot must be in \[0, 3\], got 4"),
        ((1,), -1, 1, ValueError, "slot must be .*got -1"),
        ((1,), 0, 0, ValueError, r"slot_ver must be in \[1, 1\], got 0"),
        ((1,), 0, 2, ValueError, "slot_ver must be .*got 2"),
        ((1,), 0, 1.0, TypeError, "slot_ver must be an int"),
        ((9,) * 200, 0, 1, NeverFitsError, "200 tokens do not fit a cache of 100"),
    ],
)
def test_insert_refuses_what_makes_no_sense(
    tokens: Any, slot: Any, version: Any, error: type[Exception], message: str
) -> None:
    slots, cache = joined()
    serve(slots, cache, 9, 9)
    with refused(slots, cache, error, message):
        cache.insert(tokens, slot, version)


def test_a_cache_refuses_what_makes_no_sense() -> None:
    with pytest.raises(ValueError, match=r"max_capacity must be in \[1, .*\], got 0"):
        PrefixCacheManager(0)
    with pytest.raises(TypeError, match="slots must be a SlotAllocator, got 3"):
        PrefixCacheManager(slots=3)  # type: ignore[arg-type]


# pin and release


@pytest.mark.parametrize("call", ["pin", "release"])
@pytest.mark.parametrize("tokens", [(), (1, 2, 9), (7,), (1, 2, 3, 4, 5)])
def test_what_no_slot_holds_cannot_be_pinned_nor_released(call: str, tokens: Any) -> None:
    slots, cache = joined()
    serve(slots, cache, 1, 2, 3, 4)
    with refused(slots, cache, ValueError, "token_ids must be"):
        getattr(cache, call)(tokens)


def test_releasing_more_often_than_pinned_is_refused() -> None:
    slots, cache = joined()
    serve(slots, cache, 1, 2, 3)
    with refused(slots, cache, ValueError, "token_ids must be pinned"):
        cache.release((1, 2))
    cache.release((1, 2, 3))
    with refused(slots, cache, ValueError, "token_ids must be pinned"):
        cache.release((1, 2, 3))


def test_a_pin_holds_its_slot_when_other_tokens_come_after_it() -> None:
    slots, cache = joined(max_slots=2)
    first, second = serve(slots, cache, 1, 2, 3), serve(slots, cache, 1, 2, 9)
    cache.pin((1,))
    cache.release((1, 2, 3))
    cache.insert((1, 5), first, 1)
    cache.release((1, 5))
    slots.free(first)
    assert not slots.is_free(first)
    cache.release((1,))
    assert slots.is_free(first)
    assert not slots.is_free(second)
    cache.release((1, 2, 9))
    slots.free(second)
    assert slots.free_count == 2


def test_other_tokens_in_a_slot_that_is_pinned_are_refused() -> None:
    slots, cache = joined()
    slot = serve(slots, cache, 1, 2, 3)
    with refused(slots, cache, SequenceStateError, "holds other tokens, which are pinned"):
        cache.insert((1, 2, 9), slot, 1)
    cache.release((1, 2, 3))
    cache.insert((1, 2, 9), slot, 1)
    assert cache.find([1, 2, 3]) == (2, slot, 1)
    assert cache.find([1, 2, 9]) == (3, slot, 1)


# Direct reuse


def test_caches_of_the_same_slots_all_learn_of_it() -> None:
    slots = SlotAllocator(1)
    caches = [PrefixCacheManager(slots=slots) for _ in range(2)]
    slot = slots.alloc()
    for cache in caches:
        cache.insert((1, 2), slot, 1)
        cache.release((1, 2))
    slots.free(slot)
    slots.alloc()
    assert [cache.find([1, 2]) for cache in caches] == [(0, -1, 0)] * 2


# copy_kv


def test_the_target_of_a_copy_is_not_found_with_what_it_held() -> None:
    slots, cache = joined()
    source, target = serve(slots, cache, 1, 2, 3), serve(slots, cache, 1, 7, 8)
    with refused(slots, cache, SequenceStateError, "which are pinned"):
        cache.copy_kv((1, 2, 3), target, Memory(4, 8))
    cache.release((1, 7, 8))
    cache.copy_kv((1, 2, 3), target, Memory(4, 8))
    assert cache.find([1, 7, 8])[0] == 1
    assert cache.find([1, 2, 3]) == (3, source, 1)


def test_a_copy_that_makes_no_sense_is_refused() -> None:
    slots, cache = joined()
    memory = Memory(4, 8)
    serve(slots, cache, 1, 2, 3)
    target = slots.alloc()
    for tokens in ((1, 2, 9), (), (1, 2, 3, 4)):
        with refused(slots, cache, ValueError, "token_ids must be tokens that a slot holds"):
            cache.copy_kv(tokens, target, memory)
    with refused(slots, cache, ValueError, r"target_slot must be in \[0, 3\], got 4"):
        cache.copy_kv((1, 2), 4, memory)
    with refused(slots, cache, BlockStateError, "is not occupied"):
        cache.copy_kv((1, 2), 3, memory)
    with refused(slots, cache, ValueError, "n_layers is for tensors, got 2"):
        cache.copy_kv((1, 2), target, memory, 2)


def test_a_copy_that_fails_changes_nothing() -> None:
    class Broken:
        def copy(self, plan: CopyPlan) -> None:
            raise OSError("no device")

    slots, cache = joined()
    serve(slots, cache, 1, 2, 3)
    target = serve(slots, cache, 1, 9)
    cache.release((1, 9))
    with refused(slots, cache, OSError, "no device"):
        cache.copy_kv((1, 2, 3), target, Broken())


class Tensors:
    """Keys and values of three slots: a prefix is cached in one, another is the target."""

    def __init__(self) -> None:
        self.torch = pytest.importorskip("torch", reason="copy_kv of tensors needs torch")
        generator = self.torch.Generator().manual_seed(0)
        shape = (2, 3, 6, 4, 2, 8)  # keys and values, slot, token, layer, head, dim
        self.keys, self.values = self.torch.randn(shape, generator=generator)
        self.slots, self.cache = joined(max_slots=3)
        self.source = serve(self.slots, self.cache, 1, 2, 3, 4)
        self.target = self.slots.alloc()

    def copied(self, tensor: Any, num_tokens: int, num_layers: int = 4) -> Any:
        """What the tensor must be after the copy."""
        expected = tensor.clone()
        part = tensor[self.source, :num_tokens, :num_layers]
        expected[self.target, :num_tokens, :num_layers] = part
        return expected


def test_a_pair_of_tensors_is_copied() -> None:
    t = Tensors()
    for tokens in ((1, 2, 3), (1, 2, 3, 4)):
        expected = [t.copied(tensor, len(tokens)) for tensor in (t.keys, t.values)]
        t.cache.copy_kv(tokens, t.target, (t.keys, t.values), 4)
        assert t.torch.equal(t.keys, expected[0])
        assert t.torch.equal(t.values, expected[1])


def test_some_layers_of_tensors_are_copied() -> None:
    t = Tensors()
    before, expected = t.keys.clone(), t.copied(t.keys, 3, 2)
    t.cache.copy_kv((1, 2, 3), t.target, (t.keys, t.values), n_layers=2)
    assert t.torch.equal(t.keys[:, :3], expected[:, :3])
    assert t.torch.equal(t.keys[:, :, 2:], before[:, :, 2:])
    with refused(t.slots, t.cache, ValueError, r"n_layers must be in \[1, 4\], got 5"):
        t.cache.copy_kv((1, 2), t.target, (t.keys, t.values), 5)


def test_registered_blocks_are_copied() -> None:
    t = Tensors()
    from blockmgr.kv import KVBlocks, segments_from

    segments = segments_from([(t.keys, t.values)], layout="block token layer head dim")
    expected = t.copied(t.values, 2)
    t.cache.copy_kv((1, 2), t.target, KVBlocks(segments, block_size=6))
    assert t.torch.equal(t.values, expected)


def test_a_paged_cache_is_copied() -> None:
    t = Tensors()
    from blockmgr.kv import ModelShape, PagedKVCache

    shape = ModelShape(num_layers=2, num_kv_heads=1, head_dim=4, dtype=t.torch.float32)
    kv = PagedKVCache(3, 6, shape)
    kv.keys(1)[t.source, :4] = 5.0
    t.cache.copy_kv((1, 2, 3), t.target, kv)
    assert kv.keys(1)[t.target, :, 0, 0].tolist() == [5.0] * 3 + [0.0] * 3


def test_more_tokens_than_a_slot_has_are_not_copied() -> None:
    t = Tensors()
    tokens = tuple(range(8))
    serve(t.slots, t.cache, *tokens)
    with refused(t.slots, t.cache, CopyError, "num_tokens"):
        t.cache.copy_kv(tokens, t.target, (t.keys, t.values))


# The rest


def test_without_room_an_insertion_says_so() -> None:
    slots, cache = joined(max_capacity=4)
    serve(slots, cache, 1, 2, 3)
    slot = slots.alloc()
    with refused(slots, cache, OutOfBlocksError, "need 2 blocks, 1 available"):
        cache.insert((7, 8), slot, 1)
    cache.insert((7,), slot, 1)
    cache.release((7,))
    with refused(slots, cache, OutOfBlocksError, "need 1 blocks, 0 available"):
        cache.insert((7, 8), slot, 1)  # its own prefix must not be evicted for it
    cache.insert((1, 2, 9), slot, 1)
    whole = PrefixCacheManager(max_capacity=3)
    whole.insert((1, 2, 3), 0, 1)
    assert whole.find([1, 2, 3]) == (3, 0, 1)


# Defects of the original.


def test_a_slot_that_goes_does_not_take_what_another_holds() -> None:
    """The original overwrites the slot of shared nodes, whose prefix then goes with that slot."""
    for order in ((0, 1), (1, 0)):
        slots, cache = joined(max_slots=2)
        contents = {serve(slots, cache, *tokens): tokens for tokens in ((1, 2, 3), (1, 2, 9))}
        for slot in order:
            finish(slots, cache, slot, *contents[slot])
        goes, stays = order
        assert slots.alloc() == goes
        assert cache.find(contents[stays]) == (3, stays, 1)
        assert cache.find(contents[goes]) == (2, stays, 1)


def test_a_token_costs_room_once_and_that_is_bounded() -> None:
    """In the original, nodes removed with their parent stay in the LRU list."""
    cache = PrefixCacheManager(max_capacity=8)
    for number in range(200):
        cache.insert((number % 5, number % 3, number), number % 4, number)
        cache.release((number % 5, number % 3, number))
        assert cache._pool.num_cached <= 8
        assert len(cache._contents) <= 4
    cache.check_invariants()


def test_slots_need_no_torch() -> None:
    code = """
import sys
sys.modules["torch"] = None
from blockmgr.ports.slots import PrefixCacheManager, SlotAllocator
slots = SlotAllocator(2)
cache = PrefixCacheManager(slots=slots)
cache.insert((1, 2), slots.alloc(), 1)
assert cache.find([1, 2, 3]) == (2, 0, 1)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_slot_does_not_inherit_what_it_has_lost() -> None:
    slots, cache = joined(max_slots=2)
    first, second = serve(slots, cache, 1, 2, 3), serve(slots, cache, 1, 2, 3)
    for slot in (first, second):
        finish(slots, cache, slot, 1, 2, 3)
    slots.occupy(first, prefix_len=1)
    assert slots.alloc() == second
    assert cache.find([1, 2, 3]) == (1, first, 1)
