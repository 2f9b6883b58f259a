"""Both backends against NumPy: every layout, element type, partial count, chain and cycle."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from blockmgr.kv import KVBlocks, segments_from
from tests.kv.pools import (
    BLOCKS,
    LAYOUTS,
    TOKENS,
    World,
    fresh,
    memory_of,
    plan_of,
    random_plan,
    sequential,
    simultaneous,
)

EVERY = pytest.mark.parametrize("layout", LAYOUTS)


@EVERY
def test_a_plan_copies_the_filled_tokens_and_nothing_else(layout: str, backend: str) -> None:
    rng = np.random.default_rng(1)
    for seed in range(4):
        world = World(layout, backend, seed)
        copies = random_plan(rng)
        for one in copies:
            world.expect(*one)
        world.blocks.copy(plan_of(*copies))
        world.check()


@EVERY
def test_any_list_is_copied_in_its_order_or_all_at_once(layout: str, backend: str) -> None:
    rng = np.random.default_rng(2)
    world = World(layout, backend)
    for semantics, meaning in (("sequential", sequential), ("simultaneous", simultaneous)):
        destinations = rng.permutation(BLOCKS)
        if semantics == "sequential":
            destinations = rng.integers(0, BLOCKS, BLOCKS)
        pairs = np.stack([rng.integers(0, BLOCKS, BLOCKS), destinations], axis=1)
        before = World(layout, "torch")
        before.expected = [memory.copy() for memory in world.expected]
        for view, old in zip(world.views(), before.views(), strict=True):
            to, from_ = (np.moveaxis(v[0], v[1], 0) for v in (view, old))
            for block, root in enumerate(meaning(list(range(BLOCKS)), pairs.tolist())):
                to[block] = from_[root]
        world.blocks.copy_blocks(pairs, semantics=semantics)
        world.check()


@EVERY
def test_zeroing_fills_whole_blocks(layout: str, backend: str) -> None:
    world = World(layout, backend)
    for block in (5, 0):
        world.expect(-1, block)
    world.blocks.zero([5, 0, 5])
    world.check()


@EVERY
def test_a_list_on_the_device_is_copied_through_the_operator(layout: str, backend: str) -> None:
    world = World(layout, backend)
    pairs = [(0, 1, 2), (0, 2, TOKENS), (-1, 3, 3), (4, 5, 1)]
    skipped = [(7, 6, 1), (-2, 6, 1), (0, BLOCKS, 1), (0, -1, 1), (0, 6, 0), (0, 6, -3)]
    for one in pairs:
        world.expect(*one)
    # More tokens than a block has: copies the whole block and no byte of the next one.
    pairs[1] = (0, 2, TOKENS + 5)
    world.blocks.copy_pairs(torch.tensor([*pairs, *skipped], dtype=torch.int32))
    world.check()


@EVERY
def test_blocks_move_to_another_pool_and_back(layout: str, backend: str) -> None:
    world, other = World(layout, backend, 1), World(layout, backend, 2)
    for to, from_ in zip(other.views(), world.views(), strict=True):
        theirs, ours = (np.moveaxis(v[0], v[1], 0) for v in (to, from_))
        theirs[[4, 6]] = ours[[3, 3]]
        ours[1] = theirs[4]
    world.blocks.copy_to(other.blocks, [(3, 4), (3, 6)])
    other.blocks.copy_to(world.blocks, [(4, 1)])
    world.check()
    other.check()


def test_widths_are_found_and_can_be_narrowed(backend: str) -> None:
    widths = {16, 8, 4, 2, 1}
    found = {name: World(name, "torch").blocks.access_bytes for name in LAYOUTS}
    assert {found[f"accesses of {width}"] for width in widths - {16}} == widths - {16}
    assert found["NHD"] == found["x-packed"] == found["MLA in 8 bits"] == 16
    for width in widths:
        world = World("NHD", backend, access_bytes=width)
        assert world.blocks.access_bytes == width
        world.expect(2, 0, 3)
        world.blocks.copy(plan_of((2, 0, 3)))
        world.check()


def test_layers_that_share_their_memory_are_copied_once() -> None:
    world = World("layers that share", "torch")
    assert (len(world.parts), world.blocks.num_segments) == (2, 1)
    assert world.blocks.bytes_per_block == TOKENS * 2 * 8 * 2


def test_what_is_registered_can_be_read_off(backend: str) -> None:
    world = World("8 bits and scales", backend, max_pairs=9)
    blocks = world.blocks
    assert (blocks.num_blocks, blocks.block_size, blocks.max_pairs) == (BLOCKS, TOKENS, 9)
    assert (blocks.backend, blocks.device) == (backend, torch.device("cpu"))
    assert [s.bytes_per_block for s in blocks.segments] == [256, 64, 16]
    assert (blocks.num_segments, blocks.bytes_per_block) == (3, 336)


def test_a_plan_longer_than_a_launch_takes_several(backend: str) -> None:
    world = World("NHD", backend, max_pairs=2)
    copies = [(0, block, 1 + block % TOKENS) for block in range(1, 6)]
    for one in copies:
        world.expect(*one)
    world.blocks.copy(plan_of(*copies))
    world.check()
    for block in range(5):
        world.expect(-1, block)
    world.blocks.zero(range(5))
    world.check()
    other = World("NHD", backend, 3)
    for view, from_ in zip(other.views(), world.views(), strict=True):
        view[0][:5] = from_[0][:5]
    world.blocks.copy_to(other.blocks, [(block, block) for block in range(5)])
    other.check()


def test_a_list_of_moves_longer_than_a_slot_is_one_launch_all_the_same(backend: str) -> None:
    world = World("HND", backend, max_pairs=1)
    pairs = [(1, 0), (0, 1), (3, 2), (2, 3), (5, 4), (4, 5)]
    for view, block, *_ in world.views():
        rows = np.moveaxis(view, block, 0)
        rows[[1, 0, 3, 2, 5, 4]] = rows[[0, 1, 2, 3, 4, 5]]
    world.blocks.copy_blocks(pairs, semantics="simultaneous")
    world.check()


def test_long_blocks_are_copied_one_by_one_and_cycles_among_them_are_right() -> None:
    """Above 256 KiB a gather costs more than it saves; a swap needs a temporary block."""
    tensor = fresh(np.random.default_rng(0), (5, 2, 1, 1 << 17), torch.uint8)
    blocks = KVBlocks(segments_from(tensor, layout="NHD"), block_size=2, backend="torch")
    expected = tensor.clone()
    expected[[0, 1, 2, 3]] = expected[[1, 2, 0, 4]]
    blocks.copy_blocks([(1, 0), (2, 1), (0, 2), (4, 3)], semantics="simultaneous")
    assert torch.equal(tensor, expected)


def test_a_cycle_longer_than_a_gather_is_right() -> None:
    count = 70
    tensor = fresh(np.random.default_rng(0), (count, 2, 1, 1 << 13), torch.uint8)
    blocks = KVBlocks(segments_from(tensor, layout="NHD"), block_size=2, backend="torch")
    expected = torch.roll(tensor, 1, 0)
    ring = [(block, (block + 1) % count) for block in range(count)]
    blocks.copy_blocks(ring, semantics="simultaneous")
    assert torch.equal(tensor, expected)
    blocks.copy_blocks([(i, i + 1) for i in reversed(range(count - 1))])  # up by one, in order
    assert torch.equal(tensor[1:], expected[:-1])


def test_many_pairs_are_gathered_in_several_batches() -> None:
    tensor = fresh(np.random.default_rng(0), (300, 2, 1, 1 << 12), torch.uint8)
    blocks = KVBlocks(segments_from(tensor, layout="NHD"), block_size=2, backend="torch")
    expected = tensor.clone()
    expected[150:] = expected[:150]
    blocks.copy(plan_of(*((block, 150 + block, 2) for block in range(150))))
    assert torch.equal(tensor, expected)


def test_a_pool_of_one_block_has_no_stride() -> None:
    tensor = fresh(np.random.default_rng(0), (1, 2, 1, 16), torch.uint8)
    blocks = KVBlocks(segments_from(tensor, layout="NHD"), block_size=2, backend="torch")
    blocks.copy_blocks([(0, 0)])
    guards = memory_of(tensor).copy()
    blocks.zero([0])
    assert not tensor.any()
    assert (memory_of(tensor) != guards).sum() <= tensor.numel()
