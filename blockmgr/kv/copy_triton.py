"""Block copies by one Triton launch: all pairs, all layers, K and V, only the filled tokens."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple
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

__all__ = ["TritonCopier", "launch_pairs", "pick_tile"]


class Tile(NamedTuple):
    """The part of a block that one program copies at a time."""

    units: int
    num_warps: int


# At the widest access 16 KiB and 4 KiB: long runs for long lists; for short lists, as many programs
# as an accelerator runs at once.
TILES = (Tile(1024, 8), Tile(256, 4))
SHORT_LIST_BYTES = 4 << 20
PROGRAMS_PER_PROCESSOR = 4
INTERPRETED_PROGRAMS = 4

# Lists of so few pairs are passed by value: a transfer costs host time and delays the launch.
MOST_BY_VALUE = 4
BY_VALUE = MOST_BY_VALUE

# copy_kernel counts its items in 32 bits, which must have room for one grid stride past the last.
MOST_ITEMS = 2**30

WORDS = {16: (tl.int64, 2), 8: (tl.int64, 1), 4: (tl.int32, 1), 2: (tl.int16, 1), 1: (tl.int8, 1)}


def pick_tile(num_bytes: int) -> int:
    """The index in ``TILES`` of the best tile for so many bytes."""
    return int(num_bytes < SHORT_LIST_BYTES)


def is_interpreted() -> bool:
    """Whether the kernels run in Triton's interpreter, as decided when this module was loaded."""
    return not isinstance(copy_kernel, triton.runtime.JITFunction)


@functools.cache
def _most_programs(device: torch.device) -> int:
    if device.type == "cpu":
        return INTERPRETED_PROGRAMS
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return int(PROGRAMS_PER_PROCESSOR * processors)


def _constants(tile: Tile, access_bytes: int) -> tuple[Any, ...]:
    return (tile.units, access_bytes, *WORDS[access_bytes])


def _options(tile: Tile) -> dict[str, Any]:
    # One stage: a load moved before the store of the previous round would read stale bytes. Nothing
    # is computed, so nothing can be fused; setting it explicitly avoids Triton's warning.
    return {"num_warps": tile.num_warps, "num_stages": 1, "enable_fp_fusion": False}


def launch_pairs(
    table: torch.Tensor,
    chunks: Sequence[torch.Tensor],
    pairs: torch.Tensor,
    count: torch.Tensor,
    *,
    num_blocks: int,
    bytes_per_block: int,
    access_bytes: int,
) -> None:
    """Copies a list that lies on the device, on the current stream.

    Args:
        table: ``int64[num_segments, COLUMNS]`` on the device, with the current addresses.
        chunks: ``int32[num_chunks, 2]`` on the device, for each of ``TILES``.
        pairs: ``int32[n, 3]`` on the device.
        count: ``int32[1]`` on the device; the first so many pairs are copied.
        num_blocks: Blocks of the pool.
        bytes_per_block: Bytes of a block over all segments.
        access_bytes: Unit of the table, in bytes.
    """
    which = pick_tile(len(pairs) * bytes_per_block)
    tile, cut = TILES[which], chunks[which]
    items = len(pairs) * len(cut)
    if not items:
        return
    grid = (min(items, _most_programs(table.device)),)
    sizes = (len(pairs), len(cut), num_blocks, num_blocks)
    constants = _constants(tile, access_bytes)
    with on_device(table.device):
        copy_kernel[grid](table, table, cut, pairs, count, *sizes, *constants, **_options(tile))


class _Launcher:
    """One kernel with one tile: compiled ahead, and launched without Triton's look-up.

    The look-up by arguments is half of the host time of a launch. The compiled kernel works for any
    list: it is not specialised on arguments that differ between lists.
    """

    def __init__(self, kernel: Any, which: int, access_bytes: int, *example: Any) -> None:
        tile = TILES[which]
        self._constants = _constants(tile, access_bytes)
        self._options = _options(tile)
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
        self._bytes_per_block = registered.bytes_per_block
        self.chunks = [_chunks(registered, tile).to(device) for tile in TILES]
        most = MOST_ITEMS // max(map(len, self.chunks))
        if max_pairs > most:
            raise ValueError(
                f"max_pairs must be <= {most} for blocks of {self._bytes_per_block} bytes,"
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

    def _compile(self) -> tuple[list[_Launcher], list[_Launcher], list[_Launcher]]:
        table, width, numbers = self.table, self._registered.access_bytes, self._ring.free.device
        tiles = list(enumerate(self.chunks))
        sizes = (2, 2, 2, 2)
        copy = (
            _Launcher(copy_kernel, i, width, table, table, chunks, numbers, numbers, *sizes)
            for i, chunks in tiles
        )
        few = (
            _Launcher(copy_few_kernel, i, width, table, table, chunks, *[2] * 12, *sizes)
            for i, chunks in tiles
        )
        move = (
            _Launcher(move_kernel, i, width, table, chunks, numbers, *sizes[:2])
            for i, chunks in tiles
        )
        return list(copy), list(few), list(move)

    def _table_of(self, pool: Registration) -> torch.Tensor:
        if pool is self._registered:
            return self.table
        if pool not in self._other_tables:
            self._other_tables[pool] = pool.table.to(self._device)
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
        tile = pick_tile(count * self._bytes_per_block)
        chunks = self.chunks[tile]
        num_programs = min(count * len(chunks), self._most_programs)
        places = self._table_of(source), self._table_of(destination), chunks
        sizes = count, len(chunks), source.num_blocks, destination.num_blocks
        with on_device(self._device):
            if count <= BY_VALUE:
                pairs = self._ring.free.numbers[3 : 3 * (1 + count)].tolist()
                pairs += [0] * (3 * (MOST_BY_VALUE - count))
                self._few[tile](num_programs, *places, *pairs, *sizes)
                return
            with self._ring.using() as slot:
                _transfer(slot.host, slot.device, 3 * (1 + count))
                self._copy[tile](num_programs, *places, slot.device_pairs, slot.device, *sizes)

    def move(self, starts: npt.NDArray[np.int32], moves: npt.NDArray[np.int32]) -> None:
        """Runs groups of moves, as ``order_copies`` returns them."""
        numbers = np.concatenate([starts, moves.ravel()])
        num_groups = len(starts) - 1
        free = self._ring.free
        with on_device(self._device):
            if len(numbers) > len(free.numbers):
                self._launch_moves(num_groups, _one_off(numbers, self._device))
                return
            free.numbers[: len(numbers)] = numbers
            with self._ring.using() as slot:
                _transfer(slot.host, slot.device, len(numbers))
                self._launch_moves(num_groups, slot.device)

    def _launch_moves(self, num_groups: int, groups: torch.Tensor) -> None:
        tile = pick_tile(num_groups * self._bytes_per_block)
        chunks = self.chunks[tile]
        num_programs = min(num_groups * len(chunks), self._most_programs)
        self._move[tile](num_programs, self.table, chunks, groups, num_groups, len(chunks))

    def send(self, rows: torch.Tensor, count: int) -> None:
        """Puts the staged count and pairs into ``int32[n, 3]`` on the device."""
        with on_device(self._device), self._ring.using() as slot:
            _transfer(slot.host, rows.view(-1), 3 * (1 + count))


def _transfer(host: torch.Tensor, device: torch.Tensor, size: int) -> None:
    if host is not device:
        device[:size].copy_(host[:size], non_blocking=True)


def _one_off(numbers: npt.NDArray[np.int32], device: torch.device) -> torch.Tensor:
    """Sends a list longer than the slots; torch keeps its memory until the device has read it."""
    host = torch.from_numpy(numbers)
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)


def _chunks(registered: Registration, tile: Tile) -> torch.Tensor:
    rows: list[Sequence[int]] = []
    for index, segment in enumerate(registered.segments):
        length = segment.bytes_per_block // registered.access_bytes
        rows += [(index, first) for first in range(0, length, tile.units)]
    return torch.tensor(rows, dtype=torch.int32)
