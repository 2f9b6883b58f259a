"""Oracles: the bytes of a tensor's blocks, and the bytes that segments describe."""

from __future__ import annotations

import numpy as np
import torch

from blockmgr.kv.layout import Segment


def tensor_bytes(tensor: torch.Tensor) -> np.ndarray:
    """The address of every byte of a tensor, sorted."""
    places = np.zeros((), np.int64)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = places[..., None] + np.arange(size) * stride
    element = tensor.element_size()
    starts = tensor.data_ptr() + places.ravel() * element
    return np.sort((starts[:, None] + np.arange(element)).ravel())


def block_bytes(
    tensor: torch.Tensor, axes: tuple[str, ...], block: int, num_tokens: int | None = None
) -> np.ndarray:
    """Bytes of ``tensor[block, ..., :num_tokens]``, for any order of the axes."""
    part = tensor.narrow(axes.index("block"), block, 1)
    if num_tokens is not None:
        part = part.narrow(axes.index("token"), 0, num_tokens)
    return tensor_bytes(part)


def segment_bytes(segments: list[Segment], block: int, num_tokens: int | None = None) -> np.ndarray:
    """Bytes that segments describe for a block or its first tokens; sorted, with duplicates."""
    parts = [np.zeros(0, np.int64)]
    for s in segments:
        length = s.row_bytes
        if num_tokens is not None and s.token_bytes:
            length = min(length, num_tokens * s.token_bytes)
        rows = s.address + block * s.block_stride + np.arange(s.num_rows) * s.row_stride
        parts.append((rows[:, None] + np.arange(length)).ravel())
    return np.sort(np.concatenate(parts))


def all_bytes(segment: Segment) -> list[int]:
    """Every byte of every block, with repetition where rows overlap."""
    every = [segment_bytes([segment], block) for block in range(segment.num_blocks)]
    return np.concatenate(every).tolist()
