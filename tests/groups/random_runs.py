"""Random runs of the stress program with groups, for the tests of this folder."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from blockmgr import BlockManager
from tests.specification.layers import Kind, kinds_of
from tests.stress.perform import finish_up
from tests.stress.profiles import draw_layout, groups_named
from tests.stress.run import Plan, Run

Layout = tuple[str, ...]

LAYOUTS: tuple[Layout, ...] = (
    ("full",),
    ("window 5",),
    ("full", "window 4"),
    ("full", "window 5", "window 1"),
    ("full", "chunk 8"),
    ("full", "chunk 6", "window 7"),
    ("state",),
    ("full", "state"),
    ("window 9", "state"),
    ("full", "window 6", "state", "state"),
)
"""Some are those of released models."""

WITH_DRAFTS: tuple[Layout, ...] = (
    ("full", "state extra_blocks=2"),
    ("full", "window 6", "state extra_blocks=3", "state extra_blocks=3"),
)
WITH_FULL = tuple(layout for layout in LAYOUTS if "full" in layout)
BARE = tuple(layout for layout in LAYOUTS if "full" not in layout)
MANY_NODES = 8192
SETS: tuple[tuple[Kind, ...], ...] = tuple(kinds_of(groups_named(names)) for names in LAYOUTS)


def layout_of(seed: int) -> Layout:
    """One of these, or any other."""
    rng = random.Random(f"layout {seed}")
    return rng.choice(LAYOUTS) if rng.random() < 0.5 else tuple(draw_layout(rng))


def play(
    seed: int,
    layout: Layout,
    *,
    manager: Callable[..., Any] = BlockManager,
    detectors: str = "IK",
    ops: int = 150,
    options: dict[str, Any] | None = None,
    after: Callable[[Run], None] = lambda run: None,
    ends: bool = True,
) -> Run:
    """Runs the operations of a seed.

    Args:
        seed: Decides everything.
        layout: The groups.
        manager: The class under test: the manager, or the specification.
        detectors: As of the stress program.
        ops: Number of operations.
        options: Overrides of the drawn configuration.
        after: Called after each operation.
        ends: Ends all sequences; else applies all copies, and writes all early commits.
    """
    # The specification moves entries of tables.
    specified = manager is not BlockManager or "D" in detectors
    any_number = None if "full" in layout else MANY_NODES
    fixed = {"dedup": "remap", "num_nodes": any_number} if specified else {}
    options = {**fixed, **(options or {})}
    plan = Plan(ops, detectors=detectors, manager=manager, options=options, layout=layout)
    run = Run(plan, "groups", seed)
    for _ in range(ops):
        run.one()
        after(run)
    if ends:
        finish_up(run.world)
    else:
        run.world.step()
        run.world.complete(len(run.world.steps))
        run.world.begin(applied=True)
    return run
