"""Gauges and counters."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from tests.conftest import MakeManager
from tests.unit.engine import cache, serve, step


def test_every_block_is_in_exactly_one_gauge(make_manager: MakeManager) -> None:
    manager = make_manager(10, 2, steps_in_flight=1, null_block=True)
    cache(manager, [1] * 4)
    manager.complete(1)
    seq = serve(manager, [2] * 3)
    manager.free(manager.admit([3]))
    seq.fork()
    stats = manager.stats()
    parts = stats.free_blocks + stats.idle_blocks + stats.fenced_blocks + stats.used_blocks
    assert parts == stats.capacity == 9
    assert stats.available == manager.num_available == stats.free_blocks + stats.idle_blocks


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


def test_a_refused_admission_counts_nothing(make_manager: MakeManager) -> None:
    manager = make_manager(2, 2)
    manager.admit([1] * 4)
    before = manager.stats()
    with pytest.raises(Exception, match="need"):
        manager.admit([2])
    assert manager.stats() == before


def test_pending_copies_are_those_not_taken(make_manager: MakeManager) -> None:
    manager = make_manager()
    parent = serve(manager, [1] * 3)
    for child in parent.fork(2):
        child.append([2])
    assert manager.stats().pending_copies == 2
    step(manager)
    assert manager.stats().pending_copies == 0
    assert manager.stats().planned_copies == 2


def test_a_snapshot_does_not_change(make_manager: MakeManager) -> None:
    manager = make_manager()
    stats = manager.stats()
    manager.admit([1])
    assert stats.used_blocks == 0
    with pytest.raises(FrozenInstanceError):
        stats.used_blocks = 1  # type: ignore[misc]


def test_memory_is_fixed_at_construction(make_manager: MakeManager) -> None:
    manager = make_manager(1_000, 16, max_seqs=8)
    before = manager.memory_usage()
    for turn in range(50):
        cache(manager, [turn % 7] * 100)
    assert manager.memory_usage() <= before + 64 * 1024


def test_a_manager_says_what_it_is(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    manager.admit([1] * 5)
    assert repr(manager) == "<BlockManager: 8 blocks of 4 tokens, 6 available>"


def test_a_manager_built_from_a_config_is_the_same(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4, max_seqs=3, dedup="append_only")
    again = type(manager).from_config(manager.config)
    assert again.config == manager.config
    assert again.block_tables.shape == manager.block_tables.shape
