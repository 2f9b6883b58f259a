"""Quotas, and the order of eviction."""

from __future__ import annotations

import pytest

from tests.groups.world import FULL, STATE, World
from tests.specification.layers import SlidingWindow


def test_a_boundary_makes_room_in_its_own_share() -> None:
    world = World(12, 4, FULL, SlidingWindow(4), quotas={b"q": 6})
    manager = world.manager
    for namespace in (b"q", b""):
        handle = manager.admit([1] * 9, namespace)
        world.compute(handle, 9)
        manager.free(handle)
    manager.free(manager.admit([2] * 12))
    assert manager.match([1] * 9) == 0
    assert manager.match([1] * 9, b"q") == 8


def test_a_sequence_that_changes_its_parent_changes_its_share() -> None:
    world = World(16, 4, FULL, STATE, quotas={b"q": 6})
    manager = world.manager
    tenant, other = manager.admit([1] * 9, b"q"), manager.admit([2] * 9)
    world.compute(tenant, 9)
    world.compute(other, 9)
    manager.reparent([tenant, other], [0, 0])
    assert manager.available() == 10
    assert not manager.violations()
    manager.append(other, [3])
    world.compute(other, 10)


# Order


@pytest.mark.specification_alone
def test_what_a_running_sequence_left_goes_last_and_its_deepest_boundary_first() -> None:
    """The window has dropped units 0 to 2, which the boundaries at 4, 8 and 12 need."""
    world = World(13, 4, FULL, SlidingWindow(4))
    manager = world.manager
    handle = manager.admit([1] * 16)
    world.compute(handle, 16)
    world.serve([2] * 5)
    manager.passed.clear()  # as if prompts continued from all of them
    assert manager.match([2] * 5) == 4
    manager.free(manager.admit([3] * 8))  # four blocks, and three are free
    assert manager.match([2] * 5) == 0
    assert {len(boundary[1]) for boundary in manager.stamps} == {4, 8, 12, 16}
    manager.admit([3] * 12)  # six, and five are free
    assert {len(boundary[1]) for boundary in manager.stamps} == {4, 8, 16}


def test_a_window_that_is_computed_again_where_prompts_diverge_is_kept() -> None:
    world = World(50, 4, FULL, SlidingWindow(5))
    manager = world.manager
    prompt = list(range(60))
    world.serve(prompt)
    world.serve([100 + i for i in range(60)])  # the first one's passed boundary is gone
    other = [*prompt[:40], *[7] * 9]
    assert manager.match(other) < 40
    world.serve(other)
    manager.free(manager.admit([8] * 40))
    assert manager.match(other[:41]) == 40
