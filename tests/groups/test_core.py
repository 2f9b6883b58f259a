"""Engines of all habits on the manager: reads are right, and the manager is consistent."""

from __future__ import annotations

import functools

import pytest

from tests.groups.core import CoreManager
from tests.groups.engine import SETS, Engine
from tests.specification.layers import FullAttention, Kind

WITH_FULL = [kinds for kinds in SETS if any(isinstance(kind, FullAttention) for kind in kinds)]
SEEDS = 60
POLICIES = ["lfuda", "s3fifo", "arc"]


@pytest.mark.parametrize("kinds", WITH_FULL, ids=lambda kinds: " and ".join(map(str, kinds)))
def test_no_engine_reads_anything_wrong(kinds: tuple[Kind, ...]) -> None:
    found = reads = 0
    for seed in range(SEEDS):
        engine = Engine(seed, kinds, CoreManager)
        engine.run(40)
        found += engine.found
        reads += engine.memory.num_reads
    assert found > SEEDS
    assert reads > 10 * SEEDS


@pytest.mark.parametrize("eviction", POLICIES)
def test_nor_with_another_order_of_eviction(eviction: str) -> None:
    build = functools.partial(CoreManager, eviction=eviction)
    found = 0
    for seed in range(SEEDS):
        engine = Engine(seed, WITH_FULL[seed % len(WITH_FULL)], build)
        engine.run(40)
        found += engine.found
    assert found > SEEDS
