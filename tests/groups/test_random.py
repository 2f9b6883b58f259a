"""Random runs: every read is right, and every broken specification is noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from blockmgr import BlockManager
from tests.groups import broken
from tests.groups.random_runs import LAYOUTS, WITH_DRAFTS, WITH_FULL, Layout, layout_of, play
from tests.specification.boundaries import ModelBoundaries
from tests.stress.memory import WrongReadError

SEEDS = 16
SEEDS_OF_SPECIFICATION = 8
"""It takes ten times as long, and the lock-step runs it, too."""
MOST_SEEDS = 400
POLICIES = ["lfuda", "s3fifo", "arc"]


@pytest.mark.parametrize(
    ("manager", "layout"),
    [(build, each) for build in (ModelBoundaries, BlockManager) for each in LAYOUTS + WITH_DRAFTS],
    ids=lambda value: ", ".join(value) if isinstance(value, tuple) else value.__name__,
)
def test_no_engine_reads_anything_wrong(manager: Callable[..., Any], layout: Layout) -> None:
    seeds = SEEDS if manager is BlockManager else SEEDS_OF_SPECIFICATION
    worlds = [play(seed, layout, manager=manager).world for seed in range(seeds)]
    assert sum(world.found for world in worlds) > seeds
    assert sum(world.device.num_reads for world in worlds) > 10 * seeds


@pytest.mark.parametrize("eviction", POLICIES)
def test_nor_with_another_order_of_eviction(eviction: str) -> None:
    options = {"eviction": eviction}
    layouts = [WITH_FULL[seed % len(WITH_FULL)] for seed in range(SEEDS)]
    worlds = [play(seed, layout, options=options).world for seed, layout in enumerate(layouts)]
    assert sum(world.found for world in worlds) > SEEDS


def outcome(build: Callable[..., ModelBoundaries], detectors: str) -> Exception | None:
    """The first error of a broken rule."""
    options = broken.OPTIONS.get(build)
    for seed in range(MOST_SEEDS):
        try:
            play(seed, layout_of(seed), manager=build, detectors=detectors, options=options)
        except Exception as error:  # any other error means that the rule was missed
            return error
    return None


@pytest.mark.parametrize(
    "build",
    [build for build in broken.ALL if build not in broken.BY_AUDIT],
    ids=lambda build: build.__name__,
)
def test_the_memory_alone_notices_what_serves_wrong_contents(
    build: Callable[..., ModelBoundaries],
) -> None:
    assert isinstance(outcome(build, "K"), WrongReadError)


@pytest.mark.parametrize("build", sorted(broken.BY_AUDIT, key=str), ids=lambda b: b.__name__)
def test_the_audit_notices_what_serves_right_contents(
    build: Callable[..., ModelBoundaries],
) -> None:
    assert outcome(build, "IK") is not None
