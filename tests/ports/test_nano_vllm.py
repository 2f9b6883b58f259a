"""nano-vllm's block manager on this core: the calls of each generation's scheduler."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from blockmgr import NeverFitsError, OutOfBlocksError, OutOfSequencesError, SequenceStateError
from blockmgr.ports.nano_vllm import BlockManager, LegacyBlockManager
from tests.ports.nano_driver import (
    ChunkedScheduler,
    Engine,
    FirstChunkedScheduler,
    FirstScheduler,
    Scheduler,
    Seq,
    said_alone,
)
from tests.unit.snapshot import snapshot

Manager = BlockManager | LegacyBlockManager
BOTH = pytest.mark.parametrize("kind", [BlockManager, LegacyBlockManager])


def seq(*tokens: int) -> Seq:
    return Seq("seq", list(tokens), max_new_tokens=8)


def start(blocks: Manager, *tokens: int) -> Seq:
    """A sequence with blocks of which no token is computed."""
    made = seq(*tokens)
    allocate(blocks, made)
    return made


def allocate(blocks: Manager, held: Seq) -> None:
    if isinstance(blocks, BlockManager):
        blocks.allocate(held, blocks.can_allocate(held))
    else:
        assert blocks.can_allocate(held)
        blocks.allocate(held)


def forward(blocks: Manager, held: Seq, sampled: int = 99) -> None:
    """Computes everything and samples a token, with the calls of each generation."""
    if isinstance(blocks, BlockManager):
        held.num_scheduled_tokens = len(held) - held.num_cached_tokens
        blocks.hash_blocks(held)
        held.num_cached_tokens += held.num_scheduled_tokens
    held.token_ids.append(sampled)


def cache(blocks: Manager, *tokens: int) -> list[int]:
    """Computes and frees a prompt; returns its blocks."""
    held = start(blocks, *tokens)
    forward(blocks, held)
    table = list(held.block_table)
    blocks.deallocate(held)
    return table


@contextmanager
def refused(blocks: Manager, held: Seq, error: type[Exception], match: str) -> Iterator[None]:
    """The call inside raises exactly this error; manager and sequence do not change."""
    before = snapshot(blocks.manager), dict(vars(held)), list(held.block_table)
    with pytest.raises(error, match=match) as caught:
        yield
    assert type(caught.value) is error
    assert (snapshot(blocks.manager), dict(vars(held)), list(held.block_table)) == before
    blocks.check_invariants()


# The scheduler's loop.

LOOPS: dict[str, tuple[type[Scheduler], type[Manager]]] = {
    "present": (ChunkedScheduler, BlockManager),
    "first": (FirstScheduler, LegacyBlockManager),
    "first, chunked": (FirstChunkedScheduler, LegacyBlockManager),
}


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


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("dedup", ["remap", "append_only"])
def test_a_thousand_requests_with_sharing_preemption_and_chunks(
    loop: str, dedup: str, digest: Any
) -> None:
    """The books are right before and after each forward, and every output is as if alone."""
    scheduler_type, manager_type = LOOPS[loop]
    blocks = manager_type(40, 4, max_seqs=16, dedup=dedup, digest=digest)
    chunked = "chunked" in loop or scheduler_type is ChunkedScheduler
    scheduler = scheduler_type(blocks, token_budget=20 if chunked else 40, max_seqs=12)
    engine = Engine(scheduler, num_blocks=40, vocabulary=4)
    rng = random.Random(f"{loop} {dedup}")
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
    assert not chunked or scheduler.counts["chunks"] > 20
    assert blocks.manager.stats().deduplicated_blocks > 10


# One rule each, for both generations.


@BOTH
def test_allocate_gives_a_block_for_every_started_block_of_tokens(kind: type[Manager]) -> None:
    blocks = kind(8, 4)
    held = start(blocks, *range(9))
    assert len(set(held.block_table)) == 3
    assert held.num_cached_tokens == 0
    assert blocks.used_block_ids == set(held.block_table)
    assert set(blocks.free_block_ids) == set(range(8)) - set(held.block_table)


@BOTH
def test_a_computed_prefix_is_found_in_the_very_blocks(kind: type[Manager]) -> None:
    blocks = kind(8, 4)
    table = cache(blocks, 1, 2, 3, 4, 5, 6, 7, 8, 9)
    held = start(blocks, 1, 2, 3, 4, 5, 6, 7, 8, 10)
    assert held.block_table[:2] == table[:2]
    assert held.num_cached_tokens == 8


@BOTH
def test_nothing_is_found_before_it_is_computed(kind: type[Manager]) -> None:
    """The first generation caches a prompt when it is allocated.

    A chunked or aborted prompt can then be read before it is written.
    """
    blocks = kind(8, 4)
    first = start(blocks, *range(8), 1)
    second = start(blocks, *range(8), 2)
    assert second.num_cached_tokens == 0
    assert not set(first.block_table) & set(second.block_table)
    blocks.deallocate(first)
    assert start(blocks, *range(8), 3).num_cached_tokens == 0


@BOTH
def test_one_token_of_a_cached_prompt_is_left_to_compute(kind: type[Manager]) -> None:
    """The original schedules a prompt of exactly one cached block with zero tokens."""
    blocks = kind(8, 4)
    cache(blocks, 1, 2, 3, 4, 5)
    assert start(blocks, 1, 2, 3, 4).num_cached_tokens == 0


@BOTH
def test_a_block_is_added_only_when_the_last_one_is_full(kind: type[Manager]) -> None:
    blocks = kind(8, 4)
    held = start(blocks, 1, 2, 3)
    for length, num_blocks in ((4, 1), (5, 2), (8, 2), (9, 3)):
        while len(held) < length:
            forward(blocks, held)
            blocks.may_append(held)
        assert len(held.block_table) == num_blocks
    assert held.block_table == blocks.manager.sequence(*blocks.manager.handles()).block_ids.tolist()


@BOTH
def test_blocks_of_one_token_grow_with_every_token(kind: type[Manager]) -> None:
    """The original allocates if length modulo block size is 1, which never holds."""
    blocks = kind(3, 1)
    held = start(blocks, 1)
    forward(blocks, held)
    assert blocks.can_append(held)
    blocks.may_append(held)
    assert len(held.block_table) == 2
    start(blocks, 7)
    forward(blocks, held)
    assert not blocks.can_append(held)


@BOTH
def test_may_append_without_a_sampled_token_adds_nothing(kind: type[Manager]) -> None:
    """The original adds a block too many after a recomputation without sampling."""
    blocks = kind(2, 4)
    held = start(blocks, 1, 2, 3, 4, 5)
    table = list(held.block_table)
    assert blocks.can_append(held)
    blocks.may_append(held)
    assert held.block_table == table


@BOTH
def test_can_append_says_when_blocks_run_out(kind: type[Manager]) -> None:
    blocks = kind(2, 4)
    held, other = start(blocks, 1, 2, 3, 4), start(blocks, 5)
    forward(blocks, held)
    assert not blocks.can_append(held)
    blocks.deallocate(other)
    assert blocks.can_append(held)
    blocks.may_append(held)
    assert len(held.block_table) == 2


@BOTH
def test_a_preempted_sequence_finds_itself_again(kind: type[Manager]) -> None:
    blocks = kind(8, 4)
    held = start(blocks, *range(10))
    forward(blocks, held)
    table = list(held.block_table)
    blocks.deallocate(held)
    assert (held.block_table, held.num_cached_tokens) == ([], 0)
    allocate(blocks, held)
    assert held.num_cached_tokens == 8
    assert held.block_table[:2] == table[:2]


@BOTH
def test_cached_blocks_make_room_when_nothing_is_free(kind: type[Manager]) -> None:
    blocks = kind(3, 4)
    cache(blocks, *range(12))
    assert len(blocks.free_block_ids) == 3
    assert len(start(blocks, *[7] * 12).block_table) == 3


@BOTH
def test_equal_blocks_filled_side_by_side_become_one(kind: type[Manager]) -> None:
    """The original keeps both and forgets one of them."""
    blocks = kind(8, 4)
    pair = [start(blocks, 1, 2, 3, 4, 5), start(blocks, 1, 2, 3, 4, 6)]
    for held in pair:
        forward(blocks, held)
    for held in pair:
        blocks.may_append(held)
    assert pair[0].block_table[0] == pair[1].block_table[0]
    assert len(blocks.used_block_ids) == 3


@BOTH
def test_append_only_tables_never_change(kind: type[Manager]) -> None:
    blocks = kind(8, 4, dedup="append_only")
    pair = [start(blocks, 1, 2, 3, 4, 5), start(blocks, 1, 2, 3, 4, 6)]
    tables = [list(held.block_table) for held in pair]
    for held in pair:
        forward(blocks, held)
        blocks.may_append(held)
    assert [held.block_table for held in pair] == tables


@BOTH
def test_free_blocks_stand_in_the_order_they_are_handed_out(kind: type[Manager]) -> None:
    """Empty blocks come first, then cached ones, the end of a finished prompt first."""
    blocks = kind(4, 4)
    table = cache(blocks, *range(12))
    free = blocks.free_block_ids
    assert list(free)[2:] == table[1::-1]
    start(blocks, *[7] * 12)
    assert blocks.free_block_ids == free.__class__([table[0]])


@BOTH
def test_without_prefix_caching_nothing_is_found(kind: type[Manager]) -> None:
    blocks = kind(8, 4, prefix_caching=False)
    cache(blocks, *range(9))
    assert start(blocks, *range(9)).num_cached_tokens == 0


@BOTH
def test_sequences_are_told_apart_by_identity(kind: type[Manager]) -> None:
    """Two requests with the same prompt count as two holders."""
    blocks = kind(8, 4)
    pair = [start(blocks, 1, 2), start(blocks, 1, 2)]
    blocks.deallocate(pair[0])
    assert blocks.used_block_ids == set(pair[1].block_table)


def test_hashes_are_nano_vllms() -> None:
    """Computed from the formula: XXH64 of the parent's eight bytes and the tokens as int64."""
    first = BlockManager.compute_hash(list(range(1, 17)))
    assert first == 12258205949268247123
    second = LegacyBlockManager.compute_hash(list(range(17, 33)), first)
    assert second == 17485596207235398450


# The present generation.


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


@pytest.mark.parametrize("num_cached_blocks", [-1, 0, 2, None])
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


# The first generation.


def test_the_first_can_allocate_is_a_bool_that_counts_shared_blocks_once() -> None:
    blocks = LegacyBlockManager(4, 4)
    held = start(blocks, *range(9))
    forward(blocks, held)
    blocks.may_append(held)
    assert blocks.can_allocate(seq(*range(9))) is True
    assert blocks.can_allocate(seq(*range(13), 9)) is False


def test_a_block_is_found_from_the_next_step_on() -> None:
    blocks = LegacyBlockManager(8, 4)
    held = start(blocks, *range(8))
    forward(blocks, held)
    blocks.may_append(held)
    assert start(blocks, *range(9)).num_cached_tokens == 8


def test_a_token_counted_as_cached_early_is_not_published() -> None:
    """With the first interface, a scheduler counts a token as cached when it samples it."""
    blocks = LegacyBlockManager(8, 4)
    held = start(blocks, 1, 2, 3)
    forward(blocks, held, sampled=4)
    held.num_cached_tokens = 4
    blocks.may_append(held)
    blocks.deallocate(held)  # before the forward that writes token 4
    assert start(blocks, 1, 2, 3, 4, 5).num_cached_tokens == 0


def test_chunks_that_were_computed_outlive_an_abort() -> None:
    blocks = LegacyBlockManager(8, 4)
    held = start(blocks, *range(12))
    held.num_cached_tokens = 8
    blocks.deallocate(held)
    assert start(blocks, *range(12)).num_cached_tokens == 8


# Wrong calls.


@BOTH
def test_deallocating_twice_is_refused(kind: type[Manager]) -> None:
    blocks = kind(8, 4)
    held = start(blocks, 1)
    blocks.deallocate(held)
    with refused(blocks, held, SequenceStateError, "holds no blocks"):
        blocks.deallocate(held)


@BOTH
@pytest.mark.parametrize("call", ["can_append", "may_append", "deallocate"])
def test_a_sequence_without_blocks_is_refused(kind: type[Manager], call: str) -> None:
    blocks = kind(8, 4)
    start(blocks, 1)
    held = seq(1)
    with refused(blocks, held, SequenceStateError, "holds no blocks"):
        getattr(blocks, call)(held)


def test_hashing_a_sequence_without_blocks_is_refused() -> None:
    blocks = BlockManager(8, 4)
    held = seq(1)
    with refused(blocks, held, SequenceStateError, "holds no blocks"):
        blocks.hash_blocks(held)


@BOTH
def test_allocating_twice_is_refused(kind: type[Manager]) -> None:
    blocks = kind(8, 4)
    held = start(blocks, 1)
    with refused(blocks, held, SequenceStateError, "holds blocks already"):
        allocate(blocks, held)


@BOTH
def test_a_foreign_block_table_is_refused(kind: type[Manager]) -> None:
    blocks = kind(8, 4)
    held = seq(1)
    held.block_table = [3]
    with refused(blocks, held, SequenceStateError, "holds blocks already"):
        allocate(blocks, held)


@BOTH
def test_a_prompt_larger_than_the_pool_is_refused_at_once(kind: type[Manager]) -> None:
    """The original lets it wait forever."""
    blocks = kind(2, 4)
    held = seq(*range(9))
    with refused(blocks, held, NeverFitsError, "9 tokens need 3 blocks of 4, there are 2"):
        blocks.can_allocate(held)


@BOTH
def test_a_sequence_that_outgrows_the_pool_is_refused(kind: type[Manager]) -> None:
    """The original preempts all others in vain."""
    blocks = kind(2, 4)
    held = start(blocks, *range(8))
    forward(blocks, held)
    with refused(blocks, held, NeverFitsError, "9 tokens need 3 blocks of 4, there are 2"):
        blocks.can_append(held)
    with refused(blocks, held, NeverFitsError, "blocks"):
        blocks.may_append(held)


@BOTH
def test_appending_without_room_is_refused(kind: type[Manager]) -> None:
    blocks = kind(2, 4)
    held, _ = start(blocks, *range(4)), start(blocks, 7)
    forward(blocks, held)
    with refused(blocks, held, OutOfBlocksError, "need 1 blocks, 0 available"):
        blocks.may_append(held)


def test_allocating_without_room_is_refused() -> None:
    for blocks in (BlockManager(2, 4), LegacyBlockManager(2, 4)):
        start(blocks, *range(5))
        held = seq(9)
        arguments = (0,) if isinstance(blocks, BlockManager) else ()
        with refused(blocks, held, OutOfBlocksError, "need 1 blocks, 0 available"):
            blocks.allocate(held, *arguments)


@BOTH
def test_a_sequence_that_lost_tokens_is_refused(kind: type[Manager]) -> None:
    blocks = kind(8, 4)
    held = start(blocks, 1, 2, 3)
    del held.token_ids[1:]
    with refused(blocks, held, SequenceStateError, "had 3 tokens and has 1"):
        blocks.may_append(held)


@BOTH
def test_a_sequence_that_lost_tokens_cannot_be_asked_about(kind: type[Manager]) -> None:
    blocks = kind(8, 4)
    held = start(blocks, 1, 2, 3)
    del held.token_ids[1:]
    with refused(blocks, held, SequenceStateError, "had 3 tokens and has 1"):
        blocks.can_append(held)


@BOTH
@pytest.mark.parametrize("wrong", [None, 3, [1, 2], "x"])
def test_what_is_no_sequence_is_refused_by_name(kind: type[Manager], wrong: Any) -> None:
    blocks = kind(8, 4)
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


@BOTH
def test_no_tokens_are_refused(kind: type[Manager]) -> None:
    blocks = kind(8, 4)
    held = seq()
    with refused(blocks, held, ValueError, "tokens"):
        blocks.can_allocate(held)
    with refused(blocks, held, ValueError, "tokens"):
        allocate(blocks, held)


@BOTH
@pytest.mark.parametrize(
    ("token", "error"), [(-1, ValueError), (2**32, ValueError), ("a", TypeError)]
)
def test_a_bad_token_is_refused(kind: type[Manager], token: Any, error: type[Exception]) -> None:
    blocks = kind(8, 4)
    held = start(blocks, 1)
    held.token_ids.append(token)
    with refused(blocks, held, error, "tokens"):
        blocks.may_append(held)


@pytest.mark.parametrize(
    ("tokens", "prefix", "error", "match"),
    [
        ([1.5], -1, TypeError, "token_ids must be an int, got 1.5"),
        ([True], -1, TypeError, "token_ids must be an int, got True"),
        ([-1], -1, ValueError, "token_ids must be in"),
        ([2**63], -1, ValueError, "token_ids must be in"),
        ([1], 1.5, TypeError, "prefix must be an int, got 1.5"),
        ([1], True, TypeError, "prefix must be an int, got True"),
    ],
)
def test_a_hash_of_what_are_no_tokens_is_refused(
    tokens: Any, prefix: Any, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        BlockManager.compute_hash(tokens, prefix)


@pytest.mark.parametrize("prefix", [-2, 2**64])
def test_a_hash_prefix_out_of_bounds_is_refused(prefix: int) -> None:
    with pytest.raises(ValueError, match="prefix must be"):
        BlockManager.compute_hash([1], prefix)


@BOTH
@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 4), (-1, 4), (4, 0), (4, -2)])
def test_a_pool_of_no_or_negative_size_is_refused(
    kind: type[Manager], num_blocks: int, block_size: int
) -> None:
    with pytest.raises(ValueError, match="must be in"):
        kind(num_blocks, block_size)


def test_eight_prompts_of_one_step_take_forty_blocks_in_either_interface() -> None:
    """The numbers in guides/ports.md for prompts that share 64 of 65 tokens, in blocks of 16."""
    prompts = [[*range(64), 100 + i] for i in range(8)]
    for kind in (LegacyBlockManager, BlockManager):
        for is_computed, expected in ((False, 40), (True, 12)):
            blocks: Any = kind(64, 16)
            for i, prompt in enumerate(prompts):
                seq = Seq(str(i), prompt, max_new_tokens=4)
                found = blocks.can_allocate(seq)
                blocks.allocate(seq, *([found] if kind is BlockManager else []))
                if is_computed and i == 0:  # its step has ended
                    seq.num_scheduled_tokens = 65
                    if kind is BlockManager:
                        blocks.hash_blocks(seq)
                    seq.token_ids.append(7)
                    blocks.may_append(seq)
            assert len(blocks.used_block_ids) == expected, (kind, is_computed)
