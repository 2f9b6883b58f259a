"""nano-vllm's block manager on this core: the calls of its scheduler."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import pytest

from blockmgr import NeverFitsError, OutOfBlocksError, OutOfSequencesError, SequenceStateError
from blockmgr.ports.nano_vllm import BlockManager
from tests.fingerprints import unchanged
from tests.ports.nano_driver import Engine, Scheduler, Seq
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

    def facts() -> tuple[object, ...]:
        return snapshot(blocks.manager), dict(vars(held)), list(held.block_table)

    with unchanged(facts, error, match):
        yield
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
    engine.serve(requests(rng, 1_000), rng, most=3)
    assert blocks.manager.handles() == []
    assert len(blocks.manager.take_copies()) == 0
    assert scheduler.counts["cached tokens"] == blocks.manager.stats().hit_tokens > 2_000
    assert scheduler.counts["preemptions"] > 20
    assert scheduler.counts["chunks"] > 20
    assert blocks.manager.stats().deduplicated_blocks > 10


@pytest.mark.parametrize("dedup", ["remap", "append_only"])
def test_whatever_fits_alone_is_served(dedup: Literal["remap", "append_only"]) -> None:
    """In pools that are little larger than the longest request.

    Unused cached blocks must not be kept beside twins. Otherwise, under ``append_only``, a cached
    block that no table names stays beside a sequence's own twin, and a request that fits alone
    cannot be scheduled, in some 50 of 1,000 of these workloads.
    """
    for seed in range(200):
        rng = random.Random(f"present {seed}")
        size = rng.choice([1, 2, 4])
        shared = [[rng.randrange(2) for _ in range(rng.randrange(2, 12))] for _ in range(2)]
        seqs = [
            Seq(
                f"request {n} of workload {seed}",
                rng.choice([*shared, []]) + [rng.randrange(2) for _ in range(rng.randrange(1, 5))],
                max_new_tokens=rng.randrange(1, 10),
            )
            for n in range(8)
        ]
        longest = max(len(seq) + seq.max_new_tokens - 1 for seq in seqs)
        num_blocks = -(-longest // size) + rng.randrange(3)
        blocks = BlockManager(num_blocks, size, max_seqs=6, dedup=dedup)
        scheduler = Scheduler(blocks, token_budget=12, max_seqs=4)
        Engine(scheduler, num_blocks=num_blocks, vocabulary=2).serve(seqs, rng, most=2)


# One rule each.


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


def test_may_append_without_a_sampled_token_adds_nothing() -> None:
    """The original adds a block too many after a recomputation without sampling."""
    blocks = BlockManager(2, 4)
    held = start(blocks, 1, 2, 3, 4, 5)
    table = list(held.block_table)
    assert blocks.can_append(held)
    blocks.may_append(held)
    assert held.block_table == table


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


def test_sequences_are_told_apart_by_identity() -> None:
    """Two requests with the same prompt count as two holders."""
    blocks = BlockManager(8, 4)
    pair = [start(blocks, 1, 2), start(blocks, 1, 2)]
    blocks.deallocate(pair[0])
    assert blocks.manager.num_available == 7
    assert len(pair[1].block_table) == 1


def test_hash_blocks_publishes_chunk_by_chunk() -> None:
    blocks = BlockManager(8, 4)
    held = start(blocks, *range(12))
    for chunk, found in ((6, 1), (3, 2)):
        held.num_scheduled_tokens = chunk
        blocks.hash_blocks(held)
        held.num_cached_tokens += chunk
        assert blocks.can_allocate(seq(*range(12), 12)) == found


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


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 4), (-1, 4), (4, 0), (4, -2)])
def test_a_pool_of_no_or_negative_size_is_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match="must be in"):
        BlockManager(num_blocks, block_size)


class Wrong(NamedTuple):
    """A wrong call about a sequence, in a pool of two blocks of four tokens.

    The sequence is fresh, or it holds blocks and its tokens are computed (``held``).
    """

    call: str
    error: type[Exception]
    match: str
    tokens: Sequence[int] = (1,)
    held: bool = False
    fields: dict[str, Any] = {}  # noqa: RUF012  # read only
    sampled: Sequence[Any] = ()
    others: Sequence[int] = ()
    more: tuple[Any, ...] = ()


NOT_HELD, LOST = "holds no blocks", "had 3 tokens and has 1"
NEVER = "9 tokens need 3 blocks of 4, there are 2"
WRONG: dict[str, Wrong] = {
    **{
        f"{call} without blocks": Wrong(call, SequenceStateError, NOT_HELD)
        for call in ("can_append", "may_append", "deallocate", "hash_blocks")
    },
    "allocate twice": Wrong("allocate", SequenceStateError, "blocks already", held=True, more=(0,)),
    "a table of somebody else": Wrong(
        "allocate", SequenceStateError, "blocks already", fields={"block_table": [3]}, more=(0,)
    ),
    "a tuple as a table": Wrong(
        "allocate", TypeError, "must be a list", fields={"block_table": ()}, more=(0,)
    ),
    # The original lets it wait forever, or preempts all others in vain.
    "a prompt larger than the pool": Wrong("can_allocate", NeverFitsError, NEVER, range(9)),
    "asked to outgrow the pool": Wrong("can_append", NeverFitsError, NEVER, range(8), True),
    "outgrows the pool": Wrong("may_append", NeverFitsError, "blocks", range(8), True),
    "append without room": Wrong(
        "may_append", OutOfBlocksError, "need 1 blocks, 0 available", range(4), True, others=[7]
    ),
    "allocate without room": Wrong(
        "allocate", OutOfBlocksError, "need 1 blocks, 0 available", others=range(5), more=(0,)
    ),
    **{
        f"{call} with lost tokens": Wrong(
            call, SequenceStateError, LOST, (1, 2), True, {"token_ids": [1]}
        )
        for call in ("can_append", "may_append")
    },
    # The scheduler sizes its step by that count; with another count it reads out of bounds.
    **{
        f"{count!r} cached blocks": Wrong("allocate", error, "num_cached_blocks", more=(count,))
        for count, error in ((-1, ValueError), (1, ValueError), (None, TypeError))
    },
    **{
        f"{done} tokens more than {cached}": Wrong(
            "hash_blocks", ValueError, f"must be in {bounds}, got {cached + done}", range(3), True,
            {"num_cached_tokens": cached, "num_scheduled_tokens": done},
        )
        for cached, done, bounds in ((3, 2, r"\[3, 4\]"), (1, 1, r"\[3, 4\]"))
    },
    **{
        f"schedule {count!r}": Wrong(
            "hash_blocks", TypeError, "num_scheduled_tokens must be an int", held=True,
            fields={"num_scheduled_tokens": count},
        )
        for count in (1.5, True, None, "1")
    },
    "ask for no tokens": Wrong("can_allocate", ValueError, "tokens", ()),
    "no tokens": Wrong("allocate", ValueError, "tokens", (), more=(0,)),
    **{
        f"sample {token!r}": Wrong("may_append", error, "tokens", held=True, sampled=[token])
        for token, error in ((-1, ValueError), (2**32, ValueError), ("a", TypeError))
    },
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_refused_and_changes_nothing(name: str) -> None:
    wrong = WRONG[name]
    blocks = BlockManager(2, 4)
    other = start(blocks, *wrong.others) if wrong.others else None
    held = seq(*wrong.tokens)
    if wrong.held:
        allocate(blocks, held)
        forward(blocks, held)
        if wrong.fields or wrong.call == "hash_blocks":
            blocks.may_append(held)
    vars(held).update(wrong.fields)
    held.token_ids += wrong.sampled
    with refused(blocks, held, wrong.error, wrong.match):
        getattr(blocks, wrong.call)(held, *wrong.more)
    assert other is None or len(other.block_table)


@pytest.mark.parametrize("wrong", [None, 3, [1, 2], "x"])
def test_what_is_no_sequence_is_refused_by_name(wrong: Any) -> None:
    blocks = BlockManager(8, 4)
    held = start(blocks, 1, 2, 3)
    for call, *more in ((blocks.can_allocate,), (blocks.allocate, 0)):
        with refused(blocks, held, TypeError, "seq must have token_ids, got "):
            call(wrong, *more)  # type: ignore[operator]
    for lost in (blocks.can_append, blocks.may_append, blocks.deallocate, blocks.hash_blocks):
        with refused(blocks, held, SequenceStateError, NOT_HELD):
            lost(wrong)
    del held.num_scheduled_tokens
    with refused(blocks, held, TypeError, "seq must have num_scheduled_tokens"):
        blocks.hash_blocks(held)
