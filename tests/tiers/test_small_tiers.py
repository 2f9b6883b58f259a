"""A tier smaller than a prompt: it gets what fits, once."""

from __future__ import annotations

import pytest

from blockmgr.tiers import TierConfig, TieredManager
from blockmgr.tiers.kinds import StoreName


@pytest.mark.parametrize("store", ["idle", "release", "commit"])
def test_prompts_larger_than_a_tier_do_not_evict_each_other_for_ever(store: StoreName) -> None:
    manager = TieredManager(16, 2, tiers=[TierConfig(num_blocks=3, ahead=16, store=store)])
    for start in (100, 200):
        handle = manager.admit(range(start, start + 9))
        manager.commit(handle, 9)
        manager.free(handle)
    rounds = 0
    while plan := manager.take_stores():
        for transfer in plan:
            manager.stores_done(transfer.ticket, len(transfer))
        rounds += 1
        assert rounds < 5
    [stats] = manager.tier_stats()
    assert stats.stored == 6  # three blocks of each
