"""The share of planted bugs that is tried on one commit."""

from __future__ import annotations

from tests.mutants.planted import CORE
from tests.mutants.share import drawn_share


def test_a_share_is_one_in_so_many_and_keeps_the_order_of_the_catalogue() -> None:
    share = drawn_share(CORE, 6, "a commit")
    assert len(share) == -(-len(CORE) // 6)
    assert list(share) == [mutant for mutant in CORE if mutant in set(share)]


def test_one_word_always_draws_the_same_share_and_another_word_another() -> None:
    assert drawn_share(CORE, 6, "a commit") == drawn_share(CORE, 6, "a commit")
    assert drawn_share(CORE, 6, "a commit") != drawn_share(CORE, 6, "the next")


def test_all_are_drawn_where_the_share_is_the_whole() -> None:
    assert drawn_share(CORE, 1, "a commit") == CORE


def test_every_planted_bug_is_drawn_for_some_commit() -> None:
    # A bug misses one draw of six with a chance of 5/6: two hundred in a row, once in 10^15.
    drawn = {mutant for commit in range(200) for mutant in drawn_share(CORE, 6, str(commit))}
    assert drawn == set(CORE)
