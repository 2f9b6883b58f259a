"""Slots and block ids for a cache: checks host arrays, but not device tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from blockmgr._core import int_array
from blockmgr.blocks import PAD_SLOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    IntArray: TypeAlias = npt.NDArray[np.int64]

__all__ = [
    "Indices",
    "Pool",
    "Slots",
    "array_of",
    "batch_ids",
    "device_ids",
    "host_ids",
    "pairs_of",
    "to_device",
]

Indices: TypeAlias = "Sequence[int] | npt.NDArray[np.integer[Any]] | torch.Tensor"
"""Whole numbers on the host (a list, an array, a CPU tensor), or in a device tensor."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The pool that slots refer to.

    Attributes:
        num_blocks: Number of blocks.
        block_size: Tokens per block.
        device: Device of the tensors.
        takes_mapping: Whether a kernel that takes slots writes the tokens.
    """

    num_blocks: int
    block_size: int
    device: torch.device
    takes_mapping: bool


@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    """A checked slot mapping on the cache's device; made by ``slots``.

    Built once per step, it avoids checking and sending the same slots for every layer.

    Attributes:
        pool: The pool it was made for.
        num_tokens: Number of tokens, including padding.
        mapping: ``int64[num_tokens]`` on the device, for a kernel; else None.
        blocks: ``int64[num_kept]`` on the device: block of each token that is not padding; None
            for a kernel.
        offsets: Likewise: its offset in the block.
        kept: ``int64[num_kept]`` on the device: indices of these tokens; None for all.
    """

    pool: Pool
    num_tokens: int
    mapping: torch.Tensor | None = None
    blocks: torch.Tensor | None = None
    offsets: torch.Tensor | None = None
    kept: torch.Tensor | None = None

    @classmethod
    def build(cls, slot_mapping: Indices, pool: Pool) -> Slots:
        """Checks the slots and brings them to the device.

        Raises:
            ValueError: A slot on the host is out of range, or there is not one axis.
            TypeError: The slots are not whole numbers.
        """
        num_slots = pool.num_blocks * pool.block_size
        on_device = device_ids("slot_mapping", slot_mapping, pool.device)
        if on_device is None:
            return cls._on_host(
                host_ids("slot_mapping", slot_mapping, num_slots, low=PAD_SLOT), pool
            )
        mapping = on_device.to(torch.int64).contiguous()
        if pool.takes_mapping:
            return cls(pool, len(mapping), mapping)
        kept = torch.nonzero((mapping >= 0) & (mapping < num_slots)).flatten()
        places = mapping[kept]
        blocks, offsets = places // pool.block_size, places % pool.block_size
        return cls(pool, len(mapping), None, blocks, offsets, kept)

    @classmethod
    def _on_host(cls, slots: IntArray, pool: Pool) -> Slots:
        if pool.takes_mapping:
            return cls(pool, len(slots), to_device(slots, pool.device))
        kept = None
        num_tokens = len(slots)
        if num_tokens and slots.min() == PAD_SLOT:
            keep = np.flatnonzero(slots != PAD_SLOT)
            kept = to_device(keep, pool.device)
            slots = slots[keep]
        columns = np.divmod(slots, pool.block_size)
        blocks, offsets = (to_device(column, pool.device) for column in columns)
        return cls(pool, num_tokens, None, blocks, offsets, kept)


def device_ids(name: str, values: Indices, device: torch.device) -> torch.Tensor | None:
    """``values``, unchecked, if they are a tensor on another device than the host; else None.

    Raises:
        ValueError: Its device is not the cache's, or there is not one axis.
        TypeError: The tensor does not hold whole numbers.
    """
    if not isinstance(values, torch.Tensor) or values.device.type == "cpu":
        return None
    if values.device != device:
        raise ValueError(f"{name} is on {values.device}, the cache is on {device}")
    if values.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"{name} must be int64 or int32, got {values.dtype}")
    if values.ndim != 1:
        raise ValueError(f"{name} must have one axis, got shape {tuple(values.shape)}")
    return values


def array_of(name: str, values: npt.ArrayLike, ndim: int) -> npt.NDArray[np.integer[Any]]:
    """The whole numbers in ``values``, read once, as an array with ``ndim`` axes.

    Raises:
        ValueError: Another number of axes, rows of different lengths, or an int beyond 64 bits.
        TypeError: It cannot be read, or it does not hold whole numbers.
    """
    if ndim == 1:
        return int_array(np.asarray(values) if isinstance(values, torch.Tensor) else values, name)
    if isinstance(values, list | tuple) and ndim > 1:
        rows = [array_of(f"{name}[{i}]", row, ndim - 1) for i, row in enumerate(values)]
        if len({row.shape for row in rows}) > 1:
            raise ValueError(f"{name} must have rows of one length, got {[*map(len, rows)]}")
        return np.stack(rows) if rows else np.zeros((0,) * ndim, np.int64)
    try:
        # Neither call iterates over the sequence, which may be infinite.
        array = np.asarray(values if hasattr(values, "__array__") else memoryview(values))  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        kind = type(values).__name__
        raise TypeError(f"{name} must be a list, array or tensor of ints, got {kind}") from error
    if array.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} axes, got shape {array.shape}")
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name} must hold whole numbers, got {array.dtype}")
    return array if array.size else array.astype(np.int64)


def host_ids(name: str, values: Indices, bound: int, *, low: int = 0, ndim: int = 1) -> IntArray:
    """A new array of ``values``, each in ``[low, bound)``.

    Raises:
        ValueError: A value is out of range, or there are not ``ndim`` axes.
        TypeError: The values are not whole numbers.
    """
    array = array_of(name, values, ndim)
    if array.size == 0:
        return array.astype(np.int64)
    own = array.astype(np.int64)
    # One pass for both bounds: as unsigned, a number below the lower bound is huge.
    outside = (own - low if low else own).view(np.uint64).max() >= bound - low
    # The largest unsigned number would be -1 as signed, which is padding.
    if outside or (array.dtype == np.uint64 and own.min() < 0):
        at = np.argwhere((array < low) | (array >= bound))[0].tolist()
        raise ValueError(f"{name}{at} must be in [{low}, {bound - 1}], got {array[tuple(at)]}")
    return own


def batch_ids(
    block_tables: Indices, lengths: Indices, num_blocks: int, block_size: int
) -> tuple[IntArray, int]:
    """Block ids for the longest of several sequences; block 0 past the end of shorter ones.

    Raises:
        ValueError: A block id in use is out of range, a table is too short, or a shape is wrong.
        TypeError: Lengths or ids are not whole numbers.
    """
    count = host_ids("lengths", lengths, 2**31)
    tables = array_of("block_tables", block_tables, 2)
    if len(tables) != len(count):
        raise ValueError(
            f"block_tables must have a row for each of {len(count)} lengths,"
            f" got shape {tables.shape}"
        )
    longest = int(count.max(initial=0))
    used = -(-longest // block_size)
    if used > tables.shape[1]:
        raise ValueError(
            f"block_tables has {tables.shape[1]} blocks a row, {longest} tokens need {used}"
        )
    is_used = np.arange(used) * block_size < count[:, None]
    tables = np.where(is_used, tables[:, :used], 0)
    return host_ids("block_tables", tables, num_blocks, ndim=2), longest


def pairs_of(**columns: Indices) -> IntArray:
    """Two lists of block ids as pairs. The caller checks the ids.

    Raises:
        ValueError: The lists differ in length, or have more than one axis.
        TypeError: They do not hold whole numbers.
    """
    arrays = {name: array_of(name, ids, 1) for name, ids in columns.items()}
    counts = {name: array.size for name, array in arrays.items()}
    if len(set(counts.values())) > 1:
        listed = " and ".join(f"{count} {name}" for name, count in counts.items())
        raise ValueError(f"both lists must be equally long, got {listed}")
    return np.stack([array.astype(np.int64) for array in arrays.values()], axis=1)


def to_device(array: IntArray, device: torch.device) -> torch.Tensor:
    """The array as a tensor on the device, without waiting for the device."""
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    if device.type == "cuda" and array.size:  # with pageable memory, the host would wait
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
