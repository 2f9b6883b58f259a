"""Gauges and counters."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from blockmgr.tiers import TierConfig, TieredManager
from tests.conftest import MakeManager
from tests.unit.engine import cache


def test_usage_and_hit_rate_of_an_unused_manager_are_zero(make_manager: MakeManager) -> None:
    stats = make_manager().stats()
    assert (stats.usage, stats.hit_rate) == (0.0, 0.0)


def test_usage_counts_used_blocks_only(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    cache(manager, [1] * 4)
    manager.admit([2] * 3)
    assert manager.stats().usage == pytest.approx(0.25)


def test_the_peak_stays_when_blocks_come_back(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    manager.free(manager.admit([1] * 9))
    manager.admit([1])
    stats = manager.stats()
    assert (stats.peak_used_blocks, stats.used_blocks) == (5, 1)


def test_a_snapshot_does_not_change(make_manager: MakeManager) -> None:
    manager = make_manager()
    stats = manager.stats()
    manager.admit([1])
    assert stats.used_blocks == 0
    with pytest.raises(FrozenInstanceError):
        stats.used_blocks = 1  # type: ignore[misc]


def test_a_manager_says_what_it_is(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    manager.admit([1] * 5)
    assert repr(manager) == "<BlockManager: 8 blocks of 4 tokens, 6 available>"
    tiered = TieredManager(8, 4, tiers=[TierConfig(num_blocks=4)])
    assert repr(tiered) == "<TieredManager: 8 blocks of 4 tokens, 8 available>"


def test_a_manager_built_from_a_config_is_the_same(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4, max_seqs=3, dedup="append_only")
    again = type(manager).from_config(manager.config)
    assert again.config == manager.config
    assert again.block_tables.shape == manager.block_tables.shape
