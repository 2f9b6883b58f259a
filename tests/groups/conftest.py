"""Runs the worlds of the rules on the specification and on the manager itself."""

from __future__ import annotations

import pytest

from blockmgr import BlockManager
from tests.groups import world
from tests.specification.boundaries import ModelBoundaries

WORLDS = {"test_rules", "test_steps", "test_shares", "test_retention", "test_holds"}
WORLDS |= {"test_rings", "test_replays"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    name = metafunc.module.__name__.rpartition(".")[2]
    if name in WORLDS and "world_of" in metafunc.fixturenames:
        alone = metafunc.definition.get_closest_marker("specification_alone") is not None
        builds = [ModelBoundaries] if alone else [ModelBoundaries, BlockManager]
        metafunc.parametrize("world_of", builds, indirect=True, ids=lambda build: build.__name__)


@pytest.fixture(autouse=True)
def world_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The class of manager for the worlds of a test."""
    monkeypatch.setattr(world, "build", getattr(request, "param", ModelBoundaries))
