"""Engines of all habits: every read is right, and every broken specification is noticed."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable

import pytest

from tests.groups import broken
from tests.groups.counting import CountingManager
from tests.groups.engine import SETS, Engine
from tests.groups.memory import WrongRead
from tests.groups.model import ModelManager
from tests.specification.layers import Kind, RecurrentState

SEEDS = 48
MOST_SEEDS = 400
LEAST = 3


@functools.cache
def run(kinds: tuple[Kind, ...]) -> Counter[str]:
    events: Counter[str] = Counter()
    for seed in range(SEEDS):
        engine = Engine(seed, kinds, CountingManager)
        engine.run(40)
        assert isinstance(engine.manager, CountingManager)
        events.update(engine.manager.events)
        events["tokens found"] += engine.found
        events["cells read"] += engine.memory.num_reads
    return events


@pytest.mark.parametrize("kinds", SETS, ids=lambda kinds: " and ".join(map(str, kinds)))
def test_no_engine_reads_anything_wrong(kinds: tuple[Kind, ...]) -> None:
    events = run(kinds)
    assert events["tokens found"] > SEEDS
    assert events["cells read"] > 10 * SEEDS


HARDLY_REACHED = {"a copy on write that waits for what is promised"}
"""A sequence falls back into a unit that it found; ``test_steps`` has the world."""


def test_the_engines_reach_what_is_interesting() -> None:
    events = sum(map(run, SETS), Counter[str]())
    rare = {name: count for name, count in events.items() if count < LEAST}
    assert set(rare) <= HARDLY_REACHED, rare
    assert len(events) > 60


def outcome(build: Callable[..., ModelManager], *, audits: bool) -> Exception | None:
    """The first error that an engine reports for a broken rule."""
    for seed in range(MOST_SEEDS):
        try:
            Engine(seed, build=build, audits=audits, habits=broken.HABITS.get(build)).run(40)
        except Exception as error:  # any other error means that the rule was missed
            return error
    return None


@pytest.mark.parametrize("build", broken.ALL, ids=lambda build: build.__name__)
def test_each_broken_rule_is_noticed(build: Callable[..., ModelManager]) -> None:
    assert outcome(build, audits=True) is not None


@pytest.mark.parametrize(
    "build",
    [build for build in broken.ALL if build not in broken.BY_AUDIT],
    ids=lambda build: build.__name__,
)
def test_the_memory_alone_notices_what_serves_wrong_contents(
    build: Callable[..., ModelManager],
) -> None:
    assert isinstance(outcome(build, audits=False), WrongRead)


def test_every_kind_is_drawn() -> None:
    kinds = {type(kind) for group in SETS for kind in group}
    assert len(kinds) == 4
    assert any(sum(isinstance(k, RecurrentState) for k in group) > 1 for group in SETS)
