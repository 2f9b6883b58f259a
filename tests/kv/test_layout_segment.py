"""Segments written by users: every number is checked, and the error has the name."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from blockmgr import LayoutError
from blockmgr.kv.layout import Segment

FIGURES = {"block_stride": 64, "num_rows": 2, "row_stride": 32, "row_bytes": 16, "num_blocks": 4}


def segment(**changes: Any) -> Segment:
    usual = {"name": "mine", "tensor": torch.zeros(128, dtype=torch.float16), **FIGURES}
    return Segment(**{**usual, **changes})


def test_a_segment_knows_its_extent() -> None:
    tensor = torch.zeros(256, dtype=torch.float16)[100:]
    made = segment(tensor=tensor, offset=8)
    assert made.address == tensor.data_ptr() + 8
    assert made.span_bytes == 3 * 64 + 32 + 16
    assert made.bytes_per_block == 32
    assert made.device == tensor.device


def test_figures_may_be_numpy_ints() -> None:
    made = segment(block_stride=np.int64(64), token_bytes=np.int32(4))
    assert (type(made.block_stride), type(made.token_bytes)) == (int, int)


def test_a_segment_may_begin_before_its_tensor() -> None:
    """The storage counts: a view of its middle can stand for all of it."""
    tensor = torch.zeros(128, dtype=torch.float16)[64:]
    assert segment(tensor=tensor, offset=-128).address == tensor.data_ptr() - 128
    with pytest.raises(LayoutError, match="inside the storage"):
        segment(tensor=tensor, offset=-130)


def test_the_last_byte_may_be_the_last_of_the_storage() -> None:
    segment(tensor=torch.zeros(240, dtype=torch.uint8))
    with pytest.raises(LayoutError, match="storage of 239 bytes"):
        segment(tensor=torch.zeros(239, dtype=torch.uint8))


@pytest.mark.parametrize("field", FIGURES)
@pytest.mark.parametrize("value", [0, -1])
def test_sizes_are_positive(field: str, value: int) -> None:
    with pytest.raises(LayoutError, match=f"{field} must be at least 1, got {value}") as caught:
        segment(**{field: value})
    assert caught.value.segment == "mine"


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"row_stride": 15}, "row_stride 15 is below row_bytes 16"),
        ({"token_bytes": -1}, "token_bytes must be at least 0, got -1"),
        ({"token_bytes": 3}, "no multiple of token_bytes 3"),
        ({"token_bytes": 32}, "no multiple of token_bytes 32"),
        ({"offset": 1}, "not aligned to the 2-byte elements"),
        ({"offset": 20}, "inside the storage"),
        ({"num_blocks": 5}, "inside the storage"),
        ({"tensor": torch.zeros(0)}, "empty"),
        ({"tensor": torch.zeros(128, device="meta")}, "meta"),
        ({"tensor": torch.zeros(8, 8).to_sparse()}, "strided"),
    ],
)
def test_a_wrong_figure_is_named(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(LayoutError, match=match) as caught:
        segment(**changes)
    assert caught.value.segment == "mine"


def test_the_row_stride_of_a_single_row_is_of_no_account() -> None:
    assert segment(num_rows=1, row_stride=1).span_bytes == 3 * 64 + 16


@pytest.mark.parametrize("field", [*FIGURES, "offset", "token_bytes"])
@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_figures_are_ints(field: str, value: object) -> None:
    with pytest.raises(TypeError, match=field):
        segment(**{field: value})


@pytest.mark.parametrize("changes", [{"name": 3}, {"tensor": np.zeros(256)}, {"tensor": None}])
def test_names_are_strings_and_tensors_tensors(changes: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        segment(**changes)


def test_segments_do_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        segment().offset = 4  # type: ignore[misc]


def test_figures_are_given_by_name() -> None:
    with pytest.raises(TypeError):
        Segment("mine", torch.zeros(8), 0, 4, 1, 4, 4, 0, 8)  # type: ignore[misc]
