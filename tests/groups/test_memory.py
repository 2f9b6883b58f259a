"""Tests of the oracle: what queries read, misused states, and copies that depend on order.

For each kind of layer, they cover the first position that a query reads and the last one that it
does not. A unit has 4 tokens; the one sequence has its positions as tokens, and blocks 1, 2, 3 and
so on.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tests.specification.layers import (
    Attention,
    ChunkedAttention,
    FullAttention,
    Kind,
    RecurrentState,
    SlidingWindow,
)
from tests.stress.memory import Device, Step, Work, WrongReadError, prefixes_of

STATE = RecurrentState()


Copies = Sequence[tuple[int, int, int]]


class Memory(Device):
    """A device of blocks of four tokens."""

    def __init__(self, *kinds: Kind, seed: int = 1) -> None:
        super().__init__(12, 4, random.Random(seed), kinds=kinds, null_block=True)

    def do(
        self,
        start: int,
        stop: int,
        *tables: tuple[int, ...],
        copies: Copies = (),
        tokens: Sequence[int] = range(24),
        namespace: bytes = b"",
    ) -> None:
        """One forward of one sequence."""
        self.step(copies, self.work(start, stop, *tables, tokens=tokens, namespace=namespace))

    def work(
        self,
        start: int,
        stop: int,
        *tables: tuple[int, ...],
        tokens: Sequence[int] = range(24),
        namespace: bytes = b"",
    ) -> Work:
        prefixes = prefixes_of(tokens[:stop], 4, namespace)
        return Work.on_tables("a sequence", prefixes, start, tables, kinds=self.kinds, block_size=4)

    def step(self, copies: Copies, *work: Work) -> None:
        self.forward(Step(0, list(copies), list(work)))


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
        memory = Memory(kind)
        memory.do(0, query, BLOCKS)
        memory.cells[4 + spoiled] = 0
        if spoiled >= first:
            with pytest.raises(WrongReadError):
                memory.do(query, query + 1, BLOCKS)
        else:
            memory.do(query, query + 1, BLOCKS)


@pytest.mark.parametrize("kind", [FullAttention(), SlidingWindow(5), ChunkedAttention(8)])
def test_keys_of_another_prefix_are_not_its_own(kind: Kind) -> None:
    """The token is the same but an earlier one differs; or the namespace differs."""
    memory = Memory(kind)
    memory.do(0, 13, BLOCKS, tokens=(7, *range(1, 13)))
    with pytest.raises(WrongReadError):
        memory.do(13, 14, BLOCKS)
    memory.do(0, 13, BLOCKS, namespace=b"t")
    with pytest.raises(WrongReadError):
        memory.do(13, 14, BLOCKS)


def test_a_batch_is_written_before_it_is_read() -> None:
    """Two sequences of one step share a block that one of them writes."""
    memory = Memory(FullAttention())
    memory.step([], memory.work(4, 6, (1, 2)), memory.work(0, 5, (1, 3)))


def test_a_group_does_not_read_what_another_one_wrote() -> None:
    memory = Memory(FullAttention(), SlidingWindow(4))
    memory.do(0, 4, (1,), (2,))
    with pytest.raises(WrongReadError):
        memory.do(4, 5, (2, 3), (1, 4))


def test_a_state_goes_on_from_where_it_stands() -> None:
    memory = Memory(STATE)
    memory.do(0, 3, (1,))
    memory.do(3, 8, (1,))
    for start in (3, 7, 9):  # used twice, early, late
        with pytest.raises(WrongReadError):
            memory.do(start, start + 1, (1,))
    memory.do(0, 2, (1,))  # from the first token on it needs none


def test_two_sequences_do_not_advance_one_state() -> None:
    memory = Memory(STATE)
    memory.do(0, 3, (1,))
    with pytest.raises(WrongReadError):
        memory.step([], memory.work(3, 4, (1,)), memory.work(3, 4, (1,)))


def test_a_state_is_whole_or_none() -> None:
    for part in range(5):
        memory = Memory(STATE)
        memory.do(0, 3, (1,))
        copies = [(1, 2, part)]
        if part < 4:
            with pytest.raises(WrongReadError):
                memory.do(3, 4, (2,), copies=copies)
        else:
            memory.do(3, 4, (2,), copies=copies)


def test_a_state_does_not_survive_a_cell_that_is_written_over_it() -> None:
    memory = Memory(STATE, FullAttention())
    memory.do(0, 3, (1,), (2,))
    memory.do(0, 1, (3,), (1,))
    with pytest.raises(WrongReadError):
        memory.do(3, 4, (1,), (2,))


def test_a_plan_that_depends_on_its_order_fails_in_some_order() -> None:
    failed = 0
    for seed in range(20):
        memory = Memory(FullAttention(), seed=seed)
        memory.do(0, 4, (1,))
        try:
            memory.do(4, 5, (3, 4), copies=[(1, 2, 4), (2, 3, 4)])
        except WrongReadError:
            failed += 1
    assert failed > 10


def test_a_copy_runs_before_the_writes_of_its_step() -> None:
    memory = Memory(FullAttention())
    memory.do(0, 4, (1,))
    over = memory.work(0, 4, (1,), tokens=(9, 9, 9, 9))
    memory.step([(1, 2, 4)], over, memory.work(4, 5, (2, 3)))


@pytest.mark.parametrize("tables", [((0, 2),), ((1,),)])
def test_the_null_block_and_what_is_not_there_are_never_read(
    tables: tuple[tuple[int, ...]],
) -> None:
    memory = Memory(FullAttention())
    memory.do(0, 4, (1,))
    with pytest.raises(WrongReadError):
        memory.do(4, 5, *tables)
    with pytest.raises(WrongReadError):
        memory.step([(0, 1, 1)])
