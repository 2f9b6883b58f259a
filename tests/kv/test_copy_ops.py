"""torch.ops.blockmgr.copy_blocks: torch's operator checks, and torch.compile on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from blockmgr.kv import KVBlocks, Segment, segments_from
from tests.kv.pools import TOKENS, World, fresh, plan_of

PAIRS = [(0, 1, 2), (0, 2, TOKENS), (-1, 3, 3)]


def arguments(blocks: KVBlocks, pairs: list[tuple[int, int, int]]) -> tuple[Any, ...]:
    return (
        blocks._tensors,
        blocks._table,
        blocks._chunks,
        torch.tensor(pairs, dtype=torch.int32),
        torch.tensor([len(pairs)], dtype=torch.int32),
        blocks.num_blocks,
        blocks.access_bytes,
        blocks._place,
        blocks._form,
    )


@pytest.mark.parametrize("layout", ["NHD", "KV_HND", "x-packed", "padded", "heads outermost"])
def test_the_operator_keeps_its_promises(layout: str, backend: str) -> None:
    """opcheck also runs it on copies of the tensors, at addresses other than the table's."""
    world = World(layout, backend)
    operator = torch.ops.blockmgr.copy_blocks.default
    for one in PAIRS:
        world.expect(*one)
    results = torch.library.opcheck(operator, arguments(world.blocks, PAIRS))
    assert set(results.values()) == {"SUCCESS"}
    torch.ops.blockmgr.copy_blocks(*arguments(world.blocks, PAIRS))
    world.check()


def test_the_schema_says_what_is_written() -> None:
    schema = torch.ops.blockmgr.copy_blocks.default._schema
    written = [a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write]
    assert (written, schema.returns) == (["tensors"], [])


@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
@pytest.mark.parametrize("layout", ["NHD", "BLOCK_KV_HND", "8 bits and scales"])
def test_a_compiled_step_copies_before_it_reads(layout: str, compiler: str, backend: str) -> None:
    torch.compiler.reset()
    world = World(layout, backend)
    tensor = world.parts[0][0]
    buffer = world.blocks.pair_buffer(4)

    def step(scale: torch.Tensor) -> torch.Tensor:
        world.blocks.copy_buffer(buffer)
        return tensor.view(torch.uint8)[1].to(torch.int32) * scale

    compiled = torch.compile(step, fullgraph=True, backend=compiler)
    for copies in ([(0, 1, 3), (2, 5, 1)], [], [(3, 1, TOKENS)]):
        buffer.fill(plan_of(*copies))
        for one in copies:
            world.expect(*one)
        result = compiled(torch.tensor(3, dtype=torch.int32))
        world.check()
        assert torch.equal(result, tensor.view(torch.uint8)[1].to(torch.int32) * 3)


def test_views_of_one_tensor_can_be_compiled(backend: str) -> None:
    """K and V as views of one storage: writes through one alias are seen through the other."""
    torch.compiler.reset()
    both = fresh(np.random.default_rng(0), (2, 5, TOKENS, 1, 16), torch.float16)
    k, v = both
    blocks = KVBlocks(segments_from([(k, v)], layout="NHD"), block_size=TOKENS, backend=backend)
    pairs = torch.tensor([(0, 1, 2), (4, 3, 4)], dtype=torch.int32)
    expected = both.clone()
    expected[:, 1, :2] = expected[:, 0, :2]
    expected[:, 3] = expected[:, 4]

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step() -> torch.Tensor:
        blocks.copy_pairs(pairs)
        return k.view(torch.int16) + v.view(torch.int16)

    result = step()
    assert torch.equal(both.view(torch.int16), expected.view(torch.int16))
    assert torch.equal(result, expected.view(torch.int16).sum(0, dtype=torch.int16))


def test_a_count_in_memory_decides_how_many_pairs_are_copied(backend: str) -> None:
    world = World("NHD", backend)
    pairs = torch.tensor([(0, 1, 1), (0, 2, 2), (0, 3, 3)], dtype=torch.int32)
    world.expect(0, 1, 1)
    world.expect(0, 2, 2)
    world.blocks.copy_pairs(pairs, torch.tensor([2], dtype=torch.int32))
    world.check()
    for count in (0, -5):
        world.blocks.copy_pairs(pairs, torch.tensor([count], dtype=torch.int32))
        world.check()
    world.expect(0, 3, 3)
    world.blocks.copy_pairs(pairs, torch.tensor([99], dtype=torch.int32))
    world.check()
    world.blocks.copy_pairs(pairs[:0])
    world.check()


def test_tensors_laid_out_anew_are_refused(backend: str) -> None:
    world = World("NHD", backend)
    tensors, *rest = arguments(world.blocks, PAIRS)
    turned = [tensor.clone().transpose(0, 1) for tensor in tensors]
    with world.unchanged(RuntimeError, "not laid out as they were registered"):
        torch.ops.blockmgr.copy_blocks(turned, *rest)


def test_an_engines_own_tensors_are_what_the_operator_writes() -> None:
    """If possible, so that a compiler sees one tensor instead of two that share memory."""
    world = World("NHD", "torch")
    assert {id(t) for t in world.blocks._tensors} == {id(t) for t, _ in world.parts}
    padded = World("padded", "torch")
    [flat], [(tensor, _)] = padded.blocks._tensors, padded.parts
    assert flat.ndim == 1
    assert flat.data_ptr() == tensor.data_ptr()
    assert flat.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
    inside = Segment(
        name="inside",
        tensor=tensor,
        block_stride=64,
        num_rows=1,
        row_stride=16,
        row_bytes=16,
        num_blocks=2,
    )
    [few] = KVBlocks([inside], block_size=1)._tensors
    assert (few.ndim, few.data_ptr()) == (1, tensor.data_ptr())
