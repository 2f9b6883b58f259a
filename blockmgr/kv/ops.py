"""``torch.ops.blockmgr``: copies as operators for torch.compile and CUDA graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from blockmgr.kv.copy_torch import copy_pairs, views_of
from blockmgr.kv.registration import Column, form_of, place_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["copy_blocks"]

torch.library.define(
    "blockmgr::copy_blocks",
    "(Tensor(a!)[] tensors, Tensor table, Tensor? chunks, Tensor pairs, Tensor count, "
    "int num_blocks, int access_bytes, int place, int form) -> ()",
)


@torch.library.impl("blockmgr::copy_blocks", "CompositeExplicitAutograd")
def _copy_blocks(  # noqa: PLR0917  (a schema has no keywords)
    tensors: Sequence[torch.Tensor],
    table: torch.Tensor,
    chunks: torch.Tensor | None,
    pairs: torch.Tensor,
    count: torch.Tensor,
    num_blocks: int,
    access_bytes: int,
    place: int,
    form: int,
) -> None:
    moved = place_of(tensors) != place
    if moved and form_of(tensors) != form:
        raise RuntimeError("the tensors are not laid out as they were registered")
    if moved and not all(tensor.data_ptr() for tensor in tensors):
        raise RuntimeError("the memory of a tensor was freed after it was registered")
    if chunks is None:  # the torch backend
        views = views_of(tensors, table, num_blocks, access_bytes)
        rows = pairs[: max(0, int(count))].cpu().numpy().copy()
        # As in the kernel: at most the tokens of a block.
        tokens = (v.row_length // v.token_length for v in views if v.token_length)
        np.minimum(rows[:, 2], next(tokens, 1), out=rows[:, 2])
        source, destination, num_tokens = rows.T
        valid = (source >= -1) & (source < num_blocks) & (num_tokens > 0)
        valid &= (destination >= 0) & (destination < num_blocks)
        copy_pairs(views, views, rows[valid])
        return
    from blockmgr.kv import copy_triton  # noqa: PLC0415  (imports triton)

    if moved:
        table = _table_for(table, tensors)
    copy_triton.launch_pairs(
        table,
        chunks,
        pairs,
        count,
        num_blocks=num_blocks,
        access_bytes=access_bytes,
    )


def _table_for(table: torch.Tensor, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The table for tensors that a compiler has moved, as functionalization does."""
    bases = torch.tensor([t.data_ptr() for t in tensors], dtype=torch.int64, device=table.device)
    table = table.clone()
    table[:, Column.ADDRESS] = bases[table[:, Column.TENSOR]] + table[:, Column.OFFSET]
    return table


@torch.library.register_fake("blockmgr::copy_blocks")  # type: ignore[untyped-decorator]
def _no_output(*_arguments: object) -> None:
    """The operator returns nothing, so it has no output shape."""


copy_blocks = torch.ops.blockmgr.copy_blocks
"""Copies the first ``count`` of ``pairs`` between blocks of ``tensors``, in any order.

``KVBlocks.copy_pairs`` calls it with all arguments except the pairs.
"""
