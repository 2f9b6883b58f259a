"""Random runs: every read is right, and every broken specification is noticed."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable

import pytest

from tests.groups import broken
from tests.groups.counting import CountingManager
from tests.groups.random_runs import LAYOUTS, WITH_FULL, Layout, layout_of, play
from tests.specification.boundaries import ModelBoundaries
from tests.stress.memory import WrongReadError

SEEDS = 48
MOST_SEEDS = 400
LEAST = 3
POLICIES = ["lfuda", "s3fifo", "arc"]


@functools.cache
def run(layout: Layout) -> Counter[str]:
    events: Counter[str] = Counter()
    for seed in range(SEEDS):
        world = play(seed, layout, manager=CountingManager).world
        events.update(world.manager.events)
        events["tokens found"] += world.found
        events["slots read"] += world.device.num_reads
    return events


@pytest.mark.parametrize("layout", LAYOUTS, ids=", ".join)
def test_no_engine_of_the_specification_reads_anything_wrong(layout: Layout) -> None:
    events = run(layout)
    assert events["tokens found"] > SEEDS
    assert events["slots read"] > 10 * SEEDS


@pytest.mark.parametrize("layout", WITH_FULL, ids=", ".join)
def test_no_engine_reads_anything_wrong(layout: Layout) -> None:
    worlds = [play(seed, layout).world for seed in range(SEEDS)]
    assert sum(world.found for world in worlds) > SEEDS
    assert sum(world.device.num_reads for world in worlds) > 10 * SEEDS


@pytest.mark.parametrize("eviction", POLICIES)
def test_nor_with_another_order_of_eviction(eviction: str) -> None:
    options = {"eviction": eviction}
    layouts = [WITH_FULL[seed % len(WITH_FULL)] for seed in range(SEEDS)]
    worlds = [play(seed, layout, options=options).world for seed, layout in enumerate(layouts)]
    assert sum(world.found for world in worlds) > SEEDS


HARDLY_REACHED = {"a copy on write that waits for what is promised"}
"""A sequence falls back into a unit that it found; ``test_steps`` has the world."""


def test_the_engines_reach_what_is_interesting() -> None:
    events = sum(map(run, LAYOUTS), Counter[str]())
    rare = {name: count for name, count in events.items() if count < LEAST}
    assert set(rare) <= HARDLY_REACHED, rare
    assert len(events) > 60


def outcome(build: Callable[..., ModelBoundaries], detectors: str) -> Exception | None:
    """The first error of a broken rule."""
    options = broken.OPTIONS.get(build)
    for seed in range(MOST_SEEDS):
        try:
            play(seed, layout_of(seed), manager=build, detectors=detectors, options=options)
        except Exception as error:  # any other error means that the rule was missed
            return error
    return None


@pytest.mark.parametrize("build", broken.ALL, ids=lambda build: build.__name__)
def test_each_broken_rule_is_noticed(build: Callable[..., ModelBoundaries]) -> None:
    assert outcome(build, "IK") is not None


@pytest.mark.parametrize(
    "build",
    [build for build in broken.ALL if build not in broken.BY_AUDIT],
    ids=lambda build: build.__name__,
)
def test_the_memory_alone_notices_what_serves_wrong_contents(
    build: Callable[..., ModelBoundaries],
) -> None:
    assert isinstance(outcome(build, "K"), WrongReadError)
