"""Computes how many pages fit into memory, and creates the page table."""

from __future__ import annotations

from typing import Any

import numpy as np

from blockmgr.arguments import whole
from blockmgr.ports.radix.pages import checked_device, to_device

__all__ = ["create_page_table", "get_mha_cache_per_page", "get_num_pages_for_kv_cache"]


def get_mha_cache_per_page(  # noqa: PLR0917  # the original's order
    head_dim: int,
    num_kv_heads: int,
    num_layers: int,
    page_size: int = 1,
    tp_size: int = 1,
    dtype_size: int = 2,
) -> int:
    """Bytes of K and V per page, for all layers, on one of ``tp_size`` devices.

    ``num_kv_heads`` are those of all devices together, ``dtype_size`` is bytes per element.

    Raises:
        ValueError: A number below 1, or heads that do not divide evenly.
        TypeError: A number that is not an int.

    >>> get_mha_cache_per_page(head_dim=256, num_kv_heads=8, num_layers=1)
    8192
    """
    size = 2 * whole("head_dim", head_dim, 1) * whole("num_layers", num_layers, 1)
    size *= whole("page_size", page_size, 1) * whole("dtype_size", dtype_size, 1)
    if whole("num_kv_heads", num_kv_heads, 1) % whole("tp_size", tp_size, 1):
        raise ValueError(
            f"num_kv_heads must be a multiple of tp_size, got {num_kv_heads} over {tp_size}"
        )
    return size * (num_kv_heads // tp_size)


def get_num_pages_for_kv_cache(available_memory: int, cache_per_page: int) -> int:
    """The number of whole pages of ``cache_per_page`` bytes that fit in so many bytes.

    Raises:
        ValueError: ``available_memory`` below 0, or ``cache_per_page`` below 1.
        TypeError: A number that is not an int.

    >>> get_num_pages_for_kv_cache(4 * 1024**3, 8192)
    524288
    """
    memory = whole("available_memory", available_memory, 0)
    return memory // whole("cache_per_page", cache_per_page, 1)


def create_page_table(max_running_req: int, max_seq_len: int, device: object = None) -> Any:
    """``int32[max_running_req, max_seq_len]`` zeros: the slot of each token of each request.

    A NumPy array on the host, or, with a ``device``, a torch tensor on it; it belongs to the
    caller.

    Raises:
        MissingExtraError: A device, and torch is not installed.
        ValueError: A number below 1, or no such device.
        TypeError: A number that is not an int.
    """
    shape = whole("max_running_req", max_running_req, 1), whole("max_seq_len", max_seq_len, 1)
    return to_device(np.zeros(shape, np.int32), checked_device(device))
