"""Segments name exactly the bytes of a block, in every layout that engines use."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blockmgr import LayoutError
from blockmgr.kv.layout import PRESETS, Segment, axes_of, check_segments, segments_from
from tests.kv.addresses import block_bytes, segment_bytes

BLOCKS, TOKENS, HEADS, DIM = 3, 4, 2, 16
SIZES = {
    "block": BLOCKS,
    "token": TOKENS,
    "head": HEADS,
    "dim": DIM,
    "kv": 2,
    "layer": 3,
    "latent": 24,
    "pack": 2,
    "lane": 8,
}
OTHERS = {
    "x-packed K": "block head pack token lane",
    "token-minor V": "block head dim token",
    "scales": "block token head",
    "head-major scales": "block head token",
    "block scales": "block",
    "heads outermost": "head block token dim",
}
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.uint8]


def contiguous(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def permuted(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor whose axes are in reverse order in memory."""
    return torch.zeros(shape[::-1], dtype=dtype).permute(*reversed(range(len(shape))))


def padded(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor with unused bytes after each run of each axis."""
    whole = torch.zeros([size + 1 for size in shape], dtype=dtype)
    return whole[tuple(slice(size) for size in shape)]


def every_other(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    """A view of every other entry of every axis."""
    return torch.zeros([2 * size for size in shape], dtype=dtype)[
        (slice(None, None, 2),) * len(shape)
    ]


def wide(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    """The second half of the innermost axis, like V of an interleaved tensor."""
    return torch.zeros([*shape[:-1], 2 * shape[-1]], dtype=dtype)[..., shape[-1] :]


def offset(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor that starts inside its storage, at an odd element."""
    flat = torch.zeros(int(np.prod(shape)) + 5, dtype=dtype)
    return flat[3:-2].view(shape)


MAKERS = [contiguous, permuted, padded, every_other, wide, offset]


def assert_exact(tensor: torch.Tensor, layout: str) -> list[Segment]:
    """Checks the bytes of whole blocks and of every number of leading tokens."""
    axes = axes_of(layout)
    segments = segments_from(tensor, layout=layout)
    splits = {s.token_bytes > 0 for s in segments}
    assert len(splits) == 1
    for block in range(tensor.shape[axes.index("block")]):
        whole = block_bytes(tensor, axes, block)
        assert np.array_equal(segment_bytes(segments, block), whole)
        if "token" not in axes:
            continue
        for n in range(1, tensor.shape[axes.index("token")] + 1):
            leading = block_bytes(tensor, axes, block, n) if splits == {True} else whole
            assert np.array_equal(segment_bytes(segments, block, n), leading)
    return segments


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("layout", [*PRESETS, *OTHERS.values()])
def test_segments_are_the_bytes_of_the_block(
    layout: str, make: Callable[[list[int], torch.dtype], torch.Tensor]
) -> None:
    for dtype in DTYPES:
        tensor = make([SIZES[axis] for axis in axes_of(layout)], dtype)
        segments = assert_exact(tensor, layout)
        assert sum(s.bytes_per_block for s in segments) * BLOCKS == tensor.numel() * dtype.itemsize


@pytest.mark.parametrize(
    ("shape", "layout", "expected"),
    [
        # (segments, rows, row bytes, token bytes), bfloat16, of 10 blocks
        ((10, 16, 8, 128), "NHD", (1, 1, 32768, 2048)),
        ((10, 8, 16, 128), "HND", (1, 8, 4096, 256)),
        ((10, 8, 16, 256), "HND", (1, 8, 8192, 512)),  # K and V interleaved
        ((10, 16, 8, 256), "NHD", (1, 1, 65536, 4096)),  # K and V interleaved
        ((2, 10, 16, 8, 128), "KV_NHD", (1, 2, 32768, 2048)),
        ((2, 10, 8, 16, 128), "KV_HND", (2, 8, 4096, 256)),
        ((10, 2, 16, 8, 128), "BLOCK_KV_NHD", (1, 2, 32768, 2048)),
        ((10, 2, 8, 16, 128), "BLOCK_KV_HND", (1, 16, 4096, 256)),
        ((10, 4, 2, 16, 8, 128), "FUSED_NHD", (1, 8, 32768, 2048)),
        ((10, 4, 2, 8, 16, 128), "FUSED_HND", (1, 64, 4096, 256)),
        ((10, 64, 576), "MLA", (1, 1, 73728, 1152)),
        ((10, 8, 16, 16, 8), "block head pack token lane", (1, 128, 256, 16)),
        ((10, 8, 128, 16), "block head dim token", (1, 1, 32768, 0)),
        ((10, 16, 8), "block token head", (1, 1, 256, 16)),
        ((10, 16, 2), "block token head", (1, 1, 64, 0)),  # 4 bytes a token
        ((10, 8, 16), "block head token", (1, 1, 256, 0)),
        ((10,), "block", (1, 1, 2, 0)),
    ],
)
def test_rows_are_as_long_as_they_can_be(
    shape: tuple[int, ...], layout: str, expected: tuple[int, ...]
) -> None:
    segments = segments_from(torch.zeros(shape, dtype=torch.bfloat16), layout=layout)
    [first, *_] = segments
    assert (len(segments), first.num_rows, first.row_bytes, first.token_bytes) == expected


def test_an_8_bit_cache_has_its_scales_beside_it() -> None:
    data = torch.zeros(10, 16, 8, 128, dtype=torch.float8_e4m3fn)
    scales = torch.zeros(10, 16, 8)
    segments = segments_from(data, layout="NHD") + segments_from(scales, layout="block token head")
    assert [(s.row_bytes, s.token_bytes) for s in segments] == [(16384, 1024), (512, 32)]
    assert len(check_segments(segments, 16)) == 2


def test_the_mla_row_of_656_bytes_can_be_split() -> None:
    [segment] = segments_from(torch.zeros(4, 64, 656, dtype=torch.uint8), layout="MLA")
    assert (segment.row_bytes, segment.token_bytes) == (64 * 656, 656)


def test_a_split_never_narrows_the_accesses() -> None:
    """A split into tokens of 6 bytes would need 2-byte accesses; the whole row allows 16."""
    [segment] = segments_from(torch.zeros(4, 16, 3, dtype=torch.float16), layout="MLA")
    assert (segment.row_bytes, segment.token_bytes) == (96, 0)
    [segment] = segments_from(torch.zeros(4, 3, 3, dtype=torch.float16), layout="MLA")
    assert (segment.row_bytes, segment.token_bytes) == (18, 6)


def test_halves_of_an_interleaved_tensor_cannot_be_split() -> None:
    """Tokens are then not the outermost axis of a row; the whole tensor can be split."""
    both = torch.zeros(4, 8, 16, 256, dtype=torch.bfloat16)
    segments = segments_from([(both[..., :128], both[..., 128:])], layout="HND")
    assert [(s.num_rows, s.row_bytes, s.token_bytes) for s in segments] == [(128, 256, 0)] * 2
    assert len(check_segments(segments, 16)) == 2


@st.composite
def strided(draw: st.DrawFn) -> tuple[torch.Tensor, str]:
    """A tensor whose axes are in any order, logically and in memory, with gaps anywhere."""
    names = draw(
        st.permutations(["block", "token", "head", "dim", "kv"][: draw(st.integers(1, 5))])
    )
    sizes = [draw(st.integers(1, 4)) for _ in names]
    order = draw(st.permutations(range(len(names))))
    strides, extent = [0] * len(names), 1
    for axis in order:
        strides[axis] = extent + draw(st.sampled_from([0, 0, 0, 1, 3]))
        extent = strides[axis] * sizes[axis]
    start = draw(st.integers(0, 5))
    dtype = draw(st.sampled_from([torch.uint8, torch.float16, torch.float32]))
    storage = torch.zeros(start + extent + 8, dtype=dtype)
    return torch.as_strided(storage, sizes, strides, start), " ".join(names)


@given(strided())
def test_any_order_and_any_stride(case: tuple[torch.Tensor, str]) -> None:
    tensor, names = case
    if "block" not in names:
        names, tensor = f"block {names}", tensor[None]
    segments = assert_exact(tensor, names)
    block_size = tensor.shape[names.split().index("token")] if "token" in names else 1
    checked = check_segments(segments, block_size)
    for block in range(segments[0].num_blocks):
        assert np.array_equal(segment_bytes(checked, block), segment_bytes(segments, block))
        for n in range(1, block_size + 1):
            described = segment_bytes(segments, block, n)
            assert np.array_equal(segment_bytes(checked, block, n), described)


@given(strided(), st.randoms())
def test_the_order_of_axes_changes_nothing(case: tuple[torch.Tensor, str], random: object) -> None:
    """Equal bytes have equal descriptions, so that shared storage can be found."""
    tensor, names = case
    if "block" not in names:
        names, tensor = f"block {names}", tensor[None]
    order = list(range(tensor.ndim))
    random.shuffle(order)  # type: ignore[attr-defined]
    other = " ".join(names.split()[axis] for axis in order)
    block_size = tensor.shape[names.split().index("token")] if "token" in names else 1
    one, two = (
        check_segments(segments_from(t, layout=layout), block_size)
        for t, layout in ((tensor, names), (tensor.permute(order), other))
    )
    assert [figures(s) for s in one] == [figures(s) for s in two]


def figures(s: Segment) -> tuple[int, ...]:
    return s.address, s.block_stride, s.num_rows, s.row_stride, s.row_bytes, s.token_bytes


def test_names_say_which_tensor_it_is() -> None:
    def zeros() -> torch.Tensor:
        return torch.zeros(2, 4, 2, 8)

    def names(tensors: object) -> list[str]:
        return [s.name for s in segments_from(tensors, layout="NHD")]  # type: ignore[arg-type]

    assert names(zeros()) == ["kv"]
    assert names([zeros(), zeros()]) == ["kv[0]", "kv[1]"]
    assert names([(zeros(), zeros()), zeros()]) == ["kv[0][0]", "kv[0][1]", "kv[1]"]
    assert names({"layers.3": (zeros(), zeros()), "x": zeros()}) == [
        "layers.3[0]",
        "layers.3[1]",
        "x",
    ]
    split = segments_from(torch.zeros(2, 3, 2, 4, 8), layout="KV_HND", name="cache")
    assert [s.name for s in split] == ["cache#0", "cache#1"]


def test_segments_keep_the_memory_alive() -> None:
    [segment] = segments_from(torch.zeros(2, 4, 8), layout="MLA")
    assert segment.tensor.shape == (2, 4, 8)
    assert segment.address == segment.tensor.data_ptr()
    assert segment.device == torch.device("cpu")


def test_presets_are_found_in_any_case() -> None:
    assert axes_of("block_kv_hnd") == ("block", "kv", "head", "token", "dim")
    assert axes_of(" Mla ") == ("block", "token", "latent")


@pytest.mark.parametrize(
    ("layout", "error", "match"),
    [
        ("NDH", ValueError, "one of NHD, HND"),
        ("token head dim", ValueError, "one called block"),
        ("", ValueError, "one called block"),
        ("block token token dim", ValueError, "twice: token"),
        ("block block token", ValueError, "twice: block"),
        (3, TypeError, "layout must be a str"),
    ],
)
def test_a_layout_that_makes_no_sense_is_refused(
    layout: str, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        segments_from(torch.zeros(2, 4, 2, 8), layout=layout)


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float16)


@pytest.mark.parametrize(
    ("tensors", "segment", "match"),
    [
        (zeros(2, 4, 8), "kv", "has 3 axes, layout 'block token head dim' has 4"),
        ([(zeros(2, 4, 2, 8), zeros(2, 4, 8))], "kv[0][1]", "has 3 axes"),
        (zeros(2, 4, 1, 8).expand(2, 4, 3, 8), "kv", "axis head has stride 0"),
        (zeros(1, 4, 2, 8).expand(5, 4, 2, 8), "kv", "axis block has stride 0"),
        ({"layer.7": zeros(0, 4, 2, 8)}, "layer.7", "empty"),
        (torch.zeros(2, 4, 2, 8, device="meta"), "kv", "meta"),
        (zeros(2, 4, 2, 8).to_sparse(), "kv", "strided"),
        (zeros(64).as_strided((2, 2, 2, 8), (8, 8, 8, 1)), "kv", "rows overlap"),
        (zeros(64).as_strided((2, 2, 2, 8), (16, 8, 4, 1)), "kv", "rows overlap"),
        (zeros(64).as_strided((4, 2, 1, 8), (8, 8, 8, 1)), "kv", "overlaps itself"),
        ([zeros(2, 4, 2, 8), zeros(2, 8, 2, 8)], "kv[1]", "8 tokens a block, 'kv[0]' holds 4"),
    ],
)
def test_a_tensor_that_cannot_be_described_is_named(
    tensors: object, segment: str, match: str
) -> None:
    with pytest.raises(LayoutError) as caught:
        segments_from(tensors, layout="NHD")  # type: ignore[arg-type]
    assert caught.value.segment == segment
    assert match in str(caught.value)


def test_token_minor_tensors_must_hold_equally_many_tokens_too() -> None:
    """Such segments cannot be split, so no later check would notice."""
    with pytest.raises(LayoutError, match=r"8 tokens a block, 'kv\[0\]' holds 4"):
        segments_from([zeros(2, 4, 8, 4), zeros(2, 4, 4, 8)], layout="block head dim token")


@pytest.mark.parametrize(
    ("tensors", "error"),
    [
        ([], ValueError),
        ({}, ValueError),
        (None, TypeError),
        ("tensor", TypeError),
        ([None], TypeError),
        ([(zeros(2, 4, 2, 8), None)], TypeError),
        ([[[zeros(2, 4, 2, 8)]]], TypeError),
        (np.zeros((2, 4, 2, 8)), TypeError),
    ],
)
def test_what_is_no_tensor_is_refused(tensors: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        segments_from(tensors, layout="NHD")  # type: ignore[arg-type]


def test_a_name_is_a_string() -> None:
    with pytest.raises(TypeError, match="name"):
        segments_from(zeros(2, 4, 2, 8), layout="NHD", name=3)  # type: ignore[arg-type]


def test_strides_that_do_not_nest_may_still_not_overlap() -> None:
    """Elements at 0, 3, 2, 5, 4, 7: neither stride spans the other axis, but none overlap."""
    tensor = torch.zeros(8, dtype=torch.uint8).as_strided((3, 2), (2, 3))
    assert_exact(tensor, "block dim")
    outside_the_rows = torch.zeros(16, dtype=torch.uint8).as_strided((2, 3, 2), (8, 2, 3))
    assert_exact(outside_the_rows, "block head dim")


@pytest.mark.parametrize("layout", ["block token head dim", "block head dim token", "token block"])
def test_a_pool_of_other_blocks_than_the_tensors_is_refused(layout: str) -> None:
    """Also where rows are never split, so that their length does not depend on the tokens."""
    sizes = {"block": 3, "token": 16, "head": 2, "dim": 8}
    tensor = zeros(*(sizes[axis] for axis in layout.split()))
    segments = segments_from(tensor, layout=layout)
    assert {s.block_tokens for s in segments} == {16}
    assert {s.block_tokens for s in check_segments(segments, 16)} == {16}
    for block_size in (1, 4, 8, 15, 32):
        with pytest.raises(LayoutError, match=f"holds 16 tokens.*block_size is {block_size}"):
            check_segments(segments, block_size)


def test_keys_and_values_of_different_blocks_are_not_one_pool() -> None:
    layout = "block head dim token"
    keys = segments_from(zeros(3, 2, 8, 16), layout=layout, name="k")
    values = segments_from(zeros(3, 2, 8, 8), layout=layout, name="v")
    with pytest.raises(LayoutError, match="holds 8 tokens, block_size is 16") as caught:
        check_segments([*keys, *values], 16)
    assert caught.value.segment == "v"


def test_a_layout_that_says_nothing_of_tokens_fits_any_block_size() -> None:
    [segment] = segments_from(zeros(3, 2), layout="block head")
    assert segment.block_tokens == 0
    for block_size in (1, 16):
        check_segments([segment], block_size)
