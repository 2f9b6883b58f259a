"""Describes an engine's K/V tensors as segments, for any order of axes and any strides."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import torch

from blockmgr.errors import LayoutError
from blockmgr.kv.segment import Segment, check_disjoint, check_segments, check_tensor, spread_out

__all__ = ["PRESETS", "KVTensors", "Segment", "axes_of", "check_segments", "segments_from"]

PRESETS: Mapping[str, str] = MappingProxyType(
    {
        "NHD": "block token head dim",
        "HND": "block head token dim",
        "MLA": "block token latent",
        "KV_NHD": "kv block token head dim",
        "KV_HND": "kv block head token dim",
        "BLOCK_KV_NHD": "block kv token head dim",
        "BLOCK_KV_HND": "block kv head token dim",
        "FUSED_NHD": "block layer kv token head dim",
        "FUSED_HND": "block layer kv head token dim",
    }
)
"""Named layouts and their axes, outermost first."""

KVTensors: TypeAlias = (
    "torch.Tensor"
    " | Sequence[torch.Tensor | Sequence[torch.Tensor]]"
    " | Mapping[str, torch.Tensor | Sequence[torch.Tensor]]"
)
"""One tensor, one entry per layer, or entries by name; an entry is a tensor or (K, V)."""

WIDEST_ACCESS = 16


def segments_from(tensors: KVTensors, *, layout: str, name: str = "kv") -> list[Segment]:
    """The segments that describe the blocks of an engine's K/V tensors.

    Only strides matter. A tensor may be padded, sliced or permuted, and bytes between its elements
    are never touched. The segments allow copies of the first tokens of a block if that does not
    need narrower accesses than copies of whole rows. Otherwise (values with the token as the last
    axis, a scale of 4 bytes per token) rows are copied whole.

    ====================================  =======================================================
    tensors                               ``layout``
    ====================================  =======================================================
    K and V apart                         ``"NHD"`` or ``"HND"``
    K and V interleaved in the last axis  ``"NHD"`` or ``"HND"``: one tensor, ``dim`` twice as wide
    K and V stacked, ``[2, blocks, …]``   ``"KV_NHD"`` or ``"KV_HND"``
    the same, ``[blocks, 2, …]``          ``"BLOCK_KV_NHD"`` or ``"BLOCK_KV_HND"``
    one tensor for all layers             ``"FUSED_NHD"`` or ``"FUSED_HND"``
    MLA                                   ``"MLA"``
    scales of 8-bit types                 ``"block token head"``, ``"block"``, as they lie
    x-packed K                            ``"block head pack token lane"``
    V with the token innermost            ``"block head dim token"``
    ====================================  =======================================================

    For tensors of different layouts, make one call per layout and join the lists.

    Args:
        tensors: One tensor; a sequence with a tensor or a tuple of tensors for each layer; or a
            mapping from names to either. They are not copied, and are kept alive.
        layout: A name in ``PRESETS``, or the axes of every tensor, outermost first: ``block`` once,
            ``token`` at most once, any other words for the other axes.
        name: Name of the tensors in errors, as in ``kv[3][0]``; a mapping's keys replace it.

    Returns:
        One segment per tensor, or several if its rows do not have one regular stride, in the order
        of the tensors.

    Raises:
        LayoutError: Names the tensor: its number of axes is not that of the layout, it is empty,
            expanded, sparse or without memory, its elements overlap, or its blocks hold a different
            number of tokens than those of earlier tensors.
        ValueError: ``layout`` is invalid, or there are no tensors.
        TypeError: An argument is of the wrong type.

    >>> k, v = torch.zeros(2, 8, 16, 4, 64, dtype=torch.bfloat16)
    >>> [(s.name, s.num_rows, s.row_bytes, s.token_bytes) for s in
    ...  segments_from([(k, v)], layout="NHD")]
    [('kv[0][0]', 1, 8192, 512), ('kv[0][1]', 1, 8192, 512)]
    """
    axes = axes_of(layout)
    segments: list[Segment] = []
    tokens: tuple[str, int] | None = None
    for label, tensor in _named(tensors, name):
        check_tensor(label, tensor)
        if tensor.ndim != len(axes):
            raise LayoutError(
                label,
                f"has {tensor.ndim} axes, layout {' '.join(axes)!r} has {len(axes)}",
            )
        if "token" in axes:
            size = tensor.shape[axes.index("token")]
            if tokens is None:
                tokens = label, size
            elif tokens[1] != size:
                raise LayoutError(
                    label, f"holds {size} tokens a block, {tokens[0]!r} holds {tokens[1]}"
                )
        segments += _segments_of(label, tensor, axes)
    if not segments:
        raise ValueError("tensors must not be empty")
    return segments


def axes_of(layout: str) -> tuple[str, ...]:
    """The axes of a layout, outermost first.

    Args:
        layout: A name in ``PRESETS``, in upper or lower case, or the axes themselves.

    Raises:
        ValueError: Not exactly one axis is ``block``, or an axis is named twice.
        TypeError: ``layout`` is not a str.

    >>> axes_of("hnd")
    ('block', 'head', 'token', 'dim')
    """
    if not isinstance(layout, str):
        raise TypeError(f"layout must be a str, got {layout!r}")
    axes = tuple(PRESETS.get(layout.strip().upper(), layout).split())
    twice = sorted({axis for axis in axes if axes.count(axis) > 1})
    if twice:
        raise ValueError(f"layout names an axis twice: {', '.join(twice)} in {layout!r}")
    if "block" not in axes:
        raise ValueError(
            f"layout must be one of {', '.join(PRESETS)}, or axes with one called block;"
            f" got {layout!r}"
        )
    return axes


def _named(tensors: KVTensors, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor with its name in errors."""
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, got {name!r}")
    if isinstance(tensors, torch.Tensor):
        yield name, tensors
        return
    entries: Iterator[tuple[str, torch.Tensor | Sequence[torch.Tensor]]]
    if isinstance(tensors, Mapping):
        entries = ((str(key), entry) for key, entry in tensors.items())
    elif isinstance(tensors, Sequence) and not isinstance(tensors, str):
        entries = ((f"{name}[{i}]", entry) for i, entry in enumerate(tensors))
    else:
        raise TypeError(
            f"tensors must be a tensor, a sequence or a mapping, got {type(tensors).__name__}"
        )
    for label, entry in entries:
        if isinstance(entry, Sequence) and not isinstance(entry, str):
            yield from ((f"{label}[{i}]", part) for i, part in enumerate(entry))
        else:
            yield label, entry


class Axis(NamedTuple):
    """An axis in memory."""

    name: str
    size: int
    stride: int
    """Stride in bytes."""


class Rows(NamedTuple):
    """The bytes of a block, split into runs."""

    row_bytes: int
    token_bytes: int
    outer: tuple[Axis, ...]
    """The axes of the runs, smallest stride first, merged if possible."""

    def access_bytes(self, address: int, block_stride: int) -> int:
        """The widest access to which the start and the end of every copy are aligned."""
        strides = (axis.stride for axis in self.outer)
        figures = (address, block_stride, self.row_bytes, self.token_bytes, *strides)
        return math.gcd(WIDEST_ACCESS, *figures)


def _segments_of(name: str, tensor: torch.Tensor, axes: tuple[str, ...]) -> list[Segment]:
    """The segments of one tensor, in a canonical form."""
    element = tensor.element_size()
    block, rest = Axis("block", 1, 0), []
    for axis in map(Axis, axes, tensor.shape, (s * element for s in tensor.stride())):
        if axis.size == 1:
            continue  # its stride is never used, and torch allows any value
        if axis.stride <= 0:
            raise LayoutError(
                name,
                f"axis {axis.name} has stride {axis.stride}: its {axis.size} entries are the same"
                " memory (an expanded tensor?)",
            )
        if axis.name == "block":
            block = axis
        else:
            rest.append(axis)
    rest.sort(key=lambda axis: axis.stride)
    rows = _choose_rows(rest, element, tensor, block)
    tokens = tensor.shape[axes.index("token")] if "token" in axes else 0
    segments = _spread(name, tensor, block, rows, tokens)
    if not spread_out(element, ((axis.size, axis.stride) for axis in (block, *rest))):
        check_disjoint(segments)
    return segments


def _choose_rows(rest: list[Axis], element: int, tensor: torch.Tensor, block: Axis) -> Rows:
    """Rows that can be split after any token if accesses stay as wide, else the longest rows."""
    whole, split = (_cut(rest, element, stop_at_token=stop) for stop in (False, True))
    if split.token_bytes == 0:
        return whole
    # With one element per token, a few tokens are a few bytes in each of very many rows.
    if split.token_bytes == element and split.outer != whole.outer:
        return whole
    widths = (r.access_bytes(tensor.data_ptr(), block.stride) for r in (whole, split))
    return split if len(set(widths)) == 1 else whole


def _cut(rest: list[Axis], element: int, *, stop_at_token: bool) -> Rows:
    """The longest runs without a gap; optionally with the token as their outermost axis."""
    row_bytes, token_bytes, used = element, 0, 0
    for axis in rest:
        if axis.stride != row_bytes:
            break
        used += 1
        if stop_at_token and axis.name == "token":
            token_bytes = row_bytes
        row_bytes *= axis.size
        if token_bytes:
            break
    outer: list[Axis] = []
    for axis in rest[used:]:
        if outer and outer[-1].size * outer[-1].stride == axis.stride:
            outer[-1] = Axis(axis.name, outer[-1].size * axis.size, outer[-1].stride)
        else:
            outer.append(axis)
    return Rows(row_bytes, token_bytes, tuple(outer))


def _spread(name: str, tensor: torch.Tensor, block: Axis, rows: Rows, tokens: int) -> list[Segment]:
    """One segment with the most rows, repeated over every other axis outside the rows."""
    inner = max(rows.outer, key=lambda axis: axis.size, default=Axis("", 1, rows.row_bytes))
    others = [axis for axis in rows.outer if axis is not inner]
    places = itertools.product(*(range(0, a.size * a.stride, a.stride) for a in reversed(others)))
    span = (inner.size - 1) * inner.stride + rows.row_bytes
    return [
        Segment(
            name=f"{name}#{i}" if others else name,
            tensor=tensor,
            offset=sum(place),
            block_stride=block.stride or span,
            num_rows=inner.size,
            row_stride=inner.stride,
            row_bytes=rows.row_bytes,
            num_blocks=block.size,
            token_bytes=rows.token_bytes,
            block_tokens=tokens,
        )
        for i, place in enumerate(places)
    ]
