"""Any list of copies in one launch: an adversary runs the result of order_copies."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockmgr import CopyError
from blockmgr._core import order_copies
from tests.kv.pools import sequential, simultaneous

WORDS = 3
Pairs = list[tuple[int, int]]
Memory = list[list[tuple[int, int]]]

block = st.integers(0, 6)
lists = st.lists(st.tuples(block, block), max_size=12)
assignments = st.lists(block, min_size=7, max_size=7).map(
    lambda sources: list(zip(sources, range(7), strict=True))
)


def order(pairs: Sequence[tuple[int, int]], num_blocks: int = 7, in_order: bool = True) -> list:
    """The groups, each a list of moves."""
    columns = [[pair[side] for pair in pairs] for side in (0, 1)]
    starts, moves = order_copies(*columns, num_blocks, in_order)
    return [[tuple(move) for move in moves[a:b].tolist()] for a, b in itertools.pairwise(starts)]


def fresh_memory(num_blocks: int = 7) -> Memory:
    return [[(b, word) for word in range(WORDS)] for b in range(num_blocks)]


def run_adversarially(groups: list, memory: Memory, rng: random.Random) -> None:
    """Every word of every group is a separate thread; loads and stores interleave at random."""
    threads = [
        (word, iter([step for move in group for step in ((0, move), (1, move))]), [None, None])
        for group in groups
        for word in range(WORDS)
    ]
    while threads:
        thread = rng.choice(threads)
        word, steps, state = thread
        step = next(steps, None)
        if step is None:
            threads.remove(thread)
            continue
        stores, (source, destination) = step
        if not stores:
            state[0] = state[1] if source < 0 else memory[source][word]
        elif destination < 0:
            state[1] = state[0]
        else:
            memory[destination][word] = state[0]


@settings(max_examples=500)
@given(pairs=lists, seed=st.integers(0, 2**32))
def test_a_sequential_list_ends_as_if_done_one_after_the_other(pairs: Pairs, seed: int) -> None:
    memory = fresh_memory()
    expected = sequential(memory, pairs)
    expected = [list(words) for words in expected]
    run_adversarially(order(pairs), memory, random.Random(seed))
    assert memory == expected


@settings(max_examples=500)
@given(pairs=assignments, keep=st.sets(block), seed=st.integers(0, 2**32))
def test_a_simultaneous_list_ends_as_if_all_was_read_first(
    pairs: Pairs, keep: set[int], seed: int
) -> None:
    pairs = [pair for pair in pairs if pair[1] not in keep]
    memory = fresh_memory()
    expected = [list(words) for words in simultaneous(memory, pairs)]
    run_adversarially(order(pairs, in_order=False), memory, random.Random(seed))
    assert memory == expected


@given(pairs=lists)
def test_no_block_is_written_twice_or_without_need(pairs: Pairs) -> None:
    after = sequential(list(range(7)), pairs)
    written = [to for group in order(pairs) for _, to in group if to >= 0]
    assert sorted(written) == [b for b in range(7) if after[b] != b]


@given(pairs=lists)
def test_groups_are_as_small_as_order_allows(pairs: Pairs) -> None:
    """Moves that need not wait for each other are in different groups and can run in parallel."""
    groups = order(pairs)
    for group in groups:
        blocks = {to for _, to in group if to >= 0}
        sources = {source for source, _ in group if source >= 0}
        for other in groups:
            if other is not group:
                assert not blocks & {to for _, to in other}
                assert not sources & {to for _, to in other}
        reached = {group[-1][1]} if group[-1][0] < 0 else {group[-1][1], group[-1][0]}
        for _ in group:  # every write in the group depends on its last one
            reached |= {to for source, to in group if source in reached}
        assert blocks <= reached


@given(pairs=lists)
def test_a_register_is_saved_once_and_read_last(pairs: Pairs) -> None:
    for group in order(pairs):
        saves = [i for i, (_, to) in enumerate(group) if to < 0]
        loads = [i for i, (source, _) in enumerate(group) if source < 0]
        assert (len(saves), loads) in ((0, []), (1, [len(group) - 1]))


def test_lists_worked_by_hand() -> None:
    assert order([]) == order([(3, 3)]) == order([(1, 2), (2, 1), (1, 1)])[1:] == []
    assert order([(0, 1), (1, 2)]) == [[(0, 2)], [(0, 1)]]  # a chain becomes two copies of its root
    assert order([(1, 2), (0, 1)]) == [[(1, 2), (0, 1)]]
    swap = order([(0, 1), (1, 0)], in_order=False)
    assert swap in ([[(0, -1), (1, 0), (-1, 1)]], [[(1, -1), (0, 1), (-1, 0)]])
    assert order([(0, 1), (2, 1)]) == [[(2, 1)]]  # the last one wins


def test_a_cycle_with_a_tail_reads_the_tail_first() -> None:
    [group] = order([(0, 1), (1, 0), (0, 2)], in_order=False)
    assert group[0] == (0, 2)
    assert len(group) == 4


def test_a_hundred_thousand_pairs_take_a_moment_and_any_ids() -> None:
    rng = np.random.default_rng(0)
    limit = 2**31 - 1
    sources, destinations = rng.integers(0, limit, (2, 100_000))
    starts, moves = order_copies(sources, destinations, limit, True)
    assert starts[-1] == len(moves)
    assert np.array_equal(np.unique(moves[:, 1]), np.unique(destinations))


@pytest.mark.parametrize(
    ("pairs", "pair", "problem"),
    [
        ([(0, 1), (7, 1)], 1, r"source must be in \[0, 7\), got 7"),
        ([(0, -1)], 0, r"destination must be in \[0, 7\), got -1"),
        ([(-1, 0)], 0, r"source must be in \[0, 7\), got -1"),
        ([(0, 2**40)], 0, "got 1099511627776"),
    ],
)
def test_ids_out_of_range_are_refused(pairs: Pairs, pair: int, problem: str) -> None:
    for in_order in (True, False):
        with pytest.raises(CopyError, match=problem) as caught:
            order(pairs, in_order=in_order)
        assert caught.value.pair == pair


def test_only_in_order_may_a_block_be_written_twice() -> None:
    with pytest.raises(CopyError, match="destination 5 is the destination of pair 1 too") as caught:
        order([(0, 1), (1, 5), (2, 5)], in_order=False)
    assert caught.value.pair == 2


def test_columns_must_be_as_long_as_each_other() -> None:
    with pytest.raises(CopyError, match=r"as many as sources \(2\), got 1") as caught:
        order_copies([0, 1], [2], 7, True)
    assert caught.value.pair is None
