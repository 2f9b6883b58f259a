"""Engines of all habits on the specification: nothing wrong is read. And on broken ones: it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.groups import broken
from tests.groups.engine import SETS, Engine
from tests.groups.kinds import Kind, RecurrentState
from tests.groups.memory import WrongRead
from tests.groups.model import ModelManager

SEEDS = 60
MOST_SEEDS = 400


@pytest.mark.parametrize("kinds", SETS, ids=lambda kinds: " and ".join(map(str, kinds)))
def test_no_engine_reads_anything_wrong(kinds: tuple[Kind, ...]) -> None:
    found = reads = 0
    for seed in range(SEEDS):
        engine = Engine(seed, kinds)
        engine.run(40)
        found += engine.found
        reads += engine.memory.num_reads
    assert found > SEEDS
    assert reads > 10 * SEEDS


def outcome(build: Callable[..., ModelManager], *, audits: bool) -> Exception | None:
    """What the first engine that notices a broken rule notices."""
    for seed in range(MOST_SEEDS):
        try:
            Engine(seed, build=build, audits=audits).run(40)
        except Exception as error:  # whatever it is, the rule was missed
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
