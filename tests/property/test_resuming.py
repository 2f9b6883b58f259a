"""Sequences that are resumed together, beside the specification that resumes them one by one."""

from __future__ import annotations

import random

import pytest

from blockmgr import BlockManager
from tests.stress.draw import Draw
from tests.stress.perform import perform
from tests.stress.profiles import DIGESTS, PROFILES, draw_config
from tests.stress.world import World


@pytest.mark.parametrize("profile", ["balanced", "beam_storm", "multi_tenant"])
def test_with_room_each_finds_what_the_specification_finds_and_all_take_no_more_blocks(
    profile: str,
) -> None:
    """Without parts of blocks, of which the first to be resumed alone would take some over."""
    resumed, saved = 0, 0
    for seed in range(8):
        rng = random.Random(f"{profile}:{seed}")
        config = {**draw_config(rng, PROFILES[profile], default=True), "num_blocks": 240}
        config |= {"digest": DIGESTS["xxh3_128"], "dedup": rng.choice(["remap", "append_only"])}
        world = World(config, manager=BlockManager, seed=seed)
        draw = Draw(rng, profile)
        for _ in range(60):
            perform(world, draw.one())
        for entry in [entry for entry in world.entries if entry.running]:
            world.preempt(entry)
        family = [entry for entry in world.entries if not entry.running]
        rng.shuffle(family)
        world.manager.resume_together([entry.handle for entry in family])
        world.manager.check_invariants()
        for entry in family:
            world.model.resume(entry.twin)
            view = world.manager.sequence(entry.handle)
            assert view.num_cached_tokens == world.model.seqs[entry.twin].cached
        alone, together = world.model.stats().used_blocks, world.manager.stats().used_blocks
        assert together <= alone
        resumed += len(family)
        saved += alone - together
    assert (resumed > 20, saved > 0) == (True, True)
