"""Missing or freed memory is refused when it is registered, or before a copy."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from blockmgr import LayoutError
from blockmgr.kv import KVBlocks, ModelShape, PagedKVCache, segments_from
from tests.kv.pools import plan_of


def described(tensor: torch.Tensor) -> torch.Tensor:
    """Registers a tensor and returns a scalar, as transforms of torch.func require."""
    KVBlocks(segments_from(tensor, layout="NHD", name="k"), block_size=4)
    return tensor.sum()


def test_a_tensor_without_memory_of_its_own_is_refused() -> None:
    real = torch.zeros(2, 3, 4, 2, 8)
    with FakeTensorMode():
        fake = torch.zeros(3, 4, 2, 8)
    with pytest.raises(LayoutError, match="'k': a fake tensor has no memory"):
        described(fake)
    for transform in (torch.func.vmap, torch.func.grad, torch.func.functionalize):
        with pytest.raises(LayoutError, match=r"'k'.* no memory|'k'.* wraps other"):
            transform(described)(real if transform is torch.func.vmap else real[0])


@pytest.mark.parametrize("is_leaf", [True, False])
def test_a_tensor_that_requires_gradients_is_refused(is_leaf: bool) -> None:
    """A copy does not change the tensor's version, so a backward pass would use wrong values."""
    tensor = torch.zeros(3, 4, 2, 8, requires_grad=True)
    tensor = tensor if is_leaf else tensor * 2
    with pytest.raises(LayoutError, match="requires gradients"):
        described(tensor)
    described(tensor.detach())


def ones(*, is_dense: bool) -> torch.Tensor:
    return torch.ones(3, 4, 2, 8) if is_dense else torch.ones(3, 4, 2, 16)[..., :8]


def freed(tensor: torch.Tensor) -> None:
    tensor.untyped_storage().resize_(0)


def grown(tensor: torch.Tensor) -> None:
    tensor.untyped_storage().resize_(2**24)


def exchanged(tensor: torch.Tensor) -> None:
    tensor.data = tensor.clone()


@pytest.mark.parametrize("is_dense", [True, False])
@pytest.mark.parametrize("change", [freed, grown, exchanged])
def test_memory_that_is_freed_or_exchanged_is_noticed(
    change: Callable[[torch.Tensor], None], is_dense: bool
) -> None:
    """Refuses before the copy, because the memory may belong to another tensor or be free."""
    first = torch.ones(3, 4, 2, 8)
    second = ones(is_dense=is_dense)
    blocks, other = (
        KVBlocks(segments_from({"kv.0": a, "kv.1": b}, layout="NHD"), block_size=4)
        for a, b in ((first, second), (torch.ones_like(first), ones(is_dense=is_dense)))
    )
    buffer = blocks.pair_buffer(4)
    change(second)
    calls: list[Callable[[], None]] = [
        lambda: blocks.copy(plan_of((0, 1, 4))),
        lambda: blocks.copy_blocks([(0, 1)]),
        lambda: blocks.zero([0]),
        lambda: blocks.copy_to(other, [(0, 1)]),
        lambda: other.copy_to(blocks, [(0, 1)]),
        lambda: buffer.fill(plan_of((0, 1, 4))),
    ]
    for call in calls:
        with pytest.raises(LayoutError, match=r"'kv\.1'.* freed or exchanged"):
            call()
    assert bool((first == 1).all())


@pytest.mark.parametrize("call", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_stands_for_memory_is_neither_pickled_nor_copied(
    call: Callable[[object], object],
) -> None:
    shape = ModelShape(num_layers=1, num_kv_heads=1, head_dim=8, dtype=torch.float32)
    cache = PagedKVCache(4, 4, shape)
    for each in (cache, cache.blocks, cache.blocks.pair_buffer(2)):
        name = type(each).__name__
        with pytest.raises(TypeError, match=f"a {name} cannot be (copied|pickled)"):
            call(each)
