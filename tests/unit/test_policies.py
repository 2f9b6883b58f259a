"""The victims of each eviction policy, on short traces worked by hand from its paper.

A letter is a prompt of one full block and one more token, so it needs a second block while it runs:
a pool of n blocks keeps n - 1 letters. Each prompt ends before the next one starts.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from blockmgr import BlockManager
from blockmgr.config import EVICTION_POLICIES
from tests.fingerprints import core_testing
from tests.reference_policies import REFERENCES
from tests.unit.engine import cache, serve


def found(manager: BlockManager, letter: str) -> bool:
    return manager.match([ord(letter)] * 3).num_cached_tokens > 0


def victims(eviction: str, num_blocks: int, letters: str) -> Iterator[str]:
    """The letter evicted at each miss, ``.`` while there is room."""
    manager = BlockManager(num_blocks, 2, eviction=eviction)
    cached: list[str] = []
    for letter in letters:
        hit = found(manager, letter)
        assert hit == (letter in cached)
        cache(manager, [ord(letter)] * 3)
        gone = [other for other in cached if not found(manager, other)]
        cached = [*(other for other in cached if other not in gone), *([] if hit else letter)]
        if not hit:
            yield gone[0] if gone else "."
        manager.check_invariants()


def test_lru_gives_up_what_was_used_longest_ago() -> None:
    assert "".join(victims("lru", 4, "abcadeaf")) == "...bcd"


def test_lfuda_keeps_what_is_used_often_until_the_cache_has_aged_past_it() -> None:
    # a: key 3. b, c: key 1. d, e come at age 1, with key 2; f, g at age 2, with key 3, like a,
    # which has been idle for longer.
    assert "".join(victims("lfuda", 4, "aaabcdefgh")) == "...bcdea"


def test_lfuda_adds_the_age_at_the_last_use() -> None:
    # As above, but a is found again at age 2: its key is 4 + 2, and f and g go first.
    assert "".join(victims("lfuda", 4, "aaabcdefgahi")) == "...bcdefg"


def test_s3fifo_lets_newcomers_go_first() -> None:
    # a, found twice on the way, moves to the main queue; b, c, d leave ghosts.
    assert "".join(victims("s3fifo", 4, "aaabcdef")) == "...bcd"


def test_s3fifo_takes_one_hit_for_chance() -> None:
    assert "".join(victims("s3fifo", 4, "aabcd")) == "...a"


def test_s3fifo_remembers_ghosts() -> None:
    # b comes back while its ghost is remembered, into the main queue: e, f go before it.
    assert "".join(victims("s3fifo", 4, "aaabcdebfgh")) == "...bcdefg"


def test_s3fifo_gives_up_the_oldest_of_the_main_queue_when_no_newcomer_is_left() -> None:
    # b is back in the main queue behind a. g is found twice and moves there, which empties the
    # small queue: a goes. It leaves no ghost there, so when it comes back it is a newcomer.
    assert "".join(victims("s3fifo", 4, "aaabcdbggghax")) == "...bcdaha"


def test_arc_moves_its_target_with_its_ghosts() -> None:
    # T1 bc, T2 a: d takes b, b takes c, and b was a ghost of T1: its target is 1. So e takes a of
    # T2, a takes d, and a was a ghost of T2: the target is 0 again, and f takes e.
    assert "".join(victims("arc", 4, "abcadbeaf")) == "...bcade"


def test_arc_keeps_what_was_found_from_a_scan() -> None:
    assert "".join(victims("arc", 4, "ababcdefg")) == "...cdef"


# ---- closure -----------------------------------------------------------------------------


def grow_a_chain(manager: BlockManager, length: int) -> list[int]:
    """Caches a chain head first, a block at a time: in every queue a parent is older."""
    tokens: list[int] = []
    for i in range(length):
        tokens += [i, i]
        cache(manager, tokens)
    return tokens


@pytest.mark.parametrize("eviction", EVICTION_POLICIES)
def test_a_chain_is_given_up_from_its_end(eviction: str) -> None:
    length = 12
    manager = BlockManager(length, 2, eviction=eviction)
    tokens = grow_a_chain(manager, length)
    newcomer = manager.admit([99])
    for left in range(length - 1, 0, -1):
        assert manager.match(tokens).num_cached_tokens == 2 * left
        manager.check_invariants()
        manager.reserve(newcomer, 2 * (length - left + 1))


@pytest.mark.parametrize("eviction", EVICTION_POLICIES)
def test_giving_up_a_chain_costs_its_length_once(eviction: str) -> None:
    """A walk to its end for every victim would take half a million steps."""
    length = 1000
    manager = BlockManager(length, 2, eviction=eviction)
    grow_a_chain(manager, length)
    seq = manager.sequence(manager.admit([99]))
    for num_slots in range(4, 2 * length, 2):
        seq.reserve(num_slots)
    assert manager.stats().evicted_blocks == length - 1
    assert core_testing().victim_steps(manager._core) <= 5 * length


def test_blocks_in_use_are_met_once() -> None:
    """A hundred stay at the front of the queue while five hundred others are evicted."""
    manager = BlockManager(210, 2, eviction="s3fifo")
    for i in range(100):
        cache(manager, [i, i, 0])
    for i in range(100):
        serve(manager, [i, i, 0])
    for i in range(500):
        cache(manager, [1000 + i, 0, 0])
    assert manager.stats().evicted_blocks > 400
    assert core_testing().victim_steps(manager._core) <= 1000


def test_every_policy_has_a_reference() -> None:
    assert set(REFERENCES) == set(EVICTION_POLICIES)
