"""A cache and its host counterpart swap blocks, for any shape and any two sizes."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

torch = pytest.importorskip("torch", reason="blockmgr.kv needs torch")

from blockmgr.kv import PRESETS, ModelShape, PagedKVCache  # noqa: E402

LAYOUTS = sorted(PRESETS)


def shape_of(layout: str, layers: int, heads: int, dim: int, dtype: torch.dtype) -> ModelShape:
    latent = dim if layout == "MLA" else None
    heads = 1 if layout == "MLA" else heads
    return ModelShape(
        num_layers=layers, num_kv_heads=heads, head_dim=dim, dtype=dtype, latent_dim=latent
    )


def parts(cache: PagedKVCache, block: int) -> list[torch.Tensor]:
    layers = range(cache.shape.num_layers)
    both = [t for i in layers for t in (cache.keys(i), cache.values(i))]
    return [t[block] for t in both if t is not None]


@given(
    layout=st.sampled_from(LAYOUTS),
    sizes=st.tuples(st.sampled_from([1, 2, 5]), st.sampled_from([1, 2, 5])),
    block_size=st.sampled_from([1, 2, 5, 16]),
    layers=st.sampled_from([1, 2, 5]),
    heads=st.sampled_from([1, 2, 3, 8]),
    dim=st.sampled_from([1, 3, 4, 16]),
    dtype=st.sampled_from([torch.uint8, torch.float16, torch.float32]),
)
@example("KV_HND", (1, 5), 16, 2, 2, 16, torch.float32)
@example("KV_HND", (5, 1), 16, 1, 2, 16, torch.float32)
@example("KV_NHD", (1, 5), 5, 1, 3, 3, torch.float16)
@example("KV_NHD", (5, 1), 1, 1, 1, 1, torch.uint8)
def test_what_is_swapped_out_comes_back(  # noqa: PLR0917  (examples have no names)
    layout: str,
    sizes: tuple[int, int],
    block_size: int,
    layers: int,
    heads: int,
    dim: int,
    dtype: torch.dtype,
) -> None:
    """With one block on one side, its K and V are adjacent and must still be separate rows."""
    shape = shape_of(layout, layers, heads, dim, dtype)
    cache = PagedKVCache(sizes[0], block_size, shape, layout=layout)
    host = cache.host_counterpart(sizes[1])
    for i, part in enumerate(parts(cache, 0)):
        part.copy_(torch.arange(part.numel()).reshape(part.shape) % 120 + i)
    before = [part.clone() for part in parts(cache, 0)]
    cache.swap_out(host, [0], [sizes[1] - 1])
    cache.zero([0])
    assert not any(part.any() for part in parts(cache, 0))
    cache.swap_in(host, [sizes[1] - 1], [sizes[0] - 1])
    for found, part in zip(parts(cache, sizes[0] - 1), before, strict=True):
        assert torch.equal(found, part)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", [(1, 4), (4, 1)])
def test_pools_of_any_two_sizes_have_the_same_rows(layout: str, sizes: tuple[int, int]) -> None:
    shape = shape_of(layout, 2, 2, 8, torch.float32)
    one, other = (PagedKVCache(n, 16, shape, layout=layout).blocks for n in sizes)
    figures = [
        [(s.num_rows, s.row_bytes, s.token_bytes) for s in blocks.segments]
        for blocks in (one, other)
    ]
    assert figures[0] == figures[1]
    assert one.access_bytes == other.access_bytes
