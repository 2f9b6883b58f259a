"""The registered operator inside ``torch.compile``: the compiler must see what it writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.gpu.world import LAYOUTS, Place, World, torch

# torch 2.11 warns of its own use of an old interface when its compiler is imported.
pytestmark = pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch.compiler.reset()


def compiled(place: Place, function: Callable[..., Any]) -> Callable[..., Any]:
    """Uses the real compiler on a device; on the processor, everything but code generation."""
    backend = "inductor" if place.device == "cuda" else "aot_eager"
    return torch.compile(function, backend=backend, fullgraph=True)


def test_a_compiled_step_reads_what_the_copy_wrote(place: Place) -> None:
    """A compiler that missed the mutation would read the block before the copy, or drop it."""
    world = World([LAYOUTS["8-bit"]], place)
    [tensor] = world.tensors
    pairs = torch.tensor([[2, 9, world.block_size]], dtype=torch.int32, device=place.device)

    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = x[9].int() * 2
        world.blocks.copy_pairs(pairs)
        return before, x[9].int() * 2

    expected_before, expected_after = tensor[9].int() * 2, tensor[2].int() * 2
    before, after = compiled(place, step)(tensor)
    world.expect([(2, 9, world.block_size)])
    world.check()
    assert torch.equal(before, expected_before)
    assert torch.equal(after, expected_after)


def test_a_compiled_copy_whose_result_nobody_reads_still_happens(place: Place) -> None:
    world = World([LAYOUTS["HND"]], place)
    pairs = torch.tensor([[0, 5, 2], [1, 6, 4]], dtype=torch.int32, device=place.device)

    def step(x: torch.Tensor) -> torch.Tensor:
        world.blocks.copy_pairs(pairs)
        return x + 1

    compiled(place, step)(torch.zeros(3, device=place.device))
    world.expect([(0, 5, 2), (1, 6, 4)])
    world.check()
