"""Models none of whose groups has full attention: nodes have no blocks, and there are so many."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import pytest

from blockmgr import PAD_SLOT, BlockManager, MissReason
from blockmgr.blocks import Admission
from blockmgr.errors import NeverFitsError, OutOfBlocksError
from blockmgr.groups import (
    ChunkedAttention,
    FullAttention,
    Group,
    RecurrentState,
    Ring,
    SlidingWindow,
    default_nodes,
)
from blockmgr.tiers import TierConfig, TieredManager
from tests.groups.random_runs import BARE, Layout, play

WINDOW, STATE = SlidingWindow(8), RecurrentState()


def bare(
    num_blocks: int = 40, block_size: int = 4, *groups: Group, **options: object
) -> BlockManager:
    chosen = groups or (WINDOW,)
    values = {"null_block": True, "min_partial_tokens": 1, "debug": 2, "groups": chosen}
    return BlockManager(num_blocks, block_size, **{**values, **options})  # type: ignore[arg-type]


def compute(manager: BlockManager, handle: int, *stops: int) -> None:
    """Computes a sequence up to each of these positions, in a step of its own."""
    for stop in stops:
        if manager.sequence(handle).num_slots < stop:
            manager.reserve(handle, stop)
        plan = manager.take_copies()
        manager.copies_applied(plan.ticket)
        manager.commit(handle, stop)


def serve(manager: BlockManager, tokens: list[int]) -> int:
    """Admits, computes and frees a prompt, eight tokens a step; returns the tokens found."""
    handle = manager.admit(tokens, num_slots=1)
    found = manager.sequence(handle).num_cached_tokens
    stops = {*range(found + 8, len(tokens), 8), *manager.stops(handle), len(tokens)}
    compute(manager, handle, *sorted(stop for stop in stops if stop > found))
    manager.free(handle)
    return found


def prompt(number: int, count: int) -> list[int]:
    return [number] * count


# Attack 12 of the second design of groups: no block bounds the nodes


def test_a_hundred_thousand_tokens_in_a_window_take_few_blocks_and_many_nodes() -> None:
    manager = bare(8, 64, SlidingWindow(128), num_nodes=2000, debug=0)
    tokens = list(range(100_000))
    handle = manager.admit(tokens, num_slots=64)
    for stop in range(64, 100_000, 64):
        compute(manager, handle, stop)
        assert manager.stats().used_blocks <= 4
    compute(manager, handle, 100_000)
    manager.free(handle)
    assert not manager.check_invariants()
    again = manager.match([*tokens, 1])
    assert again.num_cached_tokens == 100_000
    assert np.count_nonzero(again.block_ids) <= 7


def test_nodes_that_run_out_are_a_shortage_that_ends() -> None:
    manager = bare(40, 4, num_nodes=10)
    first = manager.admit(prompt(1, 24))
    compute(manager, first, 24)
    assert manager.can_admit(prompt(2, 24)) is Admission.LATER
    with pytest.raises(OutOfBlocksError, match=r"need 6 nodes, 4 available; num_nodes") as caught:
        manager.admit(prompt(2, 24))
    error = caught.value
    assert (error.of_nodes, error.needed, error.available) == (True, 6, 4)
    assert pickle.loads(pickle.dumps(error)).of_nodes
    assert manager.can_admit(prompt(2, 16)) is Admission.NOW
    manager.free(first)
    assert manager.can_admit(prompt(2, 24)) is Admission.NOW


def test_a_prompt_with_more_nodes_than_there_are_never_fits() -> None:
    manager = bare(40, 4, num_nodes=10, max_blocks_per_seq=50)
    assert manager.can_admit(prompt(1, 40), num_slots=4) is Admission.NOW
    assert manager.can_admit(prompt(1, 41), num_slots=4) is Admission.NEVER
    with pytest.raises(NeverFitsError, match="num_nodes is 10"):
        manager.admit(prompt(1, 41), num_slots=4)


def test_a_sequence_that_grows_is_told_that_nodes_are_short() -> None:
    manager = bare(40, 4, num_nodes=4)
    first, second = manager.admit(prompt(1, 8)), manager.admit(prompt(2, 8))
    for call in (
        lambda: manager.append(first, [1]),
        lambda: manager.reserve(first, 9),
        lambda: manager.decode([first, second], [1, 1]),
    ):
        before = manager.stats()
        with pytest.raises(OutOfBlocksError, match="nodes"):
            call()
        assert manager.stats() == before
    manager.free(second)
    manager.append(first, [1])


def test_prompts_that_find_idle_nodes_take_them_from_others() -> None:
    manager = bare(40, 4, num_nodes=8)
    assert serve(manager, prompt(1, 17)) == 0
    running = manager.admit(prompt(2, 12))
    assert manager.can_admit([*prompt(1, 16), *prompt(3, 4)]) is Admission.NOW
    assert manager.can_admit([*prompt(1, 16), *prompt(3, 8)]) is Admission.LATER
    manager.free(running)


def test_prefixes_are_evicted_for_their_nodes_the_oldest_first() -> None:
    manager = bare(100, 4, num_nodes=12)
    for number in (1, 2, 3):
        serve(manager, prompt(number, 16))
    assert serve(manager, prompt(4, 16)) == 0
    found = [manager.match(prompt(number, 17)).num_cached_tokens for number in (1, 2, 3, 4)]
    assert found[0] == 0
    assert found[1:] == [16, 16, 16]
    assert manager.stats().free_blocks > 50


def test_joint_resumes_count_nodes() -> None:
    manager = bare(60, 4, num_nodes=10)
    handles = [manager.admit(prompt(number, 12)) for number in (1, 2)]
    for handle in handles:
        manager.preempt(handle)
    blocker = manager.admit(prompt(3, 20))
    with pytest.raises(OutOfBlocksError, match="need 6 nodes, 5 available"):
        manager.resume_together(handles)
    manager.free(blocker)
    manager.resume_together(handles)
    longer = [manager.admit(prompt(number, 16)) for number in (5,)]
    assert manager.sequence(longer[0]).num_slots == 16


# What callers see


def test_the_block_table_is_that_of_the_first_group_of_attention() -> None:
    manager = bare(40, 4, STATE, SlidingWindow(8), ChunkedAttention(8))
    handle = manager.admit(range(20))
    row = manager.row(handle)
    assert manager.group_table(1) is manager.block_tables
    window, chunk = (manager.group_table(g)[row, :5].tolist() for g in (1, 2))
    assert sorted([*window, *chunk, *manager.group_table(0)[row]]) == list(range(1, 12))
    compute(manager, handle, 16)
    assert manager.block_tables[row, :5].tolist() == [0, 0, *window[2:]]
    assert manager.block_ids(handle) == [0, 0, *window[2:]]
    slots = [window[p // 4] * 4 + p % 4 for p in range(9, 20)]
    assert manager.slot_mapping(handle, 9, 20).tolist() == slots
    assert manager.slot_mapping(handle, 9, 20, group=1).tolist() == slots
    with pytest.raises(ValueError, match="start must be at least 8, where the window"):
        manager.slot_mapping(handle, 7, 20)
    compute(manager, handle, 20)
    assert manager.decode([handle], [1]).tolist() == [manager.block_tables[row, 5] * 4]


def test_with_states_alone_it_shows_the_state_and_tokens_have_no_slots() -> None:
    manager = bare(20, 4, RecurrentState(extra_blocks=2))
    handle = manager.admit(range(10))
    row = manager.row(handle)
    assert manager.group_table(0)[row].tolist() == [1, 2, 3]
    assert manager.block_tables[row, :4].tolist() == [1, 2, 3, 0]
    assert manager.sequence(handle).num_blocks == 0
    assert manager.block_ids(handle) == []
    assert manager.slot_mapping(handle, 0, 10).tolist() == [PAD_SLOT] * 10
    compute(manager, handle, 10)
    assert manager.decode([handle], [1]).tolist() == [PAD_SLOT]
    manager.truncate(handle, 11)
    assert manager.block_tables[row, :4].tolist() == [1, 2, 3, 0]
    manager.free(handle)
    assert manager.block_tables[row].tolist() == [0] * manager.block_tables.shape[1]


def test_a_state_is_found_again() -> None:
    manager = bare(20, 4, STATE)
    assert serve(manager, list(range(18))) == 0
    assert manager.match([*range(18), 1]).num_cached_tokens == 18
    assert serve(manager, [*range(16), 50, 51]) == 16
    assert manager.stats().used_blocks == 0


def test_a_copy_of_a_node_is_in_no_plan() -> None:
    manager = bare(40, 4, WINDOW, SlidingWindow(3))
    tokens = list(range(14))
    handle = manager.admit(tokens)
    compute(manager, handle, 14)
    [child] = manager.fork(handle)
    manager.append(child, [1])
    assert manager.stats().pending_copies == 2
    plan = manager.take_copies()
    assert sorted(plan.groups.tolist()) == [0, 1]  # type: ignore[union-attr]
    assert max(*plan.sources, *plan.destinations) < 40
    manager.copies_applied(plan.ticket)
    assert manager.stats().planned_copies == 2


def test_counts_are_of_blocks_alone() -> None:
    manager = bare(11, 4, num_nodes=30)
    handle = manager.admit(range(20), num_slots=8)
    stats = manager.stats()
    assert (stats.capacity, stats.used_blocks, stats.free_blocks) == (10, 2, 8)
    compute(manager, handle, 8, 16, 20)
    manager.free(handle)
    stats = manager.stats()
    assert stats.idle_blocks == stats.cached_blocks == 10 - stats.free_blocks
    snapshot = manager.blocks()
    assert len(snapshot.state) == 11
    assert max(snapshot.parent.tolist()) < 11
    assert set(snapshot.group[snapshot.num_tokens > 0].tolist()) == {0}


def test_remaps_name_the_blocks_of_the_table() -> None:
    manager = bare(40, 4)
    handles = [manager.admit(range(8)) for _ in range(2)]
    own = [manager.block_tables[manager.row(handle), :2].tolist() for handle in handles]
    for handle in handles:
        compute(manager, handle, 8)
    moved = [(r.handle, r.index, r.old, r.new) for r in manager.take_remaps()]
    assert moved == [(handles[1], i, own[1][i], own[0][i]) for i in range(2)]
    assert manager.block_tables[manager.row(handles[1]), :2].tolist() == own[0]


def test_blocks_of_windows_leave_the_pool_and_come_back() -> None:
    manager = bare(21, 4)
    handle = manager.admit(range(16))
    compute(manager, handle, 16)
    assert manager.shrink(3) == 2
    assert manager.leaving() == {3: [handle], 4: [handle]}
    manager.free(handle)
    assert not manager.leaving()
    assert manager.stats().capacity == 2
    assert manager.can_admit(range(12)) is Admission.LATER
    manager.grow(21)
    assert serve(manager, list(range(50, 66))) == 0
    with pytest.raises(ValueError, match=r"num_blocks must be in \[21, 21\]"):
        manager.grow(22)


def test_blocks_by_id_are_those_of_the_pool() -> None:
    manager = bare(20, 4)
    serve(manager, list(range(16)))
    cached = [b for b in manager.match(range(17)).block_ids.tolist() if b]
    manager.acquire(cached)
    manager.release(cached)
    manager.touch_blocks(cached)
    assert manager.forget(cached[:1]) > 0
    assert manager.match(range(17)).num_cached_tokens < 16
    with pytest.raises(ValueError, match=r"blocks must be in \[1, 20\)"):
        manager.forget([20])


def test_explain_names_the_group_whose_window_is_gone() -> None:
    manager = bare(6, 4, num_nodes=100)
    serve(manager, list(range(32)))
    found = manager.explain([*range(12), *prompt(99, 8)])
    [miss] = [miss for miss in found.misses if miss.reason is MissReason.GROUP]
    assert miss.group == 0
    assert miss.stop == 12


# What is refused


REFUSED: list[tuple[str, Callable[[], object]]] = [
    ("retention must be left out", lambda: bare(retention=True)),
    ("quotas must be left out", lambda: bare(quotas={b"a": 4})),
    ("events must be left out", lambda: bare(events=True)),
    ("eviction must be a name", lambda: bare(eviction=lambda capacity: None)),
    ("num_nodes must be None unless", lambda: bare(40, 4, FullAttention(), num_nodes=9)),
    ("num_nodes must be None unless all groups", lambda: BlockManager(9, 4, num_nodes=9)),
    ("num_nodes must be in", lambda: bare(num_nodes=0)),
    ("groups must have one that is no ring", lambda: bare(40, 4, Ring(4))),
    ("FullAttention for idle_front", lambda: bare().idle_front(1)),
    ("FullAttention for prefix_of", lambda: bare().prefix_of(1)),
    (
        "FullAttention for tiers",
        lambda: TieredManager(
            40, 4, groups=[WINDOW], null_block=True, tiers=[TierConfig(num_blocks=4)]
        ),
    ),
]


@pytest.mark.parametrize(("message", "make"), REFUSED, ids=[message for message, _ in REFUSED])
def test_what_needs_blocks_of_nodes_is_refused_by_name(
    message: str, make: Callable[[], object]
) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_by_default_there_are_nodes_for_long_prefixes() -> None:
    # 1,000 blocks: 8 ends of a window of 2,000 tokens, with 512 nodes each.
    assert default_nodes([SlidingWindow(2000)], 16, 1000) == 8 * 512
    assert default_nodes([RecurrentState()], 16, 100) == 100 * 512
    assert default_nodes([RecurrentState()], 16, 10**5) == 2**20
    assert default_nodes([SlidingWindow(10**6)], 16, 1000) == 1000
    assert bare(1001, 16, SlidingWindow(2000)).block_tables.shape[1] == 8 * 512


# Random runs


@pytest.mark.parametrize("layout", BARE, ids=", ".join)
def test_with_few_nodes_no_engine_reads_anything_wrong(layout: Layout) -> None:
    options = {"num_nodes": 24}
    worlds = [play(seed, layout, options=options).world for seed in range(12)]
    assert sum(world.found for world in worlds) > 12
    assert sum(world.manager.stats().evicted_blocks > 0 for world in worlds) > 3


def test_a_match_says_how_many_blocks_and_nodes_its_prompt_takes() -> None:
    manager = bare(40, 4, num_nodes=6)
    serve(manager, list(range(10)))
    match = manager.match([*range(10), *range(50, 58)])
    before = manager.stats()
    manager.admit([*range(10), *range(50, 58)])
    after = manager.stats()
    taken = before.free_blocks + before.idle_blocks - after.free_blocks - after.idle_blocks
    assert match.num_cached_tokens == 10
    assert taken == match.num_idle_blocks
