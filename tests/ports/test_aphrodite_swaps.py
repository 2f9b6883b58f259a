"""The Aphrodite port: swaps between two pools, and the manager of all block tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from blockmgr import BlockStateError, SequenceStateError, UnknownSequenceError
from blockmgr.ports.aphrodite import (
    AllocStatus,
    BlockSpaceManager,
    BlockTable,
    CpuGpuBlockAllocator,
    Device,
    NaiveBlock,
    NaiveBlockAllocator,
    NoFreeBlocksError,
    PrefixCachingBlockAllocator,
)
from tests.ports.aphrodite_support import (
    Group,
    MakePools,
    Seq,
    check,
    group,
    refused_tables,
    space,
    table_of,
)

# ---- swaps ------------------------------------------------------------------------------


def test_a_sequence_moves_to_the_host_and_back(make_pools: MakePools) -> None:
    allocator = make_pools()
    table = table_of(allocator, list(range(10)))
    before = table.physical_block_ids
    copies = allocator.swap(table.blocks, Device.GPU, Device.CPU)
    assert list(copies) == before
    assert list(copies.values()) == table.physical_block_ids
    assert table.device is Device.CPU
    assert allocator.get_num_free_blocks(Device.GPU) == 8
    assert allocator.get_num_free_blocks(Device.CPU) == 5
    assert [t for b in table.blocks for t in b.token_ids] == list(range(10))
    back = allocator.swap(table.blocks, Device.CPU, Device.GPU)
    assert set(back.values()) <= set(table.physical_block_ids)
    assert allocator.get_num_free_blocks(Device.CPU) == 8
    table.append_token_ids([10])
    assert table.device is Device.GPU


def test_what_is_cached_and_computed_where_it_goes_needs_no_copy() -> None:
    allocator = CpuGpuBlockAllocator.create("prefix_caching", 8, 8, 4)
    table = table_of(allocator, list(range(10)))
    allocator.mark_blocks_as_computed()
    allocator.swap(table.blocks, Device.GPU, Device.CPU)
    back = allocator.swap(table.blocks, Device.CPU, Device.GPU)
    assert list(back.values()) == table.physical_block_ids[2:]  # only the tail
    assert all(block.computed for block in table.blocks[:2])
    later = table_of(allocator, [*range(8), 1])
    assert later.physical_block_ids[:2] == table.physical_block_ids[:2]


def test_what_was_not_computed_is_copied_and_stays_so() -> None:
    allocator = CpuGpuBlockAllocator.create("prefix_caching", 8, 8, 4)
    table = table_of(allocator, list(range(8)))
    allocator.swap(table.blocks, Device.GPU, Device.CPU)
    back = allocator.swap(table.blocks, Device.CPU, Device.GPU)
    assert len(back) == 2
    assert not any(block.computed for block in table.blocks)


def test_extra_hashes_move_along() -> None:
    allocator = CpuGpuBlockAllocator.create("prefix_caching", 8, 8, 4)
    table = BlockTable(4, allocator)
    table.allocate(list(range(8)), extra_hash=3)
    allocator.swap(table.blocks, Device.GPU, Device.CPU)
    plain, keyed = BlockTable(4, allocator), BlockTable(4, allocator)
    plain.allocate(list(range(8)), device=Device.CPU)
    keyed.allocate(list(range(8)), device=Device.CPU, extra_hash=3)
    assert keyed.physical_block_ids == table.physical_block_ids
    assert not set(plain.physical_block_ids) & set(table.physical_block_ids)


def test_a_swap_that_finds_no_room_changes_nothing(make_pools: MakePools) -> None:
    allocator = make_pools(gpu=8, cpu=2)
    table = table_of(allocator, list(range(10)))
    with refused_tables(allocator, NoFreeBlocksError, tables=[table]) as caught:
        allocator.swap(table.blocks, Device.GPU, Device.CPU)
    assert (caught.value.needed, caught.value.available) == (3, 2)


def test_a_block_that_waits_for_its_copy_is_not_swapped(make_pools: MakePools) -> None:
    """Swaps run before copies, so the block would be read before it is written."""
    allocator = make_pools()
    parent = table_of(allocator, [1, 2])
    child = parent.fork()
    child.append_token_ids([3])
    with refused_tables(allocator, BlockStateError, "waits for a copy", tables=[parent, child]):
        allocator.swap(child.blocks, Device.GPU, Device.CPU)
    allocator.clear_copy_on_writes()
    allocator.swap(child.blocks, Device.GPU, Device.CPU)


def test_two_sequences_copy_a_block_that_they_share_once() -> None:
    """It is cached at the destination already, and its K/V is not there yet."""
    allocator = CpuGpuBlockAllocator.create("prefix_caching", 8, 8, 4)
    host = BlockTable(4, allocator)
    host.allocate(list(range(4)), device=Device.CPU)
    one, two = (table_of(allocator, [*range(4), last]) for last in (5, 6))
    allocator.mark_blocks_as_computed()
    copies = allocator.plan_swap([one.blocks, two.blocks], Device.GPU, Device.CPU).carry_out()
    assert len(copies) == 3
    assert one.physical_block_ids[0] == two.physical_block_ids[0] == host.physical_block_ids[0]


def test_what_follows_a_block_of_the_other_device_waits_to_be_cached() -> None:
    """The pools number their blocks alike: the other one's is not its parent."""
    allocator = CpuGpuBlockAllocator.create("prefix_caching", 8, 8, 2)
    other = allocator.allocate_immutable_block(None, [9, 9], Device.GPU)
    first = allocator.allocate_immutable_block(None, [1, 2], Device.GPU)
    second = allocator.allocate_mutable_block(first, Device.GPU)
    allocator.swap([first], Device.GPU, Device.CPU)
    second.append_token_ids([3, 4])
    assert not second.is_cached
    found = allocator.allocate_immutable_blocks(other, [[3, 4]], Device.GPU)
    assert found[0].block_id != second.block_id
    check(allocator)


def test_swaps_that_make_no_sense_are_refused(make_pools: MakePools) -> None:
    allocator = make_pools()
    table = table_of(allocator, list(range(10)))
    wrong: list[tuple[Any, Device, Device, str]] = [
        (table.blocks[1:], Device.GPU, Device.CPU, "from its first, in order"),
        ([], Device.GPU, Device.CPU, "must not be empty"),
        (table.blocks, Device.CPU, Device.GPU, "of the device they are moved from"),
        (table.blocks, Device.GPU, Device.GPU, "another device"),
    ]
    for blocks, source, destination, match in wrong:
        with refused_tables(allocator, ValueError, match, tables=[table]):
            allocator.swap(blocks, source, destination)
    with refused_tables(allocator, TypeError, "got str"):
        allocator.swap(["block"], Device.GPU, Device.CPU)  # type: ignore[list-item]


def test_blocks_of_either_device_by_hand(make_pools: MakePools) -> None:
    allocator = make_pools()
    host = allocator.allocate_mutable_block(None, Device.CPU)
    device = allocator.allocate_immutable_block(None, [1] * 4, Device.GPU)
    more = allocator.allocate_immutable_blocks(device, [[2] * 4], Device.GPU)
    assert len(allocator.fork(more[0])) == 2
    assert len(allocator.all_block_ids) == 16
    allocator.free(host)
    assert allocator.get_num_free_blocks(Device.CPU) == 8


def test_pools_that_do_not_go_together_are_refused() -> None:
    gpu = NaiveBlockAllocator(NaiveBlock, 4, 4)
    with pytest.raises(ValueError, match="blocks of 4 tokens, got 2"):
        CpuGpuBlockAllocator(gpu, NaiveBlockAllocator(NaiveBlock, 4, 2, range(4, 8)))
    with pytest.raises(ValueError, match="got 3 in both"):
        CpuGpuBlockAllocator(gpu, PrefixCachingBlockAllocator(4, 4, range(3, 7)))
    with pytest.raises(ValueError, match="allocator_type must be"):
        CpuGpuBlockAllocator.create("lru", 4, 4, 4)  # type: ignore[arg-type]
    alone = CpuGpuBlockAllocator(gpu)
    assert alone.get_num_total_blocks(Device.CPU) == 0
    with pytest.raises(ValueError, match="device must have blocks"):
        alone.pool_of(Device.CPU)


# ---- the manager of all tables ----------------------------------------------------------


@pytest.mark.parametrize("enable_caching", [False, True])
def test_a_group_lives_from_its_prompt_to_its_end(enable_caching: bool) -> None:
    manager = space(enable_caching=enable_caching)
    both = group([1] * 6, [1] * 6)
    assert manager.can_allocate(both) is AllocStatus.OK
    manager.allocate(both)
    one, two = both.seqs
    assert manager.get_block_table(one) == manager.get_block_table(two)
    assert manager.get_num_free_gpu_blocks() == 6
    manager.mark_blocks_as_computed(both)
    shared = manager.get_block_table(one)[:1] if enable_caching else []
    assert manager.get_common_computed_block_ids([one, two]) == shared
    one.tokens.append(2)
    two.tokens.append(3)
    assert manager.can_append_slots(both)
    copies = manager.append_slots(one)
    assert copies == [(manager.get_block_table(two)[1], manager.get_block_table(one)[1])]
    assert manager.append_slots(two, num_lookahead_slots=3) == []
    assert len(manager.get_block_table(two)) == 3
    assert manager.append_slots(two, num_lookahead_slots=3) == []  # no token since: no change
    three = Seq(2, list(one.tokens))
    manager.fork(one, three)
    manager.access_all_blocks_in_seq(three, 1.0)
    for seq in (one, two, three):
        manager.free(seq)
    assert manager.get_num_free_gpu_blocks() == 8
    assert manager.get_prefix_cache_hit_rate() == 0
    assert manager.reset_prefix_cache()
    check(manager.block_allocator)


def test_admission_tells_now_from_later_from_never() -> None:
    manager = space(gpu=10, watermark=0.2)
    assert manager.can_allocate(group([1] * 32)) is AllocStatus.OK
    assert manager.can_allocate(group([1] * 33)) is AllocStatus.NEVER
    assert manager.can_allocate(group([1] * 32), num_lookahead_slots=1) is AllocStatus.NEVER
    manager.allocate(group([1] * 4))
    assert manager.can_allocate(group([1] * 32, first=9)) is AllocStatus.LATER
    assert manager.can_allocate(group([1] * 28, first=9)) is AllocStatus.OK


def test_a_group_too_large_for_the_watermark_comes_back_once_nobody_runs() -> None:
    manager = space(gpu=10, cpu=10, watermark=0.2)
    large, other = group([1] * 36), group([2] * 4, first=5)
    manager.allocate(large)
    manager.swap_out(large)
    manager.allocate(other)
    assert manager.can_swap_in(large) is AllocStatus.LATER
    manager.free(other.seqs[0])
    assert manager.can_swap_in(large) is AllocStatus.OK


def test_a_group_is_swapped_out_and_in() -> None:
    manager = space()
    pair = group([1] * 6, [1] * 6)
    manager.allocate(pair)
    assert manager.can_swap_out(pair)
    assert len(manager.swap_out(pair)) == 4  # without a prefix cache, sharing ends there
    assert (manager.get_num_free_gpu_blocks(), manager.get_num_free_cpu_blocks()) == (8, 4)
    assert manager.can_swap_in(pair) is AllocStatus.OK
    calls: list[Callable[[], object]] = [
        lambda: manager.append_slots(pair.seqs[0]),
        lambda: manager.can_append_slots(pair),
        lambda: manager.mark_blocks_as_computed(pair),
    ]
    for call in calls:
        with unchanged(manager, ValueError, "on the host"):
            call()
    copies = manager.swap_in(pair)
    assert all(0 <= block < 8 for copy in copies for block in copy)
    assert manager.get_num_free_cpu_blocks() == 8


def test_swapped_prefixes_are_shared_on_the_host_too() -> None:
    manager = space(enable_caching=True)
    pair = group([1] * 9, [1] * 9)
    manager.allocate(pair)
    manager.mark_blocks_as_computed(pair)
    assert len(manager.swap_out(pair)) == 4  # two shared blocks, two tails
    assert manager.get_num_free_cpu_blocks() == 4
    manager.swap_in(pair)
    assert manager.get_num_free_gpu_blocks() == 4
    check(manager.block_allocator)


def test_cached_tokens_of_a_sequence_with_blocks_are_the_computed_ones() -> None:
    manager = space(enable_caching=True)
    running = group(range(6))
    manager.allocate(running)
    assert manager.get_num_cached_tokens(running.seqs[0]) == 0
    manager.mark_blocks_as_computed(running)
    assert manager.get_num_cached_tokens(running.seqs[0]) == 4


def test_a_group_that_names_a_sequence_twice_is_refused() -> None:
    manager, twice = space(), group([1, 2, 3])
    twice.seqs *= 2
    for call in (manager.can_allocate, manager.allocate):
        with pytest.raises(ValueError, match="must not name a sequence twice"):
            call(twice)
    assert manager.get_num_free_gpu_blocks() == 8
    once = group([1, 2, 3])
    manager.allocate(once)
    held = manager.get_num_free_gpu_blocks()
    for call in (manager.can_swap_out, manager.swap_out):
        with pytest.raises(ValueError, match="must not name a sequence twice"):
            call(twice)
    assert (manager.get_num_free_gpu_blocks(), manager.get_num_free_cpu_blocks()) == (held, 8)


@pytest.fixture(params=[False, True], ids=["naive", "caching"])
def manager(request: pytest.FixtureRequest) -> BlockSpaceManager:
    """A manager with one group on the device: sequence 0 with five tokens."""
    made = space(enable_caching=request.param)
    made.allocate(group(range(5)))
    return made


KNOWN, OTHER, EMPTY = group(range(5)), group([7], first=9), group([], first=9)
SHORTER = group(range(4))

UNKNOWN: dict[str, Callable[[BlockSpaceManager], object]] = {
    "can_append_slots": lambda m: m.can_append_slots(OTHER),
    "mark_blocks_as_computed": lambda m: m.mark_blocks_as_computed(OTHER),
    "can_swap_out": lambda m: m.can_swap_out(OTHER),
    "swap_out": lambda m: m.swap_out(OTHER),
    "can_swap_in": lambda m: m.can_swap_in(OTHER),
    "swap_in": lambda m: m.swap_in(OTHER),
    "append_slots": lambda m: m.append_slots(OTHER.seqs[0]),
    "fork": lambda m: m.fork(OTHER.seqs[0], Seq(2)),
    "get_block_table": lambda m: m.get_block_table(OTHER.seqs[0]),
    "get_common_computed_block_ids": lambda m: m.get_common_computed_block_ids(
        [KNOWN.seqs[0], OTHER.seqs[0]]
    ),
    "access_all_blocks_in_seq": lambda m: m.access_all_blocks_in_seq(OTHER.seqs[0]),
}


@contextmanager
def unchanged(
    manager: BlockSpaceManager, error: type[Exception], match: str | None = None
) -> Iterator[None]:
    names = list(manager.block_tables)
    tables = list(manager.block_tables.values())
    with refused_tables(manager.block_allocator, error, match, tables=tables):
        yield
    assert list(manager.block_tables) == names


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_group_that_has_no_blocks_is_unknown(manager: BlockSpaceManager, name: str) -> None:
    with unchanged(manager, UnknownSequenceError, "9"):
        UNKNOWN[name](manager)


def test_a_group_some_of_whose_sequences_have_ended_is_known(manager: BlockSpaceManager) -> None:
    both = Group([*KNOWN.seqs, *OTHER.seqs])
    assert manager.can_append_slots(both)
    assert manager.can_swap_out(both)


WRONG: dict[str, tuple[Callable[[Any], object], type[Exception], str]] = {
    "an empty prompt that is asked about": (
        lambda m: m.can_allocate(EMPTY), ValueError, "prompt of at least one token",
    ),
    "an empty prompt": (lambda m: m.allocate(EMPTY), ValueError, "must not be empty"),
    "a group of nobody": (lambda m: m.can_allocate(Group([])), ValueError, "at least one sequence"),
    "no group": (lambda m: m.swap_out(None), TypeError, "seq_group must have get_seqs, got None"),
    "no sequence": (lambda m: m.free(3), TypeError, "seq must have a seq_id, got int"),
    "no child": (lambda m: m.fork(KNOWN.seqs[0], None), TypeError, "seq must have a seq_id"),
    "no tokens": (
        lambda m: m.append_slots(SimpleNamespace(seq_id=0)),
        TypeError, "seq must have get_token_ids",
    ),
    "tokens were lost": (
        lambda m: m.append_slots(SHORTER.seqs[0]),
        SequenceStateError, "the sequence has 4 tokens, its block table 5",
    ),
    "tokens were lost, asked about": (
        lambda m: m.can_append_slots(SHORTER), SequenceStateError, "the sequence has 4 tokens",
    ),
    "fork to itself": (
        lambda m: m.fork(KNOWN.seqs[0], KNOWN.seqs[0]), SequenceStateError, "has blocks already",
    ),
    "allocate twice": (lambda m: m.allocate(KNOWN), SequenceStateError, "has blocks already"),
    "a chunk below 0": (
        lambda m: m.mark_blocks_as_computed(KNOWN, -1), ValueError, "token_chunk_size",
    ),
    "a chunk of text": (
        lambda m: m.mark_blocks_as_computed(KNOWN, "1"), TypeError, "token_chunk_size",
    ),
    "count without a sequence": (lambda m: m.get_num_cached_tokens(1), TypeError, "seq_id"),
    "forget no sequence": (
        lambda m: m.remove_seq_from_computed_blocks_tracker(1), TypeError, "seq_id",
    ),
    "an adapter of text": (
        lambda m: m.allocate(Group([Seq(9, [1], adapter="lora")])), TypeError, "extra_hash",
    ),
    "no device": (lambda m: m.get_prefix_cache_hit_rate("gpu"), TypeError, "must be a Device"),
    "another block": (
        lambda m: m.block_allocator.get_physical_block_id(Device.GPU, 99), ValueError, "99",
    ),
    "no device to count": (
        lambda m: m.block_allocator.get_num_free_blocks("gpu"), TypeError, "must be a Device",
    ),
    "an unknown allocator": (
        lambda m: m.block_allocator.device_of(space().block_allocator.pool_of(Device.GPU)),
        ValueError, "that of the device or that of the host",
    ),
}  # fmt: skip
for _name, _call in {
    "can_allocate": lambda m, n: m.can_allocate(OTHER, n),
    "can_append_slots": lambda m, n: m.can_append_slots(KNOWN, n),
    "append_slots": lambda m, n: m.append_slots(KNOWN.seqs[0], n),
    "can_swap_in": lambda m, n: m.can_swap_in(KNOWN, n),
    "get_num_required_blocks": lambda m, n: BlockTable.get_num_required_blocks([1], 4, n),
}.items():
    WRONG[f"{_name} of -1 slots"] = (
        partial(lambda c, m: c(m, -1), _call),
        ValueError,
        "slots must be at least 0, got -1",
    )
    WRONG[f"{_name} of 1.5 slots"] = (
        partial(lambda c, m: c(m, 1.5), _call),
        TypeError,
        "slots must be an int, got 1.5",
    )


@pytest.mark.parametrize("name", WRONG)
def test_what_makes_no_sense_is_refused_by_name(manager: BlockSpaceManager, name: str) -> None:
    call, error, match = WRONG[name]
    with unchanged(manager, error, match):
        call(manager)


def test_sizes_that_make_no_sense_are_refused_by_name() -> None:
    for value, error in ((0, ValueError), (-4, ValueError), (True, TypeError), ("4", TypeError)):
        with pytest.raises(error, match="block_size must be"):
            BlockTable.get_num_required_blocks([1], value)  # type: ignore[arg-type]
    for options, error, match in (
        ({"sliding_window": 8}, ValueError, "sliding_window must be None, got 8"),
        ({"watermark": 1}, ValueError, "watermark must be"),
        ({"watermark": -0.1}, ValueError, "watermark must be"),
        ({"watermark": "0.1"}, TypeError, "watermark must be a number"),
        ({"watermark": float("nan")}, ValueError, r"watermark must be in \[0, 1\)"),
        ({"cpu": None}, TypeError, "num_cpu_blocks must be an int"),
        ({"cpu": -1}, ValueError, "num_cpu_blocks must be at least 0"),
    ):
        with pytest.raises(error, match=match):
            space(**options)


def test_blocks_of_another_allocator_are_not_freed_or_forked() -> None:
    ours = CpuGpuBlockAllocator.create("naive", 8, 8, 4)
    theirs = CpuGpuBlockAllocator.create("naive", 8, 8, 4)
    table = table_of(theirs, range(6))
    held = theirs.get_num_free_blocks(Device.GPU)
    calls: list[Callable[[], object]] = [
        lambda: ours.free(table.blocks[-1]),
        lambda: ours.fork(table.blocks[-1]),
        lambda: ours.swap(table.blocks, Device.GPU, Device.CPU),
    ]
    for call in calls:
        with refused_tables(ours, ValueError, "block belongs to another allocator"):
            call()
        assert theirs.get_num_free_blocks(Device.GPU) == held
    check(theirs)


def test_allocators_that_are_none_are_refused_by_name() -> None:
    pool = NaiveBlockAllocator(NaiveBlock, 4, 4)
    for gpu, cpu, match in (
        (None, None, "gpu must be an allocator, got NoneType"),
        (pool, 3, "cpu must be an allocator, got int"),
    ):
        with pytest.raises(TypeError, match=match):
            CpuGpuBlockAllocator(gpu, cpu)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a CpuGpuBlockAllocator, got NaiveBlockAllocator"):
        BlockTable(4, pool)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="enable_caching must be a bool, got 1"):
        space(enable_caching=1)


def test_what_is_no_block_is_neither_freed_nor_swapped() -> None:
    pools = CpuGpuBlockAllocator.create("naive", 4, 4, 4)
    with refused_tables(pools, TypeError, "block must be one of an allocator, got NoneType"):
        pools.free(None)  # type: ignore[arg-type]
    with refused_tables(pools, TypeError, "blocks must be a sequence, got int"):
        pools.swap(3, Device.GPU, Device.CPU)  # type: ignore[arg-type]
