"""Random worlds whose stores lie: nothing wrong is read, and nothing leaks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from blockmgr.groups import Group
from tests.tiers.world import LAYOUTS, World


@pytest.mark.parametrize("seed", [*range(60), 5281])
def test_no_world_reads_what_is_wrong_or_leaks(seed: int, tmp_path: Path) -> None:
    world = World(seed, tmp_path)
    world.run(800)
    assert world.counts["wrong"] == 0


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("groups", LAYOUTS)
def test_no_world_with_groups_reads_what_is_wrong_or_leaks(
    groups: tuple[Group, ...], seed: int, tmp_path: Path
) -> None:
    world = World(seed, tmp_path, groups)
    world.run(800)
    assert world.counts["wrong"] == 0


@pytest.mark.parametrize("seed", range(50, 80))
def test_no_wild_world_reads_what_is_wrong_or_leaks(seed: int, tmp_path: Path) -> None:
    """Among what is wrong is what was retired, or found wrong, before a restart."""
    world = World(seed, tmp_path, [(), *LAYOUTS][seed % 3 and seed % 9], is_wild=True)
    world.run(800)
    assert world.counts["wrong"] == 0


@pytest.mark.parametrize("layouts", [[()], LAYOUTS])
def test_the_worlds_do_what_they_are_for(
    layouts: Sequence[tuple[Group, ...]], tmp_path: Path
) -> None:
    counts = World(0, tmp_path).counts
    for seed in range(80):
        folder = tmp_path / str(seed)
        folder.mkdir()
        world = World(seed, folder, layouts[seed % len(layouts)])
        world.run(400)
        counts += world.counts
    names = {"aborted", "late", "refused", "stored", "loaded", "failed", "dropped", "promoted"}
    assert {name for name in names | {"restored", "ends"} if not counts[name]} == set()
