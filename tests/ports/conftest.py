"""Fixtures shared by the tests of the block pool and of the ports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from blockmgr.pool import BlockPool
from blockmgr.ports.aphrodite import CpuGpuBlockAllocator
from tests.ports.aphrodite_support import Allocator, Kind, Make, MakePools, caching, check, naive
from tests.ports.pool_support import MakePool
from tests.ports.vllm_modules import stand_ins


@pytest.fixture
def make_pool(digest: Any) -> Iterator[MakePool]:
    """Builds pools, and checks every invariant of each when the test is over."""
    made: list[BlockPool] = []

    def make(num_blocks: int = 8, block_size: int = 2, **options: Any) -> BlockPool:
        pool = BlockPool(num_blocks, block_size, **{"digest": digest, **options})
        made.append(pool)
        return pool

    yield make
    for pool in made:
        pool.check_invariants()


@pytest.fixture(params=[naive, caching], ids=["naive", "prefix_caching"])
def make_allocator(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Either allocator; the core's invariants are checked when the test is over."""
    made: list[Allocator] = []

    def build(*args: Any, **options: Any) -> Allocator:
        made.append(request.param(*args, **options))
        return made[-1]

    yield build
    for allocator in made:
        allocator.pool.check_invariants()


@pytest.fixture(params=["naive", "prefix_caching"])
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


@pytest.fixture
def make_pools(kind: Kind) -> Iterator[MakePools]:
    """Either kind of pools; the core's invariants are checked when the test is over."""
    made: list[CpuGpuBlockAllocator] = []

    def build(gpu: int = 8, cpu: int = 8, block_size: int = 4) -> CpuGpuBlockAllocator:
        made.append(CpuGpuBlockAllocator.create(kind, gpu, cpu, block_size))
        return made[-1]

    yield build
    for allocator in made:
        check(allocator)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules with the names of vLLM's that contain what the port imports."""
    yield from stand_ins(monkeypatch)
