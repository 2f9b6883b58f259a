"""Converts tokens, slots and pages from and to lists, NumPy arrays and torch tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from blockmgr.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Ids", "Pages", "checked_device", "on_host", "pages_of", "slots_of", "to_device"]

Ids: TypeAlias = "Sequence[int] | npt.NDArray[np.integer[Any]] | Any"
"""Token ids or slots in a row: a list, a NumPy array or a torch tensor on any device."""

Pages: TypeAlias = npt.NDArray[np.int32]
"""``int32[n]`` on the host."""


def on_host(ids: Ids) -> Any:
    """The ids in a form that the core can read: tensors and arrays become contiguous."""
    if hasattr(ids, "detach"):
        ids = ids.detach().cpu().numpy()
    strided = isinstance(ids, np.ndarray) and ids.ndim == 1
    return np.ascontiguousarray(ids) if strided else ids


def slots_of(pages: npt.NDArray[Any], page_size: int) -> npt.NDArray[np.int32]:
    """``int32[pages * page_size]``: slot ``s`` is in page ``s // page_size``."""
    firsts: Pages = pages.astype(np.int32) * np.int32(page_size)
    if page_size == 1:
        return firsts
    offsets: Pages = np.arange(page_size, dtype=np.int32)
    return (firsts[:, None] + offsets).reshape(-1)


def pages_of(indices: Ids, page_size: int, num_pages: int, start: int = 0) -> Pages:
    """The pages of a sequence's slots ``[n]``, from its page ``start`` on.

    Raises:
        ValueError: Not one dimension, out of bounds, or not the slots of whole pages in order (of
            the last page, the leading ones).
        TypeError: Slots that are not integers.
    """
    slots = np.asarray(on_host(indices))
    if slots.ndim != 1:
        raise ValueError(f"indices must have one dimension, got {slots.ndim}")
    if slots.dtype.kind not in "iu" and slots.size:
        raise TypeError(f"indices must be integers, got {slots.dtype}")
    slots = slots[start * page_size :]
    pages = slots[::page_size].astype(np.int64) // page_size
    # A page out of bounds is clipped to the nearest one, whose slots differ.
    nearest = np.minimum(np.maximum(pages, 0), num_pages - 1)
    is_right = slots_of(nearest, page_size)[: len(slots)] == slots
    if not is_right.all():
        at = int(np.argmin(is_right))
        raise ValueError(
            f"indices must be the slots of whole pages in order, in [0, {num_pages * page_size}); "
            f"indices[{start * page_size + at}] is {slots[at]}"
        )
    return pages.astype(np.int32)


def checked_device(device: Any) -> Any:
    """A device of torch for results; None for NumPy arrays on the host."""
    if device is None:
        return None
    try:
        import torch  # noqa: PLC0415  # only with a device
    except ImportError:
        raise MissingExtraError("torch", "a radix cache with a device") from None
    try:
        checked = torch.device(device)
        torch.empty(0, device=checked)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device must be one that torch has here, got {device!r}") from error
    return checked


def to_device(array: npt.NDArray[np.int32], device: Any) -> Any:
    """The array itself without a device, else a torch tensor on it."""
    if device is None:
        return array
    import torch  # noqa: PLC0415  # only with a device

    return torch.from_numpy(array).to(device)
