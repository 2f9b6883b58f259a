"""Defects of the original slots and prefix cache, shown to be absent.

The first four are known defects; the others show in a careful reading of its document.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from blockmgr import BlockStateError, OutOfBlocksError
from blockmgr.ports.slots import PrefixCacheManager, SlotAllocator
from tests.ports.test_slots import Memory, finish, joined, refused, serve


def test_eviction_ends_when_everything_is_pinned() -> None:
    """The original loops over the pinned entries forever."""
    slots, cache = joined(max_capacity=6)
    serve(slots, cache, 1, 2, 3)
    serve(slots, cache, 4, 5, 6)
    slot = slots.alloc()
    with refused(slots, cache, OutOfBlocksError, "need 1 blocks, 0 available"):
        cache.insert((7,), slot, slots.version(slot))
    assert cache.find([1, 2, 3])[0] == cache.find([4, 5, 6])[0] == 3


def test_a_pin_covers_what_comes_before_its_end() -> None:
    """The original pins only the last node: evicting an earlier one removes it as well."""
    slots, cache = joined(max_capacity=5)
    slot = serve(slots, cache, 1, 2, 3)
    for tokens in ((7, 8), (8, 9), (9, 7)):
        other = serve(slots, cache, *tokens)
        finish(slots, cache, other, *tokens)
    assert cache.find([1, 2, 3, 4]) == (3, slot, 1)


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


def test_a_prefix_that_was_evicted_can_be_looked_up_and_inserted_again() -> None:
    """In the original, leftovers of an evicted node in the LRU list make look-ups fail."""
    slots, cache = joined(max_slots=8, max_capacity=4)
    for first in range(6):
        slot = serve(slots, cache, first, 7, 8)
        finish(slots, cache, slot, first, 7, 8)
        for other in range(first + 1):
            length, found, version = cache.find([other, 7, 8, 9])
            assert length == 0 or slots.version(found) == version
    slot = serve(slots, cache, 0, 7, 8)
    assert cache.find([0, 7, 8]) == (3, slot, slots.version(slot))
    cache.check_invariants()


def test_kv_that_was_written_over_is_not_found() -> None:
    """The original keeps the version of a slot reused from its middle, and finds its old rest."""
    slots, cache = joined()
    memory = Memory(4, 8)
    slot = serve(slots, cache, 1, 2, 3, 4)
    memory.write(slot, (1, 2, 3, 4))
    finish(slots, cache, slot, 1, 2, 3, 4)
    length, slot, version = cache.find([1, 2, 7, 8])
    slots.occupy(slot, length)
    memory.write(slot, (1, 2, 7, 8), start=length)
    cache.insert((1, 2, 7, 8), slot, version)
    length, found, _ = cache.find([1, 2, 3, 4])
    assert memory.holds(found, (1, 2, 3, 4)[:length])
    assert length == 2


def test_occupying_what_is_occupied_does_not_free_it() -> None:
    """The original flips the bit without a check."""
    slots = SlotAllocator(2)
    slot = slots.alloc()
    with refused(slots, None, BlockStateError, "is not free"):
        slots.occupy(slot)
    assert not slots.is_free(slot)


def test_a_slot_freed_twice_is_handed_out_once() -> None:
    slots = SlotAllocator(2)
    slot = slots.alloc()
    slots.free(slot)
    with refused(slots, None, BlockStateError, "is not occupied"):
        slots.free(slot)
    assert sorted([slots.alloc(), slots.alloc(), slots.alloc()]) == [-1, 0, 1]


def test_freeing_a_slot_that_does_not_exist_does_not_make_it() -> None:
    """The original sets a bit past the end and allocates that slot."""
    slots = SlotAllocator(2)
    for idx in (2, 40, -1):
        with refused(slots, None, ValueError, "idx must be in"):
            slots.free(idx)
    assert [slots.alloc() for _ in range(3)] == [0, 1, -1]


def test_a_source_is_not_handed_out_between_a_pin_and_its_copy() -> None:
    """The original pins the node but not the slot, so the copy brings another request's K/V."""
    slots, cache = joined(max_slots=2)
    memory = Memory(2, 8)
    source = serve(slots, cache, 1, 2, 3)
    memory.write(source, (1, 2, 3))
    finish(slots, cache, source, 1, 2, 3)
    cache.pin((1, 2, 3))
    target = slots.alloc()
    assert slots.alloc() == -1  # the source is not available
    cache.copy_kv((1, 2, 3), target, memory)
    cache.release((1, 2, 3))
    assert memory.holds(target, (1, 2, 3))


@pytest.mark.parametrize("call", ["pin", "release"])
def test_pinning_nothing_is_an_error(call: str) -> None:
    """The original ignores it silently, and the caller continues unprotected."""
    slots, cache = joined()
    with refused(slots, cache, ValueError, "token_ids must be"):
        getattr(cache, call)((1, 2))


def test_copying_nothing_is_an_error() -> None:
    """The original ignores it silently, and the target keeps its content."""
    slots, cache = joined()
    target = slots.alloc()
    with refused(slots, cache, ValueError, "it holds 0 of 2"):
        cache.copy_kv((1, 2), target, Memory(4, 8))


def test_a_version_that_has_passed_cannot_be_inserted() -> None:
    """The original then offers K/V of a slot that has been allocated again."""
    slots, cache = joined(max_slots=1)
    slot = slots.alloc()
    before = slots.version(slot)
    slots.free(slot)
    slots.alloc()
    with refused(slots, cache, ValueError, r"slot_ver must be in \[2, 2\], got 1"):
        cache.insert((1, 2), slot, before)


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
