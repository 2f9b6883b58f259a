"""Small worlds from vLLM users' reports about hybrid models: what prompts find there.

``benchmarks/hybrid`` measures what vLLM finds in the same worlds.
"""

from __future__ import annotations

from benchmarks.hybrid.ours import Ours
from benchmarks.hybrid.worlds import WORLDS, found_by

BY_REPORT = {world.report: world for world in WORLDS}


def found(report: int) -> tuple[int, int]:
    world = BY_REPORT[report]
    prompts = world.prompts()
    return found_by(Ours(world.shape, world.pages, max(map(len, prompts))), prompts)


def test_prompts_that_share_less_than_a_page_of_a_state_find_it_from_the_third_on() -> None:
    assert found(53749) == (30, 30 * 1920)


def test_prompts_find_all_that_they_share_where_it_ends_inside_a_page() -> None:
    # Eight of each prefix: the first computes it, the second stops where they diverge.
    assert found(45238) == (8 * 6, 8 * 6 * 1500)


def test_a_prefix_that_is_sent_again_with_fresh_tokens_behind_it_is_found_each_time() -> None:
    assert found(42948) == (11, 11 * 12288)


def test_sessions_that_take_turns_find_their_prefix_with_windows_in_a_pool_of_modest_size() -> None:
    prompts, tokens = found(48435)
    assert prompts >= 8
    assert tokens == prompts * 16384
