"""Block copies by one Triton launch: all pairs, all layers, K and V, only the filled tokens."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from blockmgr.errors import StepError
from blockmgr.kv.copy_kernels import copy_few_kernel, copy_kernel, move_kernel
from blockmgr.kv.pairs import make_ring, on_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockmgr.kv.registration import Registration

__all__ = ["TritonCopier", "launch_pairs"]


# What one program copies at a time: at the widest access 4 KiB, one tensor's part of a block of 16
# tokens and one head. Small programs fill a multiprocessor: some wait for entries of tables, others
# move bytes. Chosen on an H200 among 4 to 32 KiB, 2 to 8 warps, 4 to 32 programs: for five models
# and 8 to 2,048 pairs within 17 % of the best choice for each list, and 5 % in the mean.
TILE_UNITS = 256
NUM_WARPS = 2
PROGRAMS_PER_PROCESSOR = 32

# A graph launches the programs for its longest list even when the list is empty, as in most steps:
# 3.6 us with so few programs, 5.7 us with 32; 256 pairs took as long with either (H200).
PROGRAMS_OF_A_GRAPH = 8
INTERPRETED_PROGRAMS = 4

# Lists of so few pairs are passed by value: a transfer costs host time and delays the launch.
MOST_BY_VALUE = 4
BY_VALUE = MOST_BY_VALUE

# copy_kernel counts its items in 32 bits, which must have room for one grid stride past the last.
MOST_ITEMS = 2**30

WORDS = {16: (tl.int64, 2), 8: (tl.int64, 1), 4: (tl.int32, 1), 2: (tl.int16, 1), 1: (tl.int8, 1)}


def is_interpreted() -> bool:
    """Whether the kernels run in Triton's interpreter, as decided when this module was loaded."""
    return not isinstance(copy_kernel, triton.runtime.JITFunction)


@functools.cache
def _most_programs(device: torch.device, per_processor: int = PROGRAMS_PER_PROCESSOR) -> int:
    if device.type == "cpu":
        return INTERPRETED_PROGRAMS
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return int(per_processor * processors)


def _constants(access_bytes: int) -> tuple[Any, ...]:
    return (TILE_UNITS, access_bytes, *WORDS[access_bytes])


# One stage: a load moved before the store of the previous round would read stale bytes. Nothing is
# computed, so nothing can be fused; setting it explicitly avoids Triton's warning.
OPTIONS = {"num_warps": NUM_WARPS, "num_stages": 1, "enable_fp_fusion": False}


def launch_pairs(
    table: torch.Tensor,
    chunks: torch.Tensor,
    pairs: torch.Tensor,
    count: torch.Tensor,
    *,
    num_blocks: int,
    access_bytes: int,
) -> None:
    """Copies a list that lies on the device, on the current stream.

    Args:
        table: ``int64[num_segments, COLUMNS]`` on the device, with the current addresses.
        chunks: ``int32[num_chunks, 2]`` on the device.
        pairs: ``int32[n, 3]`` on the device.
        count: ``int32[1]`` on the device; the first so many pairs are copied.
        num_blocks: Blocks of the pool.
        access_bytes: Unit of the table, in bytes.
    """
    items = len(pairs) * len(chunks)
    if not items:
        return
    grid = (min(items, _most_programs(table.device, PROGRAMS_OF_A_GRAPH)),)
    sizes = (len(pairs), len(chunks), num_blocks, num_blocks)
    constants = _constants(access_bytes)
    with on_device(table.device):
        copy_kernel[grid](table, table, chunks, pairs, count, *sizes, *constants, **OPTIONS)


class _Launcher:
    """One kernel: compiled ahead, and launched without Triton's look-up.

    The look-up by arguments is half of the host time of a launch. The compiled kernel works for any
    list: it is not specialised on arguments that differ between lists.
    """

    def __init__(self, kernel: Any, access_bytes: int, *example: Any) -> None:
        self._constants = _constants(access_bytes)
        self._options = OPTIONS
        self._run = kernel
        if not is_interpreted():
            self._run = kernel.warmup(*example, *self._constants, grid=(1,), **self._options)
            self._run.run  # noqa: B018  (loads the code onto the device)
            self._options = {}

    def __call__(self, num_programs: int, *arguments: Any) -> None:
        self._run[num_programs, 1, 1](*arguments, *self._constants, **self._options)


class TritonCopier:
    """The triton backend of a pool: kernels compiled and buffers allocated once, here.

    A launch allocates nothing and waits for nothing, unless every slot of the ring is in flight.
    """

    def __init__(self, registered: Registration, max_pairs: int) -> None:
        device = registered.device
        if is_interpreted() != (device.type == "cpu"):
            raise ValueError(
                f"backend 'triton' on {device} needs TRITON_INTERPRET"
                f" {'set to 1' if device.type == 'cpu' else 'unset'} before it is first used"
            )
        self._registered, self._device = registered, device
        self._max_pairs = max_pairs
        self.chunks = _chunks(registered).to(device)
        most = MOST_ITEMS // len(self.chunks)
        if max_pairs > most:
            raise ValueError(
                f"max_pairs must be <= {most} for blocks of {registered.bytes_per_block} bytes,"
                f" got {max_pairs}"
            )
        self.table = registered.table.to(device)
        self._other_tables: WeakKeyDictionary[Registration, torch.Tensor] = WeakKeyDictionary()
        # Moves take up to four numbers per pair: the start of a group, and six numbers for the
        # three moves of a cycle of two pairs.
        self._ring = make_ring(max_pairs + max_pairs // 3 + 2, device)
        self._most_programs = _most_programs(device)
        with on_device(self._device):
            self._copy, self._few, self._move = self._compile()

    def _compile(self) -> tuple[_Launcher, _Launcher, _Launcher]:
        table, width, numbers = self.table, self._registered.access_bytes, self._ring.free.device
        places, sizes = (table, table, self.chunks), (2, 2, 2, 2)
        return (
            _Launcher(copy_kernel, width, *places, numbers, numbers, *sizes),
            _Launcher(copy_few_kernel, width, *places, *[2] * 12, *sizes),
            _Launcher(move_kernel, width, table, self.chunks, numbers, *sizes[:2]),
        )

    def _table_of(self, pool: Registration) -> torch.Tensor:
        if pool is self._registered:
            return self.table
        if pool not in self._other_tables:
            self._other_tables[pool] = _one_off(pool.table, self._device)
        return self._other_tables[pool]

    def stage(self) -> npt.NDArray[np.int32]:
        """Rows to pack the next list into; waits if all slots are in flight."""
        with on_device(self._device):
            captured = self._device.type != "cpu" and torch.cuda.is_current_stream_capturing()
        if captured:
            raise StepError(
                "a list captured into a graph would be copied again by every replay; fill a"
                " pair_buffer() before each replay, and capture copy_buffer()"
            )
        return self._ring.free.rows[: 1 + self._max_pairs]

    def launch(self, source: Registration, destination: Registration, count: int) -> None:
        """Copies the staged pairs from one pool to another; a pool on the host must be pinned."""
        num_chunks = len(self.chunks)
        num_programs = min(count * num_chunks, self._most_programs)
        places = self._table_of(source), self._table_of(destination), self.chunks
        sizes = count, num_chunks, source.num_blocks, destination.num_blocks
        with on_device(self._device):
            if count <= BY_VALUE:
                pairs = self._ring.free.numbers[3 : 3 * (1 + count)].tolist()
                pairs += [0] * (3 * (MOST_BY_VALUE - count))
                self._few(num_programs, *places, *pairs, *sizes)
                return
            with self._ring.using() as slot:
                _transfer(slot.host, slot.device, 3 * (1 + count))
                self._copy(num_programs, *places, slot.device_pairs, slot.device, *sizes)

    def move(self, starts: npt.NDArray[np.int32], moves: npt.NDArray[np.int32]) -> None:
        """Runs groups of moves, as ``order_copies`` returns them."""
        numbers = np.concatenate([starts, moves.ravel()])
        num_groups = len(starts) - 1
        free = self._ring.free
        with on_device(self._device):
            if len(numbers) > len(free.numbers):
                self._launch_moves(num_groups, _one_off(torch.from_numpy(numbers), self._device))
                return
            free.numbers[: len(numbers)] = numbers
            with self._ring.using() as slot:
                _transfer(slot.host, slot.device, len(numbers))
                self._launch_moves(num_groups, slot.device)

    def _launch_moves(self, num_groups: int, groups: torch.Tensor) -> None:
        num_chunks = len(self.chunks)
        num_programs = min(num_groups * num_chunks, self._most_programs)
        self._move(num_programs, self.table, self.chunks, groups, num_groups, num_chunks)

    def send(self, rows: torch.Tensor, count: int) -> None:
        """Puts the staged count and pairs into ``int32[n, 3]`` on the device."""
        with on_device(self._device), self._ring.using() as slot:
            _transfer(slot.host, rows.view(-1), 3 * (1 + count))


def _transfer(host: torch.Tensor, device: torch.Tensor, size: int) -> None:
    if host is not device:
        device[:size].copy_(host[:size], non_blocking=True)


def _one_off(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Sends a tensor without waiting; torch keeps its pinned copy until the device has read it."""
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)


def _chunks(registered: Registration) -> torch.Tensor:
    rows: list[Sequence[int]] = []
    for index, segment in enumerate(registered.segments):
        length = segment.bytes_per_block // registered.access_bytes
        rows += [(index, first) for first in range(0, length, TILE_UNITS)]
    return torch.tensor(rows, dtype=torch.int32)
