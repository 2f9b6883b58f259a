"""The manager decides like the specification, as long as nothing is evicted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.groups.lockstep import SETS, Different, Lockstep, run
from tests.specification.layers import FullAttention, Kind, RecurrentState

SEEDS = 12


@pytest.mark.parametrize("kinds", SETS, ids=lambda kinds: " and ".join(map(str, kinds)))
def test_the_manager_decides_like_the_specification(kinds: tuple[Kind, ...]) -> None:
    assert sum(run(seed, kinds) for seed in range(SEEDS)) > 100 * SEEDS


def test_a_part_follows_its_block_though_the_sequence_that_commits_has_passed_it() -> None:
    """A fork still has the window's part of a block that both share and that is merged."""
    seed = 500_471  # one engine in a thousand comes there
    assert run(seed, SETS[seed % len(SETS)]) > 300


class KeepsNoTails(Lockstep):
    """The manager keeps no tails, the specification does."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.min_partial_tokens, self.prompt_end_stop = 0, None


def test_a_manager_that_decides_otherwise_is_noticed() -> None:
    kinds = (FullAttention(), RecurrentState())
    with pytest.raises(Different):
        sum(run(seed, kinds, KeepsNoTails) for seed in range(SEEDS))
