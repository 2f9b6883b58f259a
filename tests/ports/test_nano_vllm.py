"""nano-vllm's block manager on this core: the calls of its scheduler."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pytest

from blockmgr import NeverFitsError, OutOfBlocksError, OutOfSequencesError, SequenceStateError
from blockmgr.ports.nano_vllm import BlockManager
from tests.ports.nano_driver import Engine, Scheduler, Seq, said_alone
from tests.unit.snapshot import snapshot


def seq(*tokens: int) -> Seq:
    return Seq("seq", list(tokens), max_new_tokens=8)


def start(blocks: BlockManager, *tokens: int) -> Seq:
    """A sequence with blocks of which no token is computed."""
    made = seq(*tokens)
    allocate(blocks, made)
    return made


def allocate(blocks: BlockManager, held: Seq) -> None:
    blocks.allocate(held, blocks.can_allocate(held))


def forward(blocks: BlockManager, held: Seq, sampled: int = 99) -> None:
    """Computes everything and samples a token."""
    held.num_scheduled_tokens = len(held) - held.num_cached_tokens
    blocks.hash_blocks(held)
    held.num_cached_tokens += held.num_scheduled_tokens
    held.token_ids.append(sampled)


def cache(blocks: BlockManager, *tokens: int) -> list[int]:
    """Computes and frees a prompt; returns its blocks."""
    held = start(blocks, *tokens)
    forward(blocks, held)
    table = list(held.block_table)
    blocks.deallocate(held)
    return table


@contextmanager
def refused(blocks: BlockManager, held: Seq, error: type[Exception], match: str) -> Iterator[None]:
    """The call inside raises exactly this error; manager and sequence do not change."""
    before = snapshot(blocks.manager), dict(vars(held)), list(held.block_table)
    with pytest.raises(error, match=match) as caught:
        yield
    assert type(caught.value) is error
    assert (snapshot(blocks.manager), dict(vars(held)), list(held.block_table)) == before
    blocks.manager.check_invariants()


# The scheduler's loop.


def requests(rng: random.Random, count: int) -> list[Seq]:
    """Prompts of 1 to 36 tokens; most start with one of five shared texts."""
    shared = [[rng.randrange(4) for _ in range(rng.randrange(3, 26))] for _ in range(5)]
    return [
        Seq(
            f"request {n}",
            rng.choice([*shared, []]) + [rng.randrange(4) for _ in range(rng.randrange(1, 11))],
            max_new_tokens=rng.randrange(1, 13),
        )
        for n in range(count)
    ]


@pytest.mark.parametrize("dedup", ["remap", "append_only"])
def test_a_thousand_requests_with_sharing_preemption_and_chunks(
    dedup: Literal["remap", "append_only"], digest: Any
) -> None:
    """The books are right before and after each forward, and every output is as if alone."""
    blocks = BlockManager(40, 4, max_seqs=16, dedup=dedup, digest=digest)
    scheduler = Scheduler(blocks, token_budget=20, max_seqs=12)
    engine = Engine(scheduler, num_blocks=40, vocabulary=4)
    rng = random.Random(f"present {dedup}")
    seqs = requests(rng, 1_000)
    arrivals = list(reversed(seqs))
    while arrivals or scheduler.waiting or scheduler.running:
        for _ in range(rng.randrange(4)):
            if arrivals:
                scheduler.waiting.append(arrivals.pop())
        if scheduler.waiting or scheduler.running:
            engine.step()
    assert [s.token_ids for s in seqs] == [said_alone(s, 4, 4) for s in seqs]
    assert blocks.manager.num_available == 40
    assert blocks.manager.handles() == []
    assert len(blocks.manager.take_copies()) == 0
    assert scheduler.counts["cached tokens"] == blocks.manager.stats().hit_tokens > 2_000
    assert scheduler.counts["preemptions"] > 20
    assert scheduler.counts["chunks"] > 20
    assert blocks.manager.stats().deduplicated_blocks > 10


# One rule each.


def test_allocate_gives_a_block_for_every_started_block_of_tokens() -> None:
    blocks = BlockManager(8, 4)
    held = start(blocks, *range(9))
    assert len(set(held.block_table)) == 3
    assert held.num_cached_tokens == 0
    assert blocks.manager.num_available == 5


def test_a_computed_prefix_is_found_in_the_very_blocks() -> None:
    blocks = BlockManager(8, 4)
    table = cache(blocks, 1, 2, 3, 4, 5, 6, 7, 8, 9)
    held = start(blocks, 1, 2, 3, 4, 5, 6, 7, 8, 10)
    assert held.block_table[:2] == table[:2]
    assert held.num_cached_tokens == 8


def test_nothing_is_found_before_it_is_computed() -> None:
    """The first generation caches a prompt when it is allocated.

    A chunked or aborted prompt can then be read before it is written.
    """
    blocks = BlockManager(8, 4)
    first = start(blocks, *range(8), 1)
    second = start(blocks, *range(8), 2)
    assert second.num_cached_tokens == 0
    assert not set(first.block_table) & set(second.block_table)
    blocks.deallocate(first)
    assert start(blocks, *range(8), 3).num_cached_tokens == 0


def test_one_token_of_a_cached_prompt_is_left_to_compute() -> None:
    """The original schedules a prompt of exactly one cached block with zero tokens."""
    blocks = BlockManager(8, 4)
    cache(blocks, 1, 2, 3, 4, 5)
    assert start(blocks, 1, 2, 3, 4).num_cached_tokens == 0


def test_a_block_is_added_only_when_the_last_one_is_full() -> None:
    blocks = BlockManager(8, 4)
    held = start(blocks, 1, 2, 3)
    for length, num_blocks in ((4, 1), (5, 2), (8, 2), (9, 3)):
        while len(held) < length:
            forward(blocks, held)
            blocks.may_append(held)
        assert len(held.block_table) == num_blocks
    assert held.block_table == blocks.manager.sequence(*blocks.manager.handles()).block_ids.tolist()


def test_blocks_of_one_token_grow_with_every_token() -> None:
    """The original allocates if length modulo block size is 1, which never holds."""
    blocks = BlockManager(3, 1)
    held = start(blocks, 1)
    forward(blocks, held)
    assert blocks.can_append(held)
    blocks.may_append(held)
    assert len(held.block_table) == 2
    start(blocks, 7)
    forward(blocks, held)
    assert not blocks.can_append(held)


def test_may_append_without_a_sampled_token_adds_nothing() -> None:
    """The original adds a block too many after a recomputation without sampling."""
    blocks = BlockManager(2, 4)
    held = start(blocks, 1, 2, 3, 4, 5)
    table = list(held.block_table)
    assert blocks.can_append(held)
    blocks.may_append(held)
    assert held.block_table == table


def test_can_append_says_when_blocks_run_out() -> None:
    blocks = BlockManager(2, 4)
    held, other = start(blocks, 1, 2, 3, 4), start(blocks, 5)
    forward(blocks, held)
    assert not blocks.can_append(held)
    blocks.deallocate(other)
    assert blocks.can_append(held)
    blocks.may_append(held)
    assert len(held.block_table) == 2


def test_a_preempted_sequence_finds_itself_again() -> None:
    blocks = BlockManager(8, 4)
    held = start(blocks, *range(10))
    forward(blocks, held)
    table = list(held.block_table)
    blocks.deallocate(held)
    assert (held.block_table, held.num_cached_tokens) == ([], 0)
    allocate(blocks, held)
    assert held.num_cached_tokens == 8
    assert held.block_table[:2] == table[:2]


def test_cached_blocks_make_room_when_nothing_is_free() -> None:
    blocks = BlockManager(3, 4)
    cache(blocks, *range(12))
    assert blocks.manager.num_available == 3
    assert len(start(blocks, *[7] * 12).block_table) == 3


def test_equal_blocks_filled_side_by_side_become_one() -> None:
    """The original keeps both and forgets one of them."""
    blocks = BlockManager(8, 4)
    pair = [start(blocks, 1, 2, 3, 4, 5), start(blocks, 1, 2, 3, 4, 6)]
    for held in pair:
        forward(blocks, held)
    for held in pair:
        blocks.may_append(held)
    assert pair[0].block_table[0] == pair[1].block_table[0]
    assert blocks.manager.num_available == 5


def test_append_only_tables_never_change() -> None:
    blocks = BlockManager(8, 4, dedup="append_only")
    pair = [start(blocks, 1, 2, 3, 4, 5), start(blocks, 1, 2, 3, 4, 6)]
    tables = [list(held.block_table) for held in pair]
    for held in pair:
        forward(blocks, held)
        blocks.may_append(held)
    assert [held.block_table for held in pair] == tables


def test_without_prefix_caching_nothing_is_found() -> None:
    blocks = BlockManager(8, 4, prefix_caching=False)
    cache(blocks, *range(9))
    assert start(blocks, *range(9)).num_cached_tokens == 0


def test_sequences_are_told_apart_by_identity() -> None:
    """Two requests with the same prompt count as two holders."""
    blocks = BlockManager(8, 4)
    pair = [start(blocks, 1, 2), start(blocks, 1, 2)]
    blocks.deallocate(pair[0])
    assert blocks.manager.num_available == 7
    assert len(pair[1].block_table) == 1


def test_can_allocate_counts_the_cached_blocks() -> None:
    blocks = BlockManager(8, 4)
    assert blocks.can_allocate(seq(*range(9))) == 0
    cache(blocks, *range(9))
    assert blocks.can_allocate(seq(*range(9))) == 2
    assert blocks.can_allocate(seq(*range(8))) == 1


def test_can_allocate_counts_blocks_in_use_as_room_and_idle_ones_not() -> None:
    blocks = BlockManager(4, 4)
    first = start(blocks, *range(9))
    forward(blocks, first)
    assert blocks.can_allocate(seq(*range(9))) == 2  # two shared, one fresh
    assert blocks.can_allocate(seq(*range(13), 9)) == -1  # two shared, two fresh
    blocks.deallocate(first)
    other = start(blocks, 7, 7, 7, 7, 7)
    assert blocks.can_allocate(seq(*range(9))) == -1  # two are idle, and no others are available
    blocks.deallocate(other)


def test_can_allocate_changes_nothing() -> None:
    blocks = BlockManager(8, 4)
    cache(blocks, *range(9))
    before = snapshot(blocks.manager)
    blocks.can_allocate(seq(*range(9)))
    assert snapshot(blocks.manager) == before


def test_hash_blocks_publishes_chunk_by_chunk() -> None:
    blocks = BlockManager(8, 4)
    held = start(blocks, *range(12))
    for chunk, found in ((6, 1), (3, 2)):
        held.num_scheduled_tokens = chunk
        blocks.hash_blocks(held)
        held.num_cached_tokens += chunk
        assert blocks.can_allocate(seq(*range(12), 12)) == found


@pytest.mark.parametrize("num_cached_blocks", [-1, 0, 2])
def test_a_stale_count_of_cached_blocks_is_refused(num_cached_blocks: Any) -> None:
    """The scheduler sizes its step by that count; with another count it reads out of bounds."""
    blocks = BlockManager(8, 4)
    cache(blocks, *range(5))
    held = seq(*range(9))
    with refused(blocks, held, ValueError, "num_cached_blocks must be 1"):
        blocks.allocate(held, num_cached_blocks)


def test_more_cannot_be_computed_than_there_is() -> None:
    blocks = BlockManager(8, 4)
    held = start(blocks, *range(5))
    held.num_scheduled_tokens = 6
    with refused(blocks, held, ValueError, r"must be in \[0, 5\], got 6"):
        blocks.hash_blocks(held)


def test_less_cannot_be_computed_than_before() -> None:
    blocks = BlockManager(8, 4)
    held = start(blocks, *range(5))
    forward(blocks, held)
    held.num_cached_tokens, held.num_scheduled_tokens = 1, 1
    with refused(blocks, held, ValueError, r"must be in \[5, 5\], got 2"):
        blocks.hash_blocks(held)


def test_can_allocate_waits_for_a_row() -> None:
    blocks = BlockManager(8, 4, max_seqs=1)
    held = start(blocks, 1)
    waiting = seq(2)
    assert blocks.can_allocate(waiting) == -1
    with refused(blocks, waiting, OutOfSequencesError, "max_seqs"):
        blocks.allocate(waiting, 0)
    blocks.deallocate(held)
    assert blocks.can_allocate(waiting) == 0


# Wrong calls.


def test_deallocating_twice_is_refused() -> None:
    blocks = BlockManager(8, 4)
    held = start(blocks, 1)
    blocks.deallocate(held)
    with refused(blocks, held, SequenceStateError, "holds no blocks"):
        blocks.deallocate(held)


@pytest.mark.parametrize("call", ["can_append", "may_append", "deallocate"])
def test_a_sequence_without_blocks_is_refused(call: str) -> None:
    blocks = BlockManager(8, 4)
    start(blocks, 1)
    held = seq(1)
    with refused(blocks, held, SequenceStateError, "holds no blocks"):
        getattr(blocks, call)(held)


def test_hashing_a_sequence_without_blocks_is_refused() -> None:
    blocks = BlockManager(8, 4)
    held = seq(1)
    with refused(blocks, held, SequenceStateError, "holds no blocks"):
        blocks.hash_blocks(held)


def test_allocating_twice_is_refused() -> None:
    blocks = BlockManager(8, 4)
    held = start(blocks, 1)
    with refused(blocks, held, SequenceStateError, "holds blocks already"):
        allocate(blocks, held)


def test_a_foreign_block_table_is_refused() -> None:
    blocks = BlockManager(8, 4)
    held = seq(1)
    held.block_table = [3]
    with refused(blocks, held, SequenceStateError, "holds blocks already"):
        allocate(blocks, held)


def test_a_prompt_larger_than_the_pool_is_refused_at_once() -> None:
    """The original lets it wait forever."""
    blocks = BlockManager(2, 4)
    held = seq(*range(9))
    with refused(blocks, held, NeverFitsError, "9 tokens need 3 blocks of 4, there are 2"):
        blocks.can_allocate(held)


def test_a_sequence_that_outgrows_the_pool_is_refused() -> None:
    """The original preempts all others in vain."""
    blocks = BlockManager(2, 4)
    held = start(blocks, *range(8))
    forward(blocks, held)
    with refused(blocks, held, NeverFitsError, "9 tokens need 3 blocks of 4, there are 2"):
        blocks.can_append(held)
    with refused(blocks, held, NeverFitsError, "blocks"):
        blocks.may_append(held)


def test_appending_without_room_is_refused() -> None:
    blocks = BlockManager(2, 4)
    held, _ = start(blocks, *range(4)), start(blocks, 7)
    forward(blocks, held)
    with refused(blocks, held, OutOfBlocksError, "need 1 blocks, 0 available"):
        blocks.may_append(held)


def test_allocating_without_room_is_refused() -> None:
    blocks = BlockManager(2, 4)
    start(blocks, *range(5))
    held = seq(9)
    with refused(blocks, held, OutOfBlocksError, "need 1 blocks, 0 available"):
        blocks.allocate(held, 0)


def test_a_sequence_that_lost_tokens_is_refused() -> None:
    blocks = BlockManager(8, 4)
    held = start(blocks, 1, 2, 3)
    del held.token_ids[1:]
    with refused(blocks, held, SequenceStateError, "had 3 tokens and has 1"):
        blocks.may_append(held)


def test_a_sequence_that_lost_tokens_cannot_be_asked_about() -> None:
    blocks = BlockManager(8, 4)
    held = start(blocks, 1, 2, 3)
    del held.token_ids[1:]
    with refused(blocks, held, SequenceStateError, "had 3 tokens and has 1"):
        blocks.can_append(held)


@pytest.mark.parametrize("wrong", [None, 3, [1, 2], "x"])
def test_what_is_no_sequence_is_refused_by_name(wrong: Any) -> None:
    blocks = BlockManager(8, 4)
    held = start(blocks, 1, 2, 3)
    with refused(blocks, held, TypeError, "seq must have token_ids, got "):
        blocks.can_allocate(wrong)
    with refused(blocks, held, TypeError, "seq must have token_ids, got "):
        allocate(blocks, wrong)
    for call in (blocks.can_append, blocks.may_append, blocks.deallocate):
        with refused(blocks, held, SequenceStateError, "holds no blocks"):
            call(wrong)


@pytest.mark.parametrize("scheduled", [1.5, True, None, "1"])
def test_a_schedule_that_is_no_int_is_refused(scheduled: Any) -> None:
    blocks = BlockManager(8, 4)
    held = start(blocks, 1, 2, 3)
    held.num_scheduled_tokens = scheduled
    with refused(blocks, held, TypeError, "num_scheduled_tokens must be an int"):
        blocks.hash_blocks(held)
    del held.num_scheduled_tokens
    with refused(blocks, held, TypeError, "seq must have num_scheduled_tokens"):
        blocks.hash_blocks(held)


def test_no_tokens_are_refused() -> None:
    blocks = BlockManager(8, 4)
    held = seq()
    with refused(blocks, held, ValueError, "tokens"):
        blocks.can_allocate(held)
    with refused(blocks, held, ValueError, "tokens"):
        allocate(blocks, held)


@pytest.mark.parametrize(
    ("token", "error"), [(-1, ValueError), (2**32, ValueError), ("a", TypeError)]
)
def test_a_bad_token_is_refused(token: Any, error: type[Exception]) -> None:
    blocks = BlockManager(8, 4)
    held = start(blocks, 1)
    held.token_ids.append(token)
    with refused(blocks, held, error, "tokens"):
        blocks.may_append(held)


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 4), (-1, 4), (4, 0), (4, -2)])
def test_a_pool_of_no_or_negative_size_is_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match="must be in"):
        BlockManager(num_blocks, block_size)
