"""Tests of the oracle: what queries read, misused states, and copies that depend on order.

For each kind of layer, they cover the first position that a query reads and the last one that it
does not. A unit has 4 tokens; the one sequence has its positions as tokens, and blocks 1, 2, 3 and
so on.
"""

from __future__ import annotations

import random

import pytest

from tests.groups.memory import Copy, Memory, Work, WrongRead
from tests.specification.layers import (
    Attention,
    ChunkedAttention,
    FullAttention,
    Kind,
    RecurrentState,
    SlidingWindow,
)

STATE = RecurrentState()


def memory_of(*kinds: Kind, seed: int = 1) -> Memory:
    return Memory(12, 4, kinds, random.Random(seed))


def work(start: int, stop: int, *tables: tuple[int, ...], tokens: range = range(24)) -> Work:
    return Work("a sequence", (b"", tuple(tokens)), start, stop, tables)


BLOCKS = (1, 2, 3, 4, 5, 6)


@pytest.mark.parametrize(
    ("kind", "query", "first"),
    [
        (FullAttention(), 13, 0),
        (SlidingWindow(1), 13, 13),
        (SlidingWindow(2), 13, 12),
        (SlidingWindow(5), 13, 9),
        (SlidingWindow(14), 13, 0),
        (SlidingWindow(99), 13, 0),
        (ChunkedAttention(8), 7, 0),
        (ChunkedAttention(8), 8, 8),
        (ChunkedAttention(8), 13, 8),
        (ChunkedAttention(6), 11, 6),
        (ChunkedAttention(6), 12, 12),
        (ChunkedAttention(6), 13, 12),
    ],
)
def test_a_query_reads_from_its_first_position_on(kind: Attention, query: int, first: int) -> None:
    """By hand: query p of a window reads max(0, p - w + 1) to p; of a chunk, from its start."""
    for spoiled in range(query):
        memory = memory_of(kind)
        memory.run([], [work(0, query, BLOCKS)])
        memory.cells[1 + spoiled // 4][spoiled % 4] = None
        last = work(query, query + 1, BLOCKS)
        if spoiled >= first:
            with pytest.raises(WrongRead):
                memory.run([], [last])
        else:
            memory.run([], [last])


@pytest.mark.parametrize("kind", [FullAttention(), SlidingWindow(5), ChunkedAttention(8)])
def test_keys_of_another_prefix_are_not_its_own(kind: Kind) -> None:
    """The token is the same but an earlier one differs; or the namespace differs."""
    memory = memory_of(kind)
    memory.run([], [Work("other", (b"", (7, *range(1, 13))), 0, 13, (BLOCKS,))])
    with pytest.raises(WrongRead):
        memory.run([], [work(13, 14, BLOCKS)])
    memory.run([], [Work("tenant", (b"t", tuple(range(13))), 0, 13, (BLOCKS,))])
    with pytest.raises(WrongRead):
        memory.run([], [work(13, 14, BLOCKS)])


def test_a_batch_is_written_before_it_is_read() -> None:
    """Two sequences of one step share a block that one of them writes."""
    memory = memory_of(FullAttention())
    reader = work(4, 6, (1, 2))
    writer = work(0, 5, (1, 3))
    memory.run([], [reader, writer])


def test_a_group_does_not_read_what_another_one_wrote() -> None:
    memory = memory_of(FullAttention(), SlidingWindow(4))
    memory.run([], [work(0, 4, (1,), (2,))])
    with pytest.raises(WrongRead):
        memory.run([], [work(4, 5, (2, 3), (1, 4))])


def test_a_state_goes_on_from_where_it_stands() -> None:
    memory = memory_of(STATE)
    memory.run([], [work(0, 3, (1,))])
    memory.run([], [work(3, 8, (1,))])
    for start in (3, 7, 9):  # used twice, early, late
        with pytest.raises(WrongRead):
            memory.run([], [work(start, start + 1, (1,))])
    memory.run([], [work(0, 2, (1,))])  # from the first token on it needs none


def test_two_sequences_do_not_advance_one_state() -> None:
    memory = memory_of(STATE)
    memory.run([], [work(0, 3, (1,))])
    with pytest.raises(WrongRead):
        memory.run([], [work(3, 4, (1,)), work(3, 4, (1,))])


def test_a_state_is_whole_or_none() -> None:
    for part in range(5):
        memory = memory_of(STATE)
        memory.run([], [work(0, 3, (1,))])
        going_on = work(3, 4, (2,))
        copies = [Copy(0, 1, 2, part)]
        if part < 4:
            with pytest.raises(WrongRead):
                memory.run(copies, [going_on])
        else:
            memory.run(copies, [going_on])


def test_a_state_does_not_survive_a_cell_that_is_written_over_it() -> None:
    memory = memory_of(STATE, FullAttention())
    memory.run([], [work(0, 3, (1,), (2,))])
    memory.run([], [work(0, 1, (3,), (1,))])
    with pytest.raises(WrongRead):
        memory.run([], [work(3, 4, (1,), (2,))])


def test_a_plan_that_depends_on_its_order_fails_in_some_order() -> None:
    failed = 0
    for seed in range(20):
        memory = memory_of(FullAttention(), seed=seed)
        memory.run([], [work(0, 4, (1,))])
        try:
            memory.run([Copy(0, 1, 2, 4), Copy(0, 2, 3, 4)], [work(4, 5, (3, 4))])
        except WrongRead:
            failed += 1
    assert failed > 10


def test_a_copy_runs_before_the_writes_of_its_step() -> None:
    memory = memory_of(FullAttention())
    memory.run([], [work(0, 4, (1,))])
    over = Work("over", (b"", (9, 9, 9, 9)), 0, 4, ((1,),))
    memory.run([Copy(0, 1, 2, 4)], [over, work(4, 5, (2, 3))])


@pytest.mark.parametrize("tables", [((0, 2),), ((1,),)])
def test_the_null_block_and_what_is_not_there_are_never_read(
    tables: tuple[tuple[int, ...]],
) -> None:
    memory = memory_of(FullAttention())
    memory.run([], [work(0, 4, (1,))])
    with pytest.raises(WrongRead):
        memory.run([], [work(4, 5, *tables)])
    with pytest.raises(WrongRead):
        memory.run([Copy(0, 0, 1, 1)], [])
