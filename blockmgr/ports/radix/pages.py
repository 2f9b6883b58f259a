"""Converts tokens, slots and pages from and to lists, NumPy arrays and torch tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from blockmgr.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Ids", "PageSlots", "Pages", "checked_device", "on_host", "to_device"]

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


class PageSlots:
    """Maps pages to slots: slot ``s`` is in page ``s // page_size``."""

    __slots__ = ("_every", "_size", "page_size")

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.page_size = page_size
        self._size = np.array(page_size, np.int32)  # saves converting an int at every division
        # A look-up takes a third of the time of a computation (benchmarks/ports), for 4 bytes per
        # slot.
        self._every = np.arange(num_pages * page_size, dtype=np.int32).reshape(-1, page_size)

    def slots(self, pages: Pages) -> npt.NDArray[np.int32]:
        """``int32[pages * page_size]`` on the host: the slots of pages, in order."""
        return pages if self.page_size == 1 else self._every.take(pages, 0).reshape(-1)

    def pages(self, indices: Ids, start: int = 0) -> Pages:
        """The pages of a sequence's slots ``[n]``, from its page ``start`` on.

        Raises:
            ValueError: Not one dimension, out of bounds, or not the slots of whole pages in order
                (of the last page, the leading ones).
            TypeError: Slots that are not integers.
        """
        slots = np.asarray(on_host(indices))
        if slots.ndim != 1:
            raise ValueError(f"indices must have one dimension, got {slots.ndim}")
        if slots.dtype.kind not in "iu" and slots.size:
            raise TypeError(f"indices must be integers, got {slots.dtype}")
        slots = slots[start * self.page_size :]
        # A slot that is too large becomes negative or stays too large, and both are detected.
        firsts = slots[:: self.page_size]
        is_int32 = slots.dtype == np.int32
        firsts = firsts if is_int32 else firsts.astype(np.int64)
        pages: npt.NDArray[Any] = np.floor_divide(firsts, self._size)
        # A page out of bounds is clipped to the nearest one, whose slots differ.
        expected = self._every.take(pages, 0, None, "clip")
        # Compares bytes first, which takes half the time; an unfinished page makes them differ.
        if not is_int32 or expected.tobytes() != slots.tobytes():
            expected = expected.reshape(-1)[: len(slots)]
            if not np.array_equal(expected, slots):
                at = int(np.argmin(expected == slots))
                raise ValueError(
                    f"indices must be the slots of whole pages in order, in [0, "
                    f"{self._every.size}); "
                    f"indices[{start * self.page_size + at}] is {slots[at]}"
                )
        return pages.astype(np.int32, copy=False)


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
