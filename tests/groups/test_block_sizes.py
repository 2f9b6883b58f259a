"""Groups whose blocks are smaller than the manager's: tables, slots, counts, and any layout."""

from __future__ import annotations

from typing import Any

import pytest

from blockmgr import (
    BlockManager,
    ChunkedAttention,
    EventKind,
    FullAttention,
    RecurrentState,
    SlidingWindow,
    prefix_granularity,
)
from blockmgr.errors import NeverFitsError, OutOfBlocksError
from blockmgr.inspect import describe
from tests.groups.random_runs import play

LAYOUTS = {
    "Gemma 4": (32, ("full block_size=16", "window 40 block_size=32")),
    "Gemma 4, the other way round": (32, ("full", "window 20 block_size=16")),
    "DeepSeek-V4": (
        16,
        (
            "full",
            "window 8 block_size=4",
            "window 8 block_size=4",
            "window 2 block_size=1",
            "window 8 block_size=2",
        ),
    ),
    "chunks and states": (6, ("full block_size=3", "chunk 8 block_size=2", "state")),
    "sizes that do not fit each other": (6, ("full block_size=2", "window 5 block_size=3")),
    "a state beside small blocks": (8, ("full block_size=2", "state", "window 9")),
}


def manager_of(*groups: Any, block_size: int = 8, num_blocks: int = 60, **options: Any) -> Any:
    return BlockManager(num_blocks, block_size, groups=groups, null_block=True, debug=2, **options)


def table(manager: BlockManager, handle: int, group: int) -> list[int]:
    return [int(b) for b in manager.group_table(group)[manager.row(handle)]]


def held(manager: BlockManager, handle: int) -> list[int]:
    """Blocks in each group's table."""
    groups = range(len(manager.config.groups))
    return [sum(b > 0 for b in table(manager, handle, group)) for group in groups]


@pytest.mark.parametrize("dedup", ["remap", "append_only"])
@pytest.mark.parametrize("early_commit", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_no_engine_reads_anything_wrong(layout: str, dedup: str, early_commit: bool) -> None:
    size, groups = LAYOUTS[layout]
    rooms = (30, 60, 150)
    fixed: dict[str, Any] = {"block_size": size, "dedup": dedup, "early_commit": early_commit}
    fixed |= {"quotas": {}, "max_pinned_blocks": 0, "min_partial_tokens": 1}
    found = 0
    for seed in range(6):
        options = fixed | {"num_blocks": rooms[seed % 3] * len(groups)}
        run = play(seed, groups, options=options, ops=120, after=check)
        found += run.world.found
    assert found > 6


def check(run: Any) -> None:
    assert not run.world.manager._core.violations()


def test_each_group_has_a_table_by_its_own_block_size() -> None:
    manager = manager_of(FullAttention(4), SlidingWindow(9), RecurrentState())
    handle = manager.admit(list(range(14)))
    shapes = [manager.group_table(group).shape[1] for group in range(3)]
    assert shapes == [2 * shapes[1], shapes[1], 1]
    full, window = table(manager, handle, 0)[:4], table(manager, handle, 1)[:2]
    assert len({*full, *window}) == 6
    assert 0 not in full
    assert manager.block_ids(handle) == full
    assert manager.sequence(handle).num_blocks == 4
    slots = [manager.slot_mapping(handle, 0, 14, group=group).tolist() for group in (0, 1)]
    assert slots[0] == [full[p // 4] * 4 + p % 4 for p in range(14)]
    assert slots[1] == [window[p // 8] * 8 + p % 8 for p in range(14)]
    assert manager.slot_mapping(handle, 3, 9).tolist() == slots[0][3:9]
    manager.commit(handle, 14)
    assert manager.decode([handle], [1]).tolist() == [full[3] * 4 + 2]


def test_a_sequence_takes_the_blocks_that_its_tokens_need() -> None:
    manager = manager_of(FullAttention(), SlidingWindow(8, 4), SlidingWindow(8, 2))
    handle = manager.admit([1, 2, 3])
    assert held(manager, handle) == [1, 1, 2]
    assert manager.sequence(handle).num_slots == 4
    with pytest.raises(ValueError, match="num_computed_tokens"):
        manager.commit(handle, 5)
    manager.append(handle, [4])
    assert held(manager, handle) == [1, 1, 2]
    manager.append(handle, [5])
    assert held(manager, handle) == [1, 2, 3]
    manager.commit(handle, 5)
    manager.decode([handle], [6])
    assert held(manager, handle) == [1, 2, 3]
    manager.decode([handle], [7])
    assert held(manager, handle) == [1, 2, 4]
    assert manager.sequence(handle).num_slots == 8
    manager.truncate(handle, 2)
    manager.free(handle)
    assert manager.stats().used_blocks == 0


def test_decode_takes_its_blocks_before_a_commit_uses_others() -> None:
    manager = manager_of(
        FullAttention(), SlidingWindow(99, 2), block_size=4, num_blocks=11, steps_in_flight=1
    )
    cached = manager.admit([1, 2, 3, 4])
    manager.commit(cached, 4)
    manager.free(cached)
    same = manager.admit([1, 2, 3], read_cache=False)
    manager.commit(same, 3)
    other = manager.admit([9, 9])
    manager.commit(other, 2)
    manager.decode([same], [4])
    manager.copies_applied(manager.take_copies().ticket)
    assert (manager.stats().free_blocks, manager.stats().idle_blocks) == (2, 3)
    manager.decode([same, other], [5, 9])  # three blocks; the commit would find three idle ones
    assert held(manager, same) == [2, 3]
    assert held(manager, other) == [1, 2]


def test_a_shortage_counts_the_blocks_of_all_groups() -> None:
    manager = manager_of(FullAttention(4), SlidingWindow(99), num_blocks=8)
    with pytest.raises(NeverFitsError, match="takes 9 blocks in 2 groups"):
        manager.admit(list(range(24)))
    first = manager.admit(list(range(12)))
    assert held(manager, first) == [3, 2]  # of 7 blocks
    with pytest.raises(OutOfBlocksError, match="need 3 blocks"):
        manager.admit(list(range(100, 105)))
    second = manager.admit([200, 201])
    assert held(manager, second) == [1, 1]
    with pytest.raises(OutOfBlocksError, match="need 1 block"):
        manager.append(second, [1, 2, 3])
    assert manager.sequence(second).num_tokens == 2


def test_a_prompt_parts_inside_a_block_of_the_manager() -> None:
    manager = manager_of(FullAttention(4), SlidingWindow(99), min_partial_tokens=1)
    first = manager.admit(list(range(21)))
    manager.commit(first, 21)
    manager.free(first)
    second = manager.admit([*range(14), 99, 98, 97])
    assert manager.sequence(second).num_cached_tokens == 14
    copies = list(manager.take_copies())
    assert sorted(copy.num_tokens for copy in copies) == [2, 4, 6]  # 4 + 2 of full, 6 of 8


def test_events_tell_once_of_each_block_of_the_manager() -> None:
    manager = manager_of(FullAttention(4), SlidingWindow(4, 2), events=True)
    handle = manager.admit(list(range(17)))
    manager.commit(handle, 17)
    stored = [(event.group, len(event.digests)) for event in manager.take_events()]
    assert stored == [(0, 2), (1, 2)]


def test_events_tell_that_a_block_of_the_manager_has_lost_part_of_a_window() -> None:
    manager = manager_of(
        FullAttention(), SlidingWindow(3, 1), block_size=2, num_blocks=20, events=True
    )
    handle = manager.admit(range(9))
    manager.commit(handle, 6)
    manager.acquire([table(manager, handle, 1)[4]])  # at 6, a query reads this and the next one
    manager.commit(handle, 9)
    manager.free(handle)
    told = {digest for event in manager.take_events() if event.group for digest in event.digests}
    assert len(told) == 4
    manager.admit(range(100, 107))  # evicts what no later turn of the first prompt reads
    lost = [event for event in manager.take_events() if event.kind is EventKind.REMOVED]
    assert sum(len(event.digests) for event in lost if event.group) == 3
    assert manager.match(range(7)).num_cached_tokens == 0


def test_events_tell_once_of_blocks_with_one_digest_that_different_blocks_stand_for() -> None:
    manager = manager_of(
        FullAttention(),
        ChunkedAttention(9, 3),
        block_size=6,
        events=True,
        digest=lambda _: bytes(16),
    )
    handle = manager.admit(range(13))
    manager.commit(handle, 13)
    stored = [(event.group, len(event.digests)) for event in manager.take_events()]
    assert stored == [(0, 1), (1, 1)]


def test_facts_of_blocks_count_the_tokens_of_each() -> None:
    manager = manager_of(FullAttention(4), SlidingWindow(9, 2))
    handle = manager.admit(list(range(7)))
    manager.commit(handle, 7)
    facts = manager.blocks()
    full, window = table(manager, handle, 0)[:2], table(manager, handle, 1)[:4]
    assert facts.num_tokens[full].tolist() == [4, 3]
    assert facts.num_tokens[window].tolist() == [2, 2, 2, 1]
    assert facts.group[[*full, *window]].tolist() == [0] * 2 + [1] * 4


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([FullAttention(3)], "divides the manager's, 8, got 3 at position 0; prefix_granularity"),
        ([FullAttention(), SlidingWindow(5, 16)], "got 16 at position 1"),
        ([FullAttention(), *[SlidingWindow(9, 1)] * 32], "at most 254 blocks in one of"),
    ],
)
def test_a_size_that_does_not_fit_is_refused(groups: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        manager_of(*groups)


@pytest.mark.parametrize("size", [0, -1, 2**16])
def test_a_size_out_of_bounds_is_refused(size: int) -> None:
    for make in (FullAttention, lambda n: SlidingWindow(5, n), lambda n: ChunkedAttention(5, n)):
        with pytest.raises(ValueError, match="block_size must be in"):
            make(size)


def test_the_granularity_fits_all_sizes() -> None:
    assert prefix_granularity([FullAttention(16), SlidingWindow(512, 32)]) == 32
    assert prefix_granularity([FullAttention(6), SlidingWindow(5, 4), RecurrentState()]) == 12
    with pytest.raises(ValueError, match="groups must have a block_size"):
        prefix_granularity([FullAttention()])


def test_a_group_shows_the_block_size_that_it_has() -> None:
    assert repr(FullAttention()) == "FullAttention()"
    assert repr(SlidingWindow(5, 4)) == "SlidingWindow(width=5, block_size=4)"
    assert repr(ChunkedAttention(8)) == "ChunkedAttention(width=8)"


GEMMA_4 = (FullAttention(16), SlidingWindow(512, 32))
DEEPSEEK_V4 = (
    FullAttention(256),
    SlidingWindow(128, 64),
    SlidingWindow(128, 64),
    SlidingWindow(8, 4),
    SlidingWindow(128, 8),
)


@pytest.mark.parametrize(("groups", "found"), [(GEMMA_4, 3_000), (DEEPSEEK_V4, 2_816)])
def test_a_prompt_that_diverges_at_3_000_continues_near_there(groups: Any, found: int) -> None:
    """Prompts of 32,768 tokens, computed in chunks of 2,048; only the second part differs."""
    size = prefix_granularity(groups)
    limits: dict[str, Any] = {"max_seqs": 2, "max_blocks_per_seq": 1_100}
    manager = BlockManager(
        9_000, size, groups=groups, null_block=True, min_partial_tokens=1, **limits
    )
    first = manager.admit(range(32_768), num_slots=2_048)
    for end in range(2_048, 32_769, 2_048):
        manager.reserve(first, end)
        manager.commit(first, end)
    manager.free(first)
    second = manager.match([*range(3_000), *range(100_000, 129_768)])
    assert second.num_cached_tokens == found


def test_a_boundary_keeps_the_small_blocks_that_its_query_reads() -> None:
    manager = manager_of(FullAttention(), SlidingWindow(8, 4), block_size=64, num_blocks=40)
    handle = manager.admit(range(65))
    manager.commit(handle, 65)
    manager.free(handle)
    assert manager.match(range(65)).num_cached_tokens == 64
    assert manager.stats().cached_blocks == 3  # the query at 64 reads from 57 on


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("length", [17, 18, 22])
def test_a_prompt_that_ends_in_the_first_small_block_of_one_finds_all_before_it(
    size: int, length: int
) -> None:
    manager = manager_of(FullAttention(size), RecurrentState(), min_partial_tokens=1)
    handle = manager.admit(range(length))
    manager.commit(handle, length)
    manager.free(handle)
    assert manager.match(range(length + 1)).num_cached_tokens == length


def test_descriptions_count_in_the_block_size_of_each_group() -> None:
    manager = manager_of(FullAttention(4), SlidingWindow(9, 2))
    handle = manager.admit(range(13))
    manager.commit(handle, 13)
    text = describe(manager)
    assert "13 tokens, all computed; 1 in the last block" in text
    assert "  group 1  --CCooo" in text  # seven blocks of two tokens, two of them passed
    assert "evicted next: " in text
    assert "tail" not in text
    assert "[12, 16)  11      owned; 1 token" in describe(manager.sequence(handle))
