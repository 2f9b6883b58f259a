"""Copies on a device against a twin on the processor, byte by byte, guards included."""

from __future__ import annotations

import numpy as np
import pytest

from blockmgr import CopyError
from tests.gpu.world import (
    LAYOUTS,
    KVBlocks,
    Place,
    World,
    draw_plan,
    plan_of,
    segments_from,
    torch,
)

ROUNDS = 6


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_plan_copies_the_filled_tokens_and_nothing_else(name: str, place: Place) -> None:
    world = World([LAYOUTS[name]], place)
    random = np.random.default_rng(0)
    for _ in range(ROUNDS):
        entries = draw_plan(random, world.num_blocks, world.block_size)
        world.blocks.copy(plan_of(entries))
        world.expect(entries)
    world.check()


def test_tensors_of_different_layouts_are_copied_by_one_plan(place: Place) -> None:
    world = World(LAYOUTS.values(), place)
    random = np.random.default_rng(1)
    for _ in range(ROUNDS):
        entries = draw_plan(random, world.num_blocks, world.block_size)
        world.blocks.copy(plan_of(entries))
        world.expect(entries)
    world.check()


def test_one_pair_and_the_last_block_are_copied(place: Place) -> None:
    """The smallest launch there is, and the highest address."""
    world = World([LAYOUTS["NHD"]], place)
    entries = [(0, world.num_blocks - 1, world.block_size)]
    world.blocks.copy(plan_of(entries))
    world.expect(entries)
    world.check()


def test_an_empty_plan_changes_nothing(place: Place) -> None:
    world = World([LAYOUTS["NHD"]], place)
    world.blocks.copy(plan_of([]))
    world.check()


def test_a_plan_longer_than_a_launch_is_copied_in_several(place: Place) -> None:
    world = World([LAYOUTS["NHD"], LAYOUTS["HND"]], place, num_blocks=64, max_pairs=5)
    entries = [(block, block + 32, 1 + block % 4) for block in range(32)]
    world.blocks.copy(plan_of(entries))
    world.expect(entries)
    world.check()


@pytest.mark.parametrize("num_blocks", [5, 24])
def test_any_list_ends_as_if_carried_out_in_order(num_blocks: int, place: Place) -> None:
    """With only five blocks, nearly every list has chains, cycles or repeated destinations."""
    world = World([LAYOUTS["NHD"], LAYOUTS["odd bytes"]], place, num_blocks=num_blocks)
    random = np.random.default_rng(2)
    for _ in range(4 * ROUNDS):
        pairs = random.integers(0, num_blocks, (random.integers(1, 9), 2))
        world.blocks.copy_blocks(pairs)
        world.expect((*pair, world.block_size) for pair in pairs.tolist())
    world.check()


def test_a_simultaneous_list_reads_every_block_before_it_writes_one(place: Place) -> None:
    world = World([LAYOUTS["HND"], LAYOUTS["MLA"]], place)
    random = np.random.default_rng(3)
    for _ in range(4 * ROUNDS):
        destinations = random.permutation(world.num_blocks)[:8]
        pairs = np.stack([random.integers(0, world.num_blocks, 8), destinations], axis=1)
        world.blocks.copy_blocks(pairs, semantics="simultaneous")
        world.expect_at_once(pairs.tolist())
    world.check()


def test_a_rotation_of_all_blocks_needs_no_spare_block(place: Place) -> None:
    world = World([LAYOUTS["NHD"]], place)
    blocks = np.arange(world.num_blocks)
    pairs = np.stack([blocks, np.roll(blocks, 1)], axis=1)
    world.blocks.copy_blocks(pairs, semantics="simultaneous")
    world.expect_at_once(pairs.tolist())
    world.check()


@pytest.mark.parametrize("name", LAYOUTS)
def test_zeroed_blocks_hold_zero_bytes_and_no_others_do(name: str, place: Place) -> None:
    world = World([LAYOUTS[name]], place)
    world.blocks.zero([3, world.num_blocks - 1])
    world.expect_zero([3, world.num_blocks - 1])
    world.check()


def test_a_plan_with_a_wrong_block_launches_nothing(place: Place) -> None:
    world = World([LAYOUTS["NHD"]], place)
    with pytest.raises(CopyError, match="pair 1") as caught:
        world.blocks.copy(plan_of([(0, 1, 4), (2, world.num_blocks, 4)]))
    assert caught.value.pair == 1
    world.check()


@pytest.mark.parametrize("access_bytes", [16, 8, 4, 2, 1])
def test_every_width_of_access_copies_the_same(access_bytes: int, place: Place) -> None:
    world = World([LAYOUTS["HND"]], place, access_bytes=access_bytes)
    assert world.blocks.access_bytes == access_bytes
    random = np.random.default_rng(4)
    entries = draw_plan(random, world.num_blocks, world.block_size)
    world.blocks.copy(plan_of(entries))
    world.expect(entries)
    world.check()


@pytest.mark.gpu
def test_blocks_beyond_four_gigabytes_are_reached(cuda: Place) -> None:
    """Offsets past 2^31 and 2^32 bytes: a 32-bit product would read and write elsewhere."""
    block_bytes, num_blocks = 1 << 20, 6 << 10
    if torch.cuda.mem_get_info()[0] < 2 * num_blocks * block_bytes:
        pytest.skip("needs 12 GiB of free device memory")
    tensor = torch.zeros(num_blocks, 16, block_bytes // 16, dtype=torch.uint8, device="cuda")
    blocks = KVBlocks(segments_from(tensor, layout="MLA"), block_size=16)
    sources, destinations = [num_blocks - 1, 2048, 4096, 1], [0, 3000, 5, num_blocks - 2]
    for value, source in enumerate(sources, start=1):
        tensor[source] = value
    blocks.copy(plan_of((s, d, 16) for s, d in zip(sources, destinations, strict=True)))
    found = {block: int(tensor[block].max()) for block in (*sources, *destinations)}
    assert found == dict(zip((*sources, *destinations), (1, 2, 3, 4, 1, 2, 3, 4), strict=True))
    assert all(int(tensor[b].min()) == value for b, value in found.items())
    assert int(tensor.count_nonzero(dim=(1, 2)).count_nonzero()) == len(found)
