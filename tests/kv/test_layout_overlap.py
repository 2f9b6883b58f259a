"""No byte is copied twice, and segments that share some bytes are refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blockmgr import LayoutError
from blockmgr.kv.layout import Segment, check_segments, segments_from
from blockmgr.kv.segment import MOST_RUNS, check_disjoint
from tests.kv.addresses import all_bytes, segment_bytes

MEMORY = torch.zeros(4096, dtype=torch.uint8)


def segment(name: str = "s", **figures: int) -> Segment:
    usual = {"block_stride": 64, "num_rows": 1, "row_stride": 16, "row_bytes": 16, "num_blocks": 4}
    return Segment(name=name, tensor=MEMORY, **{**usual, **figures})


figures = st.fixed_dictionaries(
    {
        "offset": st.integers(0, 40),
        "block_stride": st.integers(1, 24),
        "num_rows": st.integers(1, 4),
        "row_stride": st.integers(1, 40),
        "row_bytes": st.integers(1, 6),
    }
)


def build(number: int, num_blocks: int, drawn: dict[str, int]) -> Segment:
    drawn["row_stride"] = max(drawn["row_stride"], drawn["row_bytes"])
    return segment(f"s{number}", num_blocks=num_blocks, **drawn)


def overlaps(segments: list[Segment]) -> bool:
    every = [byte for s in segments for byte in all_bytes(s)]
    return len(every) != len(set(every))


@given(st.integers(1, 5), st.lists(figures, min_size=1, max_size=4), st.integers(1, 24))
def test_overlap_is_what_a_list_of_all_bytes_says(
    num_blocks: int, drawn: list[dict[str, int]], stride: int
) -> None:
    """Equal strides are decided by rectangles, different ones by enumeration."""
    for change in ({}, {"block_stride": stride}):
        segments = [build(i, num_blocks, {**d, **change}) for i, d in enumerate(drawn)]
        try:
            check_disjoint(segments)
        except LayoutError:
            assert overlaps(segments)
        else:
            assert not overlaps(segments)


@given(figures, st.integers(1, 5))
def test_a_segment_that_overlaps_itself_is_refused_alone(
    drawn: dict[str, int], num_blocks: int
) -> None:
    one = build(0, num_blocks, drawn)
    if overlaps([one]):
        with pytest.raises(LayoutError, match="overlaps itself") as caught:
            check_disjoint([one])
        assert caught.value.segment == "s0"
    else:
        check_disjoint([one])


def test_both_segments_are_named() -> None:
    with pytest.raises(LayoutError, match="some but not all of its bytes with 'one'") as caught:
        check_segments([segment("one"), segment("two", offset=8)], 1)
    assert caught.value.segment == "two"


def test_pools_behind_one_another_do_not_overlap() -> None:
    """K and V of [2, blocks, …] have equal offsets within a block but lie in other blocks."""
    k = segment("k", block_stride=16)
    v = segment("v", block_stride=16, offset=64)
    assert len(check_segments([k, v], 1)) == 2
    with pytest.raises(LayoutError, match="'k'"):
        check_segments([k, segment("v", block_stride=16, offset=48)], 1)


def test_a_short_segment_between_the_blocks_of_a_long_one_ends_nothing() -> None:
    """A later segment may still lie within the span of the long one."""
    long = segment("long", block_stride=64)
    between = segment("between", offset=16, block_stride=1, row_bytes=1)
    late = segment("late", offset=136, block_stride=1, row_bytes=1)
    with pytest.raises(LayoutError, match="some but not all"):
        check_segments([long, between, late], 1)
    assert len(check_segments([long, between, segment("late", offset=150, row_bytes=1)], 1)) == 3


def test_a_row_across_the_end_of_a_stride_is_followed_around() -> None:
    """The last bytes of the row overlap the first bytes of the next block."""
    base = -MEMORY.data_ptr() % 64
    first, last = segment("first", offset=base), segment("last", offset=base + 56)
    with pytest.raises(LayoutError, match="'"):
        check_segments([first, last], 1)
    assert len(check_segments([first, segment("last", offset=base + 48)], 1)) == 2


def test_shared_storage_is_copied_once() -> None:
    """Two layers that share their K/V are recognised by their bytes, not by the tensor object."""
    k = torch.zeros(4, 8, 2, 16)
    again = torch.empty(0).set_(k.untyped_storage(), 0, (4, 8, 2, 16))
    other = torch.zeros(4, 8, 2, 16)
    checked = check_segments(segments_from([k, other, again, k], layout="NHD"), 8)
    assert [s.name for s in checked] == ["kv[0]", "kv[1]"]


def test_the_same_bytes_split_in_two_ways_are_copied_whole() -> None:
    """For one segment a block has 8 tokens; for the other it is raw bytes, all of them needed."""
    tensor = torch.zeros(4, 2, 8, 16)
    split = segments_from(tensor, layout="HND", name="split")
    raw = segments_from(tensor.view(4, 256), layout="block bytes", name="raw")
    for segments in (split + raw, raw + split, split + raw + split):
        [checked] = check_segments(segments, 8)
        assert (checked.num_rows, checked.row_bytes, checked.token_bytes) == (1, 1024, 0)


def test_a_dtype_does_not_make_other_bytes() -> None:
    tensor = torch.zeros(4, 8, 2, 16)
    segments = segments_from([tensor, tensor.view(torch.int16)], layout="NHD")
    assert [s.name for s in check_segments(segments, 8)] == ["kv[0]"]


def test_a_part_of_a_registered_tensor_is_refused() -> None:
    tensor = torch.zeros(4, 8, 2, 16)
    segments = segments_from({"all": tensor, "head": tensor[:, :, :1]}, layout="NHD")
    with pytest.raises(LayoutError, match="'all'") as caught:
        check_segments(segments, 8)
    assert caught.value.segment == "head"


def test_layers_of_one_fused_tensor_are_disjoint() -> None:
    fused = torch.zeros(4, 3, 2, 8, 2, 16)
    layers = [(fused[:, i, 0], fused[:, i, 1]) for i in range(3)]
    assert len(check_segments(segments_from(layers, layout="NHD"), 8)) == 6
    with pytest.raises(LayoutError):
        check_segments(
            segments_from(layers, layout="NHD") + segments_from(fused, layout="FUSED_NHD"), 8
        )


def test_too_many_rows_to_compare_are_refused_as_such() -> None:
    """Only for different strides in the same memory; the check never guesses."""
    memory = torch.empty(9 * MOST_RUNS + 16, dtype=torch.uint8)  # never touched

    def column(name: str, offset: int, block_stride: int) -> Segment:
        return Segment(
            name=name,
            tensor=memory,
            offset=offset,
            block_stride=block_stride,
            num_rows=1,
            row_stride=1,
            row_bytes=1,
            num_blocks=MOST_RUNS // 2 + 1,
        )

    with pytest.raises(LayoutError, match="block_stride 9 differs from 8 of 'a'") as caught:
        check_segments([column("a", 0, 8), column("b", 4, 9)], 1)
    assert caught.value.segment == "b"
    assert len(check_segments([column("a", 0, 8), column("b", 4, 8)], 1)) == 2
    apart = 8 * (MOST_RUNS // 2 + 1)
    assert len(check_segments([column("a", 0, 8), column("b", apart, 9)], 1)) == 2


def test_a_block_size_of_one_has_nothing_to_split() -> None:
    [checked] = check_segments([segment(num_rows=2, row_stride=16, token_bytes=16)], 1)
    assert (checked.num_rows, checked.row_bytes, checked.token_bytes) == (1, 32, 0)


def test_rows_that_touch_are_one_row() -> None:
    [checked] = check_segments([segment(num_rows=3, row_stride=16)], 1)
    assert (checked.num_rows, checked.row_stride, checked.row_bytes) == (1, 48, 48)


def test_a_single_block_has_the_stride_of_its_span() -> None:
    one = segment(num_blocks=1, num_rows=2, row_stride=32, block_stride=5)
    [checked] = check_segments([one], 1)
    assert checked.block_stride == 48
    assert list(segment_bytes([checked], 0)) == list(segment_bytes([one], 0))


@pytest.mark.parametrize(
    ("second", "block_size", "match"),
    [
        ({"num_blocks": 3}, 4, "has 3 blocks, 'first' has 4"),
        ({"token_bytes": 4}, 8, "4 tokens of 4 bytes, block_size is 8"),
        ({"token_bytes": 4}, 2, "4 tokens of 4 bytes, block_size is 2"),
    ],
)
def test_segments_of_different_pools_are_refused(
    second: dict[str, int], block_size: int, match: str
) -> None:
    segments = [segment("first"), segment("second", offset=1024, **second)]
    with pytest.raises(LayoutError, match=match) as caught:
        check_segments(segments, block_size)
    assert caught.value.segment == "second"


def test_segments_of_different_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no second device, so one segment pretends to be on another one."""
    here, there = segment("here"), segment("there", offset=1024)
    monkeypatch.setattr(
        Segment,
        "device",
        property(lambda s: torch.device("cpu" if s.name == "here" else "cuda:0")),
    )
    with pytest.raises(LayoutError, match="is on cuda:0, 'here' is on cpu") as caught:
        check_segments([here, there], 1)
    assert caught.value.segment == "there"


@pytest.mark.parametrize(
    ("segments", "block_size", "error", "match"),
    [
        ([], 4, ValueError, "segments"),
        ([MEMORY], 4, TypeError, "Segment"),
        ([segment(), None], 4, TypeError, "Segment"),
        ([segment()], 0, ValueError, "block_size"),
        ([segment()], -3, ValueError, "block_size"),
        ([segment()], True, TypeError, "block_size"),
        ([segment()], 4.0, TypeError, "block_size"),
    ],
)
def test_what_is_no_list_of_segments_is_refused(
    segments: list[Segment], block_size: int, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        check_segments(segments, block_size)
