"""Partial reuse: the start of a block, copied or taken over in place."""

from __future__ import annotations

import pytest

from blockmgr import Admission, BlockManager
from tests.conftest import MakeManager
from tests.unit.engine import cache, ids, step


@pytest.mark.parametrize(("least", "found"), [(0, 4), (1, 6), (2, 6), (3, 4)])
def test_fewer_tokens_than_configured_are_left(
    make_manager: MakeManager, least: int, found: int
) -> None:
    manager = make_manager(8, 4, min_partial_tokens=least)
    cache(manager, [1] * 4 + [2] * 4)
    assert manager.match([1] * 4 + [2, 2, 3]).num_cached_tokens == found


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


def test_a_tail_that_matches_in_part_lends_a_copy_and_stays(make_manager: MakeManager) -> None:
    """If it were taken over, the next prompt would lose the tokens that did not match."""
    manager = make_manager(8, 4, min_partial_tokens=1)
    [tail] = cache(manager, [1, 2, 3])
    seq = manager.sequence(manager.admit([1, 2, 9, 9]))
    assert seq.num_cached_tokens == 2
    assert step(manager) == [(tail, ids(seq)[0], 2)]
    following = manager.sequence(manager.admit([1, 2, 3, 4]))
    assert (ids(following), following.num_cached_tokens) == ([tail], 3)


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


def test_only_the_first_children_are_looked_at(make_manager: MakeManager) -> None:
    manager = make_manager(256, 2, min_partial_tokens=1)
    cache(manager, [1, 1])
    for token in range(10, 137):
        cache(manager, [token, token])
    assert manager.match([1, 2]).num_partial_tokens == 1
    cache(manager, [150, 150])
    assert manager.match([1, 2]).num_partial_tokens == 0


def test_whole_blocks_of_a_prompt_that_parts_are_found() -> None:
    """With blocks of 256 tokens, a prompt that diverges after 300 finds 256 of them."""
    manager = BlockManager(8, 256)
    manager.commit(manager.admit(range(600)), 600)
    diverging = [*range(300), *range(1000, 1300)]
    assert manager.sequence(manager.admit(diverging)).num_cached_tokens == 256
