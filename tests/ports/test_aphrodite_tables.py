"""The Aphrodite port: the block table of a sequence."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blockmgr import BlockStateError, SequenceStateError
from blockmgr.ports.aphrodite import (
    BlockTable,
    CpuGpuBlockAllocator,
    Device,
    NoFreeBlocksError,
)
from tests.ports.aphrodite_support import MakePools, refused_tables, table_of

# ---- block tables -----------------------------------------------------------------------


def test_a_table_has_blocks_for_its_tokens(make_pools: MakePools) -> None:
    allocator = make_pools()
    table = table_of(allocator, list(range(10)))
    assert len(table.physical_block_ids) == 3 == len(table.blocks)
    assert [b.token_ids for b in table.blocks] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert (table.num_full_slots, table.device) == (10, Device.GPU)
    assert BlockTable.get_num_required_blocks(range(10), 4) == 3
    assert BlockTable.get_num_required_blocks(range(10), 4, num_lookahead_slots=3) == 4
    assert table.get_unseen_token_ids(list(range(13))) == [10, 11, 12]
    table.free()
    assert allocator.get_num_free_blocks(Device.GPU) == 8
    assert (table.num_full_slots, len(table.blocks)) == (0, 0)


def test_a_table_can_be_on_the_host(make_pools: MakePools) -> None:
    allocator = make_pools()
    table = BlockTable(4, allocator)
    table.allocate([1, 2, 3, 4, 5], device=Device.CPU)
    assert table.device is Device.CPU
    assert (allocator.get_num_free_blocks(Device.CPU)) == 6
    assert min(table.physical_block_ids) >= 8
    assert allocator.get_physical_block_id(Device.CPU, table.physical_block_ids[0]) < 8


def test_appending_fills_the_tail_and_adds_blocks(make_pools: MakePools) -> None:
    allocator = make_pools()
    table = table_of(allocator, [0, 1])
    table.append_token_ids(list(range(2, 11)))
    assert [t for b in table.blocks for t in b.token_ids] == list(range(11))
    assert len(table.physical_block_ids) == 3
    assert table.blocks[2].prev_block is table.blocks[1]


def test_look_ahead_slots_are_used_by_the_tokens_that_come(make_pools: MakePools) -> None:
    allocator = make_pools()
    table = table_of(allocator, [0, 1])
    table.append_token_ids([2], num_lookahead_slots=6)
    names = table.physical_block_ids
    assert len(names) == 3
    table.ensure_num_empty_slots(9)
    assert table.physical_block_ids == names
    table.append_token_ids([3, 4, 5, 6, 7, 8])
    assert table.physical_block_ids == names
    assert table.num_full_slots == 9
    table.ensure_num_empty_slots(4)
    assert len(table.physical_block_ids) == 4


def test_shared_look_ahead_is_not_written_by_two(make_pools: MakePools) -> None:
    allocator = make_pools()
    parent = table_of(allocator, [0, 1, 2, 3])
    parent.ensure_num_empty_slots(4)
    child = parent.fork()
    child.append_token_ids([5])
    parent.append_token_ids([6])
    assert parent.physical_block_ids[1] != child.physical_block_ids[1]
    assert allocator.clear_copy_on_writes() == []  # nothing was in it


def test_prompts_of_tables_share_what_is_cached() -> None:
    allocator = CpuGpuBlockAllocator.create("prefix_caching", 8, 0, 4)
    one = table_of(allocator, list(range(9)))
    two = table_of(allocator, [*range(8), 99])
    assert one.physical_block_ids[:2] == two.physical_block_ids[:2]
    allocator.mark_blocks_as_computed()
    both = [one.physical_block_ids, two.physical_block_ids]
    assert allocator.get_common_computed_block_ids(both) == one.physical_block_ids[:2]
    assert allocator.get_prefix_cache_hit_rate(Device.GPU) == 0.5
    allocator.mark_blocks_as_accessed(one.physical_block_ids, 1.0)
    assert not allocator.reset_prefix_cache()
    one.free()
    two.free()
    assert allocator.reset_prefix_cache(Device.GPU)


@pytest.mark.parametrize("shared", [False, True])
def test_a_table_that_cannot_grow_stays_as_it_was(make_pools: MakePools, shared: bool) -> None:
    allocator = make_pools(gpu=3, cpu=0)
    table = table_of(allocator, list(range(6)))
    tables = [table, table.fork()] if shared else [table]
    with refused_tables(allocator, NoFreeBlocksError, tables=tables) as caught:
        table.append_token_ids(list(range(7)))
    assert caught.value.needed == 2 + shared
    with refused_tables(allocator, NoFreeBlocksError, tables=tables):
        table.append_token_ids([1], num_lookahead_slots=9)
    with refused_tables(allocator, NoFreeBlocksError, tables=tables):
        table.ensure_num_empty_slots(7)
    table.append_token_ids([1, 2])


@pytest.mark.parametrize("num_tokens", [5, 8])
def test_a_table_does_not_grow_after_a_block_that_was_freed(
    make_pools: MakePools, num_tokens: int
) -> None:
    allocator = make_pools()
    table = table_of(allocator, list(range(num_tokens)))
    allocator.free(table.blocks[-1])
    with refused_tables(allocator, BlockStateError, "was freed", tables=[table]):
        table.append_token_ids([8])
    table.free()
    assert allocator.get_num_free_blocks(Device.GPU) == 8


def test_wrong_calls_of_a_table_are_refused(make_pools: MakePools) -> None:
    allocator = make_pools()
    table = BlockTable(4, allocator)
    calls: list[Callable[[], object]] = [
        table.free,
        table.fork,
        lambda: table.append_token_ids([1]),
        lambda: table.ensure_num_empty_slots(1),
        lambda: table.physical_block_ids,
        lambda: table.device,
    ]
    for call in calls:
        with refused_tables(allocator, SequenceStateError, "has no blocks"):
            call()
    with refused_tables(allocator, ValueError, "token_ids must not be empty"):
        table.allocate([])
    with refused_tables(allocator, ValueError, r"in \[0, 2\*\*32\)"):
        table.allocate([1, -1])
    table.allocate([1])
    with refused_tables(allocator, SequenceStateError, "allocated already", tables=[table]):
        table.allocate([1])
    with refused_tables(allocator, ValueError, "token_ids must not be empty", tables=[table]):
        table.append_token_ids([])
    with refused_tables(
        allocator, ValueError, "num_lookahead_slots must be at least 0", tables=[table]
    ):
        table.append_token_ids([1], num_lookahead_slots=-1)
    with refused_tables(
        allocator, ValueError, "num_empty_slots must be at least 0", tables=[table]
    ):
        table.ensure_num_empty_slots(-1)
    with refused_tables(allocator, TypeError, "extra_hash must be an int", tables=[table]):
        table.append_token_ids([1], extra_hash="lora")  # type: ignore[arg-type]
    with refused_tables(allocator, ValueError, "block_size must be the allocator's, 4, got 8"):
        BlockTable(8, allocator)
