"""A kernel that does nothing, with the arguments of the copy kernel."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["empty_kernel"]


@triton.jit(
    do_not_specialize=["most_pairs", "num_chunks", "num_sources", "num_destinations"],
    do_not_specialize_on_alignment=["pairs", "count"],
)
def empty_kernel(  # noqa: PLR0917
    source_table,
    destination_table,
    chunks,
    pairs,
    count,
    most_pairs,
    num_chunks,
    num_sources,
    num_destinations,
    TILE: tl.constexpr,
    UNIT: tl.constexpr,
    WORD: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Returns."""
