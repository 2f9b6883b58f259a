"""Partial reuse: the start of a block, copied or taken over in place."""

from __future__ import annotations

import pytest

from blockmgr import Admission, BlockManager
from tests.conftest import MakeManager
from tests.unit.engine import cache, ids, serve, step


def test_the_beginning_of_a_cached_block_is_copied(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4, min_partial_tokens=1)
    blocks = cache(manager, [1] * 4 + [2] * 4)
    seq = manager.sequence(manager.admit([1] * 4 + [2, 2, 3, 3]))
    assert (seq.num_cached_tokens, seq.num_computed_tokens) == (6, 6)
    assert ids(seq)[0] == blocks[0]
    assert step(manager) == [(blocks[1], ids(seq)[1], 2)]
    stats = manager.stats()
    assert (stats.hit_tokens, stats.partial_hit_tokens) == (6, 2)


def test_match_tells_the_same_as_admit_does(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4, min_partial_tokens=1)
    blocks = cache(manager, [1] * 4 + [2] * 4)
    match = manager.match([1] * 4 + [2, 2, 3, 3])
    assert (match.num_cached_tokens, match.num_partial_tokens) == (6, 2)
    assert match.block_ids.tolist() == blocks[:1]


@pytest.mark.parametrize(("least", "found"), [(0, 4), (1, 6), (2, 6), (3, 4)])
def test_fewer_tokens_than_configured_are_left(
    make_manager: MakeManager, least: int, found: int
) -> None:
    manager = make_manager(8, 4, min_partial_tokens=least)
    cache(manager, [1] * 4 + [2] * 4)
    assert manager.match([1] * 4 + [2, 2, 3]).num_cached_tokens == found


def test_the_last_token_is_left_to_compute_here_too(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4, min_partial_tokens=1)
    cache(manager, [1] * 8)
    assert manager.match([1] * 8).num_cached_tokens == 7
    assert manager.match([1] * 7).num_cached_tokens == 6
    assert manager.match([1] * 5).num_cached_tokens == 4


def test_the_child_that_begins_most_alike_wins(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4, min_partial_tokens=1)
    best = cache(manager, [1, 2, 3, 4])
    cache(manager, [1, 2, 9, 9])
    seq = manager.sequence(manager.admit([1, 2, 3, 5]))
    assert seq.num_cached_tokens == 3
    assert manager.take_copies().sources.tolist() == best


def test_of_equals_the_one_cached_last_wins(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4, min_partial_tokens=1)
    cache(manager, [1, 2, 3])
    other = cache(manager, [1, 9, 4, 4])
    seq = manager.sequence(manager.admit([1, 5, 5]))
    assert step(manager) == [(other[0], ids(seq)[0], 1)]


def test_extras_must_be_equal_for_a_part_too(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4, min_partial_tokens=1)
    cache(manager, [1] * 4, extras={0: b"x"}, namespace=b"a")
    assert manager.match([1] * 3, extras={0: b"x"}, namespace=b"a").num_cached_tokens == 2
    assert manager.match([1] * 3, namespace=b"a").num_cached_tokens == 0
    assert manager.match([1] * 3, extras={0: b"x"}).num_cached_tokens == 0


def test_an_idle_tail_is_taken_over_without_a_copy(make_manager: MakeManager) -> None:
    """The next turn of a conversation continues exactly where the last one ended."""
    manager = make_manager(8, 4, min_partial_tokens=1)
    blocks = cache(manager, [1] * 6)
    assert manager.stats().cached_tails == 1
    seq = manager.sequence(manager.admit([1] * 6 + [2, 2]))
    assert ids(seq) == blocks
    assert seq.num_cached_tokens == 6
    assert len(manager.take_copies()) == 0
    assert manager.stats().cached_blocks == 1  # the tail has left the cache


def test_a_tail_is_taken_over_once(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4, min_partial_tokens=1)
    cache(manager, [1] * 6)
    manager.admit([1] * 6 + [2])
    assert manager.match([1] * 6 + [3]).num_cached_tokens == 4


def test_a_tail_used_by_a_copy_is_copied_not_taken(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4, min_partial_tokens=1, steps_in_flight=1)
    seq = serve(manager, [1] * 3)
    manager.complete(1)
    manager.take_copies()
    seq.free()  # the tail is cached, but fenced until the step completes
    taker = manager.sequence(manager.admit([1] * 3 + [2]))
    assert taker.num_cached_tokens == 3
    manager.copies_applied(2)
    manager.complete(2)
    assert [copy.num_tokens for copy in manager.take_copies()] == [3]


def test_a_tail_that_matches_in_part_lends_a_copy_and_stays(make_manager: MakeManager) -> None:
    """If it were taken over, the next prompt would lose the tokens that did not match."""
    manager = make_manager(8, 4, min_partial_tokens=1)
    [tail] = cache(manager, [1, 2, 3])
    seq = manager.sequence(manager.admit([1, 2, 9, 9]))
    assert seq.num_cached_tokens == 2
    assert step(manager) == [(tail, ids(seq)[0], 2)]
    following = manager.sequence(manager.admit([1, 2, 3, 4]))
    assert (ids(following), following.num_cached_tokens) == ([tail], 3)


def test_a_tail_whose_last_token_is_left_to_compute_is_copied(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4, min_partial_tokens=1)
    [tail] = cache(manager, [1, 2, 3])
    seq = manager.sequence(manager.admit([1, 2, 3]))
    assert seq.num_cached_tokens == 2
    assert step(manager) == [(tail, ids(seq)[0], 2)]
    assert manager.match([1, 2, 3, 4]).num_cached_tokens == 3


def test_a_tail_needs_the_configured_number_of_computed_tokens(
    make_manager: MakeManager,
) -> None:
    manager = make_manager(8, 4, min_partial_tokens=2)
    cache(manager, [1] * 5)
    assert manager.stats().cached_tails == 0
    handle = manager.admit([2] * 7)
    manager.commit(handle, 6)
    manager.free(handle)
    assert manager.stats().cached_tails == 1
    assert manager.match([2] * 8).num_cached_tokens == 6


def test_preemption_keeps_the_tail_too(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4, min_partial_tokens=1)
    seq = serve(manager, [1] * 6)
    seq.append([1])
    seq.preempt()
    seq.resume()
    assert (seq.num_cached_tokens, seq.num_tokens) == (6, 7)
    stats = manager.stats()
    assert (stats.resumed_hit_tokens, stats.resumed_query_tokens) == (6, 7)


def test_a_shared_tail_is_not_cached_while_somebody_has_it(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4, min_partial_tokens=1)
    parent = serve(manager, [1] * 6)
    [child] = parent.fork()
    parent.free()
    assert manager.stats().cached_tails == 0
    child.free()
    assert manager.stats().cached_tails == 1


def test_a_tail_a_child_covers_already_is_not_cached(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4, min_partial_tokens=1)
    first, second = (serve(manager, [1] * 6) for _ in range(2))
    first.free()
    second.free()
    assert manager.stats().cached_tails == 1
    assert manager.stats().cached_blocks == 2


def test_a_longer_tail_supersedes_a_shorter_one(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4, min_partial_tokens=1)
    long = serve(manager, [1] * 3)  # admitted first, so that it does not take over the other
    short = serve(manager, [1] * 2)
    short.free()
    long.free()
    stats = manager.stats()
    assert (stats.cached_tails, stats.cached_blocks, stats.evicted_blocks) == (2, 1, 0)
    assert manager.match([1] * 4).num_cached_tokens == 3


def test_a_full_block_supersedes_tails_that_begin_it(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4, min_partial_tokens=1)
    full = manager.sequence(manager.admit([1] * 4))
    serve(manager, [1] * 2).free()
    serve(manager, [2] * 2).free()
    full.commit(4)
    assert manager.stats().cached_blocks == 2
    assert manager.match([2] * 3).num_cached_tokens == 2


def test_a_superseded_tail_stays_until_its_copy_is_made(make_manager: MakeManager) -> None:
    """It cannot be found any more, and no sequence may write its block while it is read."""
    manager = make_manager(12, 4, min_partial_tokens=1, steps_in_flight=1)
    ended, longer = manager.admit([1, 2, 3, 4, 5, 6]), manager.admit([1, 2, 3, 4, 5, 6, 7, 8])
    manager.copies_applied(manager.take_copies().ticket)
    manager.commit(ended, 6)
    tail = ids(manager.sequence(ended))[1]
    manager.free(ended)  # fenced: the step in flight may still read it, so it is not taken over
    reader = manager.admit([1, 2, 3, 4, 5, 6, 9])
    manager.commit(longer, 8)
    assert manager.stats().cached_blocks == 2  # without the tail
    manager.complete(1)
    plan = manager.take_copies()
    assert [copy.source for copy in plan] == [tail]
    rest = manager.admit([0] * 4 * manager.num_available)
    assert tail not in ids(manager.sequence(rest))
    manager.copies_applied(plan.ticket)
    manager.complete(plan.ticket)
    assert manager.num_available == 1
    assert manager.sequence(reader).num_cached_tokens == 6


def test_a_partial_copy_too_many_is_left_out(make_manager: MakeManager) -> None:
    """A copy holds both its source and its destination; without it, the prompt may fit."""
    manager = make_manager(2, 4, min_partial_tokens=1)
    cache(manager, [1] * 4)
    manager.admit([9])
    assert manager.explain([1, 1, 2]).num_cached_tokens == 2
    assert manager.match([1, 1, 2]).num_partial_tokens == 0
    assert manager.can_admit([1, 1, 2]) is Admission.NOW
    seq = manager.sequence(manager.admit([1, 1, 2]))
    assert seq.num_cached_tokens == 0
    assert manager.stats().evicted_blocks == 1


def test_slots_that_do_not_reach_the_block_do_not_use_it(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4, min_partial_tokens=1)
    cache(manager, [1] * 8)
    prompt = [1] * 6 + [2]
    assert manager.sequence(manager.admit(prompt, num_slots=4)).num_cached_tokens == 4
    assert manager.sequence(manager.admit(prompt, num_slots=5)).num_cached_tokens == 6


def test_a_tail_counts_as_a_child_of_its_block(make_manager: MakeManager) -> None:
    """The tail is evicted before its parent: no cached block outlives its parent."""
    manager = make_manager(2, 4, min_partial_tokens=1)
    cache(manager, [1] * 6)
    manager.admit([9])
    assert manager.match([1] * 6).num_cached_tokens == 4
    assert manager.stats().cached_blocks == 1


def test_only_the_first_children_are_looked_at(make_manager: MakeManager) -> None:
    manager = make_manager(256, 2, min_partial_tokens=1)
    cache(manager, [1, 1])
    for token in range(10, 137):
        cache(manager, [token, token])
    assert manager.match([1, 2]).num_partial_tokens == 1
    cache(manager, [150, 150])
    assert manager.match([1, 2]).num_partial_tokens == 0


def test_with_the_cache_off_no_tail_is_kept(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4, min_partial_tokens=1, prefix_caching=False)
    cache(manager, [1] * 6)
    assert manager.match([1] * 6).num_cached_tokens == 0
    assert manager.stats().free_blocks == 8


def test_whole_blocks_of_a_prompt_that_parts_are_found() -> None:
    """With blocks of 256 tokens, a prompt that diverges after 300 finds 256 of them."""
    manager = BlockManager(8, 256)
    manager.commit(manager.admit(range(600)), 600)
    diverging = [*range(300), *range(1000, 1300)]
    assert manager.sequence(manager.admit(diverging)).num_cached_tokens == 256
