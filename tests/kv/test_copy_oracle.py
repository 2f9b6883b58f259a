"""The KV oracle of the manager's tests, on tensors and with copies through KVBlocks.

Elsewhere the oracle runs copies word by word; here they are real. A copy that comes late, or brings
the wrong block or too few tokens, is noticed by a read inside the step.
"""

from __future__ import annotations

import random

import pytest
import torch

from blockmgr.kv import KVBlocks, segments_from
from tests.stress.memory import Device, Step, WrongReadError
from tests.stress.perform import finish_up
from tests.stress.run import Plan, Run
from tests.stress.world import World


class TensorDevice(Device):
    """A device whose slots are elements of a tensor; ``KVBlocks.copy`` runs its plans."""

    def __init__(self, num_blocks: int, block_size: int, rng: random.Random, backend: str) -> None:
        super().__init__(num_blocks, block_size, rng)
        # Two words per slot, so that blocks of one token also allow the widest access.
        memory = torch.zeros(num_blocks, block_size, 1, 2, dtype=torch.int64)
        self.blocks = KVBlocks(
            segments_from(memory, layout="NHD"),
            block_size=block_size,
            backend=backend,
            max_pairs=64,
        )
        self.memory = memory
        self.cells = memory.view(-1, 2)[:, 0].numpy()
        self.num_copied = 0

    def _copy(self, step: Step) -> None:
        self.blocks.copy(step.plan)
        self.num_copied += len(step.plan)


def on_tensors(world: World, backend: str) -> TensorDevice:
    config = world.manager.config
    world.device = TensorDevice(config.num_blocks, world.size, world.rng, backend)
    return world.device


def play(profile: str, seed: int, ops: int, backend: str) -> int:
    run = Run(Plan(ops, detectors="IK"), profile, seed)
    device = on_tensors(run.world, backend)
    for _ in range(ops):
        run.one()
    finish_up(run.world)
    return device.num_copied


@pytest.mark.parametrize("profile", ["balanced", "beam_storm", "aborts", "large"])
def test_every_sequence_reads_its_own_tokens(profile: str) -> None:
    assert sum(play(profile, seed, 300, "torch") for seed in range(20)) > 30


def test_every_sequence_reads_its_own_tokens_through_the_kernel(backend: str) -> None:
    assert sum(play("large", seed, 100, backend) for seed in range(2)) > 10


def test_the_oracle_sees_a_copy_that_is_one_token_short() -> None:
    class Short(TensorDevice):
        def _copy(self, step: Step) -> None:
            plan = step.plan
            plan.num_tokens[:] = (plan.num_tokens - 1).clip(1)
            super()._copy(step)

    run = Run(Plan(2_000, detectors="IK"), "beam_storm", 1)
    run.world.device = Short(
        run.world.manager.config.num_blocks, run.world.size, run.world.rng, "torch"
    )

    def play_on() -> None:
        for _ in range(2_000):
            run.one()

    with pytest.raises(WrongReadError):
        play_on()
